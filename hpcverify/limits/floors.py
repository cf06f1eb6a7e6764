"""
The speed below which a part warns or fails: one function decides it, for every part and type.

What healthy parts reach comes from the nearest figure that is known: measured on the part as
we measure, else in another way, else on another part of the same architecture, else in another
data type, else the least that any good part reaches. A rule that warns compares with what
healthy parts typically reach, a rule that fails with the least that any was seen to reach, by
a sound source. A power limit or a clock that somebody set lowers the floor, and the floor
names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.limits.specs import (
    DTYPES,
    SOUND_CONFIDENCES,
    Fraction,
    Promise,
    Spec,
    explain_unknown,
    find_achievable,
    find_spec,
    load_least_shares,
    load_specs,
)
from hpcverify.model import Part, Verdict


class Reach(NamedTuple):
    """How much of a figure healthy parts reach, in the mode that is judged."""

    typical: float
    least: float


WHOLE = Reach(1.0, 1.0)
MODES: Mapping[str, Mapping[str, Reach]] = {
    "sustained": {
        "sustained": Reach(1.0, 0.9),
        "expected": WHOLE,
        "other": Reach(0.9, 0.87),
        "burst": Reach(0.85, 0.8),
        "best": Reach(0.8, 0.72),
    },
    "burst": {
        "burst": WHOLE,
        "sustained": WHOLE,
        "other": Reach(0.9, 0.87),
        "best": Reach(0.7, 0.7),
    },
    "copy": {"copy": Reach(1.0, 0.94)},
    "read": {"read": Reach(1.0, 0.94), "copy": Reach(0.9, 0.8)},
    "write": {"write": WHOLE, "copy": Reach(0.9, 0.8)},
    "busbw": {"busbw": WHOLE},
}
"""
Each mode that is judged, with the modes whose figures serve, the nearest first.

Power-limited parts of one kind differ by 8 % (arXiv 2208.11035). Random normal operands draw
more power than the positive uniform ones of gpu-fryer (src/main.rs): an A100 reaches 257 with
the former (thonking.ai) and 270 TFLOP/s with the latter. Good parts keep 0.80 (H100) to 1.0 (A100
PCIe) of a burst, and 0.73 (B200, GH200) to 0.98 (A100) of the best of many shapes; memory is read
or written about as fast as it is copied.
"""
EXPECTED = "expected"
"""The mode of figures that nobody measured: experts estimate them, and they only warn."""
MODE_WORDS = {
    "sustained": "for long",
    "other": "with other operands or another program",
    "burst": "in a burst",
    "best": "with its best shape",
    "copy": "when it copies",
}
ARCHITECTURE_MARGIN = 0.92
"""It comes on top of that of the mode: parts with one chip differ in cooling and memory."""
MAX_POWER_RATIO = 1.2
"""How much more power for its peak than the part itself a part may have that it is compared
with: an A40 has 1.7 times that of an A10, and reaches 0.74 of its peak instead of 0.45."""
TYPE_MARGIN = 0.75
"""It comes on top of those of mode and architecture."""
ANY_CAPABILITY = "*"
ALIKE_DTYPES: Mapping[str, tuple[str, ...]] = {
    "bf16": ("fp16", "tf32"),
    "fp16": ("bf16", "tf32"),
    "tf32": ("bf16", "fp16"),
    "fp8": ("bf16", "fp16"),
    "fp64": ("fp32",),
    "fp32": ("fp64",),
}
"""Types that the same kind of units computes: their shares of the peak differ by 15 %. That
of int8 follows from the library more than from the part."""
SPEED_SETTINGS = ("power_limit", "clock_limit")
"""The facts of a part that say what somebody set, as ``500 of 700 W``."""
POWER_PATTERN = r"([\d.]+) of ([\d.]+) W"
CLOCK_PATTERN = r"([\d.]+) of ([\d.]+) MHz"
ROUNDING_WATTS = 1.0
MODULE_KEY_PREFIX, MIN_MODULE_SHARE = "gh200", 0.75
"""Parts whose module has a power limit of its own, and the least share that leaves the GPU: a
healthy GH200 480GB on a module of 1000 W gets 700 of its 900 W (public `nvidia-smi -a`, driver
550.127.05, 18 November 2024)."""
MIN_SOUND_SCALE = 0.5
"""Speed falls slower than power down to half of it: a GB300 at 500 of its 1400 W computes
0.28 to 0.39 of what it does (facebookexperimental/triton pull request 2023), a V100 at 175
of 250 W 0.88 (bradrlaw/ai-server pull request 32). Below that, what the part draws without
computing counts more and more."""


class Floor(Struct, frozen=True, kw_only=True):
    """What a healthy part reaches, before the fraction of a rule."""

    promise: Promise
    promised_by: str
    share: float
    """The share of the promise that good parts reach."""
    margin: float
    """How much of that share counts here."""
    evidence: str
    """On what and how the share was measured, as words after it."""
    confidence: str
    source: str
    scale: float = 1.0
    """What a setting leaves of the speed."""
    setting: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether it may fail a part."""
        return self.confidence in SOUND_CONFIDENCES

    def cap_verdict(self, otherwise: Verdict) -> Verdict:
        """Return what a value below it may be, if a rule has *otherwise*: no FAIL if unsound."""
        return otherwise if self.is_sound else min(otherwise, Verdict.WARN)

    def compute(self, fraction: float) -> float:
        """Compute the lowest healthy value, in the unit of the promise."""
        return fraction * self.margin * self.share * self.scale * self.promise.value

    def describe(self, fraction: float, promised: str) -> str:
        """Describe in words how the number comes about; *promised* is the promise as printed."""
        text = (
            f"{fraction * self.margin:.2g} x {self.share:.3g} of {promised} "
            f"({self.promised_by}), {self.evidence}; confidence {self.confidence}"
        )
        return f"{text}; {self.setting}: floor scaled by {self.scale:.2g}" if self.setting else text


def list_floored(spec: Spec) -> tuple[str, ...]:
    """List what is measured on such a part and may have a floor, by quantity."""
    return (
        *(f"{dtype}.{mode}" for dtype in spec.peaks for mode in ("sustained", "burst")),
        *(f"memory.{mode}" for mode in ("read", "write", "copy")),
        "p2p.write",
    )


def find_floor(part: Part, measured: str, otherwise: Verdict = Verdict.FAIL) -> Floor | str:
    """
    Decide the floor of *part* for what is *measured*, as ``bf16.sustained``.

    For a rule whose *otherwise* is FAIL it is the least of a sound source; else, or without one,
    it is what healthy parts typically reach, and only warns. If there is none, return why, in
    words.
    """
    spec = find_spec(part)
    quantity, _, mode = measured.partition(".")
    if spec is None:
        return explain_unknown(part)
    promise = spec.find_promise(quantity)
    unknown = f"no published {measured} of a good {spec.name}"
    if promise is None or mode not in MODES:
        return unknown
    if otherwise is Verdict.FAIL:
        for floor in _list_floors(spec, promise, quantity, mode, least=True):
            if (scaled := _scale_by_settings(floor, part, quantity)).is_sound:
                return scaled
    typical = next(_list_floors(spec, promise, quantity, mode, least=False), None)
    return _scale_by_settings(typical, part, quantity) if typical else unknown


def _list_floors(
    spec: Spec, promise: Promise, quantity: str, mode: str, *, least: bool
) -> Iterator[Floor]:
    """List the floors by figures of the part, the nearest first; if it has none, by others."""
    own = list(_list_measured(spec, promise, quantity, mode, least=least))
    if own:
        yield from own
        return
    others = [
        *_list_alike(spec, promise, quantity, mode, least=least),
        *_list_other_types(spec, promise, quantity, mode, least=least),
    ]
    shares = load_least_shares()
    share = shares.get((spec.compute_capability, quantity), shares.get((ANY_CAPABILITY, quantity)))
    if share:
        why = ("B", "the least that any good part is known to reach")
        others.append(_build(_name_sheet(spec), promise, share, 1.0, why))
    yield from sorted(others, key=lambda floor: not floor.is_sound)


def _list_measured(
    spec: Spec, promise: Promise, quantity: str, mode: str, *, least: bool
) -> Iterator[Floor]:
    """List what was measured on such a part: whatever its sheet has, that is sure."""
    sure = replace(promise, confidence="A")
    for used, reach in MODES[mode].items():
        share = find_achievable(spec, quantity, used)
        if share and not (least and used == EXPECTED):
            how = "estimated for" if used == EXPECTED else "measured on"
            evidence = f"{how} such a part{_name_mode(used, mode)}"
            best = "A" if used == mode else "B"
            yield _build(_name_sheet(spec), sure, share, reach[least], (best, evidence))


def _name_sheet(spec: Spec) -> str:
    return f"data sheet of {spec.name}"


def _name_mode(used: str, mode: str) -> str:
    return "" if used in (mode, EXPECTED) else f" {MODE_WORDS[used]}"


def _list_alike(
    spec: Spec, promise: Promise, quantity: str, mode: str, *, least: bool
) -> Iterator[Floor]:
    """List the least of the parts with the same chip and no more power for their peak."""
    comparable = [other for other in load_specs() if _is_comparable(other, spec, quantity)]
    for used, reach in MODES[mode].items():
        fractions = [(find_achievable(other, quantity, used), other.name) for other in comparable]
        sound = [(s, name) for s, name in fractions if s and s.confidence in SOUND_CONFIDENCES]
        if sound:
            share, name = min(sound, key=lambda pair: pair[0].value)
            evidence = f"as {name} of the same architecture reaches{_name_mode(used, mode)}"
            margin = reach[least] * ARCHITECTURE_MARGIN
            yield _build(_name_sheet(spec), promise, share, margin, ("B", evidence))


def _is_comparable(other: Spec, spec: Spec, quantity: str) -> bool:
    """Whether what *other* reaches says what *spec* can: the same chip, no more power."""
    promise = other.find_promise(quantity)
    return (
        other is not spec
        and other.compute_capability == spec.compute_capability
        and promise is not None
        and promise.confidence in SOUND_CONFIDENCES
        and _compute_power_ratio(other) <= MAX_POWER_RATIO * _compute_power_ratio(spec)
    )


def _compute_power_ratio(spec: Spec) -> float:
    """Compute the power for a peak of one GFLOP/s with operands of 16 bits, W."""
    return spec.tdp_w / spec.peaks["fp16"]


def _list_other_types(
    spec: Spec, promise: Promise, quantity: str, mode: str, *, least: bool
) -> Iterator[Floor]:
    for other in ALIKE_DTYPES.get(quantity, ()):
        measured = _list_measured(spec, promise, other, mode, least=least)
        for floor in (*measured, *_list_alike(spec, promise, other, mode, least=least)):
            yield replace(
                floor,
                margin=floor.margin * TYPE_MARGIN,
                evidence=f"in {other}, {floor.evidence}",
                confidence="C",
            )


def _build(
    promised_by: str, promise: Promise, share: Fraction, margin: float, why: tuple[str, str]
) -> Floor:
    """Make a floor; *why* is the confidence that it has at best, and the evidence in words."""
    best, evidence = why
    return Floor(
        promise=promise,
        promised_by=promised_by,
        share=share.value,
        margin=margin,
        evidence=evidence,
        confidence=max(promise.confidence, share.confidence, best),
        source=share.source,
    )


def _scale_by_settings(floor: Floor, part: Part, quantity: str) -> Floor:
    if quantity not in (*DTYPES, "memory"):
        return floor
    scale, text = min(_list_settings(part), default=(1.0, ""))
    if not text:
        return floor
    return replace(
        floor,
        scale=scale,
        setting=text,
        confidence=floor.confidence if scale >= MIN_SOUND_SCALE else "C",
    )


def shares_module_power(spec: Spec | None, limit: float, whole: float) -> bool:
    """Whether a GPU gets *limit* of its *whole* power (W) because its CPU needs the rest."""
    is_module = spec is not None and spec.key.startswith(MODULE_KEY_PREFIX)
    return is_module and limit >= MIN_MODULE_SHARE * whole


def _list_settings(part: Part) -> Iterator[tuple[float, str]]:
    spec = find_spec(part)
    power = re.fullmatch(POWER_PATTERN, part.facts.get("power_limit", ""))
    if power:
        limit, default = map(float, power.groups())
        # A board may be sold with a lower limit than the one whose figures we have.
        whole = max(default, spec.tdp_w if spec else 0.0)
        if limit < whole - ROUNDING_WATTS and not shares_module_power(spec, limit, whole):
            yield limit / whole, f"power is limited to {limit:g} of {whole:g} W"
    clock = re.fullmatch(CLOCK_PATTERN, part.facts.get("clock_limit", ""))
    if clock:
        limit, highest = map(float, clock.groups())
        yield limit / highest, f"clock is limited to {limit:g} of {highest:g} MHz"
