"""What a check found, and what kept its parts from being measured, make one reason."""

from __future__ import annotations

from hpcverify.check import CORES_LEFT_OUT_CODE, RANK_LOST_CODE
from hpcverify.model import Cause, Finding, Inventory, Part, Remedy, Result, Shortfall, Verdict
from hpcverify.run.conclude import judge_result
from hpcverify.testing import has_no_past
from hpcverify_checks.allreduce import CHECK

NODE = Inventory(parts=tuple(Part("gpu", f"gpu-{i}", f"GPU {i}") for i in range(3)))
LOST = Finding(RANK_LOST_CODE, "gpu-1", "was lost: it did not answer within 30 s")


def judged(*shortfalls: Shortfall) -> Result:
    """Judge a result of which witnesses say that GPU 1 was lost."""
    found = Result(check="c", verdict=Verdict.PASS, findings=(LOST,), shortfalls=shortfalls)
    return judge_result(found, {}, CHECK.finding_rules, NODE, has_no_past)


def test_a_lost_rank_that_tells_its_own_cause_is_told_once_and_by_that() -> None:
    killed = Shortfall("gpu-1", "its worker killed by SIGKILL", Cause.CRASHED)
    result = judged(killed)
    assert (result.verdict, result.cause) == (Verdict.ERROR, Cause.CRASHED)
    assert (result.reason, result.findings) == ("GPU 1: its worker killed by SIGKILL", (LOST,))


def test_a_lost_rank_is_told_by_its_witnesses_if_only_others_have_a_cause() -> None:
    other = Shortfall("gpu-2", "GPU 2: its worker killed by SIGKILL", Cause.CRASHED, Remedy.RERUN)
    assert "GPU 1: was lost" in judged(other).reason
    assert judged().reason == "GPU 1: was lost: it did not answer within 30 s"


def test_a_pass_without_all_cores_says_so_as_its_reason() -> None:
    left = Finding(CORES_LEFT_OUT_CODE, "cpu", "tested on 1 of 2 online cores")
    found = Result(check="sdc", verdict=Verdict.PASS, findings=(left,))
    result = judge_result(found, {}, {}, NODE, has_no_past)
    assert (result.verdict, result.remedy) == (Verdict.PASS, Remedy.NONE)
    assert "1 of 2 online cores" in result.reason
