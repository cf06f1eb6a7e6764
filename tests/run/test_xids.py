"""What the engine learns of the Xids of GPUs that failed."""

from __future__ import annotations

from hpcverify.model import Cause, Coverage, Finding, Verdict
from hpcverify.run.attribution import find_xids
from hpcverify.run.executor import Answer
from hpcverify.run.wire import FindXids, Outcome
from hpcverify.testing import ENDED, FakeExecutor, make_answer


def test_a_gpu_has_its_xids_beside_it_and_the_others_none() -> None:
    told = Finding("xid", "gpu-1", "Xid 94 at 03:12:05 UTC", {"line": "NVRM: Xid 94"}, {"xid": 94})
    executor = FakeExecutor(answers={"telemetry": make_answer(told)})

    found = find_xids(executor, ["gpu-0", "gpu-1"], 1.0, 2.0)

    assert executor.phases == [{"telemetry": FindXids(("gpu-0", "gpu-1"), 1.0, 2.0)}]
    assert found.describe("gpu-1") == "Xid 94 at 03:12:05 UTC"
    assert found.make_evidence("gpu-1") == {
        "xid": "Xid 94 at 03:12:05 UTC",
        "kernel_log": "NVRM: Xid 94",
    }
    assert found.list_marked(["gpu-0", "gpu-1"], frozenset({94, 95})) == ["gpu-1"]
    assert found.list_marked(["gpu-0", "gpu-1"], frozenset({95})) == []
    assert found.list_marked(["gpu-0", "gpu-1"], frozenset()) == ["gpu-1"]
    assert found.describe("gpu-0") == ""
    assert found.make_evidence("gpu-0") == {"xid": "none in the kernel log"}


def test_a_log_that_nobody_may_read_is_said_and_is_no_error() -> None:
    denied = make_answer(Coverage("node", "the kernel log cannot be read: run as root"))
    found = find_xids(FakeExecutor(answers={"telemetry": denied}), ["gpu-0"], 1.0, 2.0)
    assert found.make_evidence("gpu-0") == {"xid": "the kernel log cannot be read: run as root"}


def test_a_telemetry_worker_that_does_not_answer_is_said() -> None:
    late = Outcome(verdict=Verdict.ERROR, reason="no end after 15 s", cause=Cause.TIMEOUT)
    found = find_xids(FakeExecutor(answers={"telemetry": Answer(outcome=late)}), ["a"], 1.0, 2.0)
    assert "no end after 15 s" in found.problem


def test_a_log_without_xids_is_no_problem() -> None:
    found = find_xids(FakeExecutor(answers={"telemetry": ENDED}), ["a"], 1.0, 2.0)
    assert (found.found, found.problem) == ((), "")
