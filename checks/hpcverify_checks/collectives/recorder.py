"""
What torch's Flight Recorder has of a rank that waits in vain: its last collective.

It is a witness beside others and accuses nobody: a rank that is stopped, or stuck in its own
work, cannot be asked. All ranks begin the same collectives in the same order, so those that
can be asked say how far each of them is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from hpcverify.records.collectives import RecordedCollective
from hpcverify.units import format_count

BUFFER = {"TORCH_FR_BUFFER_SIZE": "16"}
"""How many of the last collectives it keeps; without that none. torch before 2.9 has no such
variable, and then there is no witness."""
DUMPS = {"gloo": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}
"""Functions of torch, by backend, as its own tools call them."""


class _Entry(Struct):
    """Of what it keeps; the rest is left out."""

    record_id: int
    profiling_name: str
    retired: bool


class _Dump(Struct):
    entries: list[_Entry] = []


def read_last_collective(rank: int, backend: str) -> RecordedCollective | None:
    """Read the last collective that this process has begun; None if nothing is known."""
    from torch._C import _distributed_c10d  # pyright: ignore[reportPrivateUsage]

    dump: Any = getattr(_distributed_c10d, DUMPS[backend], None)
    if dump is None:
        return None
    try:
        found = msgspec.json.decode(dump(includeCollectives=True, onlyActive=False), type=_Dump)
    except (TypeError, msgspec.MsgspecError):  # of another version
        return None
    if not found.entries:
        return None
    last = max(found.entries, key=lambda entry: entry.record_id)
    operation = last.profiling_name.partition(":")[2] or last.profiling_name
    return RecordedCollective(rank, last.record_id + 1, operation, last.retired)


def describe_records(records: Mapping[int, RecordedCollective]) -> str:
    """Say where ranks wait, and which of those that could be asked have not come so far."""
    if not records:
        return ""
    front = max(one.number for one in records.values())
    ahead = [one for one in records.values() if one.number == front]
    operation = Counter(one.operation for one in ahead).most_common(1)[0][0]
    behind = sorted(one.rank for one in records.values() if one.number < front)
    told = f"{format_count(len(ahead), 'rank')} began {operation}, collective {front} of the group"
    late = f", and rank {', '.join(map(str, behind))} did not" if behind else ""
    return f"torch's Flight Recorder: {told}{late}"
