"""
The last collective of a rank that waits in vain, by torch's Flight Recorder.

It is evidence beside other evidence and decides nothing: a rank that is stopped, or stuck in
its own work, has no record. All ranks begin the same collectives in the same order, so the
records show how far each rank is.
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
"""How many of the last collectives it keeps: none by default. torch before 2.9 has no such
variable, and then there are no records."""
DUMPS = {"gloo": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}
"""Functions of torch, by backend, as its own tools call them."""


class _Entry(Struct):
    record_id: int
    profiling_name: str
    retired: bool


class _Dump(Struct):
    entries: list[_Entry] = []


def read_last_collective(rank: int, backend: str) -> RecordedCollective | None:
    """Read the last collective that this process has begun; None if nothing is known."""
    from torch._C import _distributed_c10d

    dump: Any = getattr(_distributed_c10d, DUMPS[backend], None)
    if dump is None:
        return None
    try:
        record = msgspec.json.decode(dump(includeCollectives=True, onlyActive=False), type=_Dump)
    except (TypeError, msgspec.MsgspecError):  # of another version
        return None
    if not record.entries:
        return None
    last = max(record.entries, key=lambda entry: entry.record_id)
    operation = last.profiling_name.partition(":")[2] or last.profiling_name
    return RecordedCollective(rank, last.record_id + 1, operation, last.retired)


def describe_records(records: Mapping[int, RecordedCollective]) -> str:
    """Say where ranks wait, and which ranks with a record have not come so far."""
    if not records:
        return ""
    front = max(record.number for record in records.values())
    ahead = [record for record in records.values() if record.number == front]
    operation = Counter(record.operation for record in ahead).most_common(1)[0][0]
    behind = sorted(record.rank for record in records.values() if record.number < front)
    most = f"{format_count(len(ahead), 'rank')} began {operation}, collective {front} of the group"
    late = f", and rank {', '.join(map(str, behind))} did not" if behind else ""
    return f"torch's Flight Recorder: {most}{late}"
