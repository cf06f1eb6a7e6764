"""What to do about which part: nobody is sent back for what another part has."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from hpcverify.check import add_faults
from hpcverify.model import (
    Cause,
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Maturity,
    Measurement,
    Part,
    Remedy,
    Result,
    Run,
    Shortfall,
    Verdict,
    verdict_of,
)
from hpcverify.summary.diagnosis import diagnose_run
from hpcverify.summary.faults import (
    PartFaults,
    get_subject,
    group_by_part,
    index_faults,
    list_checks,
    list_faults,
    list_run_faults,
    recall_gone_parts,
)
from hpcverify.summary.run_summary import summarize
from hpcverify.summary.verdict import explain_verdict
from hpcverify.testing import judge_by
from tests.doubles import CountedParts, a_run

GPUS = tuple(
    Part("gpu", f"gpu-{i}", f"GPU {i}", {"serial": f"16500{i}", "name": "H100"}) for i in range(8)
)
NODE = Inventory(parts=GPUS)
RULINGS = {
    "gpu_reset": FindingRule(Verdict.FAIL, Remedy.RESET_GPU),
    "gpu_lost": FindingRule(Verdict.FAIL, Remedy.REBOOT),
    "gpu_missing": FindingRule(Verdict.FAIL, Remedy.REBOOT),
    "cold": FindingRule(Verdict.PASS, Remedy.NONE),
}
LIMITS = (
    Limit(name="remap.failed", high=0, remedy=Remedy.REPLACE, source="NVIDIA"),
    Limit(name="sram", high=0, remedy=Remedy.CONTACT_VENDOR, source="NVML"),
    Limit(name="rate", high=1, otherwise=Verdict.WARN, source="default"),
    Limit(name="speed", low=100, remedy=Remedy.REPLACE, source="spec"),
)


def result(check: str, *found: Measurement | Finding, **changes: Any) -> Result:
    """Judge what was *found* as the engine does."""
    names = {item.name for item in found if isinstance(item, Measurement)}
    limits = tuple(limit for limit in LIMITS if limit.name in names)
    judged = judge_by(found, limits, RULINGS, NODE, check=check)
    return add_faults(replace(judged, **changes), NODE)


def run(*results: Result, **changes: Any) -> Run:
    base = {"inventory": NODE, "verdict": verdict_of(results)} | changes
    return a_run(results=results, **base)


def list_steps(of: Run) -> list[tuple[Verdict, Remedy, list[str]]]:
    return [(*step, [p[0].part_id for p in parts]) for step, parts in summarize(of).steps.items()]


def list_parts(of: Run) -> list[PartFaults]:
    return [*group_by_part(list_run_faults(of), recall_gone_parts(of)).values()]


FOUR = run(
    result("recovery", Finding("gpu_reset", "gpu-2", "the driver asks to reset it")),
    result(
        "ecc",
        Measurement("rate", 5.0, "1/s", "gpu-1"),
        Measurement("remap.failed", 1.0, "", "gpu-5"),
        Measurement("sram", 1.0, "", "gpu-7"),
        Measurement("rate", 2.0, "1/s", "gpu-7"),
    ),
)


def test_each_part_is_listed_under_what_its_own_faults_call_for() -> None:
    assert list_steps(FOUR) == [
        (Verdict.FAIL, Remedy.CONTACT_VENDOR, ["gpu-7"]),
        (Verdict.FAIL, Remedy.REPLACE, ["gpu-5"]),
        (Verdict.FAIL, Remedy.RESET_GPU, ["gpu-2"]),
        (Verdict.WARN, Remedy.INSPECT, ["gpu-1"]),
    ]


def test_a_part_is_named_once_with_all_that_speaks_against_it() -> None:
    (seventh,) = (part for part in list_parts(FOUR) if part[0].part_id == "gpu-7")

    assert [(c.verdict, c.text) for c in seventh] == [
        (Verdict.FAIL, "sram 1 > 0 (NVML)"),
        (Verdict.WARN, "rate 2 1/s > 1 (default)"),
    ]
    assert list_checks(seventh) == ("ecc",)


def count_passes(count: int, codes: int) -> int:
    """Count how often the parts are gone through to explain a run in which *count* of them fail."""
    parts = CountedParts(Part("gpu", f"gpu-{i}", f"GPU {i}") for i in range(count))
    rulings = {f"lost {i}": FindingRule(Verdict.FAIL, Remedy.REBOOT) for i in range(codes)}
    broken = [Finding(f"lost {i % codes}", part.id, f"lost {i}") for i, part in enumerate(parts)]
    judged = judge_by(broken, (), rulings, Inventory(parts=tuple(parts)))
    parts.passes = 0

    assert explain_verdict(run(judged, inventory=Inventory(parts=parts)))
    return parts.passes


@pytest.mark.parametrize("codes", [1, 5, 40])
def test_a_document_with_many_broken_parts_does_not_hold_up_the_controller(codes: int) -> None:
    assert count_passes(40, codes) == count_passes(5, codes)


class CountedId(str):
    """An id that counts how often it is compared."""

    __slots__ = ()
    __hash__ = str.__hash__
    compared: ClassVar[list[str]] = []

    def __eq__(self, other: object) -> bool:
        self.compared.append(self)
        return str.__eq__(self, other)


def test_many_parts_are_named_without_comparing_each_with_each() -> None:
    parts = tuple(Part(f"kind {i}", f"id-{i}", f"part {i}") for i in range(30))

    assert len(Inventory(parts=parts).list_names([CountedId(part.id) for part in parts])) == 30
    assert len(CountedId.compared) <= 4 * len(parts)


def test_a_fault_counts_for_the_check_of_its_result_whatever_a_node_wrote() -> None:
    lost = result("ecc", Finding("gpu_lost", "gpu-1", "lost"))
    forged = replace(lost.faults[0], check="`rm -rf /`")

    (part,) = list_parts(run(replace(lost, faults=(forged,))))

    assert list_checks(part) == ("ecc",)


def test_a_healthy_node_calls_for_nothing() -> None:
    found = Measurement("sram", 0.0, "", "gpu-7"), Finding("cold", "gpu-3", "it is cold")
    well = run(result("ecc", *found))

    assert (well.verdict, list_steps(well)) == (Verdict.PASS, [])


def test_what_several_checks_report_in_the_same_words_is_listed_once() -> None:
    lost = Finding("gpu_lost", "node", "GPU with NVML index 2: GPU is lost")
    names = ("inventory", "recovery", "ecc", "nvlink")
    six = run(*(result(name, lost) for name in names))
    (part,) = list_parts(six)

    assert [(c.checks, c.text) for c in part] == [(names, lost.text)]


def test_the_part_that_is_farthest_off_comes_first() -> None:
    slow = [
        Measurement("speed", value, "GB/s", f"gpu-{i}")
        for i, value in enumerate((99.0, 98.0, 97.0, 12.0, 96.0))
    ]
    gemm = result("gemm", *slow)
    ((*_, ids),) = list_steps(run(gemm))

    assert ids == ["gpu-3", "gpu-4", "gpu-2", "gpu-1", "gpu-0"]
    (diagnosis,) = diagnose_run(run(gemm))
    assert diagnosis.part_ids == ("gpu-3", "gpu-4", "gpu-2", "gpu-1", "gpu-0")


def test_what_ails_all_parts_alike_is_said_once_of_all_of_them() -> None:
    slow = result("gemm", *(Measurement("speed", 50.0, "GB/s", gpu.id) for gpu in GPUS))
    shortfalls = tuple(
        Shortfall(gpu.id, "the driver is too old", Cause.MISCONFIGURED) for gpu in GPUS
    )
    unable = result("gemm", verdict=Verdict.ERROR, shortfalls=shortfalls)

    (slowness,), (failure,) = diagnose_run(run(slow)), diagnose_run(run(unable))
    assert slowness.sentence == "all 8 GPUs: speed 50 GB/s < 100 (spec)"
    assert failure.sentence == "all 8 GPUs: the driver is too old"


def test_a_worker_for_all_gpus_accuses_only_the_one_that_it_found() -> None:
    lost = Finding("gpu_lost", "gpu-3", "it is lost")
    ended = Shortfall("node", "the check ended early: it is lost", Cause.CRASHED, code="gpu_lost")
    p2p = result("p2p", lost, shortfalls=(ended,))

    assert [part[0].part_id for part in list_parts(run(p2p))] == ["gpu-3"]


def test_the_node_is_named_after_its_parts_and_stands_for_their_configuration() -> None:
    node, gpu = (Measurement("speed", 50.0, "GB/s", part_id) for part_id in ("node", "gpu-3"))
    slow = run(result("p2p", node, gpu))
    missing = Shortfall("", "CUDA is set up wrongly", Cause.MISCONFIGURED, Remedy.FIX_CONFIGURATION)
    ruined = result(
        "p2p",
        verdict=Verdict.ERROR,
        shortfalls=(replace(missing, part_id="node"), replace(missing, part_id="gpu-3")),
    )

    assert summarize(slow).next_steps.startswith("drain the node, replace GPU 3, the node, then:")
    assert summarize(run(ruined)).next_steps.startswith(
        "correct the configuration of the node, then"
    )


def test_what_is_missing_on_all_parts_has_its_exact_fix_as_the_next_step() -> None:
    fix = "apt-get install fio"
    missing = Shortfall(
        "gpu-3", f"fio is not installed: {fix}", Cause.MISSING, Remedy.FIX_CONFIGURATION, fix=fix
    )
    ended = result(
        "p2p", verdict=Verdict.ERROR, shortfalls=(missing, replace(missing, part_id="node"))
    )

    assert summarize(run(ended)).next_steps.startswith(f"{fix}, then: hpcverify")


def test_of_several_rounds_a_metric_is_listed_once_at_its_worst() -> None:
    rounds = [
        result("gemm", Measurement("speed", value, "GB/s", "gpu-3"), round=n)
        for n, value in enumerate((90.0, 12.0, 80.0), 1)
    ]
    (part,) = list_parts(run(*rounds))

    assert [c.text for c in part] == ["speed 12 GB/s < 100 (spec)"]


def test_a_check_in_beta_accuses_nobody() -> None:
    young = result("gemm", Measurement("speed", 1.0, "GB/s", "gpu-3"), maturity=Maturity.BETA)

    assert list_steps(run(young)) == [(Verdict.WARN, Remedy.INSPECT, ["gpu-3"])]


def test_errors_are_kept_apart_from_failures() -> None:
    short = Shortfall("gpu-4", "the worker died", Cause.CRASHED, Remedy.RERUN)
    died = Result(check="sdc", verdict=Verdict.ERROR, shortfalls=(short,))
    both = run(died, result("gemm", Measurement("speed", 1.0, "GB/s", "gpu-3")))

    assert list_steps(both) == [
        (Verdict.FAIL, Remedy.REPLACE, ["gpu-3"]),
        (Verdict.ERROR, Remedy.RERUN, ["gpu-4"]),
    ]
    (fourth,) = (part for part in list_parts(both) if part[0].part_id == "gpu-4")
    assert [c.text for c in fourth] == ["the worker died"]


@pytest.mark.parametrize("worker", ["node", "telemetry"])
def test_the_worker_that_met_the_error_of_a_gpu_is_not_listed_beside_that_gpu(worker: str) -> None:
    short = Shortfall(worker, "the check ended early", Cause.CRASHED, code="gpu_lost")
    met = result("p2p", Finding("gpu_lost", "gpu-1", "it is lost"), shortfalls=(short,))
    inventory = Inventory(parts=(Part("node", "node", "n1"), *GPUS))
    of = run(met, inventory=inventory)

    assert [part[0].part_id for part in list_parts(of)] == ["gpu-1"]


def test_a_worker_without_a_part_is_not_listed_as_one() -> None:
    """All sensors are read by one worker; what it cannot do is the node's matter."""
    short = Shortfall("telemetry", "NVML does not start", Cause.MISCONFIGURED)
    found = Finding("driver", "node", "NVML does not start")
    ruled = Result(
        check="inventory",
        verdict=Verdict.ERROR,
        findings=(found,),
        rulings={"driver": FindingRule(Verdict.ERROR, Remedy.RERUN)},
    )
    (part,) = list_parts(
        run(ruled, Result(check="ecc", verdict=Verdict.ERROR, shortfalls=(short,)))
    )

    assert part[0].part_id == "node"
    assert [c.checks for c in part] == [("inventory", "ecc")]


@pytest.mark.parametrize("parts", [GPUS, (*GPUS, Part("system", "node", "node"))])
def test_a_worker_that_ended_by_what_a_gpu_is_accused_of_is_told_once(
    parts: tuple[Part, ...],
) -> None:
    """Copies between GPUs have one worker for all of them."""
    short = Shortfall("node", "ended early", Cause.CRASHED, Remedy.RESET_GPU, "gpu_reset")
    copies = result("p2p", Finding("gpu_reset", "gpu-2", "it failed"), shortfalls=(short,))
    failed = run(copies, inventory=Inventory(parts=parts))

    assert list_steps(failed) == [(Verdict.FAIL, Remedy.RESET_GPU, ["gpu-2"])]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"verdict": Verdict.FAIL, "remedy": Remedy.REPLACE}, (Verdict.FAIL, Remedy.REPLACE)),
        ({"verdict": Verdict.FAIL, "maturity": Maturity.BETA}, (Verdict.WARN, Remedy.INSPECT)),
        ({"verdict": Verdict.SKIP, "required": True}, (Verdict.ERROR, Remedy.INSPECT)),
        ({"verdict": Verdict.PASS}, None),
    ],
)
def test_a_verdict_that_no_fault_explains_has_its_reason_as_fault(
    changes: dict[str, Any], expected: tuple[Verdict, Remedy] | None
) -> None:
    faults = list_faults(
        replace(Result(check="c", verdict=Verdict.PASS, reason="broke"), **changes)
    )

    assert [(f.verdict, f.remedy) for f in faults] == ([expected] if expected else [])
    assert all((f.part_id, f.checks, f.text) == ("node", ("c",), "broke") for f in faults)


def test_a_skip_that_counts_is_a_matter_of_the_node() -> None:
    skipped = Result(check="edac", verdict=Verdict.SKIP, reason="no sensor", required=True)
    (part,) = list_parts(run(skipped))

    assert (part[0].part_id, part[0].verdict) == ("node", Verdict.ERROR)
    assert part[0].text == "no sensor"


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ((), "no check was run"),
        ((result("ecc"),), "the run was interrupted before every check had run"),
    ],
)
def test_a_run_that_ended_early_asks_for_another(results: tuple[Result, ...], text: str) -> None:
    cut = run(*results, verdict=Verdict.ERROR, complete=False)
    (part,) = list_parts(cut)

    assert (part[0].remedy, part[0].text) == (Remedy.RERUN, text)


def test_a_fault_is_found_by_what_it_is_about() -> None:
    slow, fast = (Measurement("speed", value, "", "gpu-1") for value in (50.0, 70.0))
    lost, unruled = Finding("gpu_lost", "gpu-1", "lost"), Finding("odd", "gpu-1", "lost")
    faults = index_faults(result("ecc", slow, fast, slow, lost, unruled))

    assert [faults[get_subject(item)].value for item in (slow, fast)] == [50.0, 70.0]
    assert faults[get_subject(lost)].verdict is Verdict.FAIL
    assert faults[get_subject(unruled)].cause is Cause.CHECKER
    assert get_subject(Measurement("speed", 50.0, "", "gpu-2")) not in faults
    assert get_subject(Finding("gpu_lost", "gpu-2", "lost")) not in faults
