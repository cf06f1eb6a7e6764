"""The verdict in words: the order of checks, what comes of one cause, the next step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcverify.model import (
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Measurement,
    Part,
    Remedy,
    Run,
    Verdict,
)
from hpcverify.summary.diagnosis import diagnose_run
from hpcverify.summary.run_summary import summarize
from hpcverify.summary.verdict import (
    MAX_LINE_CHARACTERS,
    MAX_REASON_CHARACTERS,
    explain_verdict,
    join_lines,
    needs_vendor,
    shorten,
)
from hpcverify.summary.wording import format_run
from hpcverify.testing import judge_by
from tests.doubles import a_result, a_run


def slow(count: int) -> Run:
    """Fail one GPU by far, and *count* more by a little."""
    gpus = [Part("gpu", f"gpu-{i}", f"GPU {i}") for i in range(count + 2)]
    rates = [Measurement("bf16.sustained", 701.0 - i, "TFLOP/s", f"gpu-{i}") for i in range(count)]
    worst = Measurement("bf16.sustained", 12.0, "TFLOP/s", f"gpu-{count}")
    limit = Limit(name="*", low=702, remedy=Remedy.REPLACE, source="spec")
    node = Inventory(parts=tuple(gpus))
    failed = judge_by([*rates, worst], [limit], {}, node, check="gemm")
    return a_run(verdict=Verdict.FAIL, results=(failed,), inventory=node)


WORST = "slower than good parts: 12 TFLOP/s, limit ≥ 702 TFLOP/s"


def test_of_many_failures_a_line_tells_the_worst_and_counts_the_others() -> None:
    _, line, last = format_run(slow(23))

    assert line == f"  FAIL  GPU 0-23  {WORST}, worst GPU 23 (bf16.sustained)  1. replace them"
    assert last == "next: drain the node, step 1, then: hpcverify run --suite quick"
    assert (
        explain_verdict(slow(23))
        == f"gemm: GPU 23, GPU 22, GPU 21 (+21 more): at worst {WORST} (bf16.sustained) on GPU 23"
    )


def test_one_failure_has_no_count() -> None:
    assert format_run(slow(0))[1].endswith(f"{WORST} (bf16.sustained)  1. replace it")
    assert explain_verdict(slow(0)) == f"gemm: GPU 0: {WORST} (bf16.sustained)"
    assert (
        summarize(slow(0)).next_steps
        == "drain the node, replace GPU 0, then: hpcverify run --suite quick"
    )


def test_what_several_checks_report_of_a_part_is_printed_once() -> None:
    lost = Finding("gpu_lost", "node", "GPU with NVML index 2: GPU is lost")
    rulings = {"gpu_lost": FindingRule(Verdict.FAIL, Remedy.REBOOT)}
    results = [
        a_result(
            name,
            verdict=Verdict.FAIL,
            reason=f"node: {lost.text}",
            remedy=Remedy.REBOOT,
            findings=(lost,),
            rulings=rulings,
        )
        for name in ("inventory", "recovery", "ecc", "nvlink")
    ]
    run = a_run(verdict=Verdict.FAIL, results=tuple(results))

    assert explain_verdict(run) == f"inventory and 3 more checks: {lost.text}"
    assert summarize(run).next_steps.startswith("drain the node, reboot the node, then:")


def test_a_line_of_progress_is_cut() -> None:
    assert shorten("x" * MAX_LINE_CHARACTERS) == "x" * MAX_LINE_CHARACTERS
    assert len(shorten("x" * (MAX_LINE_CHARACTERS + 1))) == MAX_LINE_CHARACTERS
    assert shorten("x" * (MAX_LINE_CHARACTERS + 1)).endswith("x…")


def test_a_long_line_is_cut_between_words() -> None:
    assert shorten("GPU 5 (…c650): slow", 12) == "GPU 5…"
    assert shorten("one two three", 8) == "one two…"
    assert shorten("a " + "x" * 20, 12) == f"a {'x' * 9}…"


def test_where_nothing_applies_other_checks_are_to_be_chosen() -> None:
    skipped = a_result("nvlink", verdict=Verdict.SKIP, reason="no GPU on this node")
    run = a_run(verdict=Verdict.ERROR, results=(skipped,))
    steps = summarize(run).next_steps
    assert steps.startswith("choose checks of what this node has (hpcverify checks), then: ")
    interrupted = a_run(verdict=Verdict.ERROR, results=(skipped,), complete=False)
    assert summarize(interrupted).next_steps == "run the suite again: hpcverify run --suite quick"


def test_the_rerun_of_chosen_checks_is_no_run_of_the_whole_suite() -> None:
    chosen = a_run(
        verdict=Verdict.ERROR,
        suite="burnin",
        chosen=("storage",),
        results=(a_result("storage", verdict=Verdict.ERROR, reason="interrupted"),),
        complete=False,
    )

    assert summarize(chosen).rerun_command == "hpcverify run --suite burnin --check storage"
    assert summarize(replace(chosen, chosen=())).rerun_command == "hpcverify run --suite burnin"


def failed(remedy: Remedy) -> Run:
    limit = Limit(name="*", low=5, remedy=remedy, source="spec")
    found = (Measurement("rate", 1.0, "GB/s", "GPU-0"),)
    judged = judge_by(found, [limit], {})
    result = a_result(
        verdict=Verdict.FAIL,
        reason=judged.reason,
        remedy=remedy,
        measurements=found,
        limits=(limit,),
        findings=(),
    )
    return a_run(verdict=Verdict.FAIL, results=(result,))


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        (Remedy.REPLACE, True),
        (Remedy.CONTACT_VENDOR, True),
        (Remedy.INSPECT, False),
        (Remedy.RESET_GPU, False),
        (Remedy.REBOOT, False),
    ],
)
def test_the_vendor_gets_a_report_only_of_what_the_vendor_replaces(
    remedy: Remedy, *, expected: bool
) -> None:
    assert needs_vendor(failed(remedy)) is expected


def test_the_vendor_gets_no_report_of_a_node_that_passed() -> None:
    assert not needs_vendor(a_run(verdict=Verdict.PASS, results=(a_result(),)))


def test_each_kind_of_failure_of_a_check_is_in_its_line() -> None:
    """The one that calls for a replacement is not hidden behind a count."""
    rulings = {"remap": FindingRule(Verdict.FAIL, Remedy.REPLACE)}
    found = judge_by(
        [
            *(Measurement("sram", 1.0, "", part_id) for part_id in ("gpu7", "gpu6")),
            Finding("remap", "gpu5", "row remap failed"),
        ],
        [Limit(name="sram", high=0, remedy=Remedy.CONTACT_VENDOR)],
        rulings,
    )
    first, second = diagnose_run(a_run(verdict=Verdict.FAIL, results=(found,)))

    assert (first.remedy, {*first.part_ids}) == (Remedy.CONTACT_VENDOR, {"gpu7", "gpu6"})
    assert (second.remedy, second.sentence) == (Remedy.REPLACE, "gpu5: row remap failed")


def test_a_long_line_of_a_reason_does_not_hide_those_after_it() -> None:
    reason = join_lines(["ecc: " + "word " * 1000, "xid: GPU 2: lost", "xid: GPU 2: lost"])

    assert reason.endswith("; xid: GPU 2: lost")
    assert len(reason) <= MAX_REASON_CHARACTERS
    assert join_lines(["a" * 500, "", "b" * 398]) == f"{'a' * 500}; {'b' * 398}"
