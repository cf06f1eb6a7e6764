"""Whether a node is certainly idle, and if not, why, in plain words."""

from __future__ import annotations

from hpcverify.slurm import Host

HARMLESS_FLAGS = frozenset(("CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"))
"""Flags of an idle node that say where it comes from, not that somebody needs it."""

RESERVATION_FLAGS = frozenset(("MAINT", "RESERVED"))
"""Flags of a node in a reservation, which may be ours."""

STATE_PHRASES = {
    "ALLOCATED": "is busy",
    "COMPLETING": "has a job that is ending",
    "DOWN": "is down",
    "DRAIN": "is drained",
    "FAIL": "is drained",
    "MAINT": "is reserved for maintenance",
    "MIXED": "is busy",
    "NOT_RESPONDING": "does not respond to Slurm",
    "PLANNED": "is planned for a job",
    "POWERED_DOWN": "is powered down",
    "POWERING_DOWN": "is powered down",
    "POWERING_UP": "is starting",
    "POWER_DOWN": "is powered down",
    "POWER_UP": "is starting",
    "REBOOT_ISSUED": "is starting",
    "REBOOT_REQUESTED": "is to be rebooted",
    "RESERVED": "is reserved",
    "UNKNOWN": "has not registered with Slurm yet",
}
"""What Slurm's states and flags of a node mean (sinfo(1))."""


def explain_not_idle(host: Host, *, reserved: bool) -> str:
    """Explain why *host* cannot take a job, *reserved* for it or not; empty if it can."""
    against = host.flags - HARMLESS_FLAGS
    if reserved:
        against -= RESERVATION_FLAGS
    if host.state != "IDLE":
        against |= {host.state}
    if not against:
        return ""
    words = {STATE_PHRASES.get(flag, f"is in the state {flag}") for flag in against}
    reason = " ".join(host.reason.split())
    because = f" ({reason})" if reason else ""
    return ", ".join(sorted(words)) + because
