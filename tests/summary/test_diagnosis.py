"""One diagnosis for one part: what its faults have in common is said once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from hpcverify.summary.diagnosis import Diagnosis, diagnose_run
from hpcverify.summary.run_summary import summarize
from hpcverify.summary.speeds import SLOW
from hpcverify.summary.verdict import explain_verdict
from hpcverify.testing import judge_by
from tests.doubles import a_run

GPUS = tuple(
    Part("gpu", f"gpu-{i}", f"GPU {i}", {"serial": f"16500{i}", "name": "H100"}) for i in range(8)
)
NODE = Inventory(parts=GPUS)
SPEEDS = {"gemm": ("bf16", "fp16", "fp64"), "gpu_memory": ("read", "write"), "p2p": ("ring",)}
RULES = {
    "remap": FindingRule(Verdict.FAIL, Remedy.REPLACE, conclusive=True),
    "sram": FindingRule(Verdict.FAIL, Remedy.CONTACT_VENDOR),
    "reset": FindingRule(Verdict.FAIL, Remedy.RESET_GPU),
    "lost": FindingRule(Verdict.FAIL, Remedy.REBOOT, shared=True),
    "setting": FindingRule(Verdict.WARN, Remedy.FIX_CONFIGURATION),
    "event": FindingRule(Verdict.FAIL, Remedy.INSPECT),
    "torch": FindingRule(Verdict.ERROR, Remedy.FIX_CONFIGURATION, shared=True),
}


def judged(check: str, *found: Measurement | Finding, **changes: Any) -> Result:
    """Judge what was *found* by `RULES`; a speed must reach 90."""
    limits = [Limit(name=name, low=90.0, source="a test") for name in SPEEDS.get(check, ())]
    return add_faults(replace(judge_by(found, limits, RULES, NODE, check), **changes), NODE)


def measure(shares: Mapping[str, float], checks: Mapping[str, tuple[str, ...]] = SPEEDS) -> Run:
    """Measure 100 on every GPU in all speeds of *checks*, times its one of *shares*."""
    return run(
        *(
            judged(
                check,
                *(
                    Measurement(name, 100.0 * shares.get(gpu.id, 1.0), "GB/s", gpu.id)
                    for name in names
                    for gpu in GPUS
                ),
            )
            for check, names in checks.items()
        )
    )


def run(*results: Result) -> Run:
    return a_run(results=results, verdict=verdict_of(results), inventory=NODE)


def only(of: Run) -> Diagnosis:
    (diagnosis,) = diagnose_run(of)
    return diagnosis


def test_a_healthy_node_has_no_diagnosis() -> None:
    assert diagnose_run(measure({})) == ()


def test_a_part_that_is_slow_in_everything_has_one_diagnosis_with_the_share() -> None:
    slow = only(measure({"gpu-3": 0.7}))

    assert (slow.part_ids, slow.faults, slow.part_kind) == (("gpu-3",), (SLOW,), "gpu")
    assert slow.checks == tuple(SPEEDS)
    assert slow.line == (
        "gemm, gpu_memory, p2p: GPU 3, serial 165003: 30 % slower than its siblings in all 6 "
        "speeds measured"
    )


def test_a_part_that_is_slow_in_one_metric_is_said_to_be_slow_in_that_one() -> None:
    healthy = measure({}).results
    slow = only(run(*healthy[:2], *measure({"gpu-3": 0.7}, {"p2p": SPEEDS["p2p"]}).results))

    assert (slow.faults, slow.metric) == (("p2p ring",), "ring")
    assert slow.text == "ring 70 GB/s < 90 (a test)"


def test_a_part_that_is_slow_in_some_speeds_is_not_said_to_be_slow_in_all() -> None:
    memory = measure({"gpu-3": 0.7}, {"gpu_memory": SPEEDS["gpu_memory"]}).results
    slow = only(run(measure({}).results[0], *memory))

    assert slow.text == ("30 % slower than its siblings in 2 of 5 speeds measured (read, write)")


def test_all_parts_that_slowed_together_have_one_diagnosis_by_their_limits() -> None:
    slow = only(measure(dict.fromkeys((gpu.id for gpu in GPUS), 0.72)))

    assert len(slow.part_ids) == len(GPUS)
    assert slow.sentence == "all 8 GPUs: 20 % below their limits in all 6 speeds measured"


def test_losses_that_differ_are_a_range() -> None:
    memory = measure({"gpu-3": 0.5}, {"gpu_memory": SPEEDS["gpu_memory"]}).results
    products = measure({"gpu-3": 0.7}, {"gemm": SPEEDS["gemm"]}).results
    slow = only(run(*products, *memory))

    assert slow.text == "30 to 50 % slower than its siblings in all 5 speeds measured"


def test_parts_that_are_slow_in_different_speeds_are_not_said_to_be_slow_in_all() -> None:
    slow = {"bf16": 0, "read": 0, "fp16": 1, "write": 1, "fp64": 2, "ring": 2}
    results = [
        result
        for check, names in SPEEDS.items()
        for result in [
            judged(
                check,
                *(
                    Measurement(n, 70.0 if slow[n] == place else 100.0, "GB/s", gpu.id)
                    for n in names
                    for place, gpu in enumerate(GPUS)
                ),
            )
        ]
    ]

    expected = "30 % slower than their siblings in 2 of 6 speeds measured"
    assert only(run(*results)).text == expected


def test_a_speed_that_is_not_a_number_is_not_counted_as_slow() -> None:
    shares = {"gpu-3": 0.7}
    memory = measure(shares, {"gpu_memory": SPEEDS["gpu_memory"]}).results
    values = [Measurement("fp64", 100.0, "GB/s", gpu.id) for gpu in GPUS if gpu.id != "gpu-3"]
    broken = judged("gemm", Measurement("fp64", None, "GB/s", "gpu-3"), *values)
    slow, *_ = diagnose_run(run(*memory, broken))

    assert slow.text.endswith(
        "30 % slower than its siblings in all 2 speeds measured (read, write)"
    )


def test_what_is_true_of_one_part_is_not_said_of_the_others() -> None:
    same = [Finding("sram", gpu.id, "an error") for gpu in GPUS[:3]]
    own = [Finding("event", gpu.id, f"{place} events") for place, gpu in enumerate(GPUS[:3])]

    text = only(run(judged("ecc", *same, *own))).text
    assert text == "an error; at worst 0 events on GPU 0"


SIGNS = {"clock.mean": "clock", "temperature.headroom.min": "temperature", "power.mean": "power"}


def judge_signs(*names: str, bad: str = "", value: float | None = 5.0) -> Result:
    found = [Measurement(n, -1.0 if n == bad else value, "", g.id) for n in names for g in GPUS]
    limits = [Limit(n, low=0.0, otherwise=Verdict.WARN, source="a test") for n in names]
    return judge_by(found, limits, {}, NODE, "thermal")


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (judge_signs(), ()),
        (judge_signs("clock.mean"), ("clock",)),
        (judge_signs(*SIGNS), ("clock", "temperature", "power")),
        (judge_signs(*SIGNS, bad="power.mean"), ("clock", "temperature")),
        (judge_signs(*SIGNS, "throttled.cores.share", bad="throttled.cores.share"), ()),
        (judge_signs(*SIGNS, "held_back", bad="held_back"), ()),
    ],
)
def test_only_what_was_judged_within_its_limits_is_said_to_be_within_them(
    result: Result, said: tuple[str, ...]
) -> None:
    (slow, *_) = diagnose_run(run(*measure({"gpu-3": 0.7}).results, result))
    signs = slow.text.partition("measured")[2].partition(" (+")[0]

    assert [sign for sign in SIGNS.values() if sign in signs] == [*said]
    assert ("within limits" in signs) is bool(said)


def test_a_sign_without_a_limit_is_not_said_to_be_within_one() -> None:
    unjudged = replace(judge_signs(*SIGNS), limits=())

    assert "within" not in only(run(*measure({"gpu-3": 0.7}).results, unjudged)).text


def test_two_faults_of_one_part_are_both_named() -> None:
    worn = only(
        run(
            judged("ecc", Finding("sram", "gpu-5", "SRAM is worn")),
            judged("recovery", Finding("remap", "gpu-5", "row remap failed")),
        )
    )

    assert (worn.remedy, worn.faults) == (Remedy.CONTACT_VENDOR, ("ecc sram", "recovery remap"))
    assert worn.text == "SRAM is worn; row remap failed"


def test_more_faults_than_a_line_names_are_counted() -> None:
    found = (Finding("event", "gpu-1", f"event {i}") for i in range(7))

    assert only(run(judged("xid", *found))).text == "event 0; event 1; event 2 (+4 more)"


def test_milder_faults_of_a_part_that_failed_are_counted_and_their_checks_named() -> None:
    worn = only(
        run(
            judged("ecc", Finding("remap", "gpu-5", "row remap failed")),
            judged("gpu_setup", Finding("setting", "gpu-5", "power limit set to 500 W")),
        )
    )

    assert (worn.text, worn.other_checks) == ("row remap failed (+1 more)", ("gpu_setup",))


def test_parts_with_different_remedies_have_diagnoses_of_their_own_the_gravest_first() -> None:
    sick = run(
        judged("recovery", Finding("reset", "gpu-2", "it asks for a reset")),
        judged(
            "ecc",
            Finding("remap", "gpu-5", "row remap failed"),
            Finding("sram", "gpu-7", "SRAM is worn"),
        ),
    )
    found = [(d.remedy, d.part_ids) for d in diagnose_run(sick)]

    assert found == [
        (Remedy.CONTACT_VENDOR, ("gpu-7",)),
        (Remedy.REPLACE, ("gpu-5",)),
        (Remedy.RESET_GPU, ("gpu-2",)),
    ]
    assert explain_verdict(sick) == (
        "ecc: GPU 7, serial 165007: SRAM is worn; ecc: GPU 5, serial 165005: row remap failed; "
        "recovery: GPU 2, serial 165002: it asks for a reset"
    )


def test_what_several_checks_find_by_a_shared_code_is_told_once() -> None:
    checks = ("ecc", "pcie", "nvlink", "sdc", "thermal")
    lost = [judged(check, Finding("lost", "gpu-2", f"lost, says {check}")) for check in checks]
    diagnosis = only(run(*lost))

    assert (diagnosis.checks, diagnosis.faults) == (checks, ("lost",))
    assert diagnosis.text == "lost, says ecc"


def test_what_a_check_says_of_the_node_and_others_of_each_gpu_is_told_once() -> None:
    each = [Finding("torch", gpu.id, "no kernels") for gpu in GPUS]
    sick = run(judged("copies", Finding("torch", "node", "no kernels")), judged("sdc", *each))
    diagnosis = only(sick)

    assert (diagnosis.names, diagnosis.checks) == ("all 8 GPUs", ("sdc", "copies"))
    assert summarize(sick).next_steps.startswith("correct the configuration of the node")


@pytest.mark.parametrize("text", ["no kernels", "out of date"])
def test_what_is_said_of_the_node_in_other_words_stays_with_it(text: str) -> None:
    each = [Finding("torch", gpu.id, "no kernels") for gpu in GPUS]
    own = Finding("torch" if text != "no kernels" else "lost", "node", text)
    found = diagnose_run(run(judged("copies", own), judged("sdc", *each)))

    assert [d.checks for d in found if not d.names] == [("copies",)]


def test_what_is_wrong_with_the_node_itself_is_told_cause_by_cause() -> None:
    short = [
        Result(
            check=check,
            verdict=Verdict.ERROR,
            shortfalls=(Shortfall("node", text, Cause.MISSING),),
        )
        for check, text in (("gemm", "no torch"), ("sdc", "no torch"), ("storage", "no fio"))
    ]
    found = [
        (d.names, d.text, d.checks)
        for d in diagnose_run(run(*(add_faults(r, NODE) for r in short)))
    ]

    assert found == [("", "no torch", ("gemm", "sdc")), ("", "no fio", ("storage",))]


def test_a_failure_of_a_check_in_beta_decides_nothing() -> None:
    young = judged("ecc", Finding("remap", "gpu-5", "row remap failed"), maturity=Maturity.BETA)
    diagnosis = only(run(young))

    assert (diagnosis.verdict, diagnosis.remedy) == (Verdict.WARN, Remedy.INSPECT)


def test_the_exact_step_is_the_next_step_where_it_is_known() -> None:
    fix = "nvidia-smi -i gpu-1 -pl 700"
    limited = Finding("setting", "gpu-1", "power limit set to 500 W", fix=fix)
    known, unknown = run(judged("gpu_setup", limited)), replace(limited, fix="")

    assert only(known).fix == fix
    assert summarize(known).next_steps.startswith(f"{fix}, then: hpcverify run")
    assert summarize(run(judged("gpu_setup", unknown))).next_steps.startswith(
        "correct the configuration of GPU 1, then: hpcverify run"
    )


def test_equal_faults_of_two_nodes_are_the_same_whatever_the_numbers() -> None:
    first, second = only(measure({"gpu-3": 0.7})), only(measure({"gpu-6": 0.4}))

    assert (first.part_kind, first.faults) == (second.part_kind, second.faults)
    assert first.text != second.text


def test_a_check_in_beta_does_not_lead_what_a_stable_one_found() -> None:
    lost = Finding("lost", "gpu-2", "GPU is lost")
    diagnosis = only(run(judged("ecc", lost, maturity=Maturity.BETA), judged("xid", lost)))

    assert diagnosis.checks[0] == "xid"
    assert diagnosis.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("NVLink 5 down", "NVLink 5 down (nvlink_down)"),
        (f"NVLink 5 down{' again' * 20}", "NVLink is down (nvlink_down)"),
    ],
)
def test_a_title_is_the_text_of_the_finding_if_it_is_short(text: str, title: str) -> None:
    found = Finding("nvlink_down", "gpu-5", text)
    rules = {"nvlink_down": FindingRule(Verdict.FAIL, Remedy.INSPECT)}
    result = add_faults(judge_by([found], [], rules, NODE, "nvlink"), NODE)

    assert only(run(result)).title == title


def test_a_value_past_its_limit_is_written_in_words_and_with_its_metric() -> None:
    limits = [Limit(name="remap.failed", high=0.0, source="a test")]
    failed = Measurement("remap.failed", 1.0, "", "gpu-5")
    result = add_faults(judge_by([failed], limits, {}, NODE, "ecc"), NODE)

    diagnosis = only(run(result))

    assert diagnosis.reason == ("ecc: GPU 5, serial 165005: row remapping failed (remap.failed)")
    assert diagnosis.title == "row remapping failed (remap.failed)"


def test_a_limit_without_a_measurement_is_not_described_as_exceeded() -> None:
    limits = [Limit(name="remap.failed", high=0.0, source="a test")]
    result = add_faults(judge_by([], limits, {}, NODE, "ecc"), NODE)

    title = only(run(result)).title

    assert title.startswith("nothing was measured for the limit on remap.failed")
    assert "row remapping" not in title
