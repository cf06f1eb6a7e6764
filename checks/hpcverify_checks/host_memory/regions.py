"""
The regions of a run: which cores test how much memory of which NUMA node.

Half of what is free is taken, at most, so that no other process runs short. Each core has
chunks of its own on its node: two at least, each larger than all caches, so that it is
memory that answers. Where too little is free for that, they are smaller, and the coverage
says that caches may have answered: a virtual machine is shown the cache of the whole host.
Where time or memory gets short, a region gives chunks back.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcverify.telemetry.memory import NumaNode, list_numa_nodes, read_cache_bytes, read_free_bytes
from hpcverify_checks.exact.bits import WORD_BYTES
from hpcverify_checks.exact.march import HARDWARE, MemorySeams
from hpcverify_checks.host_memory.mapping import count_nodes, find_physical_address, map_chunk
from hpcverify_checks.node.cores import MAX_CORES, pick_cores, run_on_each

if TYPE_CHECKING:
    from torch import Tensor

TESTED_SHARE = 0.5
RESERVED_SHARE = 0.25
"""If others leave no more than this share free, memory is given back."""
LEAST_CHUNKS = 2
"""While one is read, the caches of a core lose the other."""
LEAST_CHUNK_BYTES = 2**26
WORDS_PER_PIECE = 2**17
"""1 MiB: what is compared and then written. It stays in the caches of the core."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The memory of the host, and how to get it; tests supply another."""

    nodes: tuple[NumaNode, ...]
    read_free: Callable[[], int] = read_free_bytes
    map_chunk: Callable[[int, int], Tensor] = map_chunk
    """Takes bytes and the number of a node; raises OSError."""
    count_nodes: Callable[[Tensor], Counter[int] | None] = count_nodes
    find_physical_address: Callable[[int], int | None] = find_physical_address
    seams: MemorySeams = HARDWARE
    chunk_bytes: int = LEAST_CHUNK_BYTES
    cache_bytes: int = 0
    """The size of the largest cache."""
    words_per_piece: int = WORDS_PER_PIECE
    rest: Callable[[float], None] = time.sleep
    read_clock: Callable[[], float] = time.perf_counter


def find_host_memory() -> HostMemory:
    """Find the memory of this host, with chunks of twice its largest cache if they fit."""
    nodes, cache = list_numa_nodes(), read_cache_bytes()
    chunk = choose_chunk_bytes(nodes, cache, read_free_bytes())
    return HostMemory(nodes, chunk_bytes=chunk, cache_bytes=cache)


def choose_chunk_bytes(nodes: Sequence[NumaNode], cache: int, free: int) -> int:
    """Choose chunks so large that the *cache* holds none, if the *free* memory has room for it."""
    least = min((node.free for node in nodes if node.free), default=0)
    fitting = int(min(least, free) * TESTED_SHARE) // LEAST_CHUNKS
    fitting -= fitting % LEAST_CHUNK_BYTES
    return max(LEAST_CHUNK_BYTES, min(2 * cache, fitting))


@dataclass(slots=True, eq=False)
class Region:
    """The chunks of one NUMA node that one core tests."""

    node: int
    core: int
    wanted_chunks: int
    chunks: list[Tensor]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(chunk.numel() for chunk in self.chunks) * WORD_BYTES


def plan_regions(host: HostMemory, allowed: Sequence[int], rotation: int) -> list[Region]:
    """
    Plan a region for each core of each NUMA node, as far as there is memory for it.

    A node without cores that we may use is tested by those of the others.
    """
    total = sum(node.free for node in host.nodes)
    share = TESTED_SHARE * min(1.0, host.read_free() / total) if total else 0.0
    most = max(1, MAX_CORES // max(1, len(host.nodes)))
    regions: list[Region] = []
    for node in host.nodes:
        chunks = -int(-node.free * share // host.chunk_bytes)  # rounded up: at least half
        cores = sorted(set(node.cores) & set(allowed)) or allowed
        fit = min(most, chunks // LEAST_CHUNKS)
        chosen = pick_cores(cores, fit, rotation) if fit else ()
        wanted_chunks = -(-chunks // max(1, len(chosen)))
        regions += [Region(node.number, core, wanted_chunks, []) for core in chosen]
    return regions


def grow(
    regions: Sequence[Region], host: HostMemory, reserve: int, enough: Callable[[Region], bool]
) -> None:
    """Map chunks, all cores at the same time, until each region has *enough*."""

    def work(core: int) -> None:
        for region in regions:
            while region.core == core and not enough(region):
                if host.read_free() - host.chunk_bytes < reserve:
                    break
                try:
                    region.chunks.append(host.map_chunk(host.chunk_bytes, region.node))
                except OSError:  # a limit of this process, or no overcommitment
                    break

    list(run_on_each(list_cores(regions), work))


def list_cores(regions: Sequence[Region]) -> list[int]:
    """List the cores of *regions*, each once."""
    return sorted({region.core for region in regions})


def count_tested(regions: Sequence[Region], host: HostMemory) -> tuple[Counter[int], bool]:
    """Count the bytes tested of each NUMA node, and say whether the kernel knows where they are."""
    tested, is_known = Counter[int](), True
    for region in regions:
        for chunk in region.chunks:
            sizes = host.count_nodes(chunk)
            is_known = is_known and sizes is not None
            tested += Counter({region.node: chunk.numel() * WORD_BYTES}) if sizes is None else sizes
    return tested, is_known
