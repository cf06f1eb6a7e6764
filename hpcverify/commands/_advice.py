"""What `hpcverify doctor` says of one thing."""

from __future__ import annotations

from msgspec import Struct


class Advice(Struct, frozen=True):
    """One thing that was inspected, and the fix if it needs one."""

    subject: str
    state: str
    fix: str = ""
