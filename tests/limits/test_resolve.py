"""Where a limit comes from, and when there is none."""

from __future__ import annotations

import pytest

from hpcverify.check import Rule
from hpcverify.limits.resolve import MIN_BASELINE_RUNS, resolve
from hpcverify.model import Inventory, Limit, Measurement, Part, Verdict
from hpcverify.testing import has_no_past
from hpcverify_checks import gemm

H100 = {"pci_device_id": "2330", "name": "NVIDIA H100 80GB HBM3"}
GPUS = Inventory(parts=tuple(Part("gpu", f"gpu-{i}", f"GPU {i}", H100) for i in range(4)))


def rates(*values: float, name: str = "bf16.sustained") -> list[Measurement]:
    return [Measurement(name, value, "GFLOP/s", f"gpu-{i}") for i, value in enumerate(values)]


def limits(rule: Rule, found: list[Measurement], past: tuple[float, ...] = ()) -> tuple[Limit, ...]:
    return resolve({"*.sustained": rule}, found, GPUS, lambda _name, _where: past)


def test_an_absolute_limit_holds_by_pattern_whatever_was_measured() -> None:
    (limit,) = limits(Rule(low=1, otherwise=Verdict.WARN, source="site.toml"), [])

    assert (limit.name, limit.low, limit.source) == ("*.sustained", 1, "site.toml")
    assert limit.otherwise is Verdict.WARN


def test_an_optional_limit_is_gone_when_nothing_was_measured() -> None:
    assert limits(Rule(low=1, optional=True), []) == ()
    assert len(limits(Rule(low=1, optional=True), rates(2))) == 1


def test_a_known_part_is_held_to_its_data_sheet() -> None:
    (limit,) = limits(Rule(of_spec=0.9), rates(700e3))

    assert limit.low == pytest.approx(0.9 * 0.87 * 730e3)
    assert limit.source == (
        "0.78 x 0.738 of 989 TFLOP/s (data sheet of NVIDIA H100 80GB HBM3), measured on such a "
        "part with other operands or another program; confidence B"
    )


def test_a_rule_that_warns_is_held_to_what_is_typical_and_one_that_fails_to_the_least() -> None:
    rules = {name: r for name, r in gemm.CHECK.rules.items() if name.endswith("sustained")}

    made = resolve(rules, rates(700e3), GPUS, has_no_past)

    assert {limit.otherwise: limit.low for limit in made} == {
        Verdict.WARN: pytest.approx(0.9 * 680e3),
        Verdict.FAIL: pytest.approx(0.9 * 0.87 * 730e3),
    }


def test_without_a_sound_figure_both_rules_make_one_limit_that_warns() -> None:
    rules = {name: r for name, r in gemm.CHECK.rules.items() if name.endswith("sustained")}

    (limit,) = resolve(rules, rates(1, name="fp64.sustained"), GPUS, has_no_past)

    assert limit.otherwise is Verdict.WARN


def test_an_unknown_part_has_no_data_sheet_to_be_held_to() -> None:
    unknown = Inventory(parts=(Part("gpu", "gpu-0", "GPU 0", {"name": "X"}),))

    assert resolve({"*": Rule(of_spec=1, optional=True)}, rates(1), unknown, has_no_past) == ()


@pytest.mark.parametrize(
    ("name", "unit", "low"),
    [
        ("memory.copy", "GB/s", 0.8 * 0.94 * 2540),  # of 3350
        ("memory.copy", "TB/s", 0.8 * 0.94 * 2.540),
        ("p2p.write", "GB/s", 0.8 * 380),  # one direction: of 450
        ("bf16.sustained", "TFLOP/s", 0.8 * 0.87 * 730),  # of 989
    ],
)
def test_the_data_sheet_speaks_in_the_unit_that_was_measured(
    name: str, unit: str, low: float
) -> None:
    found = [Measurement(name, 1, unit, "gpu-0")]

    (limit,) = resolve({name: Rule(of_spec=0.8)}, found, GPUS, has_no_past)

    assert limit.low == pytest.approx(low)
    assert unit in limit.source


@pytest.mark.parametrize("name", ["memory.used", "p2p.ring", "fp4.sustained"])
def test_what_nobody_knows_a_good_part_to_reach_is_left_to_siblings(name: str) -> None:
    found = rates(100, 100, 100, 50, name=name)

    made = resolve({name: Rule(of_spec=0.8, of_siblings=0.9)}, found, GPUS, has_no_past)

    assert {limit.low for limit in made} == {90.0}
    assert f"no published {name} of a good NVIDIA H100" in made[0].source


def node_of(count: int, **facts: str) -> Inventory:
    return Inventory(parts=tuple(Part("gpu", f"gpu-{i}", f"GPU {i}", facts) for i in range(count)))


def test_a_part_that_is_not_in_the_table_is_judged_by_siblings_and_said_to_be() -> None:
    node = node_of(4, name="NVIDIA X", pci_device_id="9999")
    rule = {"bf16.sustained": Rule(of_spec=0.85, of_siblings=0.9)}

    made = resolve(rule, rates(100, 100, 100, 50), node, has_no_past)

    assert {limit.low for limit in made} == {90.0}
    assert "NVIDIA X (PCI device id 9999) is not in the table" in made[0].source


def test_a_lone_part_that_is_not_in_the_table_is_judged_by_its_past_alone() -> None:
    node = node_of(1, name="NVIDIA X")
    rule = {"bf16.sustained": Rule(of_spec=0.85, of_baseline=0.8)}

    (limit,) = resolve(rule, rates(1), node, lambda _n, _w: (100.0,) * MIN_BASELINE_RUNS)
    (no_limit,) = resolve(rule, rates(1), node, has_no_past)

    assert limit.low == 80
    assert "NVIDIA X" in limit.source
    assert "NVIDIA X" in no_limit.noisy


def test_a_weak_source_fails_no_part_and_warns() -> None:
    h100 = node_of(1, name="NVIDIA H100 80GB HBM3", pci_device_id="2330")

    (limit,) = resolve(
        {"fp64.*": Rule(of_spec=0.85)}, rates(1, name="fp64.sustained"), h100, has_no_past
    )

    assert limit.otherwise is Verdict.WARN
    assert limit.low is not None
    assert "in fp32, measured on such a part" in limit.source
    assert limit.source.endswith("confidence C")


def test_a_gpu_with_less_power_than_the_others_is_no_sibling_of_theirs() -> None:
    lowered = (*["700 of 700 W"] * 4, "400 of 700 W")
    parts = tuple(
        Part("gpu", f"gpu-{i}", f"GPU {i}", {"name": "NVIDIA X", "power_limit": watts})
        for i, watts in enumerate(lowered)
    )

    made = resolve(
        {"*": Rule(of_siblings=0.9, optional=True)},
        rates(100, 100, 100, 100, 60),
        Inventory(parts=parts),
        has_no_past,
    )

    assert {limit.part_id for limit in made} == {"gpu-0", "gpu-1", "gpu-2", "gpu-3"}


def test_only_gpus_have_data_sheets_to_speak_of() -> None:
    found = [Measurement("bf16.sustained", 1, "GFLOP/s", "cpu")]
    rule = {"bf16.sustained": Rule(of_spec=0.85)}

    (limit,) = resolve(rule, found, Inventory(), has_no_past)

    assert limit.noisy.endswith("(hpcverify default)")


def test_siblings_are_held_to_their_median() -> None:
    found = limits(Rule(of_siblings=0.9), rates(100, 100, 100, 50))

    assert {limit.low for limit in found} == {90.0}
    assert "median of 4 siblings" in found[0].source


@pytest.mark.parametrize("values", [(100.0,), (100.0, 50.0)])
def test_two_that_differ_accuse_nobody(values: tuple[float, ...]) -> None:
    assert limits(Rule(of_siblings=0.9, optional=True), rates(*values)) == ()


def test_a_limit_that_was_asked_for_and_cannot_be_made_is_not_passed_over() -> None:
    (limit,) = limits(Rule(of_siblings=0.9, source="site.toml"), rates(1))

    assert "neither a data sheet nor 3 siblings" in limit.noisy
    assert "site.toml" in limit.noisy


def test_a_node_is_held_to_its_own_past() -> None:
    (limit,) = limits(Rule(of_baseline=0.8), rates(70), past=(100,) * MIN_BASELINE_RUNS)

    assert limit.low == 80
    assert not limit.admits(70)


def test_a_fraction_above_one_is_an_upper_limit() -> None:
    (limit,) = limits(Rule(of_baseline=1.5), rates(70), past=(100,) * MIN_BASELINE_RUNS)

    assert (limit.low, limit.high) == (None, 150)


def test_too_short_a_past_says_nothing() -> None:
    past = (100.0,) * (MIN_BASELINE_RUNS - 1)

    assert limits(Rule(of_baseline=0.8), rates(1), past=past) == ()


def test_a_past_that_spreads_too_widely_is_too_noisy_to_judge_by() -> None:
    (limit,) = limits(Rule(of_baseline=0.9), rates(70), past=(50, 80, 100, 120, 150))

    assert "spread by" in limit.noisy
    assert limit.low is None
