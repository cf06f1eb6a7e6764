"""A check that crashes, hangs or overruns becomes an answer, and takes nobody along."""

from __future__ import annotations

import gc
import io
import math
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from hpcverify.model import Cause, Device, Inventory, Measurement, Remedy, Verdict
from hpcverify.processes import KernelWait
from hpcverify.run import local
from hpcverify.run.executor import Answer
from hpcverify.run.local import (
    LocalExecutor,
    WorkerHandle,
    describe_starvation,
    may_use_gpu,
    wait_for_outcome,
)
from hpcverify.run.process import ForkedWorker, create_worker_files
from hpcverify.run.wire import Measure, Probe, Task
from hpcverify.run.worker import release_memory
from hpcverify.testing import CPU, make_context
from tests.cli import gone
from tests.fuse import silent_file_system
from tests.shortage import few_files
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    made = LocalExecutor(should_stop=lambda: False)
    yield made
    made.close()


def order(tmp_path: Path, way: str, path: str = "") -> Measure:
    return Measure(
        name="naughty",
        packages=("tests.site.acme_checks",),
        params={"way": way, "path": path},
        context=make_context(tmp_path),
    )


def run(
    executor: LocalExecutor, tmp_path: Path, way: str, path: str = "", timeout: float = PATIENCE_S
) -> Answer:
    return executor.run({"w": order(tmp_path, way, path)}, timeout)["w"]


def names(answer: Answer) -> list[str]:
    return [m.name for m in answer.items if isinstance(m, Measurement)]


def children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def test_a_check_that_ends_gives_all_that_it_found(executor: LocalExecutor, tmp_path: Path) -> None:
    answer = run(executor, tmp_path, "nothing")
    assert answer.outcome.verdict is Verdict.PASS
    assert names(answer) == ["before", "after"]
    assert answer.outcome.end > answer.outcome.start


@pytest.mark.parametrize(
    ("way", "cause", "reason"),
    [
        ("raise", Cause.CRASHED, "the check raised ZeroDivisionError: a bug"),
        ("unable", Cause.MISSING, "frob is not installed: apt-get install frob"),
        ("segfault", Cause.CRASHED, "its worker killed by SIGSEGV"),
        ("exit", Cause.CRASHED, "its worker exited with 7"),
        ("other_unit", Cause.CRASHED, "measured in 's' and is declared in ''"),
        ("wrong_type", Cause.CRASHED, "Expected `str`, got `int`"),
        ("no_finding", Cause.CRASHED, "a check may not yield None"),
    ],
)
def test_what_goes_wrong_is_an_error_that_keeps_what_was_found(
    executor: LocalExecutor, tmp_path: Path, way: str, cause: Cause, reason: str
) -> None:
    answer = run(executor, tmp_path, way)
    assert answer.outcome.verdict is Verdict.ERROR
    assert answer.outcome.cause is cause
    assert reason in answer.outcome.reason
    assert names(answer) == ["before"]


NCCL_WORDS = (
    "[rank0]:[E1122 09:12:01 ProcessGroupNCCL.cpp:684] [Rank 0] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 30004 milliseconds before "
    "timing out.\nterminate called after throwing an instance of 'c10::DistBackendError'\n"
)


def test_a_worker_that_torch_ends_for_a_lost_peer_did_not_crash(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    lost = run(executor, tmp_path, "abort_after", NCCL_WORDS).outcome
    other = run(executor, tmp_path, "abort_after", "terminate called\n").outcome

    assert (lost.cause, lost.remedy) == (Cause.TIMEOUT, Remedy.RERUN)
    assert "because another GPU did not respond" in lost.reason
    assert other.cause is Cause.CRASHED
    assert "its worker killed by SIGABRT" in other.reason


STACK = "\nException raised from c10_cuda_check_implementation at CUDAException.cpp:44\n" + "".join(
    f"frame #{n}: c10d::ProcessGroupNCCL::run + 0x{n:04x} (0x7f5b2c4e in libtorch_cuda.so)\n"
    for n in range(50)
)
"""What torch prints after the message of an error, and longer than any."""


def test_the_last_words_of_a_worker_are_found_before_the_stacks_that_follow_them(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    lost = run(executor, tmp_path, "abort_after", NCCL_WORDS + STACK).outcome
    other = run(
        executor, tmp_path, "abort_after", f"terminate called\n  what(): CUDA error: lost{STACK}"
    ).outcome

    assert "because another GPU did not respond" in lost.reason
    assert other.reason.endswith("last line of its log: what(): CUDA error: lost")
    assert "CUDA error: lost" in other.trace


def test_the_log_of_an_earlier_request_says_nothing_of_why_a_worker_died(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    run(executor, tmp_path, "write", NCCL_WORDS)
    died = run(executor, tmp_path, "abort_after", "terminate called\n").outcome
    assert died.cause is Cause.CRASHED
    assert died.reason.endswith("last line of its log: terminate called")
    assert "Watchdog" not in died.trace


def test_a_worker_that_writes_nothing_is_told_by_how_it_ended(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    died = run(executor, tmp_path, "segfault").outcome
    assert "killed by SIGSEGV" in died.reason
    assert "Extension modules" not in died.reason


def test_a_worker_that_cannot_be_started_is_an_error_and_ends_no_run(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    with few_files(0):
        outcome = run(executor, tmp_path, "nothing").outcome
    again = run(executor, tmp_path, "nothing")

    assert (outcome.verdict, outcome.cause) == (Verdict.ERROR, Cause.NO_RESOURCES)
    assert outcome.remedy is Remedy.INSPECT
    assert outcome.reason == ("no worker can be started: too many files are open: raise ulimit -n")
    assert names(again) == ["before", "after"]


def test_what_the_node_ran_out_of_is_no_bug_of_a_check(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    outcome = run(executor, tmp_path, "no_memory").outcome
    assert (outcome.cause, outcome.remedy) == (Cause.NO_RESOURCES, Remedy.INSPECT)
    assert "no memory is left" in outcome.reason


def test_a_scratch_that_is_gone_under_way_is_no_bug_of_a_check(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    task = order(tmp_path, "raise")
    (tmp_path / "scratch").rmdir()
    outcome = executor.run({"w": task}, PATIENCE_S)["w"].outcome
    assert (outcome.cause, outcome.remedy) == (Cause.MISSING, Remedy.INSPECT)
    assert f"{tmp_path / 'scratch'} was unmounted or removed" in outcome.reason


def test_a_check_that_somebody_stopped_asks_for_no_larger_budget(tmp_path: Path) -> None:
    executor = LocalExecutor(should_stop=lambda: False)
    run(executor, tmp_path, "nothing")
    outcome = run(executor, tmp_path, "stop", timeout=3).outcome
    executor.close()

    assert (outcome.cause, outcome.remedy) == (Cause.TIMEOUT, Remedy.RERUN)
    assert outcome.reason == (
        "no end after 3 s: stopped by a signal (SIGSTOP). Fix: find its sender, and run again"
    )


def test_a_check_that_does_not_apply_is_a_skip(executor: LocalExecutor, tmp_path: Path) -> None:
    outcome = run(executor, tmp_path, "skip").outcome
    assert (outcome.verdict, outcome.cause) == (Verdict.SKIP, Cause.NOT_APPLICABLE)


@pytest.mark.parametrize("way", ["raise", "segfault", "exit"])
def test_the_next_check_does_not_suffer(executor: LocalExecutor, tmp_path: Path, way: str) -> None:
    run(executor, tmp_path, way)
    assert names(run(executor, tmp_path, "nothing")) == ["before", "after"]


def test_a_worker_serves_many_checks(executor: LocalExecutor, tmp_path: Path) -> None:
    others = children()  # as multiprocessing's own, which other tests have started
    run(executor, tmp_path, "raise")
    first = children() - others
    for _ in range(3):
        run(executor, tmp_path, "raise")

    assert len(first) == 1
    assert children() - others == first


def test_what_an_error_of_cuda_broke_is_not_used_again(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    others = children()
    run(executor, tmp_path, "nothing")
    first = children() - others
    run(executor, tmp_path, "accelerator_error", "CUDA error: invalid argument")
    assert children() - others == set()
    assert names(run(executor, tmp_path, "nothing")) == ["before", "after"]
    assert len(children() - others - first) == 1


def test_memory_of_a_gpu_that_ran_out_breaks_no_worker(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    others = children()
    run(executor, tmp_path, "nothing")
    first = children() - others
    run(executor, tmp_path, "out_of_gpu_memory", "CUDA out of memory. Tried to allocate")
    assert children() - others == first


def test_one_workers_crash_is_not_anothers(executor: LocalExecutor, tmp_path: Path) -> None:
    tasks = {w: order(tmp_path, w) for w in ("segfault", "nothing")}
    answers = executor.run(tasks, PATIENCE_S)
    assert answers["segfault"].outcome.cause is Cause.CRASHED
    assert names(answers["nothing"]) == ["before", "after"]


def test_a_check_past_its_deadline_is_ended_with_its_children(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    pidfile = tmp_path / "pid"
    run(executor, tmp_path, "nothing")  # a worker may take long to start
    answer = run(executor, tmp_path, "leave_child", str(pidfile), timeout=3)

    assert answer.outcome.cause is Cause.TIMEOUT
    assert "no end after 3 s" in answer.outcome.reason
    assert names(answer) == ["before"]
    wait_until(lambda: gone(int(pidfile.read_text())))


def test_a_check_past_its_deadline_says_how_long_it_had(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    answer = run(executor, tmp_path, "wait", timeout=0.7)
    assert (answer.outcome.reason, answer.outcome.remedy) == ("no end after 1 s", Remedy.RERUN)
    assert answer.overrun is not None
    assert (answer.overrun.seconds, answer.overrun.doing) == (0.7, "")


def test_a_check_past_its_deadline_says_what_it_was_doing_on_which_part_and_how_long(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    run(executor, tmp_path, "nothing")
    answer = run(executor, tmp_path, "hang", timeout=3)

    assert answer.overrun is not None
    assert (answer.overrun.doing, answer.overrun.part) == ("hanging on CPU", "cpu")
    assert answer.overrun.doing_seconds > 0
    seconds = f"{answer.overrun.doing_seconds:.0f} s"
    assert answer.outcome.reason.startswith(f"no end after 3 s in hanging on CPU, for {seconds}")


@pytest.mark.parametrize(
    ("queued", "seconds", "starved"), [(60, 100, True), (40, 100, False), (3, 4, False)]
)
def test_a_worker_that_hardly_got_a_core_is_hindered(
    queued: float,
    seconds: float,
    starved: bool,  # noqa: FBT001
) -> None:
    told = describe_starvation(queued, seconds)
    assert ("waited 60 s for a core" in told) is starved
    assert bool(told) is starved


def test_a_crash_says_what_it_was_doing(executor: LocalExecutor, tmp_path: Path) -> None:
    reason = run(executor, tmp_path, "crash_at_work").outcome.reason
    assert reason == "its worker killed by SIGSEGV in crashing on CPU"


def test_an_operation_that_ended_is_not_what_the_next_one_hangs_in(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    run(executor, tmp_path, "raise_at_work")
    overrun = run(executor, tmp_path, "wait", timeout=1).overrun
    assert overrun is not None
    assert overrun.doing == ""


@pytest.mark.system
@pytest.mark.needs("root")
def test_a_process_that_nobody_can_end_is_abandoned_and_named(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    with silent_file_system(mount):
        run(executor, tmp_path, "nothing")
        answer = run(executor, tmp_path, "stat", str(mount / "x"), timeout=3)
        again = run(executor, tmp_path, "nothing")

    assert answer.outcome.cause is Cause.HUNG
    assert "request_wait_answer" in answer.outcome.reason
    assert names(again) == ["before", "after"]
    assert len(executor.hung) == 1


def test_being_told_to_stop_ends_all_and_keeps_what_was_found(tmp_path: Path) -> None:
    at_work = tmp_path / "at_work"
    executor = LocalExecutor(should_stop=at_work.exists)
    tasks = {n: order(tmp_path, "leave_child", str(at_work)) for n in "ab"}
    answers = executor.run(tasks, PATIENCE_S)
    executor.close()

    assert {a.outcome.cause for a in answers.values()} == {Cause.INTERRUPTED}
    assert ["before"] in [names(a) for a in answers.values()]


def test_workers_end_with_the_executor(tmp_path: Path) -> None:
    executor = LocalExecutor(should_stop=lambda: False)
    run(executor, tmp_path, "nothing")
    before = children()
    executor.close()
    ended = before - children()

    assert len(ended) == 1
    assert all(gone(int(pid)) for pid in ended)


def order_on(tmp_path: Path, *devices: Device, path: str = "") -> Task:
    task = order(tmp_path, "stat", path)
    node = Inventory(devices=(CPU, *devices))
    context = make_context(tmp_path, inventory=node, device=(*devices, CPU)[0])
    return msgspec.structs.replace(task, context=context)


GPU = Device("cuda", "gpu-0", "GPU 0")


def test_only_a_task_on_a_node_with_gpus_gives_a_worker_their_memory(tmp_path: Path) -> None:
    assert may_use_gpu(order_on(tmp_path, GPU))
    assert not may_use_gpu(order_on(tmp_path))
    assert not may_use_gpu(Probe())


@pytest.mark.parametrize("short", ["REAP_SECONDS", "HURRIED_REAP_SECONDS"])
def test_a_worker_that_only_needs_a_core_to_die_on_is_not_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    monkeypatch.setattr(KernelWait, "_list_waits", lambda _: ())  # each waits for a core
    monkeypatch.setattr(local, short, 1e-6)
    stopped: list[bool] = []
    executor = LocalExecutor(should_stop=lambda: bool(stopped))
    assert run(executor, tmp_path, "wait", timeout=2).outcome.cause is Cause.TIMEOUT

    run(executor, tmp_path, "nothing")
    stopped.append(True)
    executor.close()
    assert executor.hung == []


@pytest.mark.needs("root")
def test_a_worker_with_a_gpu_that_nobody_can_end_keeps_nobody_waiting_who_wants_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "DEATH_SECONDS", math.inf)
    mount = tmp_path / "mount"
    mount.mkdir()
    stops = iter([False] * 100)
    executor = LocalExecutor(should_stop=lambda: next(stops, True))
    with silent_file_system(mount):
        task = order_on(tmp_path, GPU, path=str(mount / "x"))
        outcome = executor.run({"w": task}, PATIENCE_S)["w"].outcome

    assert outcome.cause is Cause.INTERRUPTED


def searches(tmp_path: Path) -> int:
    """Count how often garbage is looked for once an order is done."""
    found: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        found.append(phase)

    gc.callbacks.append(note)
    gc.disable()
    try:
        assert release_memory(order(tmp_path, "steady"))
    finally:
        gc.enable()
        gc.callbacks.remove(note)
    return found.count("start")


def test_garbage_is_looked_for_only_where_torch_may_have_left_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert searches(tmp_path) == 0
    unused = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", unused)
    assert searches(tmp_path) == 1


def test_a_worker_of_a_gpu_gives_back_its_memory_and_the_pinned_memory_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are those of the real torch: its CPU build has no cache to empty."""
    freed: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append("memory"))
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: freed.append("pinned"))
    gpu = Device(kind="cuda", part="GPU-1", label="GPU 0")
    task = order(tmp_path, "steady")
    context = make_context(tmp_path, device=gpu, peers=(gpu,))
    assert release_memory(msgspec.structs.replace(task, context=context))
    assert freed == ["memory", "pinned"]


def test_an_outcome_wakes_the_engine_once() -> None:
    with ExitStack() as opened:
        files = create_worker_files(opened)
        worker = WorkerHandle(ForkedWorker(os.getpid(), io.BytesIO(), files), files)
        os.eventfd_write(files.done, 1)
        wait_for_outcome([worker], 3600)

        with pytest.raises(BlockingIOError):
            os.eventfd_read(files.done)
