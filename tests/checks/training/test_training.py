"""A training step has the same bits each time, and what has not is found."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import deterministic

from hpcverify.check import Context, Skip, Unable
from hpcverify.limits.resolve import resolve
from hpcverify.limits.specs import load_specs
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Device,
    Finding,
    Inventory,
    Measurement,
    Part,
    Remedy,
    Result,
    Verdict,
)
from hpcverify.testing import judge_by, judge_items, make_context
from hpcverify_checks import training
from hpcverify_checks.exact.bits import view_integers, view_words
from hpcverify_checks.exact.reruns import Reruns
from hpcverify_checks.exact.vote import identify_kind
from hpcverify_checks.node.device import find_torch_device
from hpcverify_checks.ranks.board import FolderBoard
from hpcverify_checks.ranks.collective import all_reduce
from hpcverify_checks.ranks.peers import RESULT, Peer, start_peers
from hpcverify_checks.ranks.process_group import join_group
from hpcverify_checks.ranks.rendezvous import RankGroup
from hpcverify_checks.training import steps
from hpcverify_checks.training.shape import ModelShape
from hpcverify_checks.training.steps import (
    HARDWARE,
    PhaseTimer,
    Reduce,
    Trainer,
    TrainingJob,
    TrainingOutcome,
    TrainingSeams,
    compare_replay,
    find_wrong_sum,
    run_replay,
    set_determinism,
)
from tests.checks.exact.test_vote import reword
from tests.checks.links import codes
from tests.checks.test_allreduce import children
from tests.waiting import PATIENCE_S

TINY = ModelShape(hidden=8, layers=1, heads=2, sequence=4, batch=2, vocabulary=16)
QUICK = training.TrainingParams(seconds=0.1, steps=2, shape=TINY)
CPU = torch.device("cpu")
IDLE = ({"input": 0.001, "compute": 0.02},)
PRODUCTS = 7
"""Of a step with one layer: four in attention, two in the perceptron, the head."""
MULTIPLYING = (nn.functional.linear, Tensor.matmul, Tensor.__matmul__)
OUT = 5
"""The perceptron's second."""
H100 = next(sheet for sheet in load_specs() if sheet.key == "h100-sxm5-80gb")


@pytest.fixture(autouse=True)
def before() -> Iterator[set[int]]:
    """Tell which children there were before the test; it leaves no other."""
    there = set(children(os.getpid()))
    yield there
    assert set(children(os.getpid())) == there
    assert torch.get_deterministic_debug_mode() == 0


def job(**changes: Any) -> TrainingJob:
    base = TrainingJob(
        folder="",
        world=1,
        backend="nccl",
        timeout=9.0,
        shape=TINY,
        dtype="fp32",
        steps=2,
        seconds=0.0,
        seed=1,
        threads=1,
        alike=True,
    )
    return msgspec.structs.replace(base, **changes)


def trained(seams: TrainingSeams = HARDWARE, **changes: Any) -> TrainingOutcome:
    """Train to the end, in the time of an idle machine: this one is not."""
    *_, last = steps.train(job(**changes), 0, CPU, seams)
    return msgspec.structs.replace(last, steps=IDLE)


Harm = Callable[[Tensor], object]


class Products(TorchFunctionMode):
    """Does harm to products of matrices while it surrounds the model."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute, and do harm to what is a product."""
        out = func(*args, **(kwargs or {}))
        if func in MULTIPLYING:
            self.calls += 1
            self.note(self.calls - 1, out)
        return out

    def note(self, number: int, out: Tensor) -> None:
        """Look at the product *out*."""


class Faulty(Products):
    """Does *harm* to the chosen products."""

    def __init__(self, harm: Harm, hit: Callable[[int, int], bool]) -> None:
        """*hit* chooses by the number of the replay and of the product in it."""
        super().__init__()
        self.harm, self.hit = harm, hit

    def note(self, number: int, out: Tensor) -> None:
        """Do harm if it is time."""
        if self.hit(*divmod(number, 2 * PRODUCTS)):
            self.harm(out)


def flip(bit: int) -> Harm:
    """Flip a bit of the last element."""
    mask = 1 << bit if bit < 31 else -(1 << 31)
    return lambda out: view_integers(out.data).view(-1)[-1].bitwise_xor_(mask)


def flip_gradient(bit: int) -> Harm:
    """Flip a bit of the last element of what comes back."""

    def harmed(gradient: Tensor) -> Tensor:
        changed = gradient.clone()
        flip(bit)(changed)
        return changed

    def harm(out: Tensor) -> None:
        out.register_hook(harmed)  # type: ignore[no-untyped-call]

    return harm


def only(replay: int, product: int) -> Callable[[int, int], bool]:
    return lambda r, p: (r, p) == (replay, product)


def since(replay: int, product: int) -> Callable[[int, int], bool]:
    return lambda r, p: r >= replay and p == product


def faulty(harm: Harm, hit: Callable[[int, int], bool]) -> TrainingSeams:
    return TrainingSeams(around=Faulty(harm, hit))


def alone(reduce: Reduce) -> TrainingSeams:
    """Sum by *reduce* where there is no other rank to wait for."""
    return TrainingSeams(reduce=reduce, wait=lambda _group, _device: None)


def gpus(count: int, **facts: str) -> tuple[Part, ...]:
    known = {"name": H100.name, "driver": "580.1", **facts}
    return tuple(Part("gpu", f"GPU-{i}", f"GPU {i}", known) for i in range(count))


def node(tmp_path: Path, parts: Sequence[Part]) -> list[Context]:
    """Make the contexts of the GPUs of a node."""
    devices = tuple(Device("cuda", part.id, part.label) for part in parts)
    inventory = Inventory(parts=tuple(parts), devices=devices)
    return [
        make_context(tmp_path, device=device, peers=devices, inventory=inventory)
        for device in devices
    ]


def verdict_on(tmp_path: Path, outcomes: Sequence[TrainingOutcome]) -> Result:
    """Judge the *outcomes* of as many GPUs, as a run does."""
    contexts = node(tmp_path, gpus(len(outcomes)))
    found: list[CheckItem] = []
    for ctx, outcome in zip(contexts, outcomes, strict=True):
        found += by_rank(ctx, outcome, world=len(outcomes))
    return together(found, contexts[0])


def by_rank(ctx: Context, *known: TrainingOutcome, **changes: Any) -> list[CheckItem]:
    """Report what the rank of *ctx* has *known*, one outcome after the other."""
    outcomes = [(ctx.rank, outcome) for outcome in known]
    return list(training.report_outcomes(ctx, job(**changes), outcomes))


def together(found: Sequence[CheckItem], ctx: Context) -> Result:
    return judge_items(training.CHECK, found, ctx.inventory)


def test_hundreds_of_replays_are_bitwise_the_first() -> None:
    # bench/training.py makes thousands.
    with set_determinism(required=True):
        trainer = Trainer.build(job(steps=1), CPU, HARDWARE)
        first, _ = run_replay(trainer)
        for number in range(200):
            assert compare_replay(first, run_replay(trainer)[0], number) is None


def test_a_healthy_gpu_passes(tmp_path: Path) -> None:
    judgement = verdict_on(tmp_path, [trained()])
    assert (judgement.verdict, judgement.reason) == (Verdict.PASS, "")


@pytest.mark.parametrize("bit", [0, 15, 22, 30, 31])
def test_a_bit_of_one_gradient_that_flips_once_is_found(tmp_path: Path, bit: int) -> None:
    harm = faulty(flip_gradient(bit), only(2, PRODUCTS + OUT))
    outcome = trained(harm)
    found = outcome.difference
    assert found is not None
    assert (found.replay, found.reruns) == (2, Reruns(0))
    assert found.what == "step 2: gradients of perceptron 0"
    judgement = verdict_on(tmp_path, [outcome])
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REPLACE)
    assert "intermittent: 0 of 3" in judgement.reason


@pytest.mark.parametrize("product", range(PRODUCTS))
def test_a_flipped_bit_of_any_product_is_found(product: int) -> None:
    found = trained(faulty(flip(20), only(1, product))).difference
    assert found is not None
    assert found.what.startswith("step 1: ")
    assert found.expected != found.found


def test_a_product_that_is_wrong_from_some_replay_on_is_persistent(tmp_path: Path) -> None:
    outcome = trained(faulty(flip(12), since(2, OUT)))
    assert outcome.difference is not None
    assert (outcome.difference.replay, outcome.difference.reruns) == (2, Reruns(3))
    assert "persistent: 3 of 3" in verdict_on(tmp_path, [outcome]).reason


def test_a_first_replay_that_is_wrong_once_is_not_the_truth_about_the_others(
    tmp_path: Path,
) -> None:
    right = trained().first
    outcome = trained(faulty(flip(12), only(0, OUT)))
    found = outcome.difference
    assert found is not None
    assert (found.replay, found.reruns) == (0, Reruns(0))
    assert (found.expected, outcome.first) == (right[found.what], right)
    judgement = verdict_on(tmp_path, [outcome])
    assert judgement.verdict is Verdict.FAIL
    assert "replay 0 of" in judgement.reason
    assert "differs from all other replays" in judgement.reason
    assert "intermittent: 0 of 3" in judgement.reason


def test_what_was_said_before_the_reruns_gives_way_to_what_they_showed(tmp_path: Path) -> None:
    seams = faulty(flip(12), only(0, OUT))
    outcomes = list(steps.train(job(), 0, CPU, seams))
    ctx = node(tmp_path, gpus(1))[0]
    items = [f for f in by_rank(ctx, *outcomes, world=1) if isinstance(f, Finding)]
    left = [f for f in training.merge_reruns(items) if isinstance(f, Finding)]
    codes = [f.evidence["replay"] for f in left if f.code == "irreproducible"]
    assert codes == ["0"]


def test_what_is_not_a_number_is_found() -> None:
    found = trained(faulty(lambda out: out.data.fill_(torch.nan), only(2, 3)))
    assert found.difference is not None
    assert found.difference.what == "step 1: loss"


def test_a_word_that_changes_in_memory_is_told_from_wrong_arithmetic() -> None:
    with set_determinism(required=True):
        trainer = Trainer.build(job(), CPU, HARDWARE)
        first, _ = run_replay(trainer)
        flip(3)(trainer.beginning)
        found = compare_replay(first, run_replay(trainer)[0], 1)
    assert found is not None
    assert found.what == "initial parameters"
    assert training.classify_difference(job(), found.what) == ("miscopied", "memory")


@dataclass
class Once:
    """Gives what it is given, but rolled by one the fourth time: in replay 1."""

    calls: int = 0

    def __call__(self, batch: Tensor) -> Tensor:
        """Change the batch if it is time."""
        self.calls += 1
        return batch.roll(1) if self.calls == 4 else batch


def test_a_batch_that_arrives_changed_is_told_from_wrong_arithmetic(tmp_path: Path) -> None:
    once = Once()
    outcome = trained(TrainingSeams(copy=lambda batch, _device: once(batch)))
    assert outcome.difference is not None
    assert outcome.difference.what == "step 2: batch"
    judgement = verdict_on(tmp_path, [outcome])
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert judgement.reason.startswith("GPU 0: ")
    assert "transfer to the device" in judgement.reason


def test_a_batch_that_the_host_makes_wrong_is_the_hosts(tmp_path: Path) -> None:
    once = Once()
    outcome = trained(TrainingSeams(feed=lambda this, step: once(steps.draw_batch(this, step))))
    assert outcome.difference is not None
    assert outcome.difference.what == "step 2: batch on the host"
    judgement = verdict_on(tmp_path, [outcome])
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert judgement.reason.startswith("cpu: ")
    assert "GPU" not in judgement.reason


def test_a_host_that_feeds_one_gpu_wrong_each_time_is_not_the_gpus_fault(tmp_path: Path) -> None:
    misfed = trained(TrainingSeams(feed=lambda this, step: steps.draw_batch(this, step).roll(1)))
    assert misfed.difference is None
    judgement = verdict_on(tmp_path, [trained(), misfed, trained(), trained()])
    assert judgement.verdict is Verdict.FAIL
    assert judgement.reason == (
        "cpu: the host made different batches for GPU 0, GPU 2, GPU 3 and for GPU 1"
    )


def test_digests_of_host_and_device_are_those_of_the_same_batch() -> None:
    first = trained().first
    assert first["step 1: batch on the host"] == first["step 1: batch"]
    assert first["step 1: batch"] != first["step 2: batch"]


def test_two_signs_that_flip_in_one_replay_are_seen() -> None:
    with set_determinism(required=True):
        trainer = Trainer.build(job(), CPU, HARDWARE)
        first, _ = run_replay(trainer)
        # Of each, the top bit of a 64-bit word.
        trainer.beginning.view(torch.int32)[[101, 203]] ^= -(1 << 31)
        found = compare_replay(first, run_replay(trainer)[0], 1)
    assert found is not None
    assert found.what == "initial parameters"


def test_on_a_cpu_a_difference_only_warns(tmp_path: Path) -> None:
    ctx = make_context(tmp_path)
    outcome = trained(faulty(flip(12), only(2, OUT)))
    judgement = together(by_rank(ctx, outcome, backend="gloo"), ctx)
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.INSPECT)


def test_a_gpu_that_errs_every_time_is_outvoted_by_its_peers(tmp_path: Path) -> None:
    wrong = trained(faulty(flip(12), since(0, OUT)))
    assert wrong.difference is None
    judgement = verdict_on(tmp_path, [trained(), wrong, trained(), trained()])
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.INSPECT)
    assert judgement.reason.startswith("GPU 1: ")
    assert "GPU 0" not in judgement.reason


def test_of_two_gpus_that_differ_nobody_can_say_which_is_wrong(tmp_path: Path) -> None:
    wrong = trained(faulty(flip(12), since(0, OUT)))
    judgement = verdict_on(tmp_path, [trained(), wrong])
    assert judgement.verdict is Verdict.ERROR


def test_eight_healthy_gpus_agree(tmp_path: Path) -> None:
    assert verdict_on(tmp_path, 8 * [trained()]).verdict is Verdict.PASS


def test_parts_of_another_kind_do_not_vote(tmp_path: Path) -> None:
    wrong = trained(faulty(flip(12), since(0, OUT)))
    parts = [*gpus(2), *gpus(3, name="another")[2:]]
    found = [
        training.make_answer(ctx, job(), outcome)
        for ctx, outcome in zip(node(tmp_path, parts), [trained(), trained(), wrong], strict=True)
    ]
    assert together(found, node(tmp_path, parts)[0]).verdict is Verdict.PASS


def test_another_seed_trains_to_other_bits() -> None:
    assert trained(seed=1).digest != trained(seed=2).digest


def test_the_first_step_with_a_wrong_sum_is_told() -> None:
    record = {f"step {step}: {steps.WRONG_SUMS}": n for step, n in ((1, 0), (2, 3), (3, 5))}
    assert find_wrong_sum(record, 5) == steps.WrongSum(5, 2, 3)


def test_sums_of_unlike_parts_are_not_held_against_them() -> None:
    with set_determinism(required=True):
        this = Trainer.build(job(world=2, alike=False), CPU, alone(torch.square))
        record, _ = run_replay(this)
    assert not [name for name in record if name.endswith(steps.WRONG_SUMS)]


@pytest.mark.parametrize("fact", ["name", "driver"])
def test_parts_are_alike_if_model_and_driver_are(tmp_path: Path, fact: str) -> None:
    parts = [*gpus(1), *gpus(2, **{fact: "another"})[1:]]
    for contexts, kinds in ((node(tmp_path, gpus(2)), 1), (node(tmp_path, parts), 2)):
        inventory = contexts[0].inventory
        found = {identify_kind(inventory, ctx.device.part) for ctx in contexts}
        assert len(found) == kinds


def test_atomic_sums_are_those_of_any_order() -> None:
    with set_determinism(required=True):
        trainer = Trainer.build(job(), CPU, HARDWARE)
        run_replay(trainer)
    bins, source = steps.scatter_words(trainer.gradients), view_words(trainer.gradients)
    assert int(bins.sum()) == int(source.flip(0).sum())
    assert (bins != 0).sum() > 50


def test_adamw_is_that_of_torch() -> None:
    ours, theirs = torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 64)
    theirs.requires_grad_()
    optimizer = torch.optim.AdamW([theirs], foreach=False)
    moments = torch.zeros(2, 64)
    for step in range(1, 6):
        theirs.grad = torch.linspace(-step, 2, 64)
        optimizer.step()
        steps.apply_adamw(ours, theirs.grad, moments, step)
    assert torch.equal(ours, theirs.detach())


def test_training_lowers_the_loss() -> None:
    same = TrainingSeams(feed=lambda this, _step: steps.draw_batch(this, 0))
    outcome = trained(same, steps=20)
    this = job(steps=20)
    late = training.read_loss(this, outcome)
    early = training.read_loss(job(steps=1), outcome)
    assert late < 0.95 * early


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_nothing_in_a_replay_waits_for_the_device(dtype: str) -> None:
    meta = torch.device("meta")  # reading a value from it is an error
    shape = training.GPU_SHAPES[-1]
    this = job(shape=shape, dtype=dtype, world=2)
    trainer = Trainer.build(this, meta, alone(torch.square))
    with set_determinism(required=True):
        left = trainer.replay(PhaseTimer(CPU))
    host = {name for name, value in left.items() if value.device.type == "cpu"}
    assert host == {f"step {step}: {steps.HOST_BATCH}" for step in range(1, this.steps + 1)}
    assert {left[name].device.type for name in left.keys() - host} == {"meta"}


def test_what_torch_was_set_to_is_restored() -> None:
    settings: Any = deterministic
    before = settings.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")
    trained()
    assert torch.get_deterministic_debug_mode() == 1
    assert settings.fill_uninitialized_memory == before
    torch.set_deterministic_debug_mode("default")


def numbers(found: Sequence[CheckItem]) -> dict[str, float | None]:
    return {m.name: m.value for m in found if isinstance(m, Measurement)}


TIMES = [{"input": 0.01, "compute": 0.06, "communication": 0.03}] * 19 + [
    {"input": 0.01, "compute": 0.36, "communication": 0.03}
]


def test_times_and_shares_are_those_of_the_steps() -> None:
    found = numbers(list(training.measure_steps("cpu", 8, TIMES)))
    assert found["step_p50"] == pytest.approx(100)
    assert found["step_p95"] == pytest.approx(100)
    assert found["compute_p50"] == pytest.approx(60)
    assert found["tokens"] == pytest.approx(8 / 0.1)
    assert found["communication.share"] == pytest.approx(0.6 / 2.3)
    shares = [v for name, v in found.items() if name.endswith(".share") and v]
    assert sum(shares) == pytest.approx(1)


def test_a_share_of_what_is_not_there_is_left_out() -> None:
    alone = [{"input": 0.01, "compute": 0.06}]
    assert "communication.share" not in numbers([*training.measure_steps("c", 8, alone)])


def test_utilization_is_of_the_data_sheets_peak(tmp_path: Path) -> None:
    [ctx] = node(tmp_path, gpus(1))
    shape = training.GPU_SHAPES[0]
    outcome = TrainingOutcome({"step 2: loss": 0}, 1, 1.0, ({"compute": 0.1},))
    this = job(shape=shape, dtype="bf16")
    found = numbers(list(training.report_training(ctx, this, outcome)))
    assert found["mfu"] == pytest.approx(shape.operations / 0.1 / 989e12, rel=0.01)
    assert "peak_derived" not in found


def test_a_slow_gpu_is_told_by_its_siblings(tmp_path: Path) -> None:
    base = trained()
    paces = [1.0, 1.02, 1.3, 0.99]
    outcomes = [
        msgspec.structs.replace(base, steps=({"compute": 0.1 * p, "input": 0.001},)) for p in paces
    ]
    judgement = verdict_on(tmp_path, outcomes)
    assert judgement.verdict is Verdict.WARN
    assert judgement.reason.startswith("GPU 2: compute_p50 130 ms")


def test_a_slow_input_pipeline_warns(tmp_path: Path) -> None:
    def slow(this: TrainingJob, step: int) -> Tensor:
        time.sleep(0.02)
        return steps.draw_batch(this, step)

    *_, outcome = steps.train(job(), 0, CPU, TrainingSeams(feed=slow))
    assert all(step["input"] >= 0.02 for step in outcome.steps)
    # As if the rest were as fast as on an idle machine.
    idle = tuple({**step, "compute": 0.02} for step in outcome.steps)
    judgement = verdict_on(tmp_path, [msgspec.structs.replace(outcome, steps=idle)])
    assert judgement.verdict is Verdict.WARN
    assert "input.share" in judgement.reason


def measured(ctx: Context, seams: TrainingSeams = HARDWARE) -> list[CheckItem]:
    return list(training.measure(ctx, QUICK, seams))


@pytest.mark.parametrize("what", [steps.INITIAL_PARAMETERS, "step 2: batch"])
def test_a_copy_that_differs_fails_on_any_part(tmp_path: Path, what: str) -> None:
    ctx = make_context(tmp_path)
    found = steps.Difference(3, what, 1, 2, count=9, reruns=Reruns(3))
    outcome = msgspec.structs.replace(trained(), difference=found)
    judgement = together(by_rank(ctx, outcome, backend="gloo"), ctx)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)


def test_a_sum_of_integers_that_differs_fails_on_a_cpu_too() -> None:
    what = f"step 1: {steps.GRADIENT_SCATTER}"
    assert training.classify_difference(job(backend="gloo"), what)[0] == "irreproducible"


def test_what_may_differ_each_time_is_refused() -> None:
    with set_determinism(required=True), pytest.raises(RuntimeError, match="determinis"):
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))


@pytest.mark.system
def test_two_ranks_on_a_cpu_pass_and_are_measured(tmp_path: Path) -> None:
    ctx = make_context(tmp_path)
    found = measured(ctx)
    names = numbers(found).keys()
    assert {"tokens", "loss", "replays"} <= names
    texts = [f.text for f in found if isinstance(f, Coverage)]
    assert any("2 ranks by gloo, every sum verified" in text for text in texts)
    facts = [f for f in found if isinstance(f, Finding)]
    assert together(facts, ctx).verdict is Verdict.PASS
    assert {path.name for path in tmp_path.iterdir()} == {"scratch", "shared"}


@pytest.mark.system
def test_a_rank_that_errs_every_time_is_contradicted_by_the_other(tmp_path: Path) -> None:
    ctx = make_context(tmp_path)
    found = measured(ctx, faulty(flip(12), since(0, OUT)))
    judgement = together([f for f in found if isinstance(f, Finding)], ctx)
    assert judgement.verdict is Verdict.WARN
    assert "rank 1 and rank 0 trained to different bits: step 1: " in judgement.reason


@pytest.mark.system
@pytest.mark.parametrize("floats", [True, False], ids=["floats", "integers"])
def test_a_wrong_sum_of_right_gradients_fails(tmp_path: Path, *, floats: bool) -> None:
    def off_by_one(total: Tensor) -> None:
        all_reduce(total)
        total[10] += int(total.is_floating_point() == floats)

    ctx = make_context(tmp_path)
    found = measured(ctx, TrainingSeams(reduce=off_by_one))
    judgement = together([f for f in found if isinstance(f, Finding)], ctx)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert "rank 0 of 2 got 1 wrong sums of gradients" in judgement.reason


def summing(outcome: TrainingOutcome, replay: int = 1, step: int = 1) -> TrainingOutcome:
    """Have a rank see a wrong sum: a trainer that is alone sums nothing."""
    return msgspec.structs.replace(outcome, wrong_sum=steps.WrongSum(replay, step, 7))


def sums(tmp_path: Path, outcomes: Sequence[TrainingOutcome]) -> set[str]:
    """Say what becomes of the wrong sums that GPUs with these *outcomes* saw."""
    contexts = node(tmp_path, gpus(len(outcomes)))
    found = [
        item
        for ctx, outcome in zip(contexts, outcomes, strict=True)
        for item in by_rank(ctx, outcome)
    ]
    items = [f for f in found if isinstance(f, Measurement | Finding)]
    together = training.reconcile(items, contexts[0].inventory)
    return codes(together) & {"wrong_sum", "wrong_sums", "sum_of_wrong"}


def test_a_sum_that_several_gpus_got_wrong_fails_the_node_and_no_gpu(tmp_path: Path) -> None:
    seen = [summing(trained()), summing(trained()), trained()]
    assert sums(tmp_path, seen) == {"wrong_sums", "sum_of_wrong"}
    judgement = verdict_on(tmp_path, seen)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert "the place is not known" in judgement.reason


def test_a_gpu_that_got_a_wrong_sum_alone_is_accused(tmp_path: Path) -> None:
    assert sums(tmp_path, [summing(trained()), trained()]) == {"wrong_sum"}


def test_sums_of_gradients_that_one_gpu_has_wrong_are_not_the_links(tmp_path: Path) -> None:
    wrong = trained(faulty(flip_gradient(12), only(1, OUT)))
    seen = [summing(o) for o in (trained(), trained(), wrong)]
    assert sums(tmp_path, seen) == {"sum_of_wrong"}
    assert verdict_on(tmp_path, seen).remedy is Remedy.REPLACE


def test_nor_are_they_if_an_earlier_check_proved_that_gpu_wrong(tmp_path: Path) -> None:
    wrong = trained(faulty(flip_gradient(12), since(0, OUT)))
    contexts, found = node(tmp_path, gpus(3)), list[CheckItem]()
    for ctx, outcome in zip(contexts, (trained(), trained(), wrong), strict=True):
        found += by_rank(ctx, summing(outcome, 0), world=3)
    void = {"void": True}
    told = [
        msgspec.structs.replace(f, data=f.data | void)
        if isinstance(f, Finding) and (f.code, f.part_id) == ("answer", "GPU-2")
        else f
        for f in found
        if isinstance(f, Finding)
    ]
    left = codes(training.reconcile(told, contexts[0].inventory))
    assert left == {"answer", "sum_of_wrong"}


@pytest.mark.parametrize(
    ("broken", "code"), [((1,), "not_finite"), ((0, 1, 2), "all_not_finite")], ids=["one", "all"]
)
def test_numbers_that_are_not_finite_accuse_a_gpu_whose_siblings_keep_theirs(
    tmp_path: Path, broken: tuple[int, ...], code: str
) -> None:
    harmed = faulty(lambda out: out.data.fill_(torch.nan), since(0, OUT))
    outcomes = [trained(harmed if i in broken else HARDWARE) for i in range(3)]
    contexts = node(tmp_path, gpus(3))
    found = [i for ctx, o in zip(contexts, outcomes, strict=True) for i in by_rank(ctx, o)]
    items = [f for f in found if isinstance(f, Finding)]
    left = [f for f in training.reconcile(items, contexts[0].inventory) if isinstance(f, Finding)]
    named = {(f.code, f.part_id) for f in left if f.code.endswith("not_finite")}
    assert named == {(code, f"GPU-{i}") for i in broken}


def test_nor_are_those_of_two_gpus_that_never_agree(tmp_path: Path) -> None:
    wrong = trained(faulty(flip_gradient(12), since(0, OUT)))
    seen = [summing(trained(), 0), summing(wrong, 0)]
    assert sums(tmp_path, seen) == {"sum_of_wrong"}
    assert verdict_on(tmp_path, seen).verdict is Verdict.ERROR


def test_a_rank_that_saw_its_sum_right_tells_its_gradients_too(tmp_path: Path) -> None:
    # Infinite ones, for instance: n times as much is the same.
    wrong = trained(faulty(flip_gradient(30), since(0, OUT)))
    seen = [wrong, *2 * [summing(trained(), 0)]]
    assert sums(tmp_path, seen) == {"sum_of_wrong"}


@pytest.mark.parametrize(
    ("replay", "product"),
    [(2, OUT), (1, PRODUCTS + OUT)],
    ids=["in another replay", "in a later step"],
)
def test_a_difference_elsewhere_explains_no_wrong_sum(
    tmp_path: Path, replay: int, product: int
) -> None:
    differs = trained(faulty(flip_gradient(12), only(replay, product)))
    assert differs.difference is not None
    seen = [summing(differs), summing(trained())]
    assert sums(tmp_path, seen) == {"wrong_sums", "sum_of_wrong"}
    assert verdict_on(tmp_path, seen).verdict is Verdict.FAIL


def test_a_wrong_sum_beside_a_disagreement_that_came_later_fails(tmp_path: Path) -> None:
    # Two GPUs that differ from each other in the second step of every replay.
    wrong = trained(faulty(flip_gradient(12), since(0, PRODUCTS + OUT)))
    judgement = verdict_on(tmp_path, [summing(trained(), 0), summing(wrong, 0)])
    assert judgement.verdict is Verdict.FAIL
    assert "wrong sums of gradients in replay 0, step 1" in judgement.reason


@pytest.mark.parametrize("lost", [False, True], ids=["with reruns", "lost before them"])
def test_no_wording_decides_over_a_gpu(tmp_path: Path, lost: bool) -> None:  # noqa: FBT001 - a case
    misfed = TrainingSeams(feed=lambda this, step: steps.draw_batch(this, step).roll(1))
    runs = [
        [*steps.train(job(), 0, CPU, seams)][: 2 if lost else None]
        for seams in (HARDWARE, faulty(flip_gradient(12), only(1, OUT)), misfed)
    ]
    known = [[*run[:-1], summing(run[-1])] for run in runs]
    contexts = node(tmp_path, gpus(len(known)))
    found = [
        item
        for ctx, outcomes in zip(contexts, known, strict=True)
        for item in by_rank(ctx, *(msgspec.structs.replace(o, steps=IDLE) for o in outcomes))
        if isinstance(item, Finding)
    ]

    def left(items: Sequence[Finding]) -> list[tuple[str, str]]:
        left = training.reconcile(items, contexts[0].inventory)
        return [(f.code, f.part_id) for f in left if isinstance(f, Finding)]

    assert {"irreproducible", "misfed", "sum_of_wrong"} <= {code for code, _ in left(found)}
    assert left([reword(f) for f in found]) == left(found)


def test_a_difference_is_told_before_any_rank_waits_for_another() -> None:
    known = steps.train(job(), 0, CPU, faulty(flip(12), only(2, OUT)))
    first, differing = next(known), next(known)
    assert (first.replays, first.difference) == (0, None)
    assert differing.difference is not None
    assert differing.difference.reruns is None


class Dying(Products):
    """Errs once; after that replay, multiplying raises, as on a GPU that has had enough."""

    def note(self, number: int, out: Tensor) -> None:
        """Err, or be lost."""
        if number >= 3 * 2 * PRODUCTS:
            raise RuntimeError("CUDA error: an illegal memory access")
        if number == 2 * 2 * PRODUCTS + OUT:
            flip(12)(out)


def until_lost(found: Iterator[CheckItem], match: str) -> list[CheckItem]:
    """Collect what is *found* until the training raises, as a worker does."""
    kept: list[CheckItem] = []
    with pytest.raises((RuntimeError, Unable), match=match):
        kept.extend(found)
    return kept


def test_what_a_gpu_found_is_kept_if_it_is_lost_in_the_reruns(tmp_path: Path) -> None:
    [ctx] = node(tmp_path, gpus(1))
    known = ((0, o) for o in steps.train(job(), 0, CPU, TrainingSeams(around=Dying())))
    kept = until_lost(training.report_outcomes(ctx, job(), known), "illegal memory")
    judgement = together(kept, ctx)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REPLACE)
    assert "no reruns: the training ended" in judgement.reason


def test_once_there_were_reruns_only_their_count_is_told(tmp_path: Path) -> None:
    [ctx] = node(tmp_path, gpus(1))
    known = [*steps.train(job(), 0, CPU, faulty(flip(12), only(2, OUT)))]
    found = by_rank(ctx, *known)
    assert len([f for f in found if isinstance(f, Finding)]) == 3
    reason = together(found, ctx).reason
    assert "intermittent: 0 of 3 reruns wrong" in reason
    assert reason.count("differs from the first replay") == 1
    assert "no reruns" not in reason


@pytest.mark.system
def test_what_a_rank_found_is_kept_if_its_peer_dies_next(tmp_path: Path, before: set[int]) -> None:
    class Lethal(Faulty):
        def note(self, number: int, out: Tensor) -> None:
            """Differ in replay 2, so that there are reruns, and kill the peer in them."""
            if number >= 3 * QUICK.steps * PRODUCTS:
                for child in set(children(os.getpid())) - before:
                    os.kill(child, signal.SIGKILL)
            super().note(number, out)

    ctx = make_context(tmp_path)
    seams = TrainingSeams(around=Lethal(flip(12), only(2, OUT)))
    found = training.measure(ctx, QUICK, seams)
    judgement = together(until_lost(found, "rank 1 died with status -9"), ctx)
    # The other rank's gradients were right: the sum is not held against the link.
    assert judgement.verdict is Verdict.WARN
    assert "differs from the first replay on rank 0" in judgement.reason
    assert "no reruns" in judgement.reason


@pytest.mark.system
def test_a_link_that_has_become_slow_warns(tmp_path: Path) -> None:
    def slow(total: Tensor) -> None:
        time.sleep(0.1)
        all_reduce(total)

    ctx = make_context(tmp_path)
    two = job(folder=str(ctx.shared), world=2, backend="gloo", timeout=PATIENCE_S)
    with start_peers(two, steps.__name__):  # with nobody to say that the machine is busy
        *_, last = steps.train(two, 0, CPU, TrainingSeams(reduce=slow))
    # As if the rest were as fast as on an idle machine.
    idle = tuple({**step, "compute": 0.02} for step in last.steps)
    outcomes = [(0, msgspec.structs.replace(last, steps=idle))]
    found = list(training.report_outcomes(ctx, two, outcomes))
    numbers = [f for f in found if isinstance(f, Measurement)]
    shares = [n for n in numbers if n.name == "communication.share"]
    limits = resolve(training.CHECK.rules, shares, ctx.inventory, lambda _n, _w: 9 * [0.1])
    judgement = judge_by(shares, limits, training.CHECK.finding_rules)
    assert judgement.verdict is Verdict.WARN
    assert "communication.share" in judgement.reason


@pytest.mark.system
def test_a_rank_that_dies_is_an_error_that_names_it(tmp_path: Path, before: set[int]) -> None:
    def murderous(total: Tensor) -> None:
        for child in set(children(os.getpid())) - before:
            os.kill(child, signal.SIGKILL)
        all_reduce(total)

    with pytest.raises(Unable, match="rank 1 died with status -9") as caught:
        measured(make_context(tmp_path), TrainingSeams(reduce=murderous))
    assert caught.value.cause is Cause.CRASHED


def test_what_a_peer_had_found_is_kept_if_it_dies(tmp_path: Path) -> None:
    job_of_two = job(world=2, backend="gloo", folder=str(tmp_path))
    differing = [*steps.train(job(), 0, CPU, faulty(flip(12), only(2, OUT)))][1]
    for outcome in (b"{}", msgspec.json.encode(differing)):
        FolderBoard(tmp_path).post(RESULT, 1, outcome)
    (tmp_path / ".half").write_bytes(b'{"first": {"half a li')  # it was about to say more
    log = tmp_path / "rank1.log"
    log.touch()
    peer = Peer(job_of_two, 1, subprocess.Popen(["/bin/false"]), log)
    with pytest.raises(Unable, match="rank 1 died with status 1"):
        peer.wait_for_result(TrainingOutcome)
    assert peer.read_result(TrainingOutcome) == differing


def offers(*memory: int, bf16: bool = True, free: int = 80) -> list[training.Offer]:
    """Make offers of GPUs with so much *memory*, of which at most *free* is, in GiB."""
    return [
        training.Offer(f"GPU {i}", bf16, m << 30, min(m, free) << 30) for i, m in enumerate(memory)
    ]


@pytest.mark.parametrize(
    ("given", "dtype", "hidden"),
    [
        (offers(80, 80), "bf16", 2048),
        (offers(80, 24), "bf16", 1024),
        (offers(80, 4), "bf16", 512),
        (offers(16, bf16=False) + offers(24), "fp32", 512),
    ],
)
def test_unlike_gpus_train_what_all_of_them_can(
    given: list[training.Offer], dtype: str, hidden: int
) -> None:
    for known in (given, given[::-1]):
        shape, agreed = training.agree_on_model(known, None)
        assert (shape.hidden, agreed) == (hidden, dtype)


def test_a_gpu_without_free_memory_is_named_on_every_rank() -> None:
    given = [*offers(80), *offers(80, 80, free=1)[1:]]
    with pytest.raises(Unable, match=r"1\.0 on GPU 1\): end the proc") as caught:
        training.agree_on_model(given, None)
    assert caught.value.cause is Cause.NO_SPACE


def test_all_ranks_are_told_the_same_offers(tmp_path: Path) -> None:
    group = RankGroup(str(tmp_path), 3, "nccl", 9.0)
    own = offers(80, 40, 16)
    with ThreadPoolExecutor(3) as ranks:
        exchanged = ranks.map(partial(training.exchange_offers, group), range(3), own)
    assert list(exchanged) == [own, own, own]


def test_a_rank_that_never_offers_is_an_error_that_names_it(tmp_path: Path) -> None:
    group = RankGroup(str(tmp_path), 2, "nccl", 0.2)
    with pytest.raises(Unable, match=r"rank 1 .*within 0\.2 s") as caught:
        training.exchange_offers(group, 0, *offers(80))
    assert (caught.value.cause, caught.value.remedy) == (Cause.TIMEOUT, Remedy.RERUN)


def test_nobody_waits_in_nccl_for_a_rank_that_never_comes(tmp_path: Path) -> None:
    group = RankGroup(str(tmp_path), 2, "no such backend", 0.2)
    with pytest.raises(Unable, match="rank 1 was lost"):
        join_group(group, 0, CPU).__enter__()


@pytest.mark.system
def test_a_group_that_a_rank_left_at_once_spoils_no_later_one(tmp_path: Path) -> None:
    (tmp_path / "here1").touch()
    lonely = RankGroup(str(tmp_path), 2, "gloo", 1.0)
    with pytest.raises(Unable, match="rank 1 was lost"):
        join_group(lonely, 0, CPU).__enter__()
    later = tmp_path / "later"
    later.mkdir()
    assert any(isinstance(f, Measurement) for f in measured(make_context(later)))


def test_the_cpu_leaves_it_to_the_gpus(tmp_path: Path) -> None:
    inventory = node(tmp_path, gpus(1))[0].inventory
    with pytest.raises(Skip, match="GPUs of this node"):
        measured(make_context(tmp_path, inventory=inventory))


def test_cublas_is_told_to_give_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    find_torch_device(make_context(tmp_path))
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_heads_that_do_not_divide_the_width_are_found_before_the_run() -> None:
    shape = {**msgspec.structs.asdict(TINY), "heads": 3}
    with pytest.raises(msgspec.ValidationError, match="not a multiple of heads"):
        msgspec.convert({"shape": shape}, training.TrainingParams)


@pytest.mark.parametrize("shape", [TINY, None])
def test_parameters_are_told_again(shape: ModelShape | None) -> None:
    params = msgspec.structs.replace(QUICK, shape=shape)
    written = msgspec.to_builtins(params)
    assert msgspec.convert(written, training.TrainingParams) == params
