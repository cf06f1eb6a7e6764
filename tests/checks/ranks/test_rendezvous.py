"""A lost rank accuses itself alone: its peers find out, end soon, and are witnesses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.distributed import distributed_c10d

from hpcverify.check import Cause, Check, CheckItem, Context, Coverage, Finding, Measurement, Unable
from hpcverify.model import FindingRule, Remedy, Verdict
from hpcverify.testing import judge_items
from hpcverify_checks import allreduce, training
from hpcverify_checks.ranks import process_group
from hpcverify_checks.ranks.board import FolderBoard
from hpcverify_checks.ranks.process_group import await_ranks, call_roll, join_group, reduce_minimum
from hpcverify_checks.ranks.rendezvous import (
    LostRanks,
    RankGroup,
    announce_failure,
    exchange_messages,
    report_lost_ranks,
    require_loopback,
)
from tests.checks.links import H100, node

pytestmark = pytest.mark.system

CPU = torch.device("cpu")
PATIENCE = 600.0
"""Seconds that no test may come near: who is lost must show before."""
BEGIN = """
import os, signal, sys, time
from pathlib import Path
import torch
from hpcverify_checks.ranks.board import FolderBoard
from hpcverify_checks.ranks.rendezvous import *
from hpcverify_checks.ranks.process_group import *
folder, timeout = sys.argv[1:]
group, cpu = RankGroup(folder, 2, "gloo", float(timeout)), torch.device("cpu")
"""


@contextmanager
def peer(folder: Path, timeout: float, *program: str) -> Generator[subprocess.Popen[bytes]]:
    """Have rank 1 of 2 run *program* in a process of its own."""
    code = BEGIN + "\n".join(program)
    process = subprocess.Popen([sys.executable, "-c", code, str(folder), str(timeout)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def contexts(tmp_path: Path, count: int = 4) -> list[Context]:
    """Make the contexts of the ranks of one check on a node with so many GPUs."""
    whole = node(tmp_path, H100, count)
    gpus = whole.inventory.devices[1:]
    return [msgspec.structs.replace(whole, device=gpu, peers=gpus) for gpu in gpus]


def losing(lost: dict[int, str]) -> Iterator[CheckItem]:
    yield Measurement("loss", 1.0)
    raise LostRanks(lost)


def keep_waiting(group: RankGroup, meanwhile: Callable[[], object] = tuple) -> None:
    """Be rank 0, and wait for the others until one is lost."""
    with join_group(group, 0, CPU):
        meanwhile()
        while True:
            await_ranks(group, CPU)


def find_items(*found: CheckItem) -> list[Finding]:
    return [item for item in found if isinstance(item, Finding)]


def raising(error: Exception) -> Iterator[CheckItem]:
    yield Measurement("loss", 1.0)
    raise error


def test_a_rank_that_fails_says_why_to_those_that_wait_for_it(tmp_path: Path) -> None:
    group = RankGroup(str(tmp_path), 3, "nccl", PATIENCE)

    def fail(rank: int) -> None:
        with announce_failure(FolderBoard(tmp_path), rank):
            raise RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors ...")

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(exchange_messages, group, rank, "offer") for rank in (0, 2)]
        failed = pool.submit(fail, 1)
    assert isinstance(failed.exception(), RuntimeError)
    for one in waiting:
        error = one.exception()
        assert isinstance(error, LostRanks)
        said = "was lost: it failed with 'RuntimeError: CUDA error: unspecified launch failure'"
        assert error.lost == {1: said}


def test_what_cuda_says_of_this_gpu_is_not_taken_for_a_lost_peer(tmp_path: Path) -> None:
    own = "CUDA error: the launch timed out and was terminated"
    alone = RankGroup(str(tmp_path), 1, "gloo", PATIENCE)

    with pytest.raises(torch.AcceleratorError, match=own), join_group(alone, 0, CPU):
        raise torch.AcceleratorError(own)


def test_a_rank_that_cannot_be_judged_itself_leaves_no_word(tmp_path: Path) -> None:
    with pytest.raises(LostRanks), announce_failure(FolderBoard(tmp_path), 0):
        raise LostRanks({1: "was lost"})
    assert not list(tmp_path.iterdir())


def test_a_rank_that_raises_in_the_group_ends_the_wait_of_the_other(tmp_path: Path) -> None:
    group, began = RankGroup(str(tmp_path), 2, "gloo", PATIENCE), time.monotonic()
    broken = "with join_group(group, 1, cpu): raise ValueError('broken')"
    # Or gloo sees first that the process ended.
    with peer(tmp_path, PATIENCE, broken), pytest.raises((LostRanks, RuntimeError)) as caught:
        keep_waiting(group)
    assert time.monotonic() - began < PATIENCE
    if isinstance(caught.value, LostRanks):
        assert "failed with 'ValueError: broken'" in str(caught.value)
    assert (tmp_path / "lost1").read_text() == "was lost: it failed with 'ValueError: broken'"


def test_a_rank_that_is_killed_leaves_no_file_half_written(tmp_path: Path) -> None:
    group = RankGroup(str(tmp_path), 2, "gloo", PATIENCE)
    kill = "with join_group(group, 1, cpu): os.kill(os.getpid(), signal.SIGKILL)"
    with peer(tmp_path, PATIENCE, kill), pytest.raises((LostRanks, RuntimeError)):
        keep_waiting(group)
    topics = {path.name.rstrip("01") for path in tmp_path.iterdir()}
    # The board writes each file under another name first; torch would write into one.
    assert topics <= {"here", "store", "joined", "lost", "roll", "rank"}


def test_ranks_of_one_node_listen_on_its_loopback_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib9")  # of a job between other nodes
    group = RankGroup(str(tmp_path), 1, "gloo", PATIENCE)
    before = list_listeners()
    with join_group(group, 0, CPU):
        during = list_listeners()

    assert {address for address, _ in during - before} == {"0100007F"}


def list_listeners() -> set[tuple[str, str]]:
    """List what this process listens at: the address as the kernel writes it, and the socket."""
    own = set[str]()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread closed it
            own.add(str(one.readlink()))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/self/net", name).read_text().splitlines()[1:]
    ]
    return {
        (row[1].partition(":")[0], row[9])
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in own  # 0A: it listens
    }


def test_torchs_store_that_goes_with_rank_0_speaks_of_a_lost_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "ROLL_CALL_SECONDS", 0.5)
    group = RankGroup(str(tmp_path), 2, "gloo", PATIENCE)
    leave = "with join_group(group, 0, cpu): os._exit(0)"
    with (
        peer(tmp_path, PATIENCE, leave),
        pytest.raises(LostRanks) as caught,
        join_group(group, 1, CPU),
    ):
        distributed_c10d._get_default_store().get("never set")
    assert caught.value.lost.keys() == {0}


def test_a_rank_that_stops_is_named_by_a_roll_call(tmp_path: Path) -> None:
    group = RankGroup(str(tmp_path), 2, "gloo", 3.0)
    stop = "with join_group(group, 1, cpu): os.kill(os.getpid(), signal.SIGSTOP)"
    with peer(tmp_path, PATIENCE, stop) as other:
        while not (tmp_path / "here1").exists():  # to import torch takes its time
            time.sleep(0.05)
        with pytest.raises(LostRanks) as caught:
            keep_waiting(group, lambda: os.waitpid(other.pid, os.WUNTRACED))
    assert caught.value.lost == {1: "was lost: it did not start or answer within 3 s"}


def test_ranks_that_all_answer_have_lost_nobody(tmp_path: Path) -> None:
    group = RankGroup(str(tmp_path), 3, "gloo", PATIENCE)
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(call_roll, group, rank, CPU) for rank in range(3)]
    told = [answer.result() for answer in answers]
    assert {type(one) for one in told} == {Unable}
    assert "though all ranks are there" in str(told[0])


def test_a_rank_whose_own_work_does_not_end_is_named_by_the_others(tmp_path: Path) -> None:
    group = RankGroup(str(tmp_path), 2, "gloo", PATIENCE)
    FolderBoard(tmp_path).post("roll", 1, b"stuck")
    told = call_roll(group, 0, CPU)
    assert isinstance(told, LostRanks)
    assert told.lost == {1: "was lost: it has work that does not end"}


def test_a_rank_that_others_gave_up_answers_the_roll_at_once(tmp_path: Path) -> None:
    group = RankGroup(str(tmp_path), 2, "gloo", PATIENCE)
    late = (
        "with join_group(group, 1, cpu):",
        "    exchange_messages(group, 1, 'joined')",
        "    FolderBoard(Path(folder)).post('roll', 1, b'stuck')",
        "    time.sleep(600)",
    )
    with peer(tmp_path, PATIENCE, *late) as other, join_group(group, 0, CPU):
        exchange_messages(group, 0, "joined")
        began = time.monotonic()
        with pytest.raises(LostRanks, match="work that does not end"):
            await_ranks(group, CPU)
        assert time.monotonic() - began < PATIENCE / 2
        other.kill()


def test_ranks_that_are_there_agree(tmp_path: Path) -> None:
    group = RankGroup(str(tmp_path), 2, "gloo", PATIENCE)
    well = ("with join_group(group, 1, cpu):", "    reduce_minimum(group, 3, cpu)")
    with peer(tmp_path, PATIENCE, *well) as other, join_group(group, 0, CPU):
        assert reduce_minimum(group, 5, CPU) == 3
        assert other.wait(PATIENCE) == 0
    assert not {path.name for path in tmp_path.iterdir()} & {"lost0", "lost1", "roll0", "roll1"}


@pytest.mark.parametrize("check", [allreduce.CHECK, training.CHECK], ids=lambda c: c.summary[:9])
def test_witnesses_accuse_the_lost_rank_once_and_nobody_else(
    tmp_path: Path, check: Check[Any]
) -> None:
    silent = {1: "was lost: it did not start or answer within 30 s"}
    told = {1: "was lost: it failed with 'AcceleratorError: CUDA error: unknown error'"}
    ranks = contexts(tmp_path)
    found: list[CheckItem] = []
    for ctx, lost in zip((ranks[0], ranks[2], ranks[3]), (silent, told, silent), strict=True):
        found += report_lost_ranks(ctx, losing(lost))
    items = find_items(*found)
    assert {item.part_id for item in items} == {"GPU-1"}
    witnesses = [i for i in found if isinstance(i, Coverage)]
    assert {(i.part_id, i.text) for i in witnesses} == {
        (f"GPU-{n}", "could not be judged without GPU 1") for n in (0, 2, 3)
    }
    judgement = judge_items(check, items, ranks[0].inventory)
    assert (judgement.verdict, judgement.remedy) == (Verdict.ERROR, Remedy.RERUN)
    assert judgement.reason == (
        "GPU 1: was lost: it failed with 'AcceleratorError: CUDA error: unknown error'; "
        "without it GPU 0, GPU 2, GPU 3 could not be judged"
    )


def test_what_the_lost_part_says_of_itself_decides(tmp_path: Path) -> None:
    [ctx, *_] = contexts(tmp_path)
    own = Finding("broken", "GPU-1", "its memory had an error")
    items = find_items(own, *report_lost_ranks(ctx, losing({1: "was lost"})))
    rules = {"broken": FindingRule(Verdict.FAIL, Remedy.RESET_GPU)}
    rules |= allreduce.CHECK.finding_rules
    check = msgspec.structs.replace(allreduce.CHECK, finding_rules=rules)
    judgement = judge_items(check, items, ctx.inventory)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.RESET_GPU)
    assert judgement.reason == "GPU 1: its memory had an error"


def test_an_error_of_this_rank_is_its_own_and_is_left_for_the_others(tmp_path: Path) -> None:
    [ctx, *_] = contexts(tmp_path)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        list(report_lost_ranks(ctx, raising(RuntimeError("CUDA error: an illegal memory access"))))
    assert "illegal memory access" in (ctx.shared / "lost0").read_text()


def test_the_ranks_of_a_cpu_are_no_parts(tmp_path: Path) -> None:
    ctx = node(tmp_path, H100, 2)
    with pytest.raises(LostRanks, match="rank 1 was lost: run the check again") as caught:
        list(report_lost_ranks(ctx, losing({1: "was lost"})))
    assert (caught.value.cause, caught.value.remedy) == (Cause.TIMEOUT, Remedy.RERUN)


def test_what_the_site_tells_nccl_is_told_and_what_would_end_us_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in os.environ if "NCCL_" in n]:
        monkeypatch.delenv(name)
    first, second, *_ = contexts(tmp_path)
    assert not list(process_group.report_nccl_settings(first))
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib9")
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    assert [item.text for item in process_group.report_nccl_settings(first)] == [
        "set in the environment and ignored: NCCL_SOCKET_IFNAME, TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "NCCL's settings in the environment: NCCL_NVLS_ENABLE=0",
    ]
    assert not list(process_group.report_nccl_settings(second))


def test_a_group_leaves_the_environment_and_torchs_mode_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
    before, modes = dict(os.environ), torch.get_deterministic_debug_mode()
    with join_group(RankGroup(str(tmp_path), 1, "gloo", PATIENCE), 0, CPU):
        assert dict(os.environ) == before
    assert (dict(os.environ), torch.get_deterministic_debug_mode()) == (before, modes)


def test_a_loopback_that_is_down_is_named_and_no_rank_is_lost() -> None:
    code = "from hpcverify_checks.ranks import rendezvous; rendezvous.require_loopback()"
    alone = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "-r", "--net"]
    done = subprocess.run(
        [*alone, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "Unable: the loopback does not work" in done.stderr
    assert "ip link set lo up" in done.stderr
    require_loopback()
