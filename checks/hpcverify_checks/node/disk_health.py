"""What a disk says of its own health: the measurements, and the limits that all checks share."""

from __future__ import annotations

from collections.abc import Iterator

import hpcverify.check as hv
from hpcverify.telemetry import smart

SMART_METRICS = {f"smart.{name}": metric for name, metric in smart.METRICS.items()}


def limit_growth(meaning: str) -> hv.Metric:
    """Declare the growth of the counts of a disk, over the time in *meaning*."""
    # A sector remapped in time has lost nothing; the others have lost data.
    return (
        hv.Metric("", "high", meaning)
        .warn("smart.reallocated.delta", high=0)
        .fail(
            *(
                f"smart.{n}.delta"
                for n in ("media_errors", "hard_errors", "pending", "uncorrectable")
            ),
            high=0,
            remedy=hv.Remedy.REPLACE,
            conclusive=True,
            source="hpcverify default: no new errors",
        )
    )


SMART_FINDINGS = {
    **hv.fail_on(smart.FAILING, remedy=hv.Remedy.REPLACE),
    **hv.warn_on(smart.TEMPERATURE, smart.WORN, smart.WARNING),
    **hv.listed(smart.UNDEFINED),
}
FIXES = {
    smart.FAILING: "replace the drive",
    smart.TEMPERATURE: "cool it: check fans, air flow and inlet temperature",
    smart.WORN: "plan its replacement",
    smart.WARNING: "see smartctl -x",
}


def measure_health(
    before: smart.Health, after: smart.Health, part_id: str
) -> Iterator[hv.Measurement | hv.Finding]:
    """Report the SMART data of the disk *part_id*, and which counts grew since *before*."""
    for code, text in after.warnings.items():
        is_read = code == smart.TEMPERATURE and "temperature" in after.values
        now = f" ({after.values['temperature']:g} °C)" if is_read else ""
        yield hv.Finding(code, part_id, f"{text}{now}: {FIXES[code]}" if code in FIXES else text)
    for name, value in after.values.items():
        yield hv.Measurement(f"smart.{name}", value, SMART_METRICS[f"smart.{name}"].unit, part_id)
    for name, grown in after.compute_growth(before).items():
        yield hv.Measurement(f"smart.{name}.delta", grown, "", part_id)
