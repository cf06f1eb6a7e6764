"""`hpcverify fabric test`, as each rank of a job step runs it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpcverify.commands.collectives import SizeType, choose_status, describe
from hpcverify.records.collectives import (
    SECRET_VARIABLE,
    CollectiveRun,
    CollectiveTiming,
    RankPlace,
    WrongResult,
    parse_collective_run,
)

pytestmark = pytest.mark.system

HPCVERIFY = Path(sys.executable).with_name("hpcverify")
QUICK = ("--operation", "all_reduce", "--operation", "sendrecv", "--size", "4K", "--time", "0.2s")


def start(tmp_path: Path, node: str, *arguments: str, **told: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    own = {"SLURMD_NODENAME": node, "HPCVERIFY_STATE": str(tmp_path / "state")}
    return subprocess.Popen(
        [HPCVERIFY, "fabric", "test", *arguments],
        env=clean | own | told,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = process.communicate(timeout=300)
    return process.returncode, text


def step_of(rank: int, world: int, port: int) -> dict[str, str]:
    """Make what srun tells *rank* of a step with a rank on each node."""
    return {
        "SLURM_JOB_ID": str(port),  # so that each test has ports of its own
        SECRET_VARIABLE: "what only the user of this job knows",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": f"n[0-{world - 1}]",
        "SLURM_STEP_NUM_TASKS": str(world),
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{world})",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
    }


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_the_ranks_of_a_step_leave_one_document_and_one_table(tmp_path: Path) -> None:
    out, port = tmp_path / "run.json", find_port()
    ranks = [
        start(
            tmp_path,
            f"n{rank}",
            *QUICK,
            "-o",
            str(out),
            "--address",
            "127.0.0.1",
            **step_of(rank, 2, port),
        )
        for rank in range(2)
    ]
    (status, text), (other_status, other_text) = map(finish, ranks)

    assert (status, other_status, other_text) == (0, 0, "")
    assert "2 ranks on 2 nodes, gloo" in text
    assert "every result was right, on every rank" in text
    run = parse_collective_run(out.read_bytes(), str(out))
    assert [place.node for place in run.ranks] == ["n0", "n1"]
    assert ([one.operation for one in run.timings], run.job) == (["all_reduce", "sendrecv"], port)
    assert (run.algorithm, run.wire_share) == ("ring", 1.0)
    assert run.settings["NCCL_ALGO"] == "Ring"


def test_a_rank_that_never_comes_is_named_with_its_node(tmp_path: Path) -> None:
    out, port = tmp_path / "run.json", find_port()
    arguments = (*QUICK, "--timeout", "40s", "--address", "127.0.0.1", "-o", str(out))
    ranks = [start(tmp_path, f"n{rank}", *arguments, **step_of(rank, 3, port)) for rank in (0, 2)]
    (status, text), (other_status, other_text) = map(finish, ranks)

    assert (status, other_status) == (1, 3)  # it measured nothing either
    assert "rank 1 on n1 was lost: it did not start or answer within 40 s" in text
    assert "rank 1 was lost: it did not start or answer within 40 s" in other_text
    assert "rank 0" not in other_text  # which only gave up first
    run = parse_collective_run(out.read_bytes(), str(out))
    assert (run.missing, run.ranks[1].node) == ((1,), "n1")


def test_a_node_without_srun_is_measured_by_itself(tmp_path: Path) -> None:
    status, text = finish(start(tmp_path, "n7", *QUICK))
    assert status == 0
    assert "2 ranks on 1 node" in text


def test_without_stragglers_only_what_was_asked_for_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    status, text = finish(start(tmp_path, "n7", *QUICK, "--no-stragglers", "-o", str(out)))
    run = parse_collective_run(out.read_bytes(), str(out))
    assert (status, run.steps, run.transfers, run.stragglers) == (0, (), (), ()), text
    assert [one.operation for one in run.timings] == ["all_reduce", "sendrecv"]


def test_a_second_opinion_that_there_is_none_of_changes_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    process = start(tmp_path, "n7", *QUICK, "--second-opinion", "-o", str(out), PATH="/bin")
    status, text = finish(process)

    assert status == 0
    assert "no second opinion: all_reduce_perf is not installed" in text
    assert "every result was right, on every rank" in text
    opinion = parse_collective_run(out.read_bytes(), str(out)).second_opinion
    assert opinion is not None
    assert (opinion.node, opinion.ranks, opinion.rates) == ("n7", 2, ())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--size", "huge"), "'huge' is not a size: write 4K, 64M or 1G"),
        (("--rank", "0"), "--rank and --world belong together"),
        (("--rank", "2", "--world", "2"), "--rank 2 is none of 2"),
        (("--rank", "0", "--world", "2"), "--rank needs the --address and --port"),
        (("--operation", "gather"), "'gather' is not one of"),
        (("-o", "/nowhere/run.json"), "/nowhere/run.json"),
    ],
)
def test_bad_usage_is_told_in_a_line(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    status, text = finish(start(tmp_path, "n1", *arguments))
    assert status == 2
    assert told in text
    assert "Traceback" not in text


def test_alone_is_for_one_node(tmp_path: Path) -> None:
    status, text = finish(start(tmp_path, "n0", "--alone", **step_of(0, 2, 1)))
    assert (status, text.count("\n")) == (2, 1)
    assert "--alone is for one node, and this step has 2 nodes: srun -N 1" in text


def test_rank_0_that_is_not_there_is_no_measurement(tmp_path: Path) -> None:
    arguments = ("--rank", "1", "--world", "2", "--address", "127.0.0.1", "--timeout", "2s")
    status, text = finish(start(tmp_path, "n1", *arguments, "--port", str(find_port())))
    assert status == 3
    assert "rank 0 was not found within 2 s" in text


@pytest.mark.parametrize(
    ("text", "size"), [("4K", 4096), ("64m", 2**26), ("1GiB", 2**30), ("8", 8), ("2MB", 2**21)]
)
def test_sizes_are_those_of_nccl_tests(text: str, size: int) -> None:
    assert SizeType().convert(text, None, None) == size


def run_with(**found: object) -> CollectiveRun:
    ranks = (RankPlace(0, "n1", "cpu"), RankPlace(1, "n2", "GPU-1"))
    timing = CollectiveTiming("all_reduce", 4096, 9, 1e-4, 2e-4, 3e-4, 0.04, 0.04)
    return CollectiveRun(
        id="x",
        started="",
        ended="",
        version="",
        ranks=ranks,
        timings=(timing,),
        **found,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("run", "status", "told"),
    [
        (run_with(), 0, "every result was right"),
        (run_with(unable="no port"), 3, "not all could be measured: no port"),
        (run_with(missing=(1,), reasons={1: "died with SIGKILL"}, unable="x"), 1, "rank 1 on n2"),
        (
            run_with(wrong=(WrongResult(1, "all_reduce", 4096, 3, 2, 7, "0x1", "0x2"),)),
            1,
            (
                "rank 1 on n2 (GPU-1) got a wrong result of all_reduce of 4K in step 3: 2 words, "
                "the first at 7 is 0x1, not 0x2"
            ),
        ),
    ],
)
def test_what_was_found_goes_before_what_could_not_be_measured(
    run: CollectiveRun, status: int, told: str
) -> None:
    assert choose_status(run) == status
    assert told in "\n".join(describe(run))
