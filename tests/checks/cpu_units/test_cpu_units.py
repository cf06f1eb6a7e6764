"""A core that errs in one unit is named with that unit; healthy cores are never accused."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from hpcverify.check import Verdict
from hpcverify.model import CheckItem, Coverage, Finding, Remedy
from hpcverify.testing import find_value, judge_items, list_findings, make_context
from hpcverify_checks import cpu_units
from hpcverify_checks.cpu_units import CHECK, CpuUnitsParams, measure
from hpcverify_checks.cpu_units.digests import SHIPPED_DIGESTS, SHIPPED_DRAWS
from hpcverify_checks.cpu_units.rounds import Examination, flip_bit
from hpcverify_checks.cpu_units.sharing import (
    SHARED_UNITS,
    SharedLines,
    SharedUnit,
    interleave,
)
from hpcverify_checks.cpu_units.trials import selftest
from hpcverify_checks.cpu_units.units import Unit, list_units
from hpcverify_checks.cpu_units.vectors import list_vector_units
from hpcverify_checks.cpu_units.witnesses import CoreRunner, CoreSet
from tests.checks.cpu_units.universal import list_digests

T = TypeVar("T")
BAD = 2
ROUNDS = SHIPPED_DRAWS + 6
UNITS = {unit.name: unit for unit in (*list_units(), *list_vector_units())}

_here = threading.local()


def run_apart(cores: Sequence[int], work: Callable[[int], T]) -> Iterator[T]:
    """Run work on cores that need not exist: each thread knows which one it stands for."""

    def placed(core: int) -> T:
        _here.core = core
        return work(core)

    with ThreadPoolExecutor(len(cores)) as pool:
        yield from pool.map(placed, cores)


def core_set(count: int, run: CoreRunner = run_apart, sockets: int = 1) -> CoreSet:
    physical = {core: (str(core * sockets // count), str(core)) for core in range(count)}
    return CoreSet(tuple(range(count)), physical, run)


def examine(
    count: int, units: Sequence[Unit], shared: Sequence[SharedUnit] = (), rounds: int = ROUNDS
) -> list[Finding]:
    """Run rounds until one finds something, and one more."""
    exam = Examination(core_set(count), units, shared, seed=1)
    found: list[Finding] = []
    for number in range(rounds):
        late = bool(found)
        found += exam.run_round(number)
        if late:
            break
    return found


def told(found: Sequence[Finding]) -> set[tuple[str, str, str]]:
    return {(f.code, f.part_id, f.data["unit"]) for f in found}


def is_bad(core: int = BAD) -> bool:
    return getattr(_here, "core", None) == core


def damage(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, harm: Callable[..., Any]
) -> None:
    """Let the bad core get another result of a library's function, for some of its data."""
    right = getattr(owner, name)

    def faulty(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        return harm(result, *args) if is_bad() else result

    monkeypatch.setattr(owner, name, faulty)


def some(data: bytes) -> bool:
    """Whether data are among those that go wrong: a quarter of them."""
    return hashlib.blake2s(bytes(data)).digest()[0] < 64


def wrong_crc(result: int, data: bytes, *_: Any) -> int:
    return result ^ 0x400 if some(data) else result


class _WrongHash:
    def __init__(self, right: Any) -> None:
        self.right = right

    def digest(self) -> bytes:
        return flip_bit(self.right.digest())


def wrong_hash(result: Any, name: str, data: bytes = b"", **_: Any) -> Any:
    return _WrongHash(result) if name == "sha256" and some(data) else result


def zero_power(result: float, base: float, exponent: float) -> float:
    # As published: int(1.1 ** 53) was 0.
    return 0.0 if (round(base, 1), exponent) == (1.1, 53) else result


def wrong_tensor(result: torch.Tensor, *_: Any) -> torch.Tensor:
    # One element, where its bits happen to be of a kind.
    flat = result.view(torch.int64) if result.dtype == torch.float64 else None
    if flat is not None and int(flat[7]) & 3 == 0:
        flat[7] ^= 1 << 20
    return result


def corrupt(result: bytes, *_: Any) -> bytes:
    return flip_bit(result) if some(result) else result


LIBRARY_FAULTS: tuple[tuple[str, Any, str, Callable[..., Any]], ...] = (
    ("checksums", zlib, "crc32", wrong_crc),
    ("hashes", hashlib, "new", wrong_hash),
    ("scalar floats", math, "pow", zero_power),
    ("transcendental functions", torch, "exp", wrong_tensor),
)


@pytest.mark.parametrize(
    ("unit", "owner", "name", "harm"), LIBRARY_FAULTS, ids=[row[2] for row in LIBRARY_FAULTS]
)
def test_a_fault_below_the_library_names_core_and_unit(
    monkeypatch: pytest.MonkeyPatch, unit: str, owner: Any, name: str, harm: Callable[..., Any]
) -> None:
    damage(monkeypatch, owner, name, harm)

    assert told(examine(4, [UNITS[unit]])) == {("defective_core", f"cpu{BAD}", unit)}


def faulty_on(core: int, unit: Unit, *, when: Callable[[bytes], bool] = some) -> Unit:
    def make(data: bytes) -> bytes:
        made = unit.make(data)
        return flip_bit(made) if is_bad(core) and when(data) else made

    return Unit(unit.name, make, unit.undo, unit.proof, unit.universal, unit.size)


@pytest.mark.parametrize("name", UNITS)
def test_wrong_answers_to_some_data_name_core_and_unit(name: str) -> None:
    found = examine(3, [faulty_on(0, UNITS[name])])

    assert told(found) == {("defective_core", "cpu0", name)}


@pytest.mark.parametrize("name", [n for n, unit in UNITS.items() if unit.undo])
def test_a_core_that_undoes_its_own_error_is_named(name: str) -> None:
    # As published of AES: right with itself, gibberish on any other core.
    unit = UNITS[name]
    assert unit.undo is not None

    def make(data: bytes) -> bytes:
        return bytes(b ^ 1 for b in unit.make(data)) if is_bad() else unit.make(data)

    def undo(made: bytes) -> bytes:
        assert unit.undo is not None
        return unit.undo(bytes(b ^ 1 for b in made) if is_bad() else made)

    found = examine(4, [Unit(name, make, undo, universal=False, size=unit.size)], rounds=3)

    assert {place for _, place, _ in told(found)} == {f"cpu{BAD}"}


def test_a_core_that_only_undoes_wrongly_is_named() -> None:
    unit = UNITS["zlib"]

    def undo(made: bytes) -> bytes:
        assert unit.undo is not None
        return flip_bit(unit.undo(made)) if is_bad() and some(made) else unit.undo(made)

    found = examine(4, [Unit("zlib", unit.make, undo, universal=False, size=unit.size)])

    assert told(found) == {("defective_core", f"cpu{BAD}", "zlib")}


@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_that_does_not_repeat_is_the_makers_even_of_two_cores(bad: int) -> None:
    calls = Counter[int]()

    def once(_: bytes) -> bool:
        calls[bad] += 1
        return calls[bad] == 2 * SHIPPED_DRAWS + 1

    found = examine(2, [faulty_on(bad, UNITS["zlib"], when=once)], rounds=2 * ROUNDS)

    assert told(found) == {("defective_core", f"cpu{bad}", "zlib")}


@pytest.mark.parametrize("bad", [0, 1])
def test_of_two_cores_the_shipped_digest_tells_who_errs_each_time(bad: int) -> None:
    found = examine(2, [faulty_on(bad, UNITS["hashes"], when=lambda _: True)])

    assert told(found) == {("defective_core", f"cpu{bad}", "hashes")}


@pytest.mark.parametrize("name", ["zlib", "bz2", "lzma"])
@pytest.mark.parametrize("bad", [0, 1])
def test_of_two_cores_the_one_that_refuses_what_it_makes_itself_is_named(
    bad: int, name: str
) -> None:
    found = examine(2, [faulty_on(bad, UNITS[name], when=lambda _: True)])

    assert told(found) == {("defective_core", f"cpu{bad}", name)}


def test_two_cores_that_agree_with_themselves_and_not_with_each_other_are_not_accused() -> None:
    plain = Unit("zlib", UNITS["zlib"].make, universal=False, size=UNITS["zlib"].size)
    found = examine(2, [faulty_on(1, plain, when=lambda _: True)])

    assert told(found) == {("unattributed", "cpu", "zlib")}
    judgement = judge_items(CHECK, found)
    assert judgement.verdict is Verdict.ERROR


def test_a_library_that_undoes_its_answers_on_no_core_accuses_none() -> None:
    unit = UNITS["zlib"]
    broken = Unit("zlib", lambda d: flip_bit(unit.make(d)), unit.undo, universal=False, size=2**12)

    assert {place for _, place, _ in told(examine(2, [broken]))} == {"cpu"}


def test_threads_of_one_core_are_one_witness() -> None:
    unit = faulty_on(0, faulty_on(1, UNITS["zlib"]))
    cores = core_set(4)
    threads = {0: ("0", "0"), 1: ("0", "0"), 2: ("0", "1"), 3: ("0", "2")}
    exam = Examination(CoreSet(cores.numbers, threads, cores.run), [unit], (), 1)
    found = [finding for number in range(ROUNDS) for finding in exam.run_round(number)]

    assert {f.part_id for f in found} == {"cpu0", "cpu1"}


def test_what_all_cores_make_and_none_should_accuses_no_core() -> None:
    def make(data: bytes) -> bytes:
        return flip_bit(UNITS["checksums"].make(data))

    assert told(examine(4, [Unit("checksums", make)])) == {("inexact", "cpu", "checksums")}


def test_a_proof_finds_a_function_that_is_wrong_on_all_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = torch.log
    monkeypatch.setattr(torch, "log", lambda x: right(x) * (1 + 2**-45))
    name = "transcendental functions"

    assert told(examine(3, [UNITS[name]])) == {("inexact", "cpu", name)}


def test_an_answer_that_changes_on_its_way_accuses_no_core() -> None:
    plain = UNITS["hashes"]

    def lossy(cores: Sequence[int], work: Callable[[int], Any]) -> Iterator[Any]:
        for result in run_apart(cores, work):
            if isinstance(result, list) and result and hasattr(result[0], "made"):
                for answer in result:
                    object.__setattr__(answer, "made", flip_bit(answer.made))
            yield result

    exam = Examination(core_set(4, lossy), [plain], (), 1)
    found = list(exam.run_round(0))

    assert told(found) == {("unattributed", "cpu", "hashes")}
    assert "on its way" in found[0].text


@pytest.mark.parametrize(
    ("blind", "code", "remedy"),
    [
        ((0, 1), "blind", Remedy.FIX_CHECKER),
        ((1,), "blind_part", Remedy.INSPECT),
    ],
)
def test_whoever_accepts_a_flipped_bit_is_called_blind_and_a_core_that_does_so_alone_errs(
    blind: Sequence[int], code: str, remedy: Remedy
) -> None:
    def vote(made: bytes) -> bytes:
        third = len(made) // 3
        copies = Counter(made[i * third : (i + 1) * third] for i in range(3))
        (most, count), *_ = copies.most_common()
        return most if count == len(made) // third or any(map(is_bad, blind)) else b""

    found = examine(2, [Unit("copies of copies", lambda data: data * 3, vote)], rounds=1)

    assert {(f.code, f.part_id) for f in found} == {(code, f"cpu{blind[0]}")}
    (rule,) = {CHECK.finding_rules[f.code] for f in found}
    assert (rule.verdict, rule.remedy) == (Verdict.ERROR, remedy)


def losing(shared: SharedLines, turn: int) -> None:
    """Lose a word of the other core's, as a stale line written back does."""
    interleave(shared, turn)
    shared.meet(turn)
    if is_bad():
        shared.words[1 - turn] = 0


def test_a_core_that_loses_others_words_is_named_by_the_pairs_it_is_in() -> None:
    unit = SharedUnit("coherence", losing, SHARED_UNITS[0].compute_expected)
    found = examine(4, [], [unit], rounds=1)

    assert told(found) == {("defective_core", f"cpu{BAD}", "coherence")}


def test_a_core_that_never_wakes_is_named_and_no_pair_waits_for_it_twice() -> None:
    asked: list[tuple[int, ...]] = []

    def run_pairs(cores: Sequence[int], work: Callable[[int], T]) -> Iterator[T]:
        asked.append(tuple(cores))

        def placed(core: int) -> T:
            first = cores.index(core) // 2 * 2
            _here.pair = cores[first : first + 2]
            return work(core)

        yield from run_apart(cores, placed)

    def wait_in_vain(_shared: SharedLines, _turn: int) -> None:
        if BAD in _here.pair:
            raise TimeoutError

    unit = SharedUnit("locks", wait_in_vain, lambda: (0, 0))
    found = list(Examination(core_set(8, run_pairs), [], [unit], 1).run_round(0))
    repeated = [pair for pair in asked if len(pair) == 2 and BAD in pair]

    assert told(found) == {("defective_core", f"cpu{BAD}", "locks")}
    assert sorted(repeated) == sorted(set(repeated))


def test_of_two_cores_nobody_is_named_for_lost_words() -> None:
    def lost(shared: SharedLines, turn: int) -> None:
        interleave(shared, turn)
        shared.words[turn] = 0

    unit = SharedUnit("coherence", lost, SHARED_UNITS[0].compute_expected)

    assert told(examine(2, [], [unit], rounds=1)) == {("unattributed", "cpu", "coherence")}


def test_a_link_between_sockets_that_errs_accuses_no_core() -> None:
    meetings = dict[int, set[int]]()

    def across(shared: SharedLines, turn: int) -> None:
        meetings.setdefault(id(shared), set()).add(_here.core)
        interleave(shared, turn)
        shared.meet(turn)
        if len({core // 2 for core in meetings[id(shared)]}) > 1:
            shared.words[turn] = 0

    unit = SharedUnit("coherence", across, SHARED_UNITS[0].compute_expected)
    exam = Examination(core_set(4, sockets=2), [], [unit], 1)
    found = list(exam.run_round(0))

    assert told(found) == {("unattributed", "cpu", "coherence")}


def test_the_answers_of_this_machine_are_those_that_ship() -> None:
    assert dict(list_digests()) == SHIPPED_DIGESTS


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> list[CheckItem]:
    """Examine this machine once, on its real cores."""
    before = os.sched_getaffinity(0)
    ctx = make_context(tmp_path_factory.mktemp("healthy"))
    items = list(measure(ctx, CpuUnitsParams(seconds=0.5)))
    assert os.sched_getaffinity(0) == before  # the main thread is never pinned
    return items


def test_a_healthy_node_passes(healthy: list[CheckItem]) -> None:
    assert list_findings(healthy) == []
    assert judge_items(CHECK, healthy).verdict is Verdict.PASS
    for core in os.sched_getaffinity(0):
        assert find_value(healthy, "results", f"cpu{core}")


@pytest.mark.system
@pytest.mark.parametrize("seed", range(2, 8))
def test_healthy_cores_agree_whatever_the_data(seed: int) -> None:
    exam = Examination(core_set(3), tuple(UNITS.values()), (), seed)

    assert [f for n in (SHIPPED_DRAWS, SHIPPED_DRAWS + 1) for f in exam.run_round(n)] == []


def test_coverage_tells_data_and_cpu_time_of_each_unit(healthy: list[CheckItem]) -> None:
    texts = [item.text for item in healthy if isinstance(item, Coverage)]
    for name in (*UNITS, "coherence", "locks", "turns"):
        [text] = [text for text in texts if text.startswith(f"{name} on cores")]
        assert "different data in" in text
        assert "of CPU time" in text


def test_a_node_without_aes_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_units, "has_aes", lambda: False)
    items = list(measure(make_context(tmp_path), CpuUnitsParams(seconds=0.01)))

    assert any("AES was not exercised" in i.text for i in items if isinstance(i, Coverage))


def test_a_python_that_was_built_without_a_compression_has_all_other_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = {unit.name for unit in list_units()}
    monkeypatch.setitem(sys.modules, "lzma", None)

    assert {unit.name for unit in list_units()} == every - {"lzma"}


def test_a_faulty_core_of_this_machine_fails_for_good(tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    unit = UNITS["hashes"]

    def make(data: bytes) -> bytes:
        return flip_bit(unit.make(data)) if os.sched_getaffinity(0) == {last} else unit.make(data)

    bad = [Unit("hashes", make)]
    items = list(measure(make_context(tmp_path), CpuUnitsParams(seconds=0.01), bad, ()))
    judgement = judge_items(CHECK, items)

    if len(os.sched_getaffinity(0)) > 1:
        assert judgement.verdict is Verdict.FAIL
        assert judgement.remedy is Remedy.REPLACE
        assert judgement.reason.count(f"cpu{last}: ") == 2  # the finding and the count


def test_subnormals_that_a_library_has_told_this_process_to_flush_accuse_nothing(
    tmp_path: Path,
) -> None:
    torch.set_flush_denormal(True)
    try:
        items = list(measure(make_context(tmp_path), CpuUnitsParams(seconds=0.01)))
    finally:
        torch.set_flush_denormal(False)

    assert judge_items(CHECK, items).verdict is Verdict.PASS


def test_the_selftest_finds_what_it_injects(tmp_path: Path) -> None:
    trials = list(islice(selftest(make_context(tmp_path)), 3))

    assert [trial for trial in trials if not trial.is_as_expected] == []
