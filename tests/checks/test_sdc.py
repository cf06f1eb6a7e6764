"""A changed bit is always found, and a healthy part is never accused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hpcverify.check import Unable, judge
from hpcverify.model import Cause, Covered, Finding, Limit, Measurement, Verdict
from hpcverify_checks import _exact as exact
from hpcverify_checks import _hunt as hunting
from hpcverify_checks import sdc
from hpcverify_checks._cores import listed, turn
from hpcverify_checks._exact import Shape
from hpcverify_checks._hunt import Bench, Multiply, Seams, hunt
from tests.doubles import context

SHAPE = Shape(256, 512)
QUICK = sdc.SdcParams(seconds=0.2, size=256, depth=512)


def spared(_a: Tensor, _b: Tensor, _out: Tensor) -> None:
    """Change nothing before the product."""


@dataclass
class Faulty:
    """Multiplies as it should, but for what *after* does to the chosen outputs."""

    after: Callable[[Tensor], object]
    first: int = 0
    every: int = 1
    only: bool = False
    before: Callable[[Tensor, Tensor, Tensor], object] = spared
    calls: int = field(default=0, init=False)

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Multiply, and do harm if it is time."""
        number, self.calls = self.calls, self.calls + 1
        late = number - self.first
        hit = late == 0 if self.only else late >= 0 and late % self.every == 0
        if hit:
            self.before(a, b, out)
        hunting.multiply(a, b, out)
        if hit:
            self.after(out)


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int64 if tensor.element_size() == 8 else torch.int32)


def mask(bit: int) -> int:
    return 1 << bit if bit < 31 else -(1 << 31)


def flip(bit: int, row: int = 17, column: int = 33) -> Callable[[Tensor], object]:
    return lambda out: bits(out)[row, column].bitwise_xor_(mask(bit))


def stick(bit: int, *, at: int) -> Callable[[Tensor], object]:
    """Hold a bit in one lane of every 64 x 8 fragment."""

    def hold(out: Tensor) -> None:
        lane = bits(out)[3::64, 5::8]
        _ = lane.bitwise_or_(mask(bit)) if at else lane.bitwise_and_(~mask(bit))

    return hold


def healthy(_: Tensor) -> None:
    """Change nothing."""


def task(tmp_path: Path, name: str = "fp32", shape: Shape = SHAPE) -> sdc.Task:
    return sdc.Task(context(tmp_path), name, shape, torch.device("cpu"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    # On a busy machine two threads mostly wait for each other.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    this = task(tmp_path)
    jobs, wrong = sdc.prepare(this)
    assert not wrong
    return this.bench("cpu0", jobs)


def hunted(bench: Bench, multiply: Multiply, products: int = 16) -> Finding | None:
    seams = Seams(multiply=multiply)
    return hunt(replace(bench, seams=seams), lambda n: n >= products).corruption


def test_every_output_bit_that_flips_once_is_found(bench: Bench) -> None:
    for bit in range(32):
        finding = hunted(bench, Faulty(flip(bit), first=7, only=True))
        assert finding is not None, bit
        assert finding.evidence["bits"] == str(bit)
        assert (finding.evidence["row"], finding.evidence["column"]) == ("17", "33")


def test_evidence_says_what_was_expected_and_found(bench: Bench) -> None:
    finding = hunted(bench, Faulty(flip(4), first=5, only=True))
    assert finding is not None
    evidence = finding.evidence
    wanted, found = int(evidence["expected"], 16), int(evidence["found"], 16)
    assert wanted ^ found == 1 << 4 == int(evidence["xor"], 16)
    assert wanted == int(bits(bench.jobs[1].reference)[17, 33]) % 2**32
    assert (evidence["plan"], evidence["shift"]) == ("bias+", "1")


def test_a_single_flip_is_intermittent_and_compute(bench: Bench) -> None:
    finding = hunted(bench, Faulty(flip(0), first=7, only=True))
    assert finding is not None
    assert finding.evidence["place"] == "compute"
    assert finding.evidence["reruns"] == "intermittent: 0 of 3 reruns wrong"


@pytest.mark.parametrize("at", [0, 1])
def test_every_stuck_output_bit_is_found(bench: Bench, at: int) -> None:
    for bit in range(32):
        finding = hunted(bench, Faulty(stick(bit, at=at)))
        assert finding is not None, bit
        assert finding.evidence["bits"] == str(bit)
        assert finding.evidence["place"] == "compute"


def test_a_stuck_bit_that_acts_now_and_then_is_found(bench: Bench) -> None:
    assert hunted(bench, Faulty(stick(3, at=1), first=6, every=5), 32) is not None


def test_the_parts_own_first_answer_as_reference_would_miss_a_stuck_bit(
    bench: Bench,
) -> None:
    stuck = Faulty(stick(12, at=1))
    own = []
    for job in bench.jobs:
        reference = torch.empty_like(job.reference)
        stuck(*exact.view(job.a, job.b, 0), reference)
        own.append(replace(job, reference=reference))
    assert hunted(replace(bench, jobs=tuple(own)), stuck) is None
    assert hunted(bench, stuck) is not None


def test_a_low_bit_stuck_at_zero_needs_the_biased_plans(bench: Bench) -> None:
    plain = replace(bench, jobs=(bench.jobs[0],))
    stuck = Faulty(stick(0, at=0))
    assert hunted(plain, stuck) is None
    assert 0 in exact.constant_bits(job.reference for job in plain.jobs)
    assert hunted(bench, stuck) is not None
    assert exact.constant_bits(job.reference for job in bench.jobs) == ()


def test_a_flipped_operand_is_called_memory(bench: Bench) -> None:
    def strike(a: Tensor, _b: Tensor, _out: Tensor) -> None:
        bits(a)[11, 12].bitwise_xor_(mask(20))

    finding = hunted(bench, Faulty(healthy, first=6, only=True, before=strike))
    assert finding is not None
    assert finding.evidence["place"] == "memory (operand A changed)"


def test_a_flipped_reference_is_called_memory(bench: Bench) -> None:
    flip(9)(bench.jobs[2].reference)
    finding = hunted(bench, hunting.multiply)
    assert finding is not None
    assert finding.evidence["place"] == "memory (reference changed)"


def test_a_tile_that_is_not_written_is_found_and_persists(bench: Bench) -> None:
    kept: list[Tensor] = []

    def keep(_a: Tensor, _b: Tensor, out: Tensor) -> None:
        kept.append(out[64:128, 64:128].clone())

    def restore(out: Tensor) -> None:
        out[64:128, 64:128] = kept.pop()

    finding = hunted(bench, Faulty(restore, first=4, before=keep))
    assert finding is not None
    assert finding.evidence["wrong_words"] == "2048"
    assert finding.evidence["reruns"] == "persistent: 3 of 3 reruns wrong"


def test_nan_and_swapped_tiles_are_found(bench: Bench) -> None:
    def spoil(out: Tensor) -> None:
        out[5, 6] = torch.nan

    def swap(out: Tensor) -> None:
        out[:32] = torch.cat([out[16:32], out[:16]])

    for fault in (spoil, swap):
        assert hunted(bench, Faulty(fault, first=3, only=True)) is not None


@pytest.mark.parametrize(
    ("name", "shape", "products"),
    [
        ("fp32", SHAPE, 1500),
        ("fp32", Shape(512, 512), 400),
        ("fp64", Shape(256, 512), 300),
    ],
)
def test_a_healthy_part_is_never_accused(
    tmp_path: Path, name: str, shape: Shape, products: int
) -> None:
    this = task(tmp_path, name, shape)
    jobs, wrong = sdc.prepare(this)
    outcome = hunt(this.bench("cpu0", jobs), lambda n: n >= products)
    assert (wrong, outcome.corruption, outcome.mismatched) == ([], None, 0)
    assert outcome.products >= products


def test_a_blind_comparison_makes_the_check_report_itself(tmp_path: Path) -> None:
    def blind(_found: Tensor, _expected: Tensor, row: Tensor) -> None:
        row.zero_()

    with pytest.raises(Unable, match="did not notice") as caught:
        list(sdc.measure(context(tmp_path), QUICK, Seams(compare=blind)))
    assert caught.value.cause is Cause.CHECKER


def test_canaries_notice_a_comparison_that_is_blind_in_some_lanes(
    bench: Bench,
) -> None:
    def squint(found: Tensor, expected: Tensor, row: Tensor) -> None:
        seeing = found.clone()
        seeing[3::8] = expected[3::8]
        hunting.compare(seeing, expected, row)

    def noticed(bench: Bench) -> int:
        row = torch.zeros(3, dtype=torch.int64)
        seen = 0
        for number in range(64):
            bench.step(number, row)
            seen += bench.canary(number, row) == row.tolist()
        return seen

    assert noticed(bench) == 64
    assert noticed(replace(bench, seams=Seams(compare=squint))) < 64


def test_a_product_disproved_at_the_start_is_corruption(tmp_path: Path) -> None:
    seams = Seams(multiply=Faulty(flip(2), first=2, only=True))
    jobs, wrong = sdc.prepare(replace(task(tmp_path), seams=seams))
    assert [outcome.mismatched for outcome in wrong] == [1]
    assert wrong[0].corruption is not None
    assert wrong[0].corruption.evidence["plan"] == "bias-"
    for job in jobs:
        made = exact.operands(job.plan, SHAPE)
        assert exact.wrong_rows(made, job.reference, 1) == []


def test_a_host_that_contradicts_the_shipped_digest_is_not_trusted() -> None:
    shape = Shape(512, 2048)
    made = exact.operands(exact.single_plans(shape.depth)[0], shape)
    lying = replace(made, a=made.a + (torch.arange(512) == 3)[:, None])
    product = exact.exact_product(lying, torch.float32)
    with pytest.raises(Unable, match="contradicts its digest") as caught:
        sdc.proven(lying, product, 1)
    assert caught.value.cause is Cause.CHECKER


@pytest.mark.parametrize("depth", [512, 2048])
def test_plans_are_certified_exact_in_any_order(depth: int) -> None:
    shape = Shape(256, depth)
    for plan in (*exact.single_plans(depth), *exact.double_plans(depth)):
        made = exact.operands(plan, shape)
        largest = exact.certificate(made.a, made.b)
        assert largest <= plan.limit
        assert largest >= int((made.a.double() @ made.b.double()).abs().max())


@pytest.mark.parametrize("depth", [1, 2**13, 2**15])
def test_the_certificate_holds_for_deep_and_shallow_plans(depth: int) -> None:
    for plan in exact.single_plans(depth):
        made = exact.operands(plan, Shape(64, depth))
        assert exact.certificate(made.a, made.b) <= exact.SINGLE_LIMIT


def test_an_order_changes_no_bit_of_an_exact_product(bench: Bench) -> None:
    job = bench.jobs[1]
    a, b = exact.view(job.a, job.b, 0)
    order = torch.randperm(512, generator=torch.Generator().manual_seed(1))
    halves = a[:, :256] @ b[:256] + a[:, 256:] @ b[256:]
    for product in (a[:, order] @ b[order], a.flip(1) @ b.flip(0), halves):
        assert torch.equal(bits(product), bits(job.reference))


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_every_shift_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    jobs, _ = sdc.prepare(task(tmp_path, name))
    for job in jobs:
        for shift in range(exact.SHIFTS):
            product = torch.mm(*exact.view(job.a, job.b, shift))
            assert torch.equal(bits(product), bits(job.reference))


def test_shipped_digests_are_what_the_committed_function_computes() -> None:
    shape = sdc.CPU_SHAPE
    plans = (*exact.single_plans(shape.depth), *exact.double_plans(shape.depth))
    for plan in plans:
        known = exact.UNIVERSAL[plan.name, shape.size, shape.depth]
        assert exact.universal_digest(plan, shape) == known


def test_shipped_digests_cover_the_shapes_that_suites_use() -> None:
    for shape in (sdc.CPU_SHAPE, sdc.GPU_SHAPE):
        for plan in (
            *exact.single_plans(shape.depth),
            *exact.double_plans(shape.depth),
        ):
            assert (plan.name, shape.size, shape.depth) in exact.UNIVERSAL


def test_a_digest_sees_one_bit_and_a_swap() -> None:
    tensor = torch.arange(64, dtype=torch.float32)
    before = exact.digest(tensor)
    flipped = tensor.clone()
    bits(flipped)[9].bitwise_xor_(1)
    for changed in (flipped, tensor.flip(0)):
        assert exact.digest(changed) != before
    assert exact.digest(tensor.clone()) == before


def test_freivalds_names_the_rows_that_are_wrong() -> None:
    made = exact.operands(exact.single_plans(512)[3], SHAPE)
    product = exact.exact_product(made, torch.float32)
    product[5, 6] = torch.nan
    product[9] *= 2
    bits(product)[11, 12].bitwise_xor_(1)
    product[13, [3, 4]] = product[13, [4, 3]]
    assert exact.wrong_rows(made, product, seed=1) == [5, 9, 11, 13]


@pytest.mark.parametrize("name", sdc.FAMILIES)
def test_nothing_in_the_loop_waits_for_the_device(name: str) -> None:
    # On the meta device any look at a value raises; shapes and types are the GPU's.
    family, shape = sdc.FAMILIES[name], sdc.GPU_SHAPE
    dtype, output = getattr(torch, family.dtype), getattr(torch, family.output)
    padded = shape.depth + exact.PAD
    a = torch.empty(shape.size, padded, dtype=dtype, device="meta")
    out = torch.empty(shape.size, shape.size, dtype=output, device="meta")
    job = hunting.Job(family.plans(shape.depth)[0], a, a.T, out, (0, 0, 0))
    bench = Bench("GPU-1", name, (job,), torch.empty_like(out), 1)
    log = torch.zeros(2, 3, dtype=torch.int64, device="meta")
    bench.step(0, log[0])
    bench.canary(0, log[1])


def test_all_cores_are_examined_and_pass(tmp_path: Path) -> None:
    found = list(sdc.measure(context(tmp_path), QUICK))
    numbers = [f for f in found if isinstance(f, Measurement)]
    assert {m.where for m in numbers} == {f"cpu{c}" for c in os.sched_getaffinity(0)}
    assert all(m.value == 0 for m in numbers if m.name == "mismatched_words")
    assert all(m.value for m in numbers if m.name != "mismatched_words")
    assert not [f for f in found if isinstance(f, Finding)]


def test_the_main_thread_is_never_pinned(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0), torch.get_num_threads()
    list(sdc.measure(context(tmp_path), QUICK))
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before


def test_a_core_that_computes_wrongly_fails_and_alone(tmp_path: Path) -> None:
    bad = max(os.sched_getaffinity(0))

    def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
        hunting.multiply(a, b, out)
        if os.sched_getaffinity(0) == {bad}:
            stick(12, at=1)(out)

    found = list(sdc.measure(context(tmp_path), QUICK, Seams(multiply=multiply)))
    judged = [f for f in found if isinstance(f, (Measurement, Finding))]
    limit = Limit("mismatched_words", high=0)
    judgement = judge(judged, [limit], sdc.CHECK.rulings)
    assert judgement.verdict is Verdict.FAIL
    assert {f.where for f in judged if isinstance(f, Finding)} == {f"cpu{bad}"}


def test_coverage_states_what_was_exercised_and_a_rate(tmp_path: Path) -> None:
    found = list(sdc.measure(context(tmp_path), QUICK))
    texts = [f.text for f in found if isinstance(f, Covered)]
    assert [text.split()[0] for text in texts] == ["fp32", "fp64"]
    assert all("excluded at 95 %" in text for text in texts)
    assert "output bits that no product changes: none" in texts[0]


def test_cores_that_do_not_fit_take_turns_until_all_were_examined() -> None:
    cores = range(10)
    turns = [turn(cores, 4, rotation) for rotation in range(5)]
    assert {core for chosen in turns for core in chosen} == set(cores)
    assert all(len(chosen) == 4 for chosen in turns)
    assert turn(cores, 64, 3) == tuple(cores)


def test_core_lists_are_printed_as_the_kernel_does() -> None:
    assert listed((8, 0, 1, 2)) == "0-2,8"
    assert listed(()) == ""
