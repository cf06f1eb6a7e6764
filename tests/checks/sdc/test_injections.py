"""
Faults under torch and the C library lead to what the table says, on the part that it names.

The whole check runs, with one type at a time and small products, by a clock that counts work.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from msgspec import structs

from hpcverify.check import Unable
from hpcverify.model import CheckItem, Finding, Measurement, Part, Verdict
from hpcverify.testing import INVENTORY, judge_items, list_findings, make_context
from hpcverify_checks import sdc
from hpcverify_checks.exact.bits import view_words, wrap_int64
from hpcverify_checks.exact.families import CPU_FAMILIES, make_bf16_plans
from hpcverify_checks.exact.product_loop import (
    CANARY_PRODUCTS,
    BlindComparison,
    HuntResult,
    ProductJob,
    ProductTask,
    hunt,
)
from hpcverify_checks.exact.products import Operands, Shape, prove_by_freivalds
from hpcverify_checks.exact.soak import NORMAL_NUMBERS, OPERAND_PAIRS
from hpcverify_checks.exact.transfers import copy
from hpcverify_checks.exact.vote import reconcile
from hpcverify_checks.node.cores import run_on_each
from hpcverify_checks.sdc import stress
from hpcverify_checks.sdc.copies import (
    CopyTally,
    copy_for_seconds,
    make_both,
    make_core_paths,
)
from hpcverify_checks.sdc.prepare import DeviceTask, prepare, prove_product
from tests.checks.sdc import faulty_library as faulty
from tests.checks.sdc.benches import a_task
from tests.checks.sdc.faulty_library import (
    BAD,
    FaultyComparison,
    FaultyCopies,
    FaultyProducts,
    Harm,
    is_any_core,
)
from tests.checks.sdc.universal import right_product
from tests.checks.sdc.work_clock import ROOM, WorkClock
from tests.coverage.injections import (
    COMPARISON,
    COPY,
    CORE,
    EACH_CORE,
    INJECTIONS,
    PRODUCT,
    RANDOM,
    TURN,
    Injection,
)

T = TypeVar("T")
SHAPE = Shape(64, 128)
PARAMS = sdc.SdcParams(seconds=1.0, size=SHAPE.size, depth=SHAPE.depth)
UNSIZED = sdc.SdcParams(seconds=1.0)
CORES = sorted(os.sched_getaffinity(0))
PARTS = {CORE: {f"cpu{BAD}"}, EACH_CORE: {f"cpu{core}" for core in CORES}}
INEXACT = {("inexact", part) for part in PARTS[EACH_CORE]}
CODES = {Verdict.FAIL: "corruption", Verdict.ERROR: "blind_part", Verdict.WARN: "dissent"}
# Of one physical core, so that there is no other to agree that a library is at fault.
ONE_CORE = Part("cpu", "cpu", "CPU", {"threads": str(len(CORES)), "cores": "1"})
INVENTORY_OF_ONE = structs.replace(INVENTORY, parts=(ONE_CORE,))
FLOATS, EXACT = ("fp32", "fp64"), ("fp32", "fp64", "int8", "bf16")


@dataclass(frozen=True, slots=True)
class Told:
    """What the check told: its verdict, and which finding on which part."""

    verdict: Verdict
    codes: set[tuple[str, str]]
    items: tuple[CheckItem, ...]

    def list_corruptions(self) -> list[Finding]:
        """List the findings of wrong products."""
        return [f for f in list_findings(self.items) if f.code == "corruption"]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> WorkClock:
    """Let the check go by a clock on which a product takes a millisecond."""
    monkeypatch.setattr(stress, "CPU_SHAPE", SHAPE)
    ticking = WorkClock(product_seconds=0.001, plan_seconds=0.001)
    ticking.put_into(monkeypatch)
    return ticking


def examine(
    tmp_path: Path, types: Collection[str], rotation: int, params: sdc.SdcParams = PARAMS
) -> Told:
    """Run the check with some *types*, and judge it as a run does."""
    items: list[CheckItem] = []
    ended = Verdict.PASS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdc, "list_families", lambda _: [CPU_FAMILIES[name] for name in types])
        try:
            items.extend(sdc.measure(make_context(tmp_path, rotation=rotation), params))
        except Unable:
            ended = Verdict.ERROR
    judged = judge_items(sdc.CHECK, items, INVENTORY_OF_ONE).verdict
    found = [i for i in items if isinstance(i, (Measurement, Finding))]
    left = list_findings(reconcile(found, INVENTORY_OF_ONE))
    codes = {(f.code, f.part_id) for f in left if f.code != "answer"}
    return Told(max(judged, ended), codes, tuple(items))


def find_rows(test: str) -> list[Injection]:
    """List the rows of the table that name a case of *test*."""
    cases = re.compile(rf"{re.escape(test)}\[(fp32-)?")
    return [row for row in INJECTIONS if f"{row.fault}]" in [cases.sub("", t) for t in row.tests]]


def accuse(row: Injection) -> set[tuple[str, str]]:
    """Say what the check must find, by code and part."""
    return {(CODES[row.verdict], part) for part in PARTS[row.part]}


def once(number: int) -> Callable[[int], bool]:
    return lambda at: at == number


@dataclass(frozen=True, slots=True)
class ProductFault:
    """A fault of products, and the types that it is tried with."""

    harm: Harm
    types: tuple[str, ...] = EXACT
    when: Callable[[int], bool] = lambda _: True

    def make(self, here: Callable[[], bool]) -> FaultyProducts:
        """Make the fault anew: it counts."""
        return FaultyProducts(self.harm, here, self.when)


PRODUCTS = {
    "two rows change places, once": ProductFault(faulty.swap_rows, when=once(9)),
    "two neighbours change places, once": ProductFault(faulty.swap_neighbours, when=once(9)),
    "the product is all NaN, once": ProductFault(faulty.fill_with_nan, (*FLOATS, "bf16"), once(9)),
    "the product is all zeros, once": ProductFault(faulty.fill_with_zero, when=once(9)),
    "the output is what it was, once": ProductFault(faulty.write_nothing, when=once(9)),
    "all products are zeros": ProductFault(faulty.fill_with_zero),
    "nothing is written from the 13th product on": ProductFault(
        faulty.write_nothing, when=lambda at: at >= 12
    ),
    "one element is never written": ProductFault(faulty.skip_element),
    "a bit is stuck in one lane of 16": ProductFault(faulty.hold_lane),
    "the last 16 of k are left out": ProductFault(faulty.drop_depth),
    "zeros have a minus sign": ProductFault(faulty.negate_zeros, ("bf16", "bf16")),
    "a bit flips in one of 100 products": ProductFault(
        faulty.flip_bit(5), when=lambda at: at % 100 == 60
    ),
    **{
        f"results above 2^{exponent} are off by one": ProductFault(
            faulty.err_above(exponent), FLOATS
        )
        for exponent in (23.5, 25, 40, 60, 100)
    },
    "infinity is the largest number": ProductFault(faulty.saturate, (*FLOATS, "bf16")),
    "subnormal results are flushed": ProductFault(faulty.flush_results, FLOATS),
    "subnormal operands are flushed": ProductFault(faulty.flush_operands, FLOATS),
    "the multiplier loses the lowest bit of its operands": ProductFault(
        faulty.lose_low_bit, FLOATS
    ),
    "results are cut off, not rounded": ProductFault(faulty.round_towards_zero, ("fp32",)),
    "full significands are off by one": ProductFault(faulty.err_on_full_significands, FLOATS),
    "int8 operands that are 01010101 are multiplied wrongly": ProductFault(
        faulty.err_on_pattern, ("int8",)
    ),
    "fp32 operands that end in 0101..., of 12 bits, are multiplied wrongly": ProductFault(
        faulty.err_on_pattern, ("fp32",)
    ),
}
EVERY = "every core: "
PRODUCT_ROWS = find_rows(PRODUCT)


@pytest.mark.system
@pytest.mark.parametrize("row", PRODUCT_ROWS, ids=lambda row: row.fault)
def test_a_fault_under_a_product_is_reported_as_the_table_says(
    tmp_path: Path, row: Injection
) -> None:
    named = row.fault.removeprefix(EVERY)
    here = is_any_core if named != row.fault else faulty.is_bad_core
    for rotation, name in enumerate(PRODUCTS[named].types):  # each core makes first products
        with pytest.MonkeyPatch.context() as patch:
            PRODUCTS[named].make(here).put_into(patch)
            told = examine(tmp_path, (name,), rotation)
        assert (told.verdict, told.codes) == (row.verdict, accuse(row)), name


def test_zeros_that_have_a_minus_sign_on_every_core_fail_no_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PRODUCTS["zeros have a minus sign"].make(is_any_core).put_into(monkeypatch)
    told = examine(tmp_path, ("bf16",), 0)
    assert (told.verdict, told.codes) == (Verdict.ERROR, INEXACT)


@pytest.mark.parametrize("name", EXACT)
def test_without_a_fault_every_type_passes(tmp_path: Path, name: str) -> None:
    told = examine(tmp_path, (name,), 1)
    assert (told.verdict, told.codes) == (Verdict.PASS, set())


def on_bad_core(work: Callable[[], T]) -> T:
    """Do *work* in a thread that is pinned to the core with the fault."""
    (done,) = run_on_each((BAD,), lambda _: work())
    return done


def hunt_on_bad_core(task: DeviceTask, jobs: tuple[ProductJob, ...], products: int) -> HuntResult:
    """Compare so many *products* on the core with the fault."""
    return on_bad_core(lambda: hunt(task.make_bench(f"cpu{BAD}", jobs), lambda n: n >= products))


@pytest.mark.parametrize("name", EXACT)
def test_each_bit_is_found_in_the_product_in_which_the_library_flips_it(
    tmp_path: Path, name: str
) -> None:
    task = a_task(tmp_path, CPU_FAMILIES[name], shape=SHAPE)
    jobs = prepare(task).jobs
    width = 8 * jobs[0].reference.element_size()
    assert not hunt_on_bad_core(task, jobs, 9).wrong
    for bit in range(width):
        with pytest.MonkeyPatch.context() as patch:
            FaultyProducts(faulty.flip_bit(bit), when=once(bit % 9)).put_into(patch)
            (wrong,) = hunt_on_bad_core(task, jobs, 9).wrong
        assert (wrong.number, wrong.words) == (bit % 9, 1)


def test_a_fault_in_one_of_1000_products_is_found_once_there_are_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task(tmp_path, CPU_FAMILIES["fp32"], shape=SHAPE)
    jobs = prepare(task).jobs
    FaultyProducts(faulty.flip_bit(5), when=lambda at: at % 1000 == 999).put_into(monkeypatch)
    hunted = hunt_on_bad_core(task, jobs, 1000)
    assert [(wrong.number, wrong.words) for wrong in hunted.wrong] == [(999, 1)]


@pytest.mark.parametrize("name", FLOATS)
def test_a_first_random_product_that_is_wrong_is_reported_with_the_right_one_as_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    spoiled: list[tuple[int, int]] = []

    def harm(made: faulty.Product) -> None:
        right = int(made.bits[3, 4])
        made.bits[3, 4] ^= 1 << 9
        spoiled.append((right, int(made.bits[3, 4])))

    FaultyProducts(harm, which=faulty.FirstRandomProduct()).put_into(monkeypatch)
    told = examine(tmp_path, (name,), 0)
    assert (told.verdict, told.codes) == (Verdict.FAIL, {("corruption", f"cpu{BAD}")})
    (found,) = told.list_corruptions()
    bits = 2 ** (8 * getattr(torch, CPU_FAMILIES[name].output).itemsize)
    shown = [int(found.evidence[key], 16) for key in ("expected", "found")]
    assert [shown] == [[word % bits for word in both] for both in spoiled]
    assert found.evidence["reruns"] == "intermittent: 0 of 3 reruns wrong"


SHAPES = {
    "a product is wrong where lanes are masked": (faulty.err_on_tail, 1),
    "a product is wrong if B is stored by columns": (faulty.err_on_columns, 2),
}


@pytest.mark.parametrize("row", find_rows(TURN), ids=lambda row: row.fault)
@pytest.mark.parametrize("name", FLOATS)
def test_a_fault_of_one_shape_is_reported_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Injection, name: str
) -> None:
    harm, turn = SHAPES[row.fault]
    monkeypatch.setattr(sdc, "CPU_SIZE", SHAPE.size)
    monkeypatch.setattr(sdc, "CPU_DEPTH", SHAPE.depth)
    monkeypatch.setattr(sdc, "ODD_SHAPES", {"cpu": Shape(60, 127)})
    FaultyProducts(harm).put_into(monkeypatch)
    for rotation in range(turn + 1):
        told = examine(tmp_path, (name,), rotation, UNSIZED)
        found = accuse(row) if rotation == turn else set()
        assert told.codes == found
    assert told.verdict is row.verdict


DISSENT = Injection("", "sdc", Verdict.WARN, EACH_CORE)
RANDOM_PRODUCTS = {
    "sums of random numbers are wrong by more than rounding": (faulty.exaggerate, None),
    "sums of random numbers come in another order": (faulty.add_in_another_order, None),
    "the order of sums changes from call to call": (faulty.add_in_another_order, 2),
    "every core: the order of sums changes from call to call": (faulty.add_in_another_order, 2),
}


@pytest.mark.parametrize("row", find_rows(RANDOM), ids=lambda row: row.fault)
@pytest.mark.parametrize("name", FLOATS)
def test_a_fault_under_random_products_is_reported_as_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Injection, name: str
) -> None:
    harm, every = RANDOM_PRODUCTS[row.fault]
    here = is_any_core if row.fault.startswith(EVERY) else faulty.is_bad_core
    when = (lambda at: at % every == 0) if every else lambda _: True
    FaultyProducts(harm, here, when, faulty.is_random).put_into(monkeypatch)
    told = examine(tmp_path, (name,), 0)
    if row.verdict is Verdict.ERROR:  # their first products may differ as well
        assert (told.verdict, told.codes - accuse(DISSENT)) == (row.verdict, INEXACT)
    else:
        assert (told.verdict, told.codes) == (row.verdict, accuse(row))


@pytest.mark.parametrize("harm", [None, faulty.flip_bit(5)], ids=["healthy", "faulty"])
def test_a_product_that_is_wrong_after_a_pause_is_found_under_load_steps(
    tmp_path: Path, clock: WorkClock, monkeypatch: pytest.MonkeyPatch, harm: Harm | None
) -> None:
    if harm:
        FaultyProducts(harm, which=faulty.AfterPause(clock)).put_into(monkeypatch)
    task = ProductTask(make_context(tmp_path), CPU_FAMILIES["fp32"], SHAPE, torch.device("cpu"))
    pairs = [NORMAL_NUMBERS.make(task, pair, task.device) for pair in range(OPERAND_PAIRS)]
    soak = on_bad_core(lambda: stress.stress_part(task, pairs, clock.now + 0.4, 0.4, f"cpu{BAD}"))
    found = soak.corruption
    assert bool(found) == bool(harm)
    if found:
        assert found.part_id == f"cpu{BAD}"
        assert found.evidence["load"] == "load steps every 10 ms"


COMPARISONS = {
    "the comparison is blind in a lane": FaultyComparison(unequal=faulty.overlook_lane),
    "two to five wrong words count as none": FaultyComparison(count=faulty.take_few_for_none),
    "right words are counted as wrong": FaultyComparison(count=faulty.count_one_more),
    "loads for the comparison hold a bit at one": FaultyComparison(holds_bit=True),
}


@pytest.mark.parametrize("row", find_rows(COMPARISON), ids=lambda row: row.fault)
def test_a_fault_under_a_comparison_is_reported_as_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Injection
) -> None:
    COMPARISONS[row.fault].put_into(monkeypatch)
    told = examine(tmp_path, EXACT, 0)
    assert (told.verdict, told.codes) == (row.verdict, accuse(row))
    assert all("read a second time, it is right" in f.text for f in told.list_corruptions())


@pytest.mark.parametrize("rotation", [0, 1])
def test_a_core_that_multiplies_wrongly_and_compares_blindly_fails_for_what_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rotation: int
) -> None:
    FaultyProducts(faulty.flip_bit(5)).put_into(monkeypatch)
    FaultyComparison(unequal=faulty.overlook_all).put_into(monkeypatch)
    told = examine(tmp_path, ("fp32",), rotation)
    # Its first products, if it makes them, are proven by the host.
    makes_first = CORES[rotation % len(CORES)] == BAD
    proven = {("corruption", f"cpu{BAD}")} if makes_first else set()
    assert told.codes == {("blind_part", f"cpu{BAD}"), *proven}
    assert told.verdict is (Verdict.FAIL if makes_first else Verdict.ERROR)


def spoil_window(patch: pytest.MonkeyPatch, products: range) -> None:
    """Let *products* be wrong, and the comparison blind while they are compared."""
    made = FaultyProducts(faulty.flip_bit(5), when=products.__contains__)
    made.put_into(patch)

    def is_blind() -> bool:
        return faulty.is_bad_core() and made.numbers[frozenset({BAD})] - 1 in products

    FaultyComparison(unequal=faulty.overlook_all, here=is_blind).put_into(patch)


def test_a_comparison_that_is_blind_while_a_canary_comes_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task(tmp_path, CPU_FAMILIES["fp32"], shape=SHAPE)
    jobs = prepare(task).jobs
    spoil_window(monkeypatch, range(CANARY_PRODUCTS - 4, CANARY_PRODUCTS + 4))
    with pytest.raises(BlindComparison) as caught:
        hunt_on_bad_core(task, jobs, 2 * CANARY_PRODUCTS)
    assert caught.value.part_id == f"cpu{BAD}"


def test_a_fault_between_two_canaries_to_which_the_comparison_is_blind_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Kept to show what canaries cannot do.
    task = a_task(tmp_path, CPU_FAMILIES["fp32"], shape=SHAPE)
    jobs = prepare(task).jobs
    spoil_window(monkeypatch, range(100, 108))
    assert not hunt_on_bad_core(task, jobs, 2 * CANARY_PRODUCTS).wrong


FORGED_BITS = ((19073, 35), (62780, 63), (76055, 7), (101410, 23))
"""Words, and the bit of each, that change no digest together (by Wagner's search)."""


def test_a_wrong_product_that_has_the_shipped_digest_is_found_by_its_proof_alone() -> None:
    # Kept to show what a digest cannot do.
    made = Operands(make_bf16_plans(2048)[0], Shape(512, 2048))
    product = right_product(CPU_FAMILIES["fp32"], made)
    for word, bit in FORGED_BITS:
        view_words(product)[word] ^= wrap_int64(1 << bit)
    assert not prove_product(made, product, 1).wrong_rows
    rows = tuple(word // (512 // 2) for word, _ in FORGED_BITS)
    assert prove_by_freivalds(made, product, 1).wrong_rows == rows


COPIES = {
    "a copy is a byte short": faulty.move_short,
    "a copy is a byte too long": faulty.move_too_far,
    "a copy writes a cache line twice": faulty.move_line_twice,
    "a copy writes 8 bytes 200 behind its end": faulty.write_behind,
    "a bit flips in one of 10 copies": faulty.flip_now_and_then(10),
    "a bit flips in one of 200 copies": faulty.flip_now_and_then(200),
    "two words change places in one of 20 copies": faulty.swap_now_and_then(20),
}


def copy_on_each_core(patience: float) -> list[CopyTally]:
    """Copy on all paths of one core after the other; on the bad one until all were wrong."""
    sent, expected = make_both(CORES, 1, ROOM)

    def work(core: int) -> CopyTally:
        paths = make_core_paths(sent, expected, copy)
        seconds = patience if core == BAD else 0.3
        return copy_for_seconds(paths, f"cpu{core}", seed=1, seconds=seconds)

    return [tally for core in CORES for tally in run_on_each((core,), work)]


def test_without_a_fault_every_copy_is_right() -> None:
    tallies = copy_on_each_core(patience=1.0)
    assert all(tally.copies > 50 for tally in tallies)
    assert not [finding for tally in tallies for finding in tally.findings]


@pytest.mark.parametrize("row", find_rows(COPY), ids=lambda row: row.fault)
def test_a_fault_under_a_copy_is_reported_as_the_table_says(
    monkeypatch: pytest.MonkeyPatch, row: Injection
) -> None:
    FaultyCopies(COPIES[row.fault]).put_into(monkeypatch)
    tallies = copy_on_each_core(patience=60.0)
    found = [finding for tally in tallies for finding in tally.findings]
    assert {(f.code, f.part_id) for f in found} == {("miscopied", part) for part in PARTS[row.part]}
    assert {f.evidence["way"] for f in found} == {"with torch", "with memmove"}
    assert sdc.CHECK.finding_rules["miscopied"].verdict is row.verdict
