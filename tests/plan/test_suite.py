"""Suites: what is wrong in a file is found before anything runs."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import msgspec
import pytest

from hpcverify.check import Setting
from hpcverify.errors import ConfigError
from hpcverify.model import Cause, Remedy, Verdict
from hpcverify.plan.config import Site
from hpcverify.plan.suite import (
    Plan,
    Suite,
    SuiteEntry,
    list_suites,
    load_suite,
    make_plan,
    refuse_endless,
)
from hpcverify.run.orchestrator import ROUND_TIME_MARGIN

SITE = Site(check_packages=("tests.site.acme_checks",), path="site.toml")


def planned(*entries: SuiteEntry, site: Site = SITE, only: tuple[str, ...] = ()) -> Plan:
    return make_plan(Suite(name="s", summary="", budget=60, check=entries), site, only)


def limited(setting: Setting) -> Site:
    return Site(
        check_packages=SITE.check_packages, path="site.toml", limits={"steady": {"level": setting}}
    )


@pytest.mark.parametrize("name", list_suites())
def test_every_suite_that_ships_can_be_planned(name: str) -> None:
    planned = make_plan(load_suite(name), Site())
    assert planned.steps
    refuse_endless(planned)


@pytest.mark.needs("root")
@pytest.mark.parametrize("loose", ["above", "folder", "compiled"])
def test_root_runs_no_check_that_others_can_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loose: str
) -> None:
    package = f"{loose}_checks"
    compiled = tmp_path / package / "__pycache__"
    compiled.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    site = Site(check_packages=(package,))
    make_plan(load_suite("prolog"), site)
    # Where anybody can add a module, a sticky folder is no better.
    places = {"above": tmp_path, "folder": compiled.parent, "compiled": compiled}
    places[loose].chmod(0o1777)

    with pytest.raises(ConfigError, match="can be changed by other users"):
        make_plan(load_suite("prolog"), site)


def test_an_unknown_suite_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match="did you mean quick"):
        load_suite("quik")


def test_what_is_between_nodes_is_no_suite_that_a_node_runs() -> None:
    with pytest.raises(
        ConfigError, match="the suite fabric does not run on a single node: hpcverify fabric bisect"
    ):
        load_suite("fabric")
    assert "fabric" not in list_suites()


def test_checks_run_in_the_order_of_the_file() -> None:
    steps = planned(SuiteEntry(name="steady"), SuiteEntry(name="naughty")).steps
    assert [s.name for s in steps] == ["steady", "naughty"]


def test_the_star_stands_for_every_check_that_is_not_named() -> None:
    steps = planned(SuiteEntry(name="*"), SuiteEntry(name="steady")).steps
    assert steps[-1].name == "steady"
    assert {"naughty", "gemm"} < {s.name for s in steps}
    assert len({s.name for s in steps}) == len(steps)


def test_only_takes_the_suites_entry_or_else_the_defaults() -> None:
    entry = SuiteEntry(name="steady", params={"value": 9})
    steps = planned(entry, only=("naughty", "steady")).steps
    assert [s.name for s in steps] == ["steady", "naughty"]
    assert msgspec.to_builtins(steps[0].params) == {"value": 9}


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (SuiteEntry(name="stedy"), "did you mean steady"),
        (SuiteEntry(name="steady", params={"vlaue": 1}), "did you mean value"),
        (SuiteEntry(name="steady", params={"value": "x"}), "params: value must be a number: write"),
        (SuiteEntry(name="steady", params={"value": nan}), "value must be a finite number"),
        (
            SuiteEntry(name="steady", params={"value": [1, inf]}),
            r"check steady: params: value\[1\] must be a finite number, not inf",
        ),
        (
            SuiteEntry(name="storage", params={"seconds": 0}),
            "check storage: params: seconds must be > 0$",
        ),
        (
            SuiteEntry(name="steady", limits={"levl": Setting(low=1)}),
            "limits.steady: no measurement is called 'levl'; did you mean level",
        ),
    ],
)
def test_a_mistake_names_the_suite_and_what_was_meant(entry: SuiteEntry, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        planned(entry)


def test_a_limit_of_the_site_replaces_the_default_and_is_its_source() -> None:
    site = limited(Setting(low=3, otherwise=Verdict.WARN))
    rule = planned(SuiteEntry(name="steady"), site=site).steps[0].rules["level", "*"]
    assert (rule.low, rule.high, rule.otherwise) == (3, 10, Verdict.WARN)
    assert rule.source == "site.toml"


def test_a_limit_is_converted_into_the_unit_of_the_measurement() -> None:
    site = limited(Setting(high=0.5, unit="s"))
    rule = planned(SuiteEntry(name="steady"), site=site).steps[0].rules["level", "*"]
    assert rule.high == 500  # ms


def test_a_limit_keeps_what_the_file_does_not_say_of_the_default() -> None:
    limits = {"mismatched_words": Setting(high=3), "products": Setting(low=9)}
    rules = planned(SuiteEntry(name="sdc", limits=limits)).steps[0].rules
    words, products = rules["mismatched_words", "*"], rules["products", "*"]

    assert (words.high, words.remedy, words.optional) == (3, Remedy.REPLACE, True)
    assert (products.low, products.otherwise) == (9, Verdict.ERROR)
    assert words.source == products.source == "suite s"


def test_a_limit_without_a_default_fails_and_must_be_measured() -> None:
    limits = {"lev*": Setting(low=1)}
    rule = planned(SuiteEntry(name="steady", limits=limits)).steps[0].rules["lev*", "*"]
    assert (rule.otherwise, rule.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert not rule.optional


@pytest.mark.parametrize(
    ("otherwise", "cause"),
    [(None, Cause.UNMEASURED), (Verdict.ERROR, Cause.UNMEASURED), (Verdict.FAIL, Cause.NONE)],
)
def test_the_cause_of_a_limit_stays_with_its_verdict(
    otherwise: Verdict | None, cause: Cause
) -> None:
    limits = {"samples": Setting(low=9, otherwise=otherwise)}
    step = planned(SuiteEntry(name="thermal", limits=limits)).steps[0]
    assert step.rules["samples", "*"].cause is cause


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (
            SuiteEntry(name="sdc", params={"seconds": 60}),
            "check sdc: seconds = 60 does not fit into the suite's budget of 60 s",
        ),
        (
            SuiteEntry(name="sdc", params={"seconds": 5}, timeout=5),
            "seconds = 5 does not fit into the check's timeout of 5 s",
        ),
    ],
)
def test_a_check_that_cannot_end_in_its_time_is_refused(entry: SuiteEntry, fault: str) -> None:
    todo = planned(entry)  # by which a run of the past can be judged still
    with pytest.raises(ConfigError, match=fault):
        refuse_endless(todo)


@pytest.mark.parametrize(
    ("unit", "fault"), [("sec", "no unit is called 'sec'"), ("GB/s", "is a bandwidth")]
)
def test_a_limit_in_a_wrong_unit_is_refused(unit: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        planned(SuiteEntry(name="steady"), site=limited(Setting(high=1, unit=unit)))


def test_limits_on_a_check_that_is_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean gemm"):
        planned(site=Site(limits={"gem": {}}))


def test_a_site_has_suites_of_its_own_which_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCVERIFY_CONFIG", str(tmp_path / "site.toml"))
    (tmp_path / "suites").mkdir()
    text = 'summary = "ours"\nbudget = 5\n[[check]]\nname = "inventory"\n'
    (tmp_path / "suites" / "quick.toml").write_text(text)
    assert load_suite("quick").summary == "ours"


def suite_file(folder: Path, head: str) -> None:
    (folder / "suites").mkdir()
    text = f'summary = "s"\nbudget = 5\n{head}\n[[check]]\nname = "steady"\n'
    (folder / "suites" / "ours.toml").write_text(text)


@pytest.mark.parametrize(("head", "rounds"), [("", 1), ("rounds = 1000", 1000)])
def test_a_suite_says_in_how_many_rounds_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, rounds: int
) -> None:
    monkeypatch.setenv("HPCVERIFY_CONFIG", str(tmp_path / "site.toml"))
    suite_file(tmp_path, head)
    assert make_plan(load_suite("ours"), SITE).rounds == rounds
    assert make_plan(load_suite("ours"), SITE, ("naughty",)).rounds == rounds


@pytest.mark.parametrize("rounds", ["0", "1001", "-1", "1.5", '"3"'])
def test_a_number_of_rounds_out_of_range_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: str
) -> None:
    monkeypatch.setenv("HPCVERIFY_CONFIG", str(tmp_path / "site.toml"))
    suite_file(tmp_path, f"rounds = {rounds}")
    with pytest.raises(ConfigError, match="rounds"):
        load_suite("ours")


def test_the_rounds_of_the_burn_in_fit_its_budget() -> None:
    """On 8 GPUs and 256 cores, if all checks wait for them, with 7 % for the rest."""
    suite = load_suite("burnin")
    steps = make_plan(suite, Site()).steps
    asked = {step.name: msgspec.to_builtins(step.params) for step in steps}
    spent = {name: params.get("seconds", 0.0) for name, params in asked.items()}
    spent["gemm"] = 11 * (spent["gemm"] + asked["gemm"]["burst_seconds"])  # types
    spent["gemm"] += 256 * asked["gemm"]["core_seconds"]
    spent["sdc"] *= 2  # the CPU, and then the GPUs
    spent["gpu_memory"] += 3 * asked["gpu_memory"]["bandwidth_seconds"]
    spent["pcie_bandwidth"] *= 2 * 8
    spent["p2p"] *= 8 * 7 + 10
    spent["storage"] *= 3
    spent["thermal"] += asked["thermal"]["recovery_seconds"]
    waits = suite.settle * sum(step.is_active for step in steps)
    round_ = sum(spent.values()) + waits

    assert (suite.rounds - 1 + ROUND_TIME_MARGIN) * round_ + suite.settle < 0.93 * suite.budget
    assert spent["sdc"] + spent["thermal"] > sum(spent.values()) / 2
