"""Every part has a floor for all that it can do: healthy ones pass, half the speed fails."""

from __future__ import annotations

import pytest

from hpcverify.limits.floors import MODES, Floor, find_floor, list_floored
from hpcverify.limits.resolve import resolve
from hpcverify.limits.specs import Spec, find_achievable, load_specs, read_rows
from hpcverify.model import Inventory, Measurement, Part, Verdict
from hpcverify.testing import has_no_past, judge_by
from hpcverify_checks import gemm, gpu_memory

ALL = pytest.mark.parametrize("spec", load_specs(), ids=lambda spec: spec.key)
RULES = {
    name: rule
    for check in (gemm.CHECK, gpu_memory.CHECK)
    for name, rule in check.rules.items()
    if rule.of_spec is not None
}
REAL = {
    **dict.fromkeys(
        [(part, "bf16") for part in ("a100-sxm4-40gb", "a100-sxm4-80gb", "a800-sxm4-80gb")],
        (240, 265),
    ),
    ("a100-pcie-40gb", "bf16"): (200, 215),
    **dict.fromkeys([("a100-pcie-80gb", "bf16"), ("a800-pcie-80gb", "bf16")], (205, 235)),
    **dict.fromkeys([("h100-sxm5-80gb", "bf16"), ("h800-sxm5-80gb", "bf16")], (640, 720)),
    **dict.fromkeys([("h100-pcie-80gb", "bf16"), ("h800-pcie-80gb", "bf16")], (400, 430)),
    ("h100-nvl-94gb", "bf16"): (430, 480),
    ("h200-sxm", "bf16"): (660, 730),
    ("h200-nvl", "bf16"): (550, 620),
    **dict.fromkeys([("gh200-96gb", "bf16"), ("gh200-144gb", "bf16")], (620, 700)),
    ("b200-sxm", "bf16"): (1268, 1500),
    ("gb200", "bf16"): (1450, 1600),
    **dict.fromkeys([("b300-sxm", "bf16"), ("gb300", "bf16")], (1400, 1650)),
    ("l40s", "bf16"): (210, 250),
    ("l4", "bf16"): (50, 60),
    ("h20-96gb", "bf16"): (136, 142),
    **dict.fromkeys([("h100-sxm5-80gb", "fp8"), ("h800-sxm5-80gb", "fp8")], (1100, 1300)),
    **dict.fromkeys(
        [(part, "fp8") for part in ("h100-pcie-80gb", "h800-pcie-80gb", "h100-nvl-94gb")],
        (700, 800),
    ),
    **dict.fromkeys([("h200-sxm", "fp8"), ("h200-nvl", "fp8")], (1150, 1350)),
    **dict.fromkeys([("gh200-96gb", "fp8"), ("gh200-144gb", "fp8")], (1100, 1300)),
    **dict.fromkeys([("b200-sxm", "fp8"), ("gb200", "fp8")], (2600, 3000)),
    **dict.fromkeys([("b300-sxm", "fp8"), ("gb300", "fp8")], (2600, 3100)),
    ("l40s", "fp8"): (380, 450),
}
"""What the worst and the best healthy part sustain, TFLOP/s, with random normal operands of 8192^3:
an expert's estimate of 2026-11-28 from published figures, with 5 % of doubt; of B200 the slowest of
8 air-cooled GPUs, of H20 zzc0721/torch-performance-test-data issue 77."""
WARN_ROOM, FAIL_DISTANCE = 0.15, 0.08
"""The most that a part may lose unseen, of what is typical, and the least distance of the worst
healthy part from FAIL."""
HEALTHY = {
    ("h100-sxm5-80gb", "bf16.sustained"): (668, 719.7),
    ("h100-sxm5-80gb", "tf32.sustained"): (376.7,),
    ("h100-sxm5-80gb", "fp8.sustained"): (1296.9, 1530),
    ("h100-pcie-80gb", "bf16.sustained"): (433, 471.8),
    ("h100-pcie-80gb", "fp16.sustained"): (449.7,),
    ("h200-sxm", "bf16.sustained"): (788,),
    ("b200-sxm", "bf16.sustained"): (1268, 1331, 1513),
    ("gb200", "fp8.sustained"): (4300,),
    ("gb300", "bf16.sustained"): (1600, 2174),
    ("gb300", "tf32.sustained"): (1007,),
    ("a100-sxm4-40gb", "fp64.sustained"): (18.9,),
    ("a100-sxm4-80gb", "bf16.sustained"): (257, 264.5),
    ("a100-pcie-40gb", "fp16.sustained"): (205.7,),
    ("a10", "tf32.sustained"): (34.7,),
    ("l4", "fp16.sustained"): (52.5,),
    ("l4", "fp32.sustained"): (11.1,),
    ("rtx6000-ada", "fp32.sustained"): (31.4,),
    ("v100-sxm2-16gb", "fp16.sustained"): (89.4,),
}
"""TFLOP/s that good parts were seen to reach, by people whose figures make no floor: mostly
torch.mm of 10240^3, and what the sources of `gpu_reached.csv` name beside them."""


UNSURE = {"t4", "gb10", "l40", "rtx-pro-6000-max-q"}
UNSURE_MEMORY = {"gb200", "gb10", "h20-96gb"}
"""Parts of which no sound figure is known, of products and of memory."""


def part_of(spec: Spec, **facts: str) -> Part:
    named = {"name": spec.name, "pci_device_id": spec.pci_device_ids[0]}
    return Part("gpu", "gpu-0", "GPU 0", named | facts)


def of(key: str) -> Spec:
    return next(spec for spec in load_specs() if spec.key == key)


def list_measured(spec: Spec) -> list[str]:
    """Name what the checks measure on such a part alone."""
    return [name for name in list_floored(spec) if not name.startswith("p2p")]


def floor_of(part: Part, measured: str, otherwise: Verdict = Verdict.WARN) -> Floor:
    floor = find_floor(part, measured, otherwise)
    assert isinstance(floor, Floor), floor
    return floor


def judged(spec: Spec, values: dict[str, float], **facts: str) -> tuple[Verdict, str]:
    """Judge a lone GPU by the rules of the checks; *values* in the units of its sheet."""
    part = part_of(spec, **facts)
    found = [
        Measurement(name, value, floor_of(part, name).promise.unit, part.id)
        for name, value in values.items()
    ]
    limits = resolve(RULES, found, Inventory(parts=(part,)), has_no_past)
    judgement = judge_by(found, limits, {})
    return judgement.verdict, judgement.reason


def healthy_speeds(spec: Spec) -> dict[str, float]:
    """Give the speed of a good part: what it, its like or its other types reach."""
    floors = {name: floor_of(part_of(spec), name) for name in list_measured(spec)}
    return {name: floor.share * floor.promise.value for name, floor in floors.items()}


@ALL
def test_every_part_has_a_floor_for_all_that_its_sheet_promises(spec: Spec) -> None:
    assert "fp32" in spec.peaks
    for measured in list_measured(spec):
        floor = floor_of(part_of(spec), measured)
        assert 0 < floor.compute(1.0) < floor.promise.value
        assert floor.source
        assert floor.evidence


@ALL
def test_a_healthy_part_passes(spec: Spec) -> None:
    assert judged(spec, healthy_speeds(spec)) == (Verdict.PASS, "")


@ALL
def test_whatever_anybody_measured_on_a_good_part_passes(spec: Spec) -> None:
    for row in read_rows("gpu_reached.csv"):
        if row["part"] != spec.key or row["quantity"] == "p2p":
            continue
        share = find_achievable(spec, row["quantity"], row["mode"])
        promise = spec.find_promise(row["quantity"])
        assert share
        assert promise
        for mode, used in MODES.items():
            name = f"{row['quantity']}.{mode}"
            if row["mode"] in used and (row["quantity"] == "memory") == (
                mode in ("read", "write", "copy")
            ):
                assert judged(spec, {name: share.value * promise.value})[0] is Verdict.PASS, name


@pytest.mark.parametrize(("key", "name"), HEALTHY)
def test_what_good_parts_were_seen_to_reach_elsewhere_passes(key: str, name: str) -> None:
    for value in HEALTHY[key, name]:
        assert judged(of(key), {name: 1e3 * value}) == (Verdict.PASS, "")


@ALL
def test_at_half_the_speed_every_part_fails(spec: Spec) -> None:
    halved = {name: value / 2 for name, value in healthy_speeds(spec).items()}
    verdict, reason = judged(spec, halved)
    assert verdict is (Verdict.WARN if spec.key == "gb10" else Verdict.FAIL)
    tensor = "bf16" if "bf16" in spec.peaks else "fp16"
    assert f"{tensor}.sustained" in reason or spec.key in UNSURE
    assert "memory.copy" in reason or spec.key in UNSURE_MEMORY


@ALL
def test_only_a_floor_of_a_sound_source_fails(spec: Spec) -> None:
    for name, healthy in healthy_speeds(spec).items():
        floor = floor_of(part_of(spec), name, Verdict.FAIL)
        verdict, reason = judged(spec, {name: healthy / 100})
        weak = floor.confidence == "C" or name.endswith(".burst")
        assert verdict is (Verdict.WARN if weak else Verdict.FAIL), name
        assert f"confidence {floor.confidence}" in reason
        assert f"(data sheet of {spec.name})" in reason


def test_the_nearer_the_source_the_higher_its_rank() -> None:
    h100 = part_of(of("h100-sxm5-80gb"))
    for part, name, evidence in (
        (h100, "bf16.sustained", "estimated for such a part"),
        (h100, "tf32.sustained", "measured on such a part with other operands"),
        (h100, "fp16.sustained", "measured on such a part in a burst"),
        (
            part_of(of("h200-sxm")),
            "tf32.sustained",
            "as NVIDIA H100 80GB HBM3 of the same",
        ),
        (h100, "fp64.sustained", "in fp32, measured on such a part in a burst"),
        (h100, "int8.sustained", "the least that any good part is known to reach"),
    ):
        assert floor_of(part, name).evidence.startswith(evidence)


@pytest.mark.parametrize(("key", "dtype"), REAL)
def test_healthy_parts_are_apart_from_both_floors_and_slow_ones_are_seen(
    key: str, dtype: str
) -> None:
    """The distances of both floors from what healthy parts do, for every part that is known."""
    worst, best = (1e3 * rate for rate in REAL[key, dtype])
    typical = (worst + best) / 2
    rule = RULES["*sustained"].of_spec
    assert rule is not None
    warn = floor_of(part_of(of(key)), f"{dtype}.sustained")
    assert (1 - WARN_ROOM) * typical <= warn.compute(rule) <= worst
    fail = floor_of(part_of(of(key)), f"{dtype}.sustained", Verdict.FAIL)
    if fail.is_sound:
        assert fail.compute(rule) <= (1 - FAIL_DISTANCE) * worst


@pytest.mark.parametrize("key", ["h200-sxm", "b200-sxm", "l40s"])
def test_a_part_that_lost_a_third_is_seen_though_its_siblings_lost_as_much(key: str) -> None:
    """A power cap of the BMC or a locked clock slows all GPUs of a node alike."""
    worst, best = REAL[key, "bf16"]
    slow = 0.63 * 1e3 * (worst + best) / 2
    assert judged(of(key), {"bf16.sustained": slow})[0] is Verdict.FAIL


def test_an_estimate_only_warns() -> None:
    h200 = of("h200-sxm")
    assert judged(h200, {"bf16.sustained": 600e3})[0] is Verdict.WARN
    assert "estimated for such a part; confidence C" in judged(h200, {"bf16.sustained": 600e3})[1]


def test_what_was_measured_on_a_part_needs_no_sure_sheet() -> None:
    ada = part_of(of("rtx6000-ada"))  # its peaks are recalled
    assert floor_of(ada, "bf16.sustained", Verdict.FAIL).is_sound
    assert not floor_of(ada, "fp16.sustained", Verdict.FAIL).is_sound


def test_a_disputed_figure_of_the_part_itself_is_not_passed_over_for_that_of_another() -> None:
    floor = floor_of(part_of(of("gb200")), "memory.copy", Verdict.FAIL)
    assert (floor.evidence, floor.confidence) == ("measured on such a part", "C")


def test_a_part_is_not_held_to_one_with_more_power_for_its_peak() -> None:
    floor = floor_of(part_of(of("a10")), "tf32.sustained")
    assert "A40" not in floor.evidence


def test_a_floor_of_another_part_says_of_which() -> None:
    floor = floor_of(part_of(of("gb300")), "bf16.sustained", Verdict.FAIL)
    assert floor.describe(0.9, "2500 TFLOP/s") == (
        "0.6 x 0.786 of 2500 TFLOP/s (data sheet of NVIDIA GB300), as NVIDIA B300 SXM6 AC of "
        "the same architecture reaches with its best shape; confidence B"
    )


@ALL
def test_a_power_limit_that_the_site_chose_scales_every_floor(spec: Spec) -> None:
    half = f"{0.6 * spec.tdp_w:g} of {spec.tdp_w:g} W"
    for name in list_measured(spec):
        floor, lowered = (
            floor_of(part_of(spec), name),
            floor_of(part_of(spec, power_limit=half), name),
        )
        assert lowered.compute(1) == pytest.approx(0.6 * floor.compute(1))
        assert lowered.confidence == floor.confidence
    verdict, reason = judged(spec, {"fp16.sustained": 1.0}, power_limit=half)
    assert verdict in (Verdict.WARN, Verdict.FAIL)
    watts = half.removesuffix(" W")
    assert f"power is limited to {watts} W: floor scaled by 0.6" in reason


def test_a_node_with_capped_power_passes_at_the_speed_that_is_left() -> None:
    h100, cap = of("h100-sxm5-80gb"), "500 of 700 W"
    slower = {"bf16.sustained": 560e3}  # 0.77 of 730, at 0.71 of the power
    assert judged(h100, slower)[0] is Verdict.FAIL
    assert judged(h100, slower, power_limit=cap)[0] is Verdict.PASS
    assert judged(h100, {"bf16.sustained": 365e3}, power_limit=cap)[0] is Verdict.FAIL


def test_below_half_of_its_power_a_part_is_only_warned_about() -> None:
    gb300 = of("gb300")
    assert judged(gb300, {"bf16.sustained": 617e3}, power_limit="500 of 1400 W")[0] is Verdict.PASS
    assert judged(gb300, {"bf16.sustained": 100e3}, power_limit="500 of 1400 W")[0] is Verdict.WARN


def test_a_board_that_is_sold_with_less_power_is_held_to_less() -> None:
    floor = floor_of(part_of(of("b200-sxm"), power_limit="750 of 750 W"), "bf16.sustained")
    assert floor.scale == 0.75
    assert floor.setting == "power is limited to 750 of 1000 W"


@pytest.mark.parametrize(("watts", "scale"), [(700, 1.0), (450, 0.5)])
def test_what_a_module_leaves_its_gpu_is_no_limit_that_somebody_set(
    watts: int, scale: float
) -> None:
    part = part_of(of("gh200-96gb"), power_limit=f"{watts} of 900 W")
    assert floor_of(part, "bf16.sustained").scale == scale


def test_a_raised_power_limit_raises_no_floor() -> None:
    a100 = of("a100-sxm4-80gb")
    raised = floor_of(part_of(a100, power_limit="500 of 400 W"), "bf16.sustained")
    assert raised == floor_of(part_of(a100), "bf16.sustained")


def test_a_lowered_clock_scales_the_floor_and_is_named() -> None:
    verdict, reason = judged(
        of("a100-sxm4-80gb"), {"bf16.sustained": 1.0}, clock_limit="1005 of 1410 MHz"
    )
    assert verdict is Verdict.FAIL
    assert "clock is limited to 1005 of 1410 MHz: floor scaled by 0.71" in reason


def test_of_power_and_clock_the_lower_counts() -> None:
    settings = {"power_limit": "600 of 700 W", "clock_limit": "990 of 1980 MHz"}
    floor = floor_of(part_of(of("h100-sxm5-80gb"), **settings), "bf16.sustained")
    assert (floor.scale, "clock" in floor.setting) == (0.5, True)


def test_no_setting_moves_what_links_carry() -> None:
    h100 = part_of(of("h100-sxm5-80gb"), power_limit="350 of 700 W")
    assert floor_of(h100, "p2p.write").scale == 1.0


def test_an_unknown_part_has_no_floor_and_is_said_to_be_unknown() -> None:
    part = Part("gpu", "gpu-0", "GPU 0", {"name": "NVIDIA X", "pci_device_id": "9999"})
    assert find_floor(part, "bf16.sustained") == (
        "NVIDIA X (PCI device id 9999) is not in the table of parts"
    )


@pytest.mark.parametrize("measured", ["p2p.ring", "memory.used", "temperature", "bf16.spread"])
def test_what_no_sheet_promises_has_no_floor(measured: str) -> None:
    assert "no published" in str(find_floor(part_of(of("h100-sxm5-80gb")), measured))
