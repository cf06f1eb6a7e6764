"""Conclusive evidence: what no rerun can take back, by the data of the checks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hpcverify.check import Rule
from hpcverify.model import (
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Maturity,
    Measurement,
    Part,
    Result,
    Verdict,
)
from hpcverify.plan import catalog
from hpcverify.plan.config import Setting, Site
from hpcverify.plan.suite import Suite, SuiteEntry, make_plan
from hpcverify.run.conclude import judge_result, list_conclusive

GPU = Part(kind="gpu", id="gpu-a", label="GPU 3", facts={"name": "test"})
NODE = Inventory(parts=(GPU,))
EXACT = {"words": Rule(high=0, conclusive=True, source="exact")}
SLOW = {"speed": Rule(low=10, source="s")}


def result(
    *found: Measurement | Finding,
    rules: dict[str, Rule] | None = None,
    rulings: dict[str, FindingRule] | None = None,
    maturity: Maturity = Maturity.STABLE,
) -> Result:
    """Judge what was *found*, as a run does."""
    base = Result(
        check="c",
        verdict=Verdict.PASS,
        maturity=maturity,
        measurements=tuple(f for f in found if isinstance(f, Measurement)),
        findings=tuple(f for f in found if isinstance(f, Finding)),
    )
    return judge_result(base, rules or {}, rulings or {}, NODE, lambda _name, _where: ())


def list_texts(result: Result) -> list[str]:
    return [complaint.text for complaint in list_conclusive(result, Verdict.FAIL)]


def words(count: float) -> Measurement:
    return Measurement("words", count, "", "gpu-a")


def speed(value: float) -> Measurement:
    return Measurement("speed", value, "GB/s", "gpu-a")


def test_a_wrong_word_is_hard_evidence_in_the_words_of_the_result() -> None:
    wrong = result(words(1), rules=EXACT)
    assert list_texts(wrong) == ["words 1 > 0 (exact)"]
    assert wrong.reason == "GPU 3: words 1 > 0 (exact)"


def test_without_a_wrong_word_there_is_none() -> None:
    assert list_texts(result(words(0), rules=EXACT)) == []


def test_of_a_failure_with_both_only_the_hard_part_is_evidence() -> None:
    both = result(words(2), speed(1), rules={**EXACT, **SLOW})
    assert both.verdict is Verdict.FAIL
    assert list_texts(both) == ["words 2 > 0 (exact)"]
    assert list_texts(result(speed(1), rules=SLOW)) == []


@pytest.mark.parametrize("conclusive", [True, False])
def test_a_finding_is_hard_if_its_ruling_is(conclusive: bool) -> None:  # noqa: FBT001 - a case
    rulings = {"lost": FindingRule(Verdict.FAIL, conclusive=conclusive)}
    lost = result(Finding("lost", "gpu-a", "is lost"), rulings=rulings)
    assert list_texts(lost) == (["is lost"] if conclusive else [])


def test_a_warning_is_no_evidence_however_hard() -> None:
    rules = {"words": Rule(high=0, conclusive=True, otherwise=Verdict.WARN)}
    assert list_texts(result(words(1), rules=rules)) == []


def test_a_hard_warning_beside_a_soft_failure_is_none_either() -> None:
    rules = {**SLOW, "words": Rule(high=0, conclusive=True, otherwise=Verdict.WARN)}
    assert list_texts(result(words(1), speed(1), rules=rules)) == []


def test_a_check_in_beta_gives_none() -> None:
    assert list_texts(result(words(1), rules=EXACT, maturity=Maturity.BETA)) == []


def test_a_hard_limit_that_nothing_was_measured_against_is_no_evidence() -> None:
    silent = result(rules=EXACT)
    assert silent.verdict is Verdict.ERROR
    assert list_texts(silent) == []


def test_a_limit_of_siblings_is_as_hard_as_its_rule() -> None:
    rule = {"speed": Rule(of_siblings=0.9, conclusive=True)}
    places = (Measurement("speed", v, "", f"cpu{i}") for i, v in enumerate([9, 9, 1]))
    (slow,) = list_conclusive(result(*places, rules=rule), Verdict.FAIL)

    assert (slow.part_id, slow.value) == ("cpu2", 1)
    assert slow.limit is not None
    assert slow.limit.low == pytest.approx(8.1)


def test_what_was_written_before_there_was_hard_evidence_has_none() -> None:
    assert not msgspec.json.decode(b'{"name": "words", "high": 0}', type=Limit).conclusive
    assert not msgspec.json.decode(b'{"verdict": "fail"}', type=FindingRule).conclusive


def test_evidence_survives_the_document() -> None:
    wrong = result(words(1), rules=EXACT)
    again = msgspec.json.decode(msgspec.json.encode(wrong), type=Result)
    assert list_texts(again) == list_texts(wrong) != []


def test_a_sites_own_bound_leaves_the_rule_as_hard_as_it_was(tmp_path: Path) -> None:
    limits = {"ecc": {"ecc.uncorrected.since": Setting(high=2)}}
    suite = Suite(name="s", summary="of the tests", budget=10, check=(SuiteEntry(name="ecc"),))
    (step,) = make_plan(suite, Site(limits=limits, path=str(tmp_path))).steps
    assert step.rules["ecc.uncorrected.since", "*"].high == 2
    assert step.rules["ecc.uncorrected.since", "*"].conclusive


HARD_FINDINGS = {
    ("sdc", "corruption"),
    ("sdc", "miscopied"),
    ("cpu_units", "defective_core"),
    ("gpu_memory", "memory_corrupted"),
    ("host_memory", "memory_corrupted"),
    ("training", "irreproducible"),
    ("training", "miscopied"),
    ("training", "wrong_sum"),
    ("allreduce", "wrong_sum"),
    ("collectives", "wrong_result"),
    ("p2p", "p2p_corrupted"),
    ("p2p", "words_wrong"),
    ("pcie_bandwidth", "transfer_corrupted"),
    ("thermal", "corruption"),
    ("storage", "corruption"),
    ("recovery", "memory_unrepairable"),
    ("recovery", "gpu_reset"),
    ("inventory", "gpu_lost"),
    ("inventory", "gpu_missing"),
    ("xid", "xid_48"),
    ("xid", "xid_79"),
    ("xid", "xid_94"),
    ("xid", "sxid_fatal"),
    ("kernel_log", "mce_uncorrected"),
    ("kernel_log", "edac_uncorrected"),
    ("kernel_log", "mlx5_health"),
    ("kernel_log", "nvme_dead"),
    ("kernel_log", "fs_read_only"),
    ("kernel_log", "disk_medium_error"),
}
SOFT_FINDINGS = {
    ("training", "misfed"),
    ("inventory", "disk_missing"),
    ("storage", "io_error"),
    ("xid", "xid_13_under_load_repeated"),
    ("nvlink", "nvlink_down"),
    ("kernel_log", "mlx5_command_timeout"),
}
HARD_LIMITS = {
    ("sdc", "mismatched_words"),
    ("sdc", "copied_wrong_words"),
    ("sdc", "stress.mismatched"),
    ("cpu_units", "wrong_units"),
    ("thermal", "stress.mismatched"),
    ("gpu_memory", "mismatches"),
    ("host_memory", "mismatches"),
    ("ecc", "ecc.uncorrected.since"),
    ("ecc", "ecc.uncorrected.delta"),
    ("ecc", "ecc.host.uncorrected.since"),
    ("ecc", "remap.failed"),
    ("pcie", "fatal.delta"),
    ("nvlink", "recovery_failed.delta"),
}
SOFT_LIMITS = {
    ("gemm", "*.sustained"),
    ("ecc", "ecc.corrected.sustained"),
    ("thermal", "throttled.hw_thermal"),
    ("pcie", "width.missing"),
    ("nvlink", "crc.rate"),
}


@pytest.mark.parametrize(("check", "code"), sorted(HARD_FINDINGS | SOFT_FINDINGS))
def test_what_no_rerun_takes_back_is_hard(check: str, code: str) -> None:
    ruling = catalog.load_check(check).finding_rules[code]
    assert ruling.verdict is Verdict.FAIL
    assert ruling.conclusive is ((check, code) in HARD_FINDINGS)


@pytest.mark.parametrize(("check", "name"), sorted(HARD_LIMITS | SOFT_LIMITS))
def test_an_event_is_hard_and_slowness_is_not(check: str, name: str) -> None:
    rule = catalog.load_check(check).rules[name]
    assert rule.otherwise is Verdict.FAIL
    assert rule.conclusive is ((check, name) in HARD_LIMITS)


STANDING = {("xid", "xid_standing"), ("kernel_log", "kernel_standing")}
"""What says that the failure of an earlier run still stands. It fails no node twice."""


@pytest.mark.parametrize("check", list(catalog.list_check_names()))
def test_only_a_failure_or_what_is_left_of_one_is_called_hard(check: str) -> None:
    found = catalog.load_check(check)
    conclusive = {code: r.verdict for code, r in found.finding_rules.items() if r.conclusive}
    verdicts = {verdict for code, verdict in conclusive.items() if (check, code) not in STANDING}
    verdicts |= {r.otherwise for r in found.rules.values() if r.conclusive}
    assert verdicts <= {Verdict.FAIL}
