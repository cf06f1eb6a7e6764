"""What limits and rulings make of what was found."""

from __future__ import annotations

import math

import pytest

from hpcverify.check import (
    MAX_FAULTS,
    LimitIndex,
    compute_margin,
    format_quantity,
    matches,
)
from hpcverify.model import (
    Cause,
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Measurement,
    Part,
    Remedy,
    Verdict,
)
from hpcverify.testing import judge_by
from tests.doubles import CountedParts

SPEED = Limit(name="speed", low=700, source="0.71 x spec 989, H100 SXM5")


def speed(value: float, part_id: str = "gpu-a") -> Measurement:
    return Measurement("speed", value, "TFLOP/s", part_id)


@pytest.mark.parametrize("value", [700, 700.1, 1e9])
def test_a_value_on_or_inside_its_limit_passes(value: float) -> None:
    assert judge_by([speed(value)], [SPEED], {}).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("name", "pattern", "meant"),
    [
        ("crc.rate", "crc.rate", True),
        ("crc.rate", "crc", False),
        ("crc.rate", "*.rate", True),
        ("crc.delta", "*.rate", False),
        ("remap.banks.low", "remap.*", True),
        ("m1", "m?", True),
        ("m1", "m[23]", False),
    ],
)
def test_a_limit_is_for_its_own_name_or_those_of_its_pattern(
    name: str, pattern: str, *, meant: bool
) -> None:
    assert matches(name, pattern) is meant


def test_the_reason_names_part_value_limit_and_source() -> None:
    gpu = Inventory(parts=(Part("gpu", "gpu-a", "GPU 3"),))
    told = judge_by([speed(612)], [SPEED], {}, gpu)

    assert told.verdict is Verdict.FAIL
    assert told.reason == ("GPU 3: speed 612 TFLOP/s < 700 (0.71 x spec 989, H100 SXM5)")


def count_passes_of_judge(count: int) -> int:
    """Count how often the parts are gone through to judge *count* that each have a finding."""
    parts = CountedParts(Part("gpu", f"gpu-{i}", f"GPU {i}") for i in range(count))
    findings = [Finding("lost", f"gpu-{i}", f"lost at {i}") for i in range(count)]
    judged = judge_by(findings, (), {"lost": FindingRule(Verdict.FAIL)}, Inventory(parts=parts))

    assert judged.reason.count("lost at") == count
    return parts.passes


def test_parts_that_each_have_a_finding_are_named_without_a_search_for_each() -> None:
    assert count_passes_of_judge(200) == count_passes_of_judge(5)


def test_an_upper_limit_is_said_as_one() -> None:
    hot = Limit(name="speed", high=10, source="s")

    assert "speed 11 TFLOP/s > 10 (s)" in judge_by([speed(11)], [hot], {}).reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("limit", [SPEED, Limit(name="speed", high=1e300)])
def test_what_is_no_number_is_outside_every_limit(value: float, limit: Limit) -> None:
    told = judge_by([speed(value)], [limit], {})

    assert told.verdict is Verdict.FAIL
    assert "not a number" in told.reason


def test_a_limit_that_nothing_was_measured_against_is_an_error() -> None:
    told = judge_by([], [SPEED], {})

    assert told.verdict is Verdict.ERROR
    assert told.cause is Cause.UNMEASURED


def test_a_limit_may_only_warn() -> None:
    soft = Limit(name="speed", low=700, otherwise=Verdict.WARN)

    assert judge_by([speed(1)], [soft], {}).verdict is Verdict.WARN


def test_the_worst_counts_and_speaks_alone() -> None:
    soft = Limit(name="speed", low=900, otherwise=Verdict.WARN)
    told = judge_by([speed(612), speed(800, "gpu-b")], [SPEED, soft], {})

    assert told.verdict is Verdict.FAIL
    assert "gpu-b" not in told.reason


def test_a_limit_for_one_part_holds_for_no_other() -> None:
    limit = Limit(name="speed", low=700, part_id="gpu-b")
    told = judge_by([speed(1, "gpu-a"), speed(701, "gpu-b")], [limit], {})

    assert told.verdict is Verdict.PASS


def test_a_pattern_holds_for_every_name_that_it_fits() -> None:
    limit = Limit(name="*.speed", low=1)
    found = [Measurement("a.speed", 2), Measurement("b.speed", 0)]

    assert "b.speed" in judge_by(found, [limit], {}).reason


@pytest.mark.parametrize(
    ("otherwise", "verdict"), [(Verdict.FAIL, Verdict.ERROR), (Verdict.WARN, Verdict.WARN)]
)
def test_too_noisy_to_judge_is_neither_pass_nor_fail(otherwise: Verdict, verdict: Verdict) -> None:
    noisy = Limit(
        name="speed", otherwise=otherwise, noisy="too noisy to judge (runs spread by 40%)"
    )
    told = judge_by([speed(1)], [noisy], {})

    assert told.verdict is verdict
    assert "too noisy to judge (runs spread by 40%)" in told.reason


def test_a_finding_is_ruled_on_by_its_code() -> None:
    lost = Finding("gpu_lost", "gpu-a", "fell off the bus")
    told = judge_by([lost], [], {"gpu_lost": FindingRule(Verdict.FAIL, Remedy.REBOOT)})

    assert (told.verdict, told.remedy) == (Verdict.FAIL, Remedy.REBOOT)
    assert told.reason == "gpu-a: fell off the bus"


def test_a_finding_that_nobody_ruled_on_is_an_error_of_the_check() -> None:
    told = judge_by([Finding("odd", "gpu-a", "x")], [], {})

    assert (told.verdict, told.cause) == (Verdict.ERROR, Cause.CHECKER)


def test_the_strongest_remedy_is_given() -> None:
    rulings = {
        "a": FindingRule(Verdict.FAIL, Remedy.INSPECT),
        "b": FindingRule(Verdict.FAIL, Remedy.REPLACE),
    }
    told = judge_by([Finding("b", "x", ""), Finding("a", "x", "")], [], rulings)

    assert told.remedy is Remedy.REPLACE


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.018441, "1.844 %"), (0.0, "0 %"), (1.0, "100 %"), (2.1391, "2.139x"), (-0.5, "-50 %")],
)
def test_a_ratio_is_a_share_or_a_multiple(value: float, text: str) -> None:
    assert format_quantity(value, "ratio") == text


def test_a_value_is_compared_with_its_limit_in_the_unit_that_suits_the_limit() -> None:
    slow = Measurement("tf32.sustained", 240_000.0, "GFLOP/s", "gpu-5")
    none = Measurement("tf32.sustained", None, "GFLOP/s", "gpu-5")
    limit = Limit(name="tf32.sustained", low=360_000, source="spec")

    told = [judge_by([value], [limit], {}).reason for value in (slow, none)]

    assert told == [
        "gpu-5: tf32.sustained 240 TFLOP/s < 360 (spec)",
        "gpu-5: tf32.sustained not a number TFLOP/s < 360 (spec)",
    ]


@pytest.mark.parametrize(
    ("value", "low", "told"),
    [
        (699.98, 700.0, "700 TFLOP/s just below 700 (s)"),
        (0.7 * 55 - 1e-12, 0.7 * 55, "38.5 TFLOP/s just below 38.5 (s)"),
        (12_345.1, 12_345.4, "12,345 TFLOP/s just below 12,345 (s)"),
    ],
)
def test_a_value_that_misses_its_limit_by_less_than_is_printed_is_just_past_it(
    value: float, low: float, told: str
) -> None:
    limit = Limit(name="speed", low=low, source="s")

    assert judge_by([speed(value)], [limit], {}).reason == f"gpu-a: speed {told}"


def test_a_ratio_is_compared_with_its_limit_in_the_same_form() -> None:
    slow = Measurement("input.share", 0.2, "ratio", "cpu")
    limit = Limit(name="input.share", high=0.1, source="spec")

    assert judge_by([slow], [limit], {}).reason == "cpu: input.share 20 % > 10 % (spec)"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.1235 s"), (12345.6, "12,346 s"), (1e20, "1e+20 s"), (None, "not a number s")],
)
def test_a_quantity_is_short_and_has_its_unit(value: float | None, text: str) -> None:
    assert format_quantity(value, "s") == text


def test_what_is_the_same_of_several_parts_is_told_once_with_all_their_names() -> None:
    facts = [Finding("cold", f"gpu-{i}", "it is cold") for i in (0, 1, 2, 1)]
    facts.append(Finding("cold", "gpu-3", "it is very cold"))
    rulings = {"cold": FindingRule(Verdict.WARN)}
    judgement = judge_by(
        facts,
        (),
        rulings,
        Inventory(parts=tuple(Part("gpu", f"gpu-{i}", f"GPU-{i}") for i in range(8))),
    )

    told = "GPU-0, GPU-1, GPU-2: it is cold; GPU-3: it is very cold"
    assert judgement.reason == told


def test_a_reason_begins_with_what_is_farthest_off() -> None:
    slow = [speed(v, f"gpu-{i}") for i, v in enumerate((699.0, 612.0, 12.0, 690.0))]
    told = judge_by(slow, [SPEED], {}).reason.split("; ")

    assert [clause.partition(":")[0] for clause in told] == [*("gpu-2", "gpu-1", "gpu-3", "gpu-0")]


def test_a_reason_begins_with_what_calls_for_most() -> None:
    flags = [Measurement(name, n) for name, n in (("errors", 13.0), ("sram", 1.0))]
    limits = [
        Limit(name="errors", high=0, remedy=Remedy.RESET_GPU),
        Limit(name="sram", high=0, remedy=Remedy.CONTACT_VENDOR),
    ]
    told = judge_by(flags, limits, {})

    assert told.reason.startswith("node: sram 1 > 0")
    assert told.remedy is Remedy.CONTACT_VENDOR


@pytest.mark.parametrize(
    ("value", "room"), [(700, 0.0), (770, 0.1), (350, -0.5), (None, -math.inf)]
)
def test_a_margin_is_a_share_of_the_limit(value: float | None, room: float) -> None:
    limit = Limit(name="speed", low=700)

    assert compute_margin(Measurement("speed", value), limit) == pytest.approx(room)


def test_of_too_many_faults_the_gravest_are_kept() -> None:
    warned = [Finding("odd", f"part {i}", "odd") for i in range(MAX_FAULTS + 1)]
    result = judge_by([*warned, speed(1)], [SPEED], {"odd": FindingRule(Verdict.WARN)})

    assert result.verdict is Verdict.FAIL
    assert len(result.faults) == MAX_FAULTS


def test_only_patterns_are_compared_and_once_with_each_name() -> None:
    plain = [Limit(f"m{i}", part_id=f"p{i}", high=0) for i in range(500)]
    patterns = [Limit("x*", high=0), Limit("m?", high=0)]
    values = [Measurement(f"m{i}", 1.0, "", f"p{i}") for i in range(500)]
    matches.cache_clear()
    result = judge_by(values, [*plain, *patterns], {})

    assert sum(c.value is not None for c in result.faults) == 500 + 10
    compared = matches.cache_info()
    assert compared.hits + compared.misses <= len(patterns) * len(values)


def test_the_limits_of_a_measurement_are_in_their_order() -> None:
    limits = [
        Limit("speed", part_id="gpu-b"),
        Limit("*", source="first"),
        Limit("speed", part_id="gpu-a", source="second"),
        Limit("speed", source="third"),
        Limit("*.burst"),
    ]
    index = LimitIndex(limits)

    assert index.find(speed(1)) == limits[1:4]
    assert index.list_unmet([speed(1)]) == [limits[0], limits[4]]
