"""all_reduce_perf is asked on one node, and judges nothing, whatever it does."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import msgspec
import pytest

from hpcverify.commands.collectives import choose_status, describe
from hpcverify.records.collectives import (
    CollectiveRun,
    CollectiveTiming,
    OpinionRate,
    RankPlace,
    SecondOpinion,
)
from hpcverify_checks.collectives.second_opinion import ask, make_environment
from tests.checks.collectives.launched import KIB, MIB

RECORDED = Path(__file__).parents[1] / "ranks/recorded"
"""What people have posted: its README names the sources."""
SIZES = (32 * KIB, MIB, 16 * MIB)


def run_of(*nodes: str, operation: str = "all_reduce", backend: str = "nccl") -> CollectiveRun:
    """Make the result of eight ranks on each of *nodes*."""
    return CollectiveRun(
        id="x",
        started="",
        ended="",
        version="",
        ranks=tuple(
            RankPlace(8 * place + rank, node, f"GPU-{rank}")
            for place, node in enumerate(nodes)
            for rank in range(8)
        ),
        backend=backend,
        settings={"NCCL_ALGO": "Ring"},
        timings=tuple(
            CollectiveTiming(operation, size, 9, 1e-4, 2e-4, 3e-4, 100.0, 200.0) for size in SIZES
        ),
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def install(folder: Path, script: str) -> None:
    """Put a program of that name into PATH that notes how it was called."""
    program = folder / "all_reduce_perf"
    noted = f'echo "$@ NCCL_ALGO=$NCCL_ALGO of $SLURM_PROCID" >> {folder}/calls'
    program.write_text(f"#!/bin/sh\n{noted}\n{script}\n")
    program.chmod(0o755)


def print_row(text: str = "") -> str:
    """Print the row that was posted of the size that is asked for."""
    return f'echo "# nccl-tests"; grep " $2 " {RECORDED}/counts.txt {text}'


def tell(run: CollectiveRun, opinion: SecondOpinion) -> str:
    """Say what the command prints, which has to judge as before."""
    whole = msgspec.structs.replace(run, second_opinion=opinion)
    assert choose_status(whole) == choose_status(run)
    assert msgspec.json.decode(msgspec.json.encode(whole), type=CollectiveRun) == whole
    return "\n".join(describe(whole))


def test_it_is_asked_for_the_sizes_of_ours_and_stands_beside_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(folder, print_row())
    monkeypatch.setenv("SLURM_PROCID", "0")
    run = run_of("n1")
    opinion = ask(run)

    assert opinion == SecondOpinion(
        "all_reduce_perf",
        "n1",
        8,
        (
            OpinionRate(32 * KIB, 3.20, 0),
            OpinionRate(MIB, 66.76, 0),
            OpinionRate(16 * MIB, 243.71, 0),
        ),
    )
    assert (folder / "calls").read_text().splitlines() == [
        f"-b {size} -e {size} -g 8 -n 20 -c 1 NCCL_ALGO=Ring of " for size in SIZES
    ]
    text = tell(run, opinion)
    assert "second opinion on all_reduce: all_reduce_perf on 8 GPUs of n1" in text
    assert ["16M", "243.7", "200", "0.821"] in [line.split() for line in text.splitlines()]
    assert "one node" not in text


def test_of_several_nodes_it_is_of_one_and_says_so(folder: Path) -> None:
    install(folder, print_row())
    run = run_of("n1", "n2")
    opinion = ask(run)

    assert (opinion.node, opinion.ranks, len(opinion.rates)) == ("n1", 8, 3)
    text = tell(run, opinion)
    assert "it is of this one node; ours went over the network" in text
    assert ["16M", "243.7", "200"] in [line.split() for line in text.splitlines()]
    assert "ours/its" not in text


def test_wrong_elements_are_told_and_judge_nothing(folder: Path) -> None:
    """It ends with 1 if it counts any."""
    install(folder, print_row(r"| sed 's/ 0$/ 12/'; exit 1"))
    run = run_of("n1")
    opinion = ask(run)

    assert [one.wrong for one in opinion.rates] == [12, 12, 12]
    text = tell(run, opinion)
    assert "all_reduce_perf counts 12 wrong elements of this size" in text
    assert choose_status(run) == 0


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'n1: Test NCCL failure common.cu:958'; exit 3", "ended with 3; its last line: n1:"),
        ("echo 'out of tune'", "ended with 0; its last line: out of tune"),
        ("exit 0", "ended with 0; its last line: nothing"),
        (f"grep ' 33554432 ' {RECORDED}/counts.txt", "printed no row of 32KiB"),
        ("echo '32768 8192 float sum -1 1 1 nan 0 1 1 nan 0'", "ended with 0; its last line"),
        (f"cat {RECORDED}/prefixed.txt", "ended with 0; its last line: [0]"),
        ("kill -SEGV $$", "ended with -11; its last line: nothing"),
        ("head -c 100000 /dev/urandom", "ended with 0"),
    ],
)
def test_what_goes_wrong_is_a_line_and_no_error(folder: Path, script: str, told: str) -> None:
    install(folder, script)
    run = run_of("n1")
    opinion = ask(run)

    assert told in opinion.unable
    assert not opinion.rates
    assert "no second opinion: all_reduce_perf" in tell(run, opinion)


def test_what_it_said_before_it_failed_is_kept(folder: Path) -> None:
    install(folder, f"[ $2 = {16 * MIB} ] && exit 2; {print_row()}")
    run = run_of("n1")
    opinion = ask(run)

    assert [one.size for one in opinion.rates] == [32 * KIB, MIB]
    assert "no second opinion on the rest: all_reduce_perf ended with 2" in tell(run, opinion)


def test_a_hang_is_ended(folder: Path) -> None:
    install(folder, "exec sleep 600")
    began = monotonic()
    opinion = ask(run_of("n1"), timeout=1.0)

    assert opinion.unable.startswith("all_reduce_perf did not end within 1 s and was ended")
    assert monotonic() - began < 300
    assert len((folder / "calls").read_text().splitlines()) == 1


def test_one_built_for_other_processors_is_a_line(folder: Path) -> None:
    program = folder / "all_reduce_perf"
    program.write_bytes(b"\x7fELF of another kind")
    program.chmod(0o755)

    assert "cannot be started: Exec format error" in ask(run_of("n1")).unable


def test_where_it_is_not_installed_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = run_of("n1")
    text = tell(run, ask(run))

    assert "no second opinion: all_reduce_perf is not installed: git clone" in text


@pytest.mark.parametrize(
    ("run", "visible", "told"),
    [
        (run_of("n1", backend="gloo"), None, "needs GPUs, and these ranks had none"),
        (run_of("n1", operation="sendrecv"), None, "no all-reduce was measured"),
        (run_of("n1"), "0", "rank 0 sees only some of the 8 GPUs"),
        (
            msgspec.structs.replace(run_of("n1"), missing=(3,), reasons={3: "died"}),
            None,
            "a rank is missing, and may still hold its GPU",
        ),
        (
            msgspec.structs.replace(run_of("n1"), ranks=(RankPlace(0, "n1", "GPU-0"),)),
            None,
            "one GPU has nothing to reduce with",
        ),
    ],
)
def test_where_it_could_say_nothing_it_is_not_started(
    folder: Path,
    run: CollectiveRun,
    visible: str | None,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(folder, print_row())
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert told in tell(run, ask(run))
    assert not (folder / "calls").exists()


def test_it_is_no_rank_of_the_step_that_it_is_started_in() -> None:
    environ = {"PATH": "/bin", "SLURM_PROCID": "0", "PMIX_RANK": "0", "NCCL_ALGO": "Tree"}

    assert make_environment(environ, {"NCCL_ALGO": "Ring"}) == {"PATH": "/bin", "NCCL_ALGO": "Ring"}
