"""What keeps the controller from acting on failures: a tripped breaker, a doubt."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec import Struct

from hpcverify.config import Quarantine
from hpcverify.fleet.intake import HOUR_S
from hpcverify.quarantine.breaker import find_doubted_checks, predict_doubt_end
from hpcverify.quarantine.ledger import Ledger


class Doubt(Struct, frozen=True, kw_only=True):
    """A check that fails too widely to be believed."""

    check: str
    why: str
    """On how many of how many nodes it fails."""
    nodes: tuple[str, ...]
    """Where it fails."""
    until: float
    """When the doubt ends if nothing new is found: seconds since 1970."""

    @property
    def text(self) -> str:
        """Say which check, how widely it fails, and until when that counts."""
        ends = datetime.fromtimestamp(self.until, UTC)
        return (
            f"{self.why}; no node is held for it alone until {ends:%Y-%m-%d %H:%M} "
            "UTC, or until it fails on fewer"
        )


def find_doubts(ledger: Ledger, policy: Quarantine, now: float) -> list[Doubt]:
    """List the checks that are in doubt at *now*, by name."""
    since = now - policy.window_hours * HOUR_S
    doubts: list[Doubt] = []
    for check, why in sorted(find_doubted_checks(ledger.read_outcomes(since), policy).items()):
        answers = ledger.list_answers(check, since)
        doubts.append(
            Doubt(
                check=check,
                why=why,
                nodes=tuple(sorted(node for _, node, failed in answers if failed)),
                until=predict_doubt_end([(at, bad) for at, _, bad in answers], policy),
            )
        )
    return doubts


def describe_brakes(ledger: Ledger, policy: Quarantine, now: float) -> Iterator[str]:
    """Yield a line for each reason why failures are not acted on now."""
    if why := ledger.read_trip_reason():
        yield f"THE BREAKER IS TRIPPED and nobody is acted on: {why}"
    for doubt in find_doubts(ledger, policy, now):
        yield f"A CHECK IS DOUBTED: {doubt.text}"
