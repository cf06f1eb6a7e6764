"""``hpcverify qualify`` does not pretend where there is no GPU; its mistakes are one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import Cli
from tests.nvml_lab.nvmllab import Lab


def test_without_a_gpu_it_is_one_line_and_nothing_is_left(cli: Cli, tmp_path: Path) -> None:
    done = cli("qualify", "-o", str(tmp_path / "out"))

    assert done.returncode == 3
    assert done.stderr.strip() == (
        "hpcverify: no GPU to qualify: neither the driver nor the PCI bus lists a GPU; "
        "see hpcverify doctor"
    )
    assert not (tmp_path / "out").exists()


def test_a_driver_that_is_broken_is_named(cli: Cli, lab: Lab, tmp_path: Path) -> None:
    cli.environment |= lab.environment
    lab.load("driver-mismatch")
    done = cli("qualify", "-o", str(tmp_path / "out"))

    assert done.returncode == 3
    assert "no GPU to qualify" in done.stderr
    assert "mismatch" in done.stderr.lower()


def test_gpus_that_others_use_are_left_alone(cli: Cli, lab: Lab, tmp_path: Path) -> None:
    cli.environment |= lab.environment
    lab.write("gpu.3.process = 4242 1073741824 python3 train.py")
    done = cli("qualify", "-o", str(tmp_path / "out"))
    assert done.returncode == 3
    assert "in use by process 4242. Fix: wait until it ends" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--only", "product"), "no step is called 'product'; did you mean products?"),
        (("-o", "/nonexistent/out"), "/nonexistent/out cannot be made: No such file"),
        (("-o", "{used}"), "is not empty: name a new directory with -o"),
    ],
)
def test_a_mistake_is_one_line(
    cli: Cli, tmp_path: Path, arguments: tuple[str, str], fault: str
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    done = cli("qualify", *(a.format(used=tmp_path / "used") for a in arguments))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert fault in done.stderr
