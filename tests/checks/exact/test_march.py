"""March C- finds what it is known to find, and sound memory passes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice, product

import pytest
import torch
from torch import Tensor

from hpcverify.check import Unable
from hpcverify.model import Cause, Remedy
from hpcverify_checks.exact import march as marching
from hpcverify_checks.exact.march import (
    BACKGROUND_NAMES,
    HARDWARE,
    MARCH_C_MINUS,
    Background,
    MarchPass,
    Memory,
    MemorySeams,
    PassTally,
    WrongPiece,
    generate_backgrounds,
    go_on,
    hash_addresses,
    run_pass,
)
from hpcverify_checks.exact.mismatch import Mismatch
from tests.checks.exact.faulty_memory import (
    EFFECTS,
    AddressLine,
    Cell,
    Coupling,
    FaultyTorch,
    bit,
)

AT_ONCE = 128


def chunks(*sizes: int) -> tuple[Tensor, ...]:
    """Make memory that holds what someone left there."""
    return tuple(torch.randint(-(2**63), 2**63 - 1, (size,)) for size in sizes)


def start(
    memory: tuple[Tensor, ...], seams: MemorySeams = HARDWARE, background: Background | None = None
) -> MarchPass:
    return Memory(memory, AT_ONCE, seams).start_pass(background or hash_addresses(AT_ONCE, "1 0"))


def march_over(
    memory: tuple[Tensor, ...],
    seams: MemorySeams = HARDWARE,
    passes: int = 1,
    rest: Callable[[], None] = go_on,
    seed: int = 1,
) -> list[WrongPiece]:
    """Make *passes*, and return what the first pass with wrong words found."""
    for background in islice(generate_backgrounds(AT_ONCE, seed), passes):
        made = start(memory, seams, background)
        if found := list(run_pass(background.name, made.sweep, PassTally(), rest)):
            return found
        made.require_canary(random.Random(seed))  # noqa: S311 - no secret
    return []


@dataclass
class Faulty:
    """Writes as it should, and does harm after (or also before) the chosen writes."""

    harm: Callable[[Tensor], object]
    before: Callable[[Tensor], object] = lambda _: None
    only: int | None = None
    calls: int = field(default=0, init=False)

    def __call__(self, words: Tensor, table: Tensor, mask: int) -> None:
        """Write, and do harm if it is time."""
        hit = self.only in (None, self.calls)
        self.calls += 1
        if hit:
            self.before(words)
        marching.write(words, table, mask)
        if hit:
            self.harm(words)


@dataclass
class Disturbed:
    """Reads as it should, but for one bit of the reading number *only*."""

    only: int
    word: int = 3
    calls: int = field(default=0, init=False)

    def __call__(self, words: Tensor, mask: int, out: Tensor) -> None:
        """Read, and disturb it if it is time."""
        marching.read(words, mask, out)
        if self.calls == self.only:
            out[self.word].bitwise_xor_(bit(9))
        self.calls += 1


def test_sound_memory_passes_whatever_its_size_and_the_seed() -> None:
    sizes = [(1,), (127, 1), (128,), (129, 64), (640, 333, 65, 62), (1000, 100)]
    for seed, size in product(range(25), sizes):
        assert march_over(chunks(*size), passes=4, seed=seed) == []


@pytest.mark.parametrize("at", [0, 1])
def test_every_stuck_bit_of_a_word_is_found(at: int) -> None:
    for place in range(64):
        memory = chunks(500, 500, 100)
        cell = memory[1][321]

        def hold(_: Tensor, cell: Tensor = cell, mask: int = bit(place)) -> None:
            _ = cell.bitwise_or_(mask) if at else cell.bitwise_and_(~mask)

        [wrong, *_] = march_over(memory, MemorySeams(write=Faulty(hold)))
        evidence = wrong.to_evidence()
        assert evidence["bits"] == evidence[f"bits_{1 - at}_to_{at}"] == str(place)
        assert evidence[f"bits_{at}_to_{1 - at}"] == ""
        assert evidence["offset"] == hex((500 + 321) * 8)
        assert evidence["chunk"] == "1"
        assert evidence["again"].startswith("the same when read again")


SEVERAL = (1024, 512)
"""Words of two chunks, of eight and of four pieces."""
PLACES = {
    "same chunk": ((0, 130), (0, 900)),
    "neighbouring pieces": ((0, 127), (0, 128)),
    "other chunk": ((0, 300), (1, 7)),
}


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("edge", [(0, 1), (1, 0)], ids=["up", "down"])
@pytest.mark.parametrize("order", [1, -1], ids=["aggressor first", "victim first"])
@pytest.mark.parametrize("place", PLACES)
def test_a_cell_that_another_one_changes_is_found_in_one_pass(
    monkeypatch: pytest.MonkeyPatch, place: str, order: int, edge: tuple[int, int], effect: str
) -> None:
    for places in ((3, 3), (3, 40), (17, 18), (63, 0)):  # equal bits and others, by the hash
        memory = chunks(*SEVERAL)
        ends = PLACES[place][::order]
        aggressor, victim = (
            Cell(memory[chunk], index, place)
            for (chunk, index), place in zip(ends, places, strict=True)
        )
        fault = Coupling(aggressor, victim, edge, EFFECTS[effect])
        monkeypatch.setattr(torch, "bitwise_xor", fault.install(memory).xor)

        [wrong, *_] = march_over(memory)

        chunk, index = ends[1]
        assert wrong.mismatch.index == sum(SEVERAL[:chunk]) + index
        assert wrong.to_evidence()["bits"] == str(places[1])


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("edge", [(0, 1), (1, 0)], ids=["up", "down"])
@pytest.mark.parametrize(
    "ends", [((5, 3), (6, 3)), ((6, 3), (5, 3)), ((5, 3), (5, 4)), ((9, 60), (100, 2))]
)
def test_cells_of_one_piece_that_change_each_other_show_by_their_data(
    monkeypatch: pytest.MonkeyPatch,
    ends: tuple[tuple[int, int], tuple[int, int]],
    edge: tuple[int, int],
    effect: str,
) -> None:
    memory = chunks(*SEVERAL)
    aggressor, victim = (Cell(memory[0], index, place) for index, place in ends)
    fault = Coupling(aggressor, victim, edge, EFFECTS[effect])
    monkeypatch.setattr(torch, "bitwise_xor", fault.install(memory, at_once=True).xor)

    [wrong, *_] = march_over(memory, passes=12)

    assert wrong.mismatch.index == ends[1][0]


def test_what_the_same_operation_overwrites_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit that docs/explanation/sdc.md states: within a piece the order is not ours."""
    memory = chunks(*SEVERAL)
    fault = Coupling(Cell(memory[0], 5, 3), Cell(memory[0], 6, 3), (0, 1), EFFECTS["inverted"])
    monkeypatch.setattr(torch, "bitwise_xor", fault.install(memory).xor)

    assert march_over(memory, passes=8) == []


@pytest.mark.parametrize("line", range(10))
def test_a_line_of_the_address_that_is_stuck_is_found(
    monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    memory = chunks(1024)
    monkeypatch.setattr(torch, "bitwise_xor", AddressLine(memory[0], line).xor)

    [wrong, *_] = march_over(memory)

    assert wrong.pattern == "hashed addresses"
    assert wrong.mismatch.index == 0


@pytest.mark.parametrize("kept", [0, 1])
def test_a_cell_that_loses_its_charge_in_the_pause_is_found(kept: int) -> None:
    memory = chunks(*SEVERAL)
    leaky = Cell(memory[0], 700, 11)

    [wrong, *_] = march_over(memory, rest=lambda: leaky.write(kept))

    evidence = wrong.to_evidence()
    assert (wrong.mismatch.index, evidence[f"bits_{1 - kept}_to_{kept}"]) == (700, "11")


def test_each_bit_rests_as_a_zero_and_as_a_one() -> None:
    memory, seen = chunks(*SEVERAL), list[tuple[Tensor, ...]]()
    march_over(memory, rest=lambda: seen.append(tuple(c.clone() for c in memory)))
    first, second = seen
    assert all(torch.equal(a, ~b) for a, b in zip(first, second, strict=True))


def test_each_piece_is_compared_before_it_is_written_and_down_is_the_reverse_of_up() -> None:
    order: list[tuple[str, int]] = []
    memory = chunks(256, 100)
    starts = {
        c.data_ptr() + 8 * i: n
        for n, (c, i) in enumerate([(memory[0], 0), (memory[0], 128), (memory[1], 0)])
    }

    def write(words: Tensor, table: Tensor, mask: int) -> None:
        order.append(("w", starts[words.data_ptr()]))
        marching.write(words, table, mask)

    def read(words: Tensor, mask: int, out: Tensor) -> None:
        order.append(("r", starts[words.data_ptr()]))
        marching.read(words, mask, out)

    assert march_over(memory, MemorySeams(write, read)) == []

    up = [("r", 0), ("w", 0), ("r", 1), ("w", 1), ("r", 2), ("w", 2)]
    down = [("r", 2), ("w", 2), ("r", 1), ("w", 1), ("r", 0), ("w", 0)]
    first, last = [("w", n) for n in range(3)], [("r", n) for n in (2, 1, 0)]
    assert order[:-1] == [*first, *up, *up, *down, *down, *last]
    assert order[-1] == ("r", 2)  # the canary


def test_the_test_is_march_c_minus() -> None:
    text = "; ".join(
        ("up" if s.is_up else "down")
        + str(
            tuple(
                f"{op}{-state}"
                for op, state in (("r", s.held), ("w", s.becomes))
                if state is not None
            )
        )
        for s in MARCH_C_MINUS
    )
    assert text.replace("'", "").replace(",)", ")") == (
        "up(w0); up(r0, w1); up(r1, w0); down(r0, w1); down(r1, w0); down(r0)"
    )


def test_evidence_says_what_was_expected_and_found() -> None:
    memory = chunks(1000, 100)
    background = hash_addresses(AT_ONCE, "1 0")
    lone = Faulty(lambda _: memory[0][130].bitwise_xor_(bit(63)), only=17)
    [wrong] = march_over(memory, MemorySeams(write=lone))
    evidence = wrong.to_evidence()
    expected = ~(int(background.table[2]) ^ background.compute_mask(1)) % 2**64
    assert evidence["pattern"] == "hashed addresses, inverted"
    assert int(evidence["expected"], 16) == expected
    assert int(evidence["found"], 16) == expected ^ 2**63 == expected ^ int(evidence["xor"], 16)
    assert (evidence["bits"], evidence["wrong_words"]) == ("63", "1 of 128")
    assert evidence["reference"] == "intact"


def test_a_bit_that_cannot_fall_once_it_has_risen_is_found() -> None:
    memory, kept = chunks(1000, 100), list[Tensor]()
    cell = memory[0][600]
    slow = Faulty(
        before=lambda _: kept.append(cell.clone()),
        harm=lambda _: cell.bitwise_or_(kept.pop() & bit(44)),
    )
    memory[0].zero_()
    [wrong, *_] = march_over(memory, MemorySeams(write=slow))
    assert wrong.to_evidence()["bits"] == "44"


@pytest.mark.parametrize("shared", [128, 200, 500])
def test_two_addresses_that_lead_to_the_same_cells_are_found(shared: int) -> None:
    whole = torch.zeros(1100 - shared, dtype=torch.int64)
    [first, *_] = march_over((whole[:600], whole[600 - shared :]))
    assert first.pattern == "hashed addresses"
    assert first.mismatch.index == 600 - shared


def test_one_uniform_pattern_alone_would_not_see_an_address_fault() -> None:
    whole = torch.zeros(512, dtype=torch.int64)
    solid = next(islice(generate_backgrounds(AT_ONCE, 1), 1, None))
    bench = start((whole, whole), background=solid)
    write, *_, read = MARCH_C_MINUS
    assert list(bench.sweep(write)) == list(bench.sweep(read)) == []


def test_a_tile_that_is_not_written_is_found_and_counted() -> None:
    kept = list[Tensor]()
    for only in range(45):  # of the five writes of each of the nine pieces
        lost = Faulty(
            before=lambda words: kept.append(words[10:20].clone()),
            harm=lambda words: words[10:20].copy_(kept.pop()),
            only=only,
        )
        [wrong, *_] = march_over(chunks(1000, 100), MemorySeams(write=lost))
        assert wrong.to_evidence()["wrong_words"] == f"10 of {size(only)}"


def size(write: int) -> int:
    """Give the words in the piece of the *write*-th write."""
    order = [128] * 7 + [104, 100]
    return [*order * 3, *order[::-1] * 2][write]


def test_a_reading_that_was_disturbed_once_is_told_from_a_bad_cell() -> None:
    for only in range(45):
        [wrong] = march_over(chunks(1000, 100), MemorySeams(read=Disturbed(only)))
        assert wrong.again.startswith("right when read again")
        assert (wrong.mismatch.count, wrong.to_evidence()["bits"]) == (1, "9")


def test_a_word_that_is_different_each_time_is_said_to_be() -> None:
    def noisy(words: Tensor, mask: int, out: Tensor) -> None:
        marching.read(words, mask, out)
        out[3].random_()

    [wrong, *_] = march_over(chunks(1000), MemorySeams(read=noisy))
    assert wrong.again.startswith("different")


def test_few_wrong_words_are_described_and_all_are_counted() -> None:
    tally = PassTally()
    made = start(chunks(1000, 100), MemorySeams(write=Faulty(lambda w: w.zero_())))
    found = list(run_pass("any", made.sweep, tally, go_on))
    assert len(found) == marching.MAX_DESCRIBED_WORDS
    assert tally.mismatches == 5 * 1100
    assert tally.passes["any"] == 1


def test_the_same_word_is_described_once() -> None:
    memory = chunks(1000)
    assert len(march_over(memory, MemorySeams(write=Faulty(lambda _: memory[0][7].fill_(5))))) == 1


@dataclass
class Spoiler:
    """Flips a bit of the table before the write number *at*."""

    at: int
    calls: int = field(default=0, init=False)

    def __call__(self, words: Tensor, table: Tensor, mask: int) -> None:
        """Write, and strike if it is time."""
        if self.calls == self.at:
            table[17].bitwise_xor_(1)
        self.calls += 1
        marching.write(words, table, mask)


def test_a_reference_that_changed_is_said_to_have() -> None:
    [wrong, *_] = march_over(chunks(1000), MemorySeams(write=Spoiler(5)))
    assert wrong.reference == "changed in its memory"


def test_a_reference_that_was_wrong_from_the_start_is_known() -> None:
    bench = start(chunks(1000))
    bench.table[17].bitwise_xor_(1)
    assert [list(bench.sweep(sweep)) for sweep in MARCH_C_MINUS] == [[]] * len(MARCH_C_MINUS)
    assert not bench.is_table_intact()


def test_a_bit_that_changes_in_the_hosts_own_table_accuses_no_other_memory() -> None:
    bench = start(chunks(1000))
    bench.background.table[17].bitwise_xor_(1)
    assert bench.is_table_intact()


def test_a_comparison_of_tables_in_which_the_host_errs_once_accuses_no_other_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, right, errs = start(chunks(1000)), torch.Tensor.equal, iter([False])
    monkeypatch.setattr(
        torch.Tensor, "equal", lambda self, other: next(errs, True) and right(self, other)
    )
    assert bench.is_table_intact()


def test_a_digest_that_the_host_took_wrongly_accuses_no_other_memory() -> None:
    assert replace(start(chunks(1000)), digest=1).is_table_intact()


@pytest.mark.parametrize(
    ("seen", "remedy"), [(None, Remedy.FIX_CHECKER), (Mismatch(2, 0, 0, 1), Remedy.INSPECT)]
)
def test_a_comparison_that_sleeps_makes_the_check_report_itself(
    seen: Mismatch | None, remedy: Remedy
) -> None:
    bench = start(chunks(1000), MemorySeams(compare=lambda _found, _expected: seen))
    with pytest.raises(Unable, match="did not notice") as caught:
        bench.require_canary(random.Random(1))  # noqa: S311 - no secret
    assert (caught.value.cause, caught.value.remedy) == (Cause.CHECKER, remedy)


def test_every_word_of_the_hashed_background_is_another() -> None:
    made = hash_addresses(1000, "1 0")
    masks = [made.compute_mask(number) for number in (*range(10), *range(1 << 40, (1 << 40) + 10))]
    words = torch.tensor(masks)[:, None] ^ made.table
    assert len(set(words.flatten().tolist())) == 20_000
    ones = ((words.reshape(-1, 1) >> torch.arange(64)) & 1).double().mean(0)
    assert 0.45 < ones.min() < ones.max() < 0.55


def test_hashed_backgrounds_differ_between_runs_and_laps() -> None:
    def tables(seed: int) -> list[int]:
        made = islice(generate_backgrounds(8, seed), 0, 12, 4)
        return [int(b.table[0]) for b in made]

    assert len({*tables(1), *tables(2)}) == 6
    assert tables(1) == tables(1)


def test_the_walking_bit_comes_to_every_place_of_every_word() -> None:
    laps = [b.table for b in islice(generate_backgrounds(65, 1), 3, 256, 4)]
    seen = torch.stack(laps)
    assert set((seen[:, 64]).tolist()) == {bit(place) for place in range(64)}
    assert all((word % 2**64).bit_count() == 1 for word in seen[0].tolist())


def test_backgrounds_take_turns_in_the_order_that_is_told() -> None:
    made = islice(generate_backgrounds(8, 1), 8)
    assert tuple(b.name for b in made) == BACKGROUND_NAMES * 2


def test_chunks_that_were_given_back_are_not_tested() -> None:
    bench = start(chunks(256, 256, 256))
    list(bench.sweep(MARCH_C_MINUS[0]))
    fewer = bench.keep_chunks(2)
    bench.memory.chunks[2].zero_()
    assert fewer.memory.size == 2 * 256 * 8
    assert list(fewer.sweep(MARCH_C_MINUS[1])) == []


def test_memory_that_is_sound_is_written_as_often_as_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = chunks(512)
    spy = FaultyTorch(memory)
    monkeypatch.setattr(torch, "bitwise_xor", spy.xor)
    assert march_over(memory) == []
    assert spy.calls == 5 * 4
