"""
The least speed of a healthy part: one function decides it, for every part and type.

The best that is known counts: what somebody measured on the part itself, else in a
shorter run, else on another part of the same architecture, else in another data type,
else the least that any good part reaches. The further away, the wider the margin; what
no sound source supports is of confidence C, and only warns. A power limit or a clock that
somebody set lowers the floor, and the floor says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

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

MODE_MARGINS: Mapping[str, Mapping[str, float]] = {
    "sustained": {"sustained": 1.0, "burst": 0.75, "best": 0.65},
    "burst": {"burst": 1.0, "sustained": 1.0, "best": 0.7},
    "copy": {"copy": 1.0},
    "read": {"read": 1.0, "copy": 0.8},
    "write": {"write": 1.0, "copy": 0.8},
    "busbw": {"busbw": 1.0},
}
"""
Each mode that is judged, with the modes whose figures serve, the best first, and how much
of such a figure a healthy part surely reaches. Good parts keep 0.90 (H100) to 0.96 (L4) of
a burst, 0.73 (B200) to 0.85 (GB200) of the best of many shapes, and in fp32 on Ada 0.70;
memory is read or written no slower than it is copied.
"""
MODE_WORDS = {
    "sustained": "for long",
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
MIN_SOUND_SCALE = 0.5
"""Speed falls slower than power down to half of it: a GB300 at 500 of its 1400 W computes
0.28 to 0.39 of what it does (facebookexperimental/triton pull request 2023), a V100 at 175
of 250 W 0.88 (bradrlaw/ai-server pull request 32). Below that, what the part draws without
computing counts more and more."""


class Basis(StrEnum):
    """What a floor is made from, the best first."""

    MEASURED = "measured"
    """On this part, in this mode."""
    SHORTER = "shorter"
    """On this part, in a mode that is easier to hold."""
    ARCHITECTURE = "architecture"
    """On another part of the same compute capability."""
    TYPE = "type"
    """In another data type."""
    LEAST = "least"
    """On whatever good part reaches the least."""


BEST_CONFIDENCE: Mapping[Basis, str] = {
    Basis.MEASURED: "A",
    Basis.SHORTER: "B",
    Basis.ARCHITECTURE: "B",
    Basis.TYPE: "C",
    Basis.LEAST: "B",
}
"""What a floor has at best, whatever its figures have."""


class Floor(Struct, frozen=True, kw_only=True):
    """What a healthy part reaches at least, before the fraction of a rule."""

    promise: Promise
    promised_by: str
    """As words: its data sheet, or its link."""
    share: float
    """The share of the promise that good parts reach."""
    margin: float
    """How much of that share counts here."""
    basis: Basis
    evidence: str
    """On what and how the share was measured, as words after it."""
    confidence: str
    source: str
    scale: float = 1.0
    """What a setting leaves of the speed."""
    setting: str = ""
    """What was set, in words."""

    @property
    def is_sound(self) -> bool:
        """Whether it may fail a part."""
        return self.confidence in SOUND_CONFIDENCES

    def cap_verdict(self, otherwise: Verdict) -> Verdict:
        """Say what a value below it may be, if a rule has *otherwise*: no failure if unsound."""
        return otherwise if self.is_sound else min(otherwise, Verdict.WARN)

    def compute(self, fraction: float) -> float:
        """Compute the lowest healthy value, in the unit of the promise."""
        return fraction * self.margin * self.share * self.scale * self.promise.value

    def describe(self, fraction: float, promised: str) -> str:
        """Say in words how the number comes about; *promised* is the promise as printed."""
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


def find_floor(part: Part, measured: str) -> Floor | str:
    """
    Decide the floor of *part* for what is *measured*, as ``bf16.sustained``.

    Or say, in words, why there is none.
    """
    spec = find_spec(part)
    quantity, _, mode = measured.partition(".")
    if spec is None:
        return explain_unknown(part)
    promise = spec.find_promise(quantity)
    unknown = f"no source says what {measured} a good {spec.name} reaches"
    if promise is None or mode not in MODE_MARGINS:
        return unknown
    floor = _choose(_list_measured(spec, promise, quantity, mode)) or _choose(
        (
            *_list_alike(spec, promise, quantity, mode),
            *_list_other_types(spec, promise, quantity, mode),
            *_list_least(spec, promise, quantity),
        )
    )
    return _scale_by_settings(floor, part, quantity) if floor else unknown


def _choose(candidates: Iterable[Floor]) -> Floor | None:
    listed = list(candidates)
    return next((floor for floor in listed if floor.is_sound), next(iter(listed), None))


def _list_measured(spec: Spec, promise: Promise, quantity: str, mode: str) -> Iterator[Floor]:
    """List what was measured on such a part: whatever its sheet says, that is sure."""
    sure = replace(promise, confidence="A")
    for used, margin in MODE_MARGINS[mode].items():
        if share := find_achievable(spec, quantity, used):
            basis = Basis.MEASURED if used == mode else Basis.SHORTER
            evidence = f"measured on such a part{_say_how(used, mode)}"
            yield _build(_name_sheet(spec), sure, share, margin, (basis, evidence))


def _name_sheet(spec: Spec) -> str:
    return f"data sheet of {spec.name}"


def _say_how(used: str, mode: str) -> str:
    return "" if used == mode else f" {MODE_WORDS[used]}"


def _list_alike(spec: Spec, promise: Promise, quantity: str, mode: str) -> Iterator[Floor]:
    """List the least of the parts with the same chip and no more power for their peak."""
    comparable = [other for other in load_specs() if _is_comparable(other, spec, quantity)]
    for used, margin in MODE_MARGINS[mode].items():
        fractions = [(find_achievable(other, quantity, used), other.name) for other in comparable]
        sound = [(s, name) for s, name in fractions if s and s.confidence in SOUND_CONFIDENCES]
        if sound:
            share, name = min(sound, key=lambda pair: pair[0].value)
            evidence = f"as {name} of the same architecture reaches{_say_how(used, mode)}"
            why = (Basis.ARCHITECTURE, evidence)
            yield _build(_name_sheet(spec), promise, share, margin * ARCHITECTURE_MARGIN, why)


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


def _list_other_types(spec: Spec, promise: Promise, quantity: str, mode: str) -> Iterator[Floor]:
    for other in ALIKE_DTYPES.get(quantity, ()):
        measured = _list_measured(spec, promise, other, mode)
        for floor in (*measured, *_list_alike(spec, promise, other, mode)):
            yield replace(
                floor,
                margin=floor.margin * TYPE_MARGIN,
                basis=Basis.TYPE,
                evidence=f"in {other}, {floor.evidence}",
                confidence=BEST_CONFIDENCE[Basis.TYPE],
            )


def _list_least(spec: Spec, promise: Promise, quantity: str) -> Iterator[Floor]:
    least = load_least_shares()
    share = least.get((spec.compute_capability, quantity), least.get((ANY_CAPABILITY, quantity)))
    if share:
        evidence = "the least that any good part is known to reach"
        yield _build(_name_sheet(spec), promise, share, 1.0, (Basis.LEAST, evidence))


def _build(
    promised_by: str, promise: Promise, share: Fraction, margin: float, why: tuple[Basis, str]
) -> Floor:
    basis, evidence = why
    return Floor(
        promise=promise,
        promised_by=promised_by,
        share=share.value,
        margin=margin,
        basis=basis,
        evidence=evidence,
        confidence=max(promise.confidence, share.confidence, BEST_CONFIDENCE[basis]),
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


def _list_settings(part: Part) -> Iterator[tuple[float, str]]:
    spec = find_spec(part)
    power = re.fullmatch(POWER_PATTERN, part.facts.get("power_limit", ""))
    if power:
        limit, default = map(float, power.groups())
        # A board may be sold with a lower limit than the one whose figures we have.
        whole = max(default, spec.tdp_w if spec else 0.0)
        if limit < whole - ROUNDING_WATTS:
            yield limit / whole, f"its power is limited to {limit:g} of {whole:g} W"
    clock = re.fullmatch(CLOCK_PATTERN, part.facts.get("clock_limit", ""))
    if clock:
        limit, highest = map(float, clock.groups())
        yield limit / highest, f"its clock is set to {limit:g} of {highest:g} MHz"
