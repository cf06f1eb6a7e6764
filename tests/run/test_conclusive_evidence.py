"""Conclusive evidence: what no rerun can take back, by the data of the checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from hpcverify.check import Rule, Setting
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
from hpcverify.plan.config import Site
from hpcverify.plan.suite import Suite, SuiteEntry, make_plan
from hpcverify.run.conclude import judge_result, list_conclusive
from tests.tables import read_table

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
    return [fault.text for fault in list_conclusive(result, Verdict.FAIL)]


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


@dataclass(frozen=True)
class Ruled:
    """A row of ``conclusive.csv``: a finding or a limit of a check that fails a node."""

    check: str
    name: str
    kind: Literal["finding", "limit"]
    is_conclusive: bool = False


RULED = read_table(Path(__file__).with_name("conclusive.csv"), Ruled)


@pytest.mark.parametrize("row", RULED, ids=lambda row: f"{row.check}-{row.name}")
def test_what_no_rerun_takes_back_is_conclusive_and_slowness_is_not(row: Ruled) -> None:
    check = catalog.load_check(row.check)
    limit, finding = check.rules.get(row.name), check.finding_rules.get(row.name)
    verdict = limit.otherwise if row.kind == "limit" and limit else finding and finding.verdict
    rule = limit if row.kind == "limit" else finding
    assert rule
    assert (verdict, rule.conclusive) == (Verdict.FAIL, row.is_conclusive)


STANDING = {("xid", "xid_standing"), ("kernel_log", "kernel_standing")}
"""What says that the failure of an earlier run still stands. It fails no node twice."""


@pytest.mark.parametrize("check", list(catalog.list_check_names()))
def test_only_a_failure_or_what_is_left_of_one_is_called_hard(check: str) -> None:
    found = catalog.load_check(check)
    conclusive = {code: r.verdict for code, r in found.finding_rules.items() if r.conclusive}
    verdicts = {verdict for code, verdict in conclusive.items() if (check, code) not in STANDING}
    verdicts |= {r.verdict for r in found.rules.values() if r.conclusive}
    assert verdicts <= {Verdict.FAIL}
