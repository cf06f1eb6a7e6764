"""Of all that the check, the suite and the site say about a metric, one rule judges it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcverify.check import Rule, Setting, may_cover
from hpcverify.errors import ConfigError
from hpcverify.limits.resolve import resolve
from hpcverify.model import Inventory, Measurement, Part, Verdict
from hpcverify.plan.config import Site, read_toml
from hpcverify.plan.suite import Step, Suite, SuiteEntry, load_suite, make_plan
from hpcverify.testing import has_no_past, judge_by

PAGE = Path(__file__).parents[2] / "docs/reference/configuration.md"
GPUS = Inventory(parts=tuple(Part("gpu", f"GPU-{i:04x}", f"GPU {i} (…{i:04x})") for i in range(4)))
SPREAD = {"*.spread": Rule(high=3, otherwise=Verdict.WARN, optional=True)}


def plan_gemm(*settings: tuple[str, Setting], node: str = "n17") -> Step:
    limits = {name: tuple(s for n, s in settings if n == name) for name, _ in settings}
    site = Site(limits={"gemm": limits}, path="site.toml")
    (step,) = make_plan(write_suite(SuiteEntry(name="gemm")), site, node=node).steps
    return step


def write_suite(entry: SuiteEntry) -> Suite:
    return Suite(name="s", summary="of the tests", budget=10, check=(entry,))


def judge_spread(step: Step, value: float, part: str = "GPU-0000") -> Verdict:
    found = [Measurement("bf16.spread", value, "x", part)]
    limits = resolve(SPREAD, found, GPUS, has_no_past, step.overrides)
    return judge_by(found, limits, {}).verdict


def test_a_site_loosens_a_limit_that_the_check_declares_by_a_pattern() -> None:
    step = plan_gemm(("bf16.spread", Setting(high=10)))

    assert judge_spread(step, 5) is Verdict.PASS
    assert judge_spread(step, 11) is Verdict.WARN  # the pattern's verdict is inherited


def test_a_site_tightens_a_limit_that_the_check_declares_by_a_pattern() -> None:
    step = plan_gemm(("bf16.spread", Setting(high=2)))

    assert judge_spread(step, 2.5) is Verdict.WARN


def test_a_site_that_names_one_metric_leaves_the_others_to_the_pattern() -> None:
    step = plan_gemm(("bf16.spread", Setting(high=10)))
    found = [Measurement(f"{kind}.spread", 5, "x", "GPU-0000") for kind in ("bf16", "fp32")]
    limits = resolve(SPREAD, found, GPUS, has_no_past, step.overrides)

    assert {limit.name: limit.high for limit in limits} == {"bf16.spread": 10, "fp32.spread": 3}


def test_an_optional_pattern_stays_optional_for_the_metric_that_a_site_names() -> None:
    step = plan_gemm(("bf16.spread", Setting(high=10)))

    assert resolve(SPREAD, [], GPUS, has_no_past, step.overrides) == ()


def test_the_verdict_of_a_limit_changes_without_its_bound() -> None:
    step = plan_gemm(("bf16.spread", Setting(otherwise=Verdict.FAIL)))

    assert judge_spread(step, 5) is Verdict.FAIL
    assert judge_spread(step, 3) is Verdict.PASS


@pytest.mark.parametrize(
    ("settings", "part", "node", "verdict"),
    [
        ([("*.spread", Setting(high=4)), ("bf16.spread", Setting(high=8))], 0, "n1", "pass"),
        ([("*.spread", Setting(high=8)), ("*.spr*", Setting(high=1))], 0, "n1", "pass"),
        ([("bf16.spread", Setting(high=9, part="GPU 3"))], 3, "n1", "pass"),
        ([("bf16.spread", Setting(high=9, part="GPU-0003"))], 3, "n1", "pass"),
        ([("bf16.spread", Setting(high=9, part="GPU 3 (…0003)"))], 3, "n1", "pass"),
        ([("bf16.spread", Setting(high=9, part="GPU 3"))], 0, "n1", "warn"),
        ([("bf16.spread", Setting(high=9, nodes="n[17-18]"))], 0, "n18", "pass"),
        ([("bf16.spread", Setting(high=9, nodes="n[17-18]"))], 0, "n1", "warn"),
        (
            [("bf16.spread", Setting(high=4)), ("bf16.spread", Setting(high=9, part="GPU *"))],
            2,
            "n1",
            "pass",
        ),
        (
            [("*.spread", Setting(high=9, part="GPU 3")), ("bf16.spread", Setting(high=4))],
            3,
            "n1",
            "pass",
        ),
        (
            [
                ("bf16.spread", Setting(high=4, part="GPU 3")),
                ("*.spread", Setting(high=9, nodes="n1")),
            ],
            3,
            "n1",
            "pass",
        ),
    ],
)
def test_the_most_specific_setting_wins(
    settings: list[tuple[str, Setting]], part: int, node: str, verdict: str
) -> None:
    step = plan_gemm(*settings, node=node)

    assert judge_spread(step, 5, f"GPU-{part:04x}") is Verdict(verdict)


def test_a_setting_of_the_site_goes_before_one_of_the_suite() -> None:
    entry = SuiteEntry(name="gemm", limits={"bf16.spread": Setting(high=1)})
    site = Site(limits={"gemm": {"*.spread": Setting(high=10)}}, path="site.toml")
    (step,) = make_plan(write_suite(entry), site).steps

    assert judge_spread(step, 5) is Verdict.PASS


def test_a_bound_replaces_only_those_on_its_own_side() -> None:
    own = Rule(low=1, of_spec=0.9, high=100)
    loosened = Rule(metric="m", low=0.5, source="site.toml").refine(own)

    assert (loosened.low, loosened.of_spec, loosened.high) == (0.5, None, 100)


def test_a_limit_for_a_part_that_is_not_there_is_an_error_and_judges_no_other() -> None:
    step = plan_gemm(("bf16.spread", Setting(high=1, part="GPU 9", optional=False)))
    found = [Measurement("bf16.spread", 2, "x", "GPU-0000")]
    limits = resolve(SPREAD, found, GPUS, has_no_past, step.overrides)

    assert judge_by(found, limits, {}).verdict is Verdict.ERROR


def test_the_rules_in_force_are_listed_with_part_and_source() -> None:
    step = plan_gemm(("*.spread", Setting(high=4)), ("*.spread", Setting(high=8, part="GPU 3")))

    assert {key: (rule.high, rule.source) for key, rule in step.rules.items() if rule.high} == {
        ("*.spread", "*"): (4, "site.toml"),
        ("*.spread", "GPU 3"): (8, "site.toml"),
    }


def test_a_pattern_that_meets_several_rules_is_listed_with_what_it_inherits_from_each() -> None:
    step = plan_gemm(("fp32.*", Setting(of_siblings=0.5)), ("*.burst", Setting(of_baseline=0.6)))
    listed = {key[0]: rule for key, rule in step.rules.items() if "fp32" in key[0]}

    assert listed["fp32.* as *.sustained"].otherwise is Verdict.FAIL
    assert listed["fp32.* as *.burst"].otherwise is Verdict.WARN
    assert listed["fp32.* as *.burst"].of_baseline == 0.6  # its pattern is the more specific one
    assert listed["fp32.* as *.sustained"].of_siblings == 0.5
    assert listed["fp32.* as *.spread"].high == 3
    assert "fp32.*" not in listed


def test_a_setting_without_any_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="no bound"):
        plan_gemm(("bf16.of_peak", Setting(otherwise=Verdict.WARN)))


def test_a_bound_for_measurements_in_several_units_is_refused() -> None:
    with pytest.raises(ConfigError, match="a limit for each unit"):
        plan_gemm(("*", Setting(high=1)))


@pytest.mark.parametrize("nodes", ["n[1-", "*", "n[1-999999999]", "n 1", ","])
def test_a_list_of_nodes_that_is_none_is_refused(nodes: str) -> None:
    with pytest.raises(ConfigError, match="nodes"):
        plan_gemm(("bf16.spread", Setting(high=1, nodes=nodes)))


def test_the_example_of_the_page_on_configuration_is_what_judges(tmp_path: Path) -> None:
    block = next(
        text
        for text in re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "[limits.gemm]" in text
    )
    path = tmp_path / "site.toml"
    path.write_text(re.sub(r"(?m)^(check_packages|scratch).*\n", "", block))
    site = read_toml(path, Site)
    (gemm,) = make_plan(load_suite("quick"), site, ("gemm",), node="n17").steps
    found = [
        Measurement("bf16.sustained", 649_000 if gpu else 651_000, "GFLOP/s", f"GPU-{gpu:04x}")
        for gpu in range(2)
    ]
    slow, fast = (resolve(gemm.check.rules, [m], GPUS, has_no_past, gemm.overrides) for m in found)

    assert {limit.low for limit in (*slow, *fast) if limit.name == "bf16.sustained"} == {650_000}
    assert judge_by(found[:1], slow, {}).verdict is Verdict.PASS
    assert judge_by(found[1:], fast, {}).verdict is Verdict.FAIL


def test_two_limits_for_one_part_leave_none_unmeasured() -> None:
    step = plan_gemm(
        ("bf16.spread", Setting(high=9, part="GPU 3", optional=False)),
        ("*.spread", Setting(high=6, part="GPU 3", optional=False)),
    )

    assert judge_spread(step, 8, "GPU-0003") is Verdict.PASS


def test_a_pattern_of_the_site_does_not_excuse_what_was_not_measured() -> None:
    rules = {"a.x": Rule(high=1), "b.x": Rule(high=1)}
    looser = Rule(metric="*.x", high=2, source="site.toml")
    limits = resolve(rules, [Measurement("b.x", 1, "", "node")], GPUS, has_no_past, (looser,))

    assert [limit.name for limit in limits] == ["a.x", "*.x"]
    assert judge_by([Measurement("b.x", 1, "", "node")], limits, {}).verdict is Verdict.ERROR


def test_a_limit_by_a_pattern_judges_no_measurement_of_another_unit() -> None:
    with pytest.raises(ConfigError, match="a limit for each unit"):
        plan_gemm(("int8.*", Setting(low=1000)))
    step = plan_gemm(("bf16.*", Setting(of_siblings=0.8)))

    assert step.overrides[0].of_siblings == 0.8


@pytest.mark.parametrize("metric", ["bf16.spread", "*.spread"])
def test_a_bound_that_no_value_meets_with_the_one_inherited_is_refused(metric: str) -> None:
    with pytest.raises(ConfigError, match="low 10 is above high 3"):
        plan_gemm((metric, Setting(low=10)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Setting(high=4), Setting(high=5)),
        (Setting(high=4, part="GPU 3"), Setting(high=5, part="GPU 3")),
        (Setting(high=4, nodes="n[1-4]"), Setting(high=5, nodes="n[4-8]")),
    ],
)
def test_two_limits_for_the_same_part_and_node_are_refused(one: Setting, other: Setting) -> None:
    with pytest.raises(ConfigError, match="two limits"):
        plan_gemm(("bf16.spread", one), ("bf16.spread", other))


def test_what_a_site_only_warns_of_is_no_conclusive_evidence() -> None:
    own = Rule(high=0, conclusive=True)
    warned = Rule(metric="m", otherwise=Verdict.WARN, source="site.toml").refine(own)
    tightened = Rule(metric="m", high=1, source="site.toml").refine(own)

    assert (warned.conclusive, tightened.conclusive) == (False, True)


@pytest.mark.parametrize(
    ("pattern", "declared", "covers"),
    [
        ("int8.*", "*.spread", True),
        ("*.spr*", "*.spread", True),
        ("*.spr*", "*.sustained", False),
        ("*.burst", "*.spread", False),
        ("h?d", "d2h", False),
        ("[dh]2[dh]", "d2h", True),
        ("*", "d2h", True),
        ("busbw.*", "busbw.*", True),
    ],
)
def test_a_pattern_covers_what_a_declared_one_may_be(
    pattern: str, declared: str, *, covers: bool
) -> None:
    assert may_cover(pattern, declared) is covers


LEVELS = {
    "bf16.spread": Rule(high=3, otherwise=Verdict.WARN),
    "*.spread": Rule(high=30, otherwise=Verdict.FAIL),
}


def judge_levels(value: float, *settings: tuple[str, Setting]) -> Verdict:
    found = [Measurement("bf16.spread", value, "x", "GPU-0000")]
    limits = resolve(LEVELS, found, GPUS, has_no_past, plan_gemm(*settings).overrides)
    return judge_by(found, limits, {}).verdict


def test_a_check_may_have_a_rule_that_warns_and_one_that_fails_for_one_metric() -> None:
    assert [judge_levels(value) for value in (2, 5, 50)] == [
        Verdict.PASS,
        Verdict.WARN,
        Verdict.FAIL,
    ]


def test_a_bound_of_the_site_replaces_all_rules_of_the_check_for_a_metric() -> None:
    assert judge_levels(50, ("bf16.spread", Setting(high=99))) is Verdict.PASS


def test_a_verdict_of_the_site_changes_all_rules_of_the_check_for_a_metric() -> None:
    warned = ("bf16.spread", Setting(otherwise=Verdict.WARN))

    assert [judge_levels(value, warned) for value in (2, 5, 50)] == [
        Verdict.PASS,
        Verdict.WARN,
        Verdict.WARN,
    ]
