"""The selftest: faults of a little memory of this host, which must be found on its node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

import hpcverify.check as hv
from hpcverify.telemetry import cpu
from hpcverify_checks.exact import march
from hpcverify_checks.exact.march import MemorySeams
from hpcverify_checks.exact.mismatch import find_mismatch
from hpcverify_checks.host_memory.examination import HostExamination, name_node
from hpcverify_checks.host_memory.regions import (
    LEAST_CHUNKS,
    HostMemory,
    find_host_memory,
    plan_regions,
)
from hpcverify_checks.node.device import find_torch_device

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_BYTES, WORDS_PER_PIECE = 2**20, 2**12
WORD, BIT = 321, 9
"""What goes wrong, in the first chunk that is mapped."""

Harm = Callable[["Tensor"], "Tensor | None"]
"""What becomes of that word."""


def selftest(ctx: hv.Context) -> Iterator[hv.Trial]:
    """Try sound memory, cells that are bad in some way, and a comparison that is blind."""
    find_torch_device(ctx)
    mask = 1 << BIT
    yield _try(ctx, "none", hv.FOUND_NOTHING)
    for fault, harm in (
        ("a bit stuck at 0", lambda word: word.bitwise_and_(~mask)),
        ("a bit stuck at 1", lambda word: word.bitwise_or_(mask)),
        ("a word that is always the same", lambda word: word.fill_(7)),
    ):
        yield _try(ctx, fault, "found", on_write=harm)
    yield _try(ctx, "a bit is lost in the pauses", "found", lambda word: word.bitwise_and_(~mask))
    fault = "a comparison that sees nothing"
    yield _try(ctx, fault, hv.CHECKER_BROKEN, compare=lambda _found, _expected: None)


def keep(_word: Tensor) -> None:
    """Do no harm."""


def _try(
    ctx: hv.Context,
    fault: str,
    expected: str,
    on_rest: Harm = keep,
    *,
    on_write: Harm = keep,
    compare: march.Compare = find_mismatch,
) -> hv.Trial:
    real = find_host_memory()
    mapped: list[Tensor] = []

    def map_chunk(size: int, node: int) -> Tensor:
        mapped.append(real.map_chunk(size, node))
        return mapped[-1]

    def write(words: Tensor, table: Tensor, mask: int) -> None:
        march.write(words, table, mask)
        if words.data_ptr() <= mapped[0][WORD:].data_ptr() < words[-1:].data_ptr():
            on_write(mapped[0][WORD])

    def rest(_seconds: float) -> None:
        on_rest(mapped[0][WORD])

    free = 2 * LEAST_CHUNKS * CHUNK_BYTES
    little = structs.replace(real.nodes[0], free=free)
    host = replace(
        real,
        nodes=(little,),
        read_free=lambda: free,
        map_chunk=map_chunk,
        seams=MemorySeams(write, compare=compare),
        chunk_bytes=CHUNK_BYTES,
        words_per_piece=WORDS_PER_PIECE,
        rest=rest,
    )
    outcome, detail = _examine(ctx, host)
    part_id = name_node(little.number)
    return hv.Trial(fault=fault, part_id=part_id, expected=expected, outcome=outcome, detail=detail)


def _examine(ctx: hv.Context, host: HostMemory) -> tuple[str, str]:
    exam = HostExamination(
        host=host,
        regions=plan_regions(host, cpu.read_cores().allowed, ctx.rotation),
        seconds=1.0,
        pause=0.0,
        seed=ctx.seed,
        reserve=0,
        began=host.read_clock(),
    )
    try:
        findings = list(exam.run())
    except hv.Unable as exc:
        return hv.CHECKER_BROKEN, str(exc)
    places = {f.part_id for f in findings}
    if places - {name_node(host.nodes[0].number)}:
        return f"found: {', '.join(sorted(places))}", findings[0].text
    return ("found", findings[0].text) if findings else (hv.FOUND_NOTHING, "")
