"""What a disk says of its own health: the measurements, and the limits that all checks share."""

from __future__ import annotations

from collections.abc import Iterator

from hpcverify.check import (
    LISTED,
    Finding,
    FindingRule,
    Measurement,
    Remedy,
    Verdict,
    fail_outside,
    warn_outside,
)
from hpcverify.telemetry import smart

SMART_METRICS = {f"smart.{name}": metric for name, metric in smart.METRICS.items()}

SMART_RULES = {
    "smart.spare_margin": fail_outside(
        low=0, remedy=Remedy.REPLACE, source="the disk's own threshold of spare blocks"
    ),
    # A disk may work past 100 %: NVMe says that this does not mean failure.
    "smart.percentage_used": warn_outside(high=80, source="gcm check_blockdev"),
    "smart.media_errors": warn_outside(high=0),
    "smart.pending": warn_outside(high=0),
    "smart.uncorrectable": warn_outside(high=0),
    # A sector remapped in time has lost nothing; the others have lost data.
    "smart.reallocated.delta": warn_outside(high=0),
    **{
        f"smart.{name}.delta": fail_outside(
            high=0,
            remedy=Remedy.REPLACE,
            conclusive=True,
            source="hpcverify default: no new errors",
        )
        for name in ("media_errors", "hard_errors", "pending", "uncorrectable")
    },
}

SMART_FINDINGS = {
    smart.FAILING: FindingRule(Verdict.FAIL, Remedy.REPLACE),
    smart.TEMPERATURE: FindingRule(Verdict.WARN, Remedy.INSPECT),
    smart.WORN: FindingRule(Verdict.WARN, Remedy.INSPECT),
    smart.WARNING: FindingRule(Verdict.WARN, Remedy.INSPECT),
    smart.UNDEFINED: LISTED,
}
FIXES = {
    smart.FAILING: "replace the drive",
    smart.TEMPERATURE: "cool it: check fans, air flow and inlet temperature",
    smart.WORN: "plan its replacement",
    smart.WARNING: "see smartctl -x",
}


def measure_health(
    before: smart.Health, after: smart.Health, part_id: str
) -> Iterator[Measurement | Finding]:
    """Report the SMART data of the disk *part_id*, and which counts grew since *before*."""
    for code, text in after.warnings.items():
        is_read = code == smart.TEMPERATURE and "temperature" in after.values
        now = f" ({after.values['temperature']:g} °C)" if is_read else ""
        yield Finding(code, part_id, f"{text}{now}: {FIXES[code]}" if code in FIXES else text)
    for name, value in after.values.items():
        yield Measurement(f"smart.{name}", value, SMART_METRICS[f"smart.{name}"].unit, part_id)
    for name, grown in after.compute_growth(before).items():
        yield Measurement(f"smart.{name}.delta", grown, "", part_id)
