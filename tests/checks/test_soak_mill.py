"""The load of a soak does not pause, keeps its edges, and lets no wrong bit by."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Generator

import pytest
import torch
from torch import Tensor

from hpcverify_checks import _soak_mill
from hpcverify_checks._families import multiply
from hpcverify_checks._soak import Meter, Stretch
from hpcverify_checks._soak_mill import SLOTS, LoopPace, ProductLoop, WorkQueue

CPU = torch.device("cpu")
SIZE = 128


@pytest.fixture(scope="module")
def mill() -> ProductLoop:
    return _soak_mill.build_loop(SIZE, CPU)


def flipping(*numbers: int, bit: int = 0) -> Callable[[Tensor, Tensor, Tensor], None]:
    """Multiply, and flip one bit of the products of these numbers."""
    count = Counter[str]()

    def faulty(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        if count["made"] in numbers:
            out.view(torch.int64).view(-1)[count["made"] * 7].bitwise_xor_(1 << bit)
        count["made"] += 1

    return faulty


def soon(seconds: float, period: float = 0.0) -> Stretch:
    now = time.monotonic()
    return Stretch(now, now + seconds, period)


@pytest.fixture
def threads() -> Generator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_good_products_are_never_called_wrong_on_however_many_threads(
    mill: ProductLoop, threads: Callable[[int], None]
) -> None:
    for count in (1, 2, 3):
        threads(count)
        mill.start(50)()
    assert mill.take_wrong_count() == 0


@pytest.mark.parametrize("number", [0, SLOTS - 1, SLOTS, 9])
@pytest.mark.parametrize("bit", [0, 51, 62])
def test_a_flipped_bit_of_any_product_is_found(mill: ProductLoop, number: int, bit: int) -> None:
    broken = dataclasses.replace(mill, multiply=flipping(number, bit=bit))
    broken.start(10)()
    assert broken.take_wrong_count() == 1
    assert broken.take_wrong_count() == 0


def test_each_wrong_product_counts_once(mill: ProductLoop) -> None:
    broken = dataclasses.replace(mill, multiply=flipping(0, 1, 4, 8))
    broken.start(9)()
    assert broken.take_wrong_count() == 4


def test_a_part_that_is_nearly_always_wrong_is_found_no_less(mill: ProductLoop) -> None:
    broken = dataclasses.replace(mill, multiply=flipping(*range(100)))
    broken.start(20)()
    assert broken.take_wrong_count() == 20


def test_the_product_of_the_host_is_exact_in_every_order(mill: ProductLoop) -> None:
    exact = mill.a.long() @ mill.b.long()
    assert torch.equal(exact.double().view(torch.int64).view(-1), mill.reference)
    assert "20-bit integers" in mill.text
    assert mill.flop == 2 * SIZE**3


def test_a_device_gets_the_next_batch_before_it_ends_the_last(mill: ProductLoop) -> None:
    sent, waited = list[int](), list[int]()

    def mark() -> Callable[[], object]:
        number = len(sent)
        sent.append(number)
        return lambda: waited.append(len(sent) - number)

    queued = dataclasses.replace(mill, queue=WorkQueue(mark, batches_ahead=1))
    pace = LoopPace(queued, 0.005)
    done = _soak_mill.run_steady(pace, soon(0.3), Meter(0.05))
    assert done.products == len(sent) * pace.count_products_in(0.3 / 4)
    assert waited[:-1] == [2] * (len(sent) - 1)


def test_steady_load_ends_with_its_stretch_and_tells_its_rate(mill: ProductLoop) -> None:
    pace, meter = LoopPace.measure(mill), Meter(0.05)
    stretch = soon(0.5)
    done = _soak_mill.run_steady(pace, stretch, meter)
    assert done.wrong == 0
    assert done.flop == done.products * mill.flop
    assert done.seconds > 0
    assert len(meter.rates) > 1
    assert all(rate > 0 for rate in meter.rates)


def test_a_stretch_that_is_over_before_it_began_is_left_out(mill: ProductLoop) -> None:
    past = Stretch(time.monotonic() - 2, time.monotonic() - 1)
    assert _soak_mill.run_steady(LoopPace(mill, 1e-3), past, Meter(1.0)).products == 0
    late = Stretch(past.start, past.end, 0.05)
    assert _soak_mill.run_wave(LoopPace(mill, 1e-3), late).edges == 0


def test_a_wave_begins_its_bursts_on_multiples_of_the_period(mill: ProductLoop) -> None:
    period, begun = 0.05, list[float]()

    def timed(a: Tensor, b: Tensor, out: Tensor) -> None:
        begun.append(time.monotonic())
        multiply(a, b, out)

    pace = LoopPace(dataclasses.replace(mill, multiply=timed), period)
    done = _soak_mill.run_wave(pace, soon(0.4, period))
    assert done.products == done.edges == len(begun) > 1
    # A sleep may be late on a busy machine, and is never early.
    edges = [t // period for t in begun]
    assert len(set(edges)) == len(edges)
    assert done.began <= begun[0]


def test_a_burst_fills_half_the_period(mill: ProductLoop) -> None:
    done = _soak_mill.run_wave(LoopPace(mill, 0.001), soon(0.3, 0.1))
    assert done.edges > 0
    assert done.products == 50 * done.edges


def test_a_bit_that_flips_under_a_wave_is_counted(mill: ProductLoop) -> None:
    broken = dataclasses.replace(mill, multiply=flipping(1))
    done = _soak_mill.run_wave(LoopPace(broken, 0.001), soon(0.3, 0.02))
    assert done.wrong == 1
