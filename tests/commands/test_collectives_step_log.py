"""``hpcverify fabric test --step-log``: which rank slows a training job."""

from __future__ import annotations

from pathlib import Path

from tests.cli import Cli
from tests.isolation.test_shares import write_log


def test_the_rank_that_slows_a_job_is_named(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "steps.csv"
    log.write_text("\n".join(write_log()))

    done = cli("fabric", "test", "--step-log", str(log))

    assert done.returncode == 1, done.stderr
    told = "rank 1 computes 200 ms longer than the others in each step: without this delay"
    assert done.stdout.startswith(told)


def test_where_nobody_slows_it_the_command_says_so(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "steps.csv"
    log.write_text("\n".join(line.replace("0.3", "0.1") for line in write_log()))
    done = cli("fabric", "test", "--step-log", str(log))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no rank slows this job: 3 ranks, 8 steps\n"


def test_a_file_that_is_no_step_log_is_named(cli: Cli, tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"rank,computing\xff\xfe")
    for name in (binary, tmp_path / "none.csv"):
        done = cli("fabric", "test", "--step-log", str(name))

        assert done.returncode == 2
        assert str(name) in done.stderr
        assert "Traceback" not in done.stderr
