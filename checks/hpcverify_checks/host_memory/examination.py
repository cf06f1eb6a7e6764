"""
March C- over all regions at the same time, a sweep at a time, within the time that there is.

All cores sweep in the same direction and wait for each other after each sweep, so that the
order of any two pieces in a sweep down is the reverse of that in a sweep up, as far as the
cores keep pace.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import hpcverify.check as hv
from hpcverify_checks.exact.march import (
    CORRUPTED_CODE,
    MARCH_C_MINUS,
    PAUSES,
    Background,
    MarchPass,
    MarchSweep,
    Memory,
    PassTally,
    WrongPiece,
    generate_backgrounds,
    go_on,
    hash_addresses,
    run_pass,
)
from hpcverify_checks.exact.reruns import Reruns, rerun
from hpcverify_checks.host_memory.mapping import find_nodes
from hpcverify_checks.host_memory.regions import LEAST_CHUNKS, HostMemory, Region, grow, list_cores
from hpcverify_checks.node.cores import run_on_each

PIECE_NUMBER_BITS = 40
"""The number of a piece has these bits, below those of its region."""
TIME_SHARE = 0.8
"""As much memory is taken as this share of the time is expected to suffice for; the rest is
for noise."""
LATE_FACTOR = 2.0
"""A busy host ends within this many times the seconds that were asked for."""


def name_core(number: int) -> str:
    """Name a core, as the id of a part."""
    return f"cpu{number}"


def name_node(number: int) -> str:
    """Name a NUMA node, as the id of a part."""
    return f"numa{number}"


@dataclass(slots=True)
class HostExamination:
    """What is under test, until when, and what was found."""

    host: HostMemory
    regions: list[Region]
    seconds: float
    pause: float
    seed: int
    reserve: int
    """Bytes that must stay free."""
    began: float
    """By the clock of the host."""
    tally: PassTally = field(default_factory=PassTally)
    wrong: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    """The wrong words, by the core that saw them and the NUMA node."""
    bad_cores: set[int] = field(default_factory=set[int])
    """Those that err where another core does not."""
    marches: list[MarchPass] = field(default_factory=list[MarchPass])
    """The pass that is under way, one for each region."""
    last_sweep_seconds: float = 0.0

    @property
    def size(self) -> int:
        """The bytes of all regions."""
        return sum(region.size for region in self.regions)

    def run(self) -> Iterator[hv.Finding]:
        """Take memory, as much as there is time for, and make passes over it."""
        yield from self._take_memory()
        rest: Callable[[], None] = partial(self.host.rest, self.pause)
        chance = random.Random(self.seed)  # noqa: S311 - no secret
        for background in generate_backgrounds(self.host.words_per_piece, self.seed):
            if self.tally.mismatches or not self.regions:
                break
            self.start_pass(background)
            began = self.host.read_clock()
            pieces = run_pass(background.name, self.sweep, self.tally, rest)
            yield from map(self._build_finding, pieces)
            for region, march in zip(self.regions, self.marches, strict=True):
                if not self.tally.mismatches and not march.is_table_intact():
                    self.tally.mismatches += 1
                    self.wrong[region.core, region.node] += 1
                    text = f"the reference table of core {region.core} changed in memory"
                    yield hv.Finding(CORRUPTED_CODE, name_node(region.node), text)
            if not self.tally.mismatches:
                chance.choice(self.marches).require_canary(chance)
            paused = 0.0 if rest is go_on else PAUSES * self.pause
            now = self.host.read_clock()
            if now + (now - began - paused) > self.began + self.seconds:
                break
            rest = go_on

    def _take_memory(self) -> Iterator[hv.Finding]:
        """Measure with the first chunks how long a pass takes, then take what there is time for."""
        grow(self.regions, self.host, self.reserve, has_least)
        self.regions = [region for region in self.regions if has_least(region)]
        if not self.regions:
            return
        began, first = self.host.read_clock(), self.size
        self.start_pass(hash_addresses(self.host.words_per_piece, f"{self.seed} first chunks"))
        for sweep in MARCH_C_MINUS:
            yield from map(self._build_finding, self.tally.select_new(self.sweep(sweep)))
        per_byte = (self.host.read_clock() - began) / first / TIME_SHARE
        end = self.began + self.seconds - PAUSES * self.pause

        def is_enough(region: Region) -> bool:
            is_late = self.host.read_clock() + self.size * per_byte >= end
            return is_late or len(region.chunks) >= region.wanted_chunks

        grow(self.regions, self.host, self.reserve, is_enough)
        self.last_sweep_seconds *= self.size / first

    def start_pass(self, background: Background) -> None:
        """Begin a pass over all regions."""
        host = self.host
        self.marches = [
            Memory(
                tuple(region.chunks),
                host.words_per_piece,
                host.seams,
                first_piece=number << PIECE_NUMBER_BITS,
            ).start_pass(background)
            for number, region in enumerate(self.regions)
        ]

    def sweep(self, sweep: MarchSweep) -> Iterator[WrongPiece]:
        """Sweep over all regions at the same time."""
        self._keep_to_limits(len(MARCH_C_MINUS) - MARCH_C_MINUS.index(sweep))
        began = self.host.read_clock()

        def work(core: int) -> list[WrongPiece]:
            pairs = zip(self.regions, self.marches, strict=True)
            mine = [march for region, march in pairs if region.core == core]
            return [wrong for march in mine for wrong in march.sweep(sweep)]

        for pieces in run_on_each(list_cores(self.regions), work):
            for wrong in pieces:
                core = self._find_region(wrong).core
                self.wrong[core, self._find_node(wrong)] += wrong.mismatch.count
                yield wrong
        self.last_sweep_seconds = self.host.read_clock() - began

    def _keep_to_limits(self, sweeps: int) -> None:
        """Give back memory if there is no time for the *sweeps* to come, or others need it."""
        share, size = 1.0, self.size
        late = self.began + LATE_FACTOR * self.seconds
        left, needed = max(0.0, late - self.host.read_clock()), self.last_sweep_seconds * sweeps
        if needed > left:
            share = left / needed
        free = self.host.read_free()
        if free < self.reserve:
            share = min(share, max(0.0, 1 - (self.reserve - free) / size))
        if share < 1:
            for number, region in enumerate(self.regions):
                kept = max(1, int(len(region.chunks) * share))
                del region.chunks[kept:]
                self.marches[number] = self.marches[number].keep_chunks(kept)
            self.last_sweep_seconds *= self.size / size

    def _build_finding(self, wrong: WrongPiece) -> hv.Finding:
        """Ask whether another core sees the same, and describe the place."""
        region = self._find_region(wrong)
        march = self.marches[self.regions.index(region)]
        others = [core for core in list_cores(self.regions) if core != region.core]
        reruns = [rerun_on_core(core, march, wrong) for core in (region.core, *others[:1])]
        node = self._find_node(wrong)
        physical = self.host.find_physical_address(wrong.address)
        evidence = {
            **wrong.to_evidence(),
            "numa_node": str(node),
            "core": str(region.core),
            "virtual": f"{wrong.address:#x}",
            "physical": "not known" if physical is None else f"{physical:#x}",
            "same_core": count_reruns(reruns[0]),
            "another_core": count_reruns(reruns[1]) if others else "there is none",
        }
        place, part_id = f"NUMA node {node}", name_node(node)
        # It errs each time, and another core never, with the same memory.
        is_core = any(not other.wrong and not other.error for other in reruns[1:])
        if reruns[0].persistent and is_core:
            self.bad_cores.add(region.core)
            place, part_id = f"core {region.core}", name_core(region.core)
        text = (
            f"{place}, physical address {evidence['physical']}: {wrong.describe()}; written and "
            f"read again by the same core: {evidence['same_core']}; by another core: "
            f"{evidence['another_core']}"
        )
        return hv.Finding(CORRUPTED_CODE, part_id, text, evidence)

    def _find_node(self, wrong: WrongPiece) -> int:
        nodes = find_nodes([wrong.address])
        return nodes[0] if nodes else self._find_region(wrong).node

    def _find_region(self, wrong: WrongPiece) -> Region:
        return self.regions[wrong.piece.number >> PIECE_NUMBER_BITS]

    def count_wrong(self) -> dict[str, int]:
        """Count the wrong words of each NUMA node, and those that are the fault of a core."""
        counts = {name_node(node.number): 0 for node in self.host.nodes}
        for (core, node), words in self.wrong.items():
            part_id = name_core(core) if core in self.bad_cores else name_node(node)
            counts[part_id] = counts.get(part_id, 0) + words
        return counts


def has_least(region: Region) -> bool:
    """Whether *region* has the chunks without which it is not tested."""
    return len(region.chunks) >= LEAST_CHUNKS


def rerun_on_core(core: int, march: MarchPass, wrong: WrongPiece) -> Reruns:
    """Write and compare the piece again on *core*, then leave it as it was."""
    piece, kept = wrong.piece, wrong.piece.words.clone()

    def is_wrong() -> bool:
        march.write(piece, wrong.state)
        march.evict(piece.chunk)
        return march.compare(piece, wrong.state) is not None

    (reruns,) = run_on_each([core], lambda _: rerun(is_wrong))
    piece.words.copy_(kept)
    return reruns


def count_reruns(reruns: Reruns) -> str:
    """Say how many of *reruns* were wrong, of a core that need not be the one that erred."""
    return reruns.error or f"wrong {reruns.wrong} of {reruns.total} times"
