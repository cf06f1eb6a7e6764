"""
Train a small transformer from the same state again and again: the same bits each time?

Each replay of a few steps is compared bitwise with the first one: every batch, loss,
group of gradients and parameters by its digest (see `steps`). Besides products this
exercises softmax, norms, reductions, sums by index and integer atomics. Training is what
the nodes are for, so its times, shares and MFU are measurements of the node.

How each fault shows:

- A part that errs now and then differs from its own first replay. On a GPU that is the
  part's fault: each operation is deterministic by torch's list, cuBLAS promises the same
  bits on one stream with one version and workspace, and nothing is tuned at run time.
- A part that errs every time agrees with itself. All GPUs of a node train on the same
  data, and those of one kind vote with the digests of their first replay.
- Gradients are summed over the ranks, as in data-parallel training, but so that the sum is
  exact and differs from that of any other step and share (`gradient_sums`): if all ranks
  have the same gradients, the link causes a wrong sum. Each rank reports the digests of its
  gradients to establish that.
- On a CPU no library promises the same bits. They were the same in tens of thousands of
  replays with threads fixed and data aligned (``bench/training.py``), but a difference
  only warns: `sdc` tests the cores with products that have only one right answer.
- Ranks on a CPU that all err alike, every time, agree with each other: their gradients are
  compared with those in fp64, within what fp32 rounds away (`accuracy`).
- Copies and sums of integers are exact on any part: there a difference is a fault. The
  host makes the batches of integers; its errors do not count against a GPU.

A difference is reported at once, and again after the reruns; `reconcile` keeps one of
the two. GPUs of different models train the same model in the same type, one that they
all support. On a node without GPUs two processes are the ranks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

import hpcverify.check as hv
from hpcverify.stats import compute_excluded_rate, find_percentile
from hpcverify.units import GIGA
from hpcverify_checks.exact import vote
from hpcverify_checks.exact.families import FAMILIES
from hpcverify_checks.exact.reruns import Reruns
from hpcverify_checks.node.contention import CpuUsage
from hpcverify_checks.node.device import (
    find_torch_device,
    list_native_dtypes,
    name_torch_vendor,
    read_gpu_free_bytes,
    report_overrides,
)
from hpcverify_checks.node.estimates import count_gpus
from hpcverify_checks.node.fixes import write_fix
from hpcverify_checks.node.peaks import find_peak
from hpcverify_checks.node.stalls import OWN_WORK, STALL, StallMeter, read_core_wait
from hpcverify_checks.ranks.peers import start_peers
from hpcverify_checks.ranks.process_group import report_nccl_settings
from hpcverify_checks.ranks.rendezvous import (
    RANK_LOST_RULE,
    RankGroup,
    exchange_messages,
    merge_lost_ranks,
    report_lost_ranks,
)
from hpcverify_checks.ranks.wrong_sums import (
    WITNESS_CODE,
    WRONG_SUM_RULES,
    attribute_wrong_sums,
    explain,
)
from hpcverify_checks.training import steps as training_steps
from hpcverify_checks.training.accuracy import MAX_GRADIENT_ERROR, measure_gradient_error
from hpcverify_checks.training.shape import ModelShape
from hpcverify_checks.training.steps import (
    COMMUNICATION,
    COMPUTE,
    DEVICE_BATCH,
    GRADIENT_SCATTER,
    HARDWARE,
    HOST_BATCH,
    INITIAL_PARAMETERS,
    INPUT,
    NOT_FINITE,
    Difference,
    PhaseTimes,
    TrainingJob,
    TrainingOutcome,
    TrainingSeams,
    WrongSum,
    compare_replay,
    digest_gradients,
    train,
)

if TYPE_CHECKING:
    import torch

CPU_SHAPE = ModelShape(hidden=128, layers=2, heads=4, sequence=64, batch=4, vocabulary=512)
GPU_SHAPES = (
    ModelShape(hidden=2048, layers=8, heads=16, sequence=1024, batch=8, vocabulary=2**15),
    ModelShape(hidden=1024, layers=8, heads=16, sequence=1024, batch=4, vocabulary=2**14),
    ModelShape(hidden=512, layers=4, heads=8, sequence=512, batch=4, vocabulary=2**13),
)
"""The first that fits the part with the least memory is used."""
USABLE_MEMORY_SHARE = 0.75
BYTES_PER_PARAMETER = 40
"""fp32: initial and current value, two moments, the sum, and up to three temporaries of
the optimizer; weights and gradients in the job's type, at most fp32."""
PREPARE_SECONDS = 10.0
"""The model, the first replay and the reruns take this long, each a second or less on a GPU."""
NOT_FINITE_CODE, ALL_NOT_FINITE_CODE = "not_finite", "all_not_finite"
CONTENDED_METRICS = ("step_*", "compute_p50", "*.share")
"""Left out on a CPU that other processes use."""


class TrainingParams(hv.Params, frozen=True):
    """What to train, and for how long."""

    seconds: Annotated[float, Meta(gt=0)] = 8.0
    steps: Annotated[int, Meta(ge=1)] = 3
    """The steps of a replay: later ones depend on everything that earlier ones computed."""
    ranks: Annotated[int, Meta(ge=1)] = 2
    """Processes on a CPU; each GPU is one rank."""
    shape: ModelShape | None = None
    """The shape of the model and a batch; the default suits the part."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """A rank that does not answer for this long counts as lost."""


def estimate(ctx: hv.Context, params: TrainingParams) -> float:
    """Add the first replay, and the reruns after a difference; 0 where it is skipped."""
    if ctx.device.kind == "cpu" and count_gpus(ctx):
        return 0.0
    return params.seconds + PREPARE_SECONDS


def measure(
    ctx: hv.Context, params: TrainingParams, seams: TrainingSeams = HARDWARE
) -> Iterator[hv.CheckItem]:
    """Train on this device, together with its peers, and compare every replay."""
    gpus = [d for d in ctx.inventory.devices if d.kind == "cuda"]
    if ctx.device.kind == "cpu" and gpus:
        raise hv.Skip("training runs on the GPUs of this node")
    yield from report_lost_ranks(ctx, _measure_rank(ctx, params, seams))


def _measure_rank(
    ctx: hv.Context, params: TrainingParams, seams: TrainingSeams
) -> Iterator[hv.CheckItem]:
    device = find_torch_device(ctx)
    yield from report_overrides(ctx)
    yield from report_nccl_settings(ctx)
    job = _build_job(ctx, params, device)
    usage = CpuUsage.read() if device.type == "cpu" else None
    yield from report_outcomes(ctx, job, _run_ranks(job, ctx.rank, device, seams), usage)
    if device.type == "cpu":  # whose ranks may all err alike, with no other part to contradict
        with hv.operation("a training step in fp64", ctx.device):
            error = measure_gradient_error(job, device)
        yield hv.Measurement("gradient_error", error, "", ctx.device.part)


class Offer(Struct, frozen=True):
    """What the part of a rank can do; memory in bytes."""

    label: str
    bf16: bool
    """Whether it has units for bf16."""
    memory: int
    free: int


def agree_on_model(offers: Sequence[Offer], wanted: ModelShape | None) -> tuple[ModelShape, str]:
    """
    Choose one model and type for all ranks, or their sums would never match up.

    Takes the *wanted* shape, or the largest that fits the part with the least memory, in
    bf16 if all parts have units for it.
    """
    dtype = "bf16" if all(offer.bf16 for offer in offers) else "fp32"
    total = min(offer.memory for offer in offers)
    shape = wanted or choose_shape(dtype, total)
    needed = estimate_memory(shape, dtype)
    short = [f"{o.free / 2**30:.1f} on {o.label}" for o in offers if o.free < needed]
    if short:
        raise hv.Unable(
            f"training needs {needed / 2**30:.1f} GiB of GPU memory and less is free "
            f"({', '.join(short)}): {write_fix('free_memory', name_torch_vendor())}",
            hv.Cause.NO_SPACE,
        )
    return shape, dtype


def choose_shape(dtype: str, total: int) -> ModelShape:
    """Choose the largest model that fits into *total* bytes of GPU memory."""
    fitting = (s for s in GPU_SHAPES if estimate_memory(s, dtype) <= USABLE_MEMORY_SHARE * total)
    return next(fitting, GPU_SHAPES[-1])


def estimate_memory(shape: ModelShape, dtype: str) -> int:
    """Estimate an upper bound on the bytes that training takes."""
    import torch

    width = getattr(torch, FAMILIES[dtype].operand).itemsize
    return BYTES_PER_PARAMETER * shape.parameters + shape.estimate_activations(width)


def exchange_offers(group: RankGroup, rank: int, own: Offer) -> list[Offer]:
    """Exchange with the other ranks what their parts can do."""
    messages = exchange_messages(group, rank, "offer", msgspec.json.encode(own))
    return [msgspec.json.decode(message, type=Offer) for message in messages]


def _build_job(ctx: hv.Context, params: TrainingParams, device: torch.device) -> TrainingJob:
    import torch

    on_cpu = device.type == "cpu"
    world, backend = (params.ranks, "gloo") if on_cpu else (len(ctx.peers), "nccl")
    group = RankGroup(str(ctx.shared), world, backend, params.timeout_seconds)
    if on_cpu:
        shape, dtype = params.shape or CPU_SHAPE, "fp32"
    else:
        _, total = torch.cuda.mem_get_info(device)
        bf16 = "bf16" in list_native_dtypes(device)
        own = Offer(ctx.device.label, bf16, total, read_gpu_free_bytes(device))
        shape, dtype = agree_on_model(exchange_offers(group, ctx.rank, own), params.shape)
    return TrainingJob(
        **msgspec.structs.asdict(group),
        shape=shape,
        dtype=dtype,
        steps=params.steps,
        seconds=params.seconds,
        seed=ctx.seed,
        threads=max(1, torch.get_num_threads() // (world if on_cpu else 1)),
        alike=len({vote.identify_kind(ctx.inventory, peer.part) for peer in ctx.peers}) == 1,
    )


def _run_ranks(
    job: TrainingJob, rank: int, device: torch.device, seams: TrainingSeams
) -> Iterator[tuple[int, TrainingOutcome]]:
    if device.type != "cpu":
        yield from ((rank, outcome) for outcome in train(job, rank, device, seams))
        return
    with start_peers(job, training_steps.__name__) as peers:
        try:
            yield from ((rank, outcome) for outcome in train(job, rank, device, seams))
            yield from ((peer.rank, peer.wait_for_result(TrainingOutcome)) for peer in peers)
        except (RuntimeError, hv.Unable):  # a rank is lost, but not what it had found
            for peer in peers:
                if outcome := peer.read_result(TrainingOutcome):
                    yield peer.rank, outcome
            raise


def report_outcomes(
    ctx: hv.Context,
    job: TrainingJob,
    outcomes: Iterable[tuple[int, TrainingOutcome]],
    usage: CpuUsage | None = None,
) -> Iterator[hv.CheckItem]:
    """Yield each new finding of the ranks' *outcomes* at once; at the end, this rank's times."""
    last: dict[int, TrainingOutcome] = {}
    reported: list[hv.Finding] = []
    stalls, began = StallMeter(), read_core_wait()
    for rank, outcome in outcomes:
        last[rank] = outcome
        news = [f for f in find_differences(ctx, job, rank, last) if f not in reported]
        reported += news
        yield from news
    if ctx.device.kind == "cuda":
        steps = [step[COMPUTE] for step in last[ctx.rank].steps]
        stalls.note(steps, read_core_wait() - began)
        yield from (OWN_WORK.meter if job.world > 1 else stalls).report(ctx.device.part)
    numbers = report_training(ctx, job, last[ctx.rank])
    yield from usage.omit_if_busy(CONTENDED_METRICS, numbers) if usage else numbers


class RankGradients(Struct, frozen=True):
    """The gradients of a rank in a replay: data of its findings."""

    rank: int
    gradients: tuple[str, ...]
    """As `digest_gradients` gives them."""
    replay: int = 0


class RankDifference(Difference, frozen=True, kw_only=True):
    """The data of a replay that differs from the first one."""

    rank: int


class TrainingBallot(vote.Ballot, frozen=True, kw_only=True):
    """A rank's vote: the data of its first replay."""

    rank: int
    gradients: tuple[str, ...]
    batches: str
    """The digest of the batches that the host made."""


def find_differences(
    ctx: hv.Context, job: TrainingJob, rank: int, last: Mapping[int, TrainingOutcome]
) -> Iterator[hv.Finding]:
    """Yield how *rank* differs from its first replay, from a peer and from the exact sum."""
    outcome, mine, part_id = last[rank], last.get(ctx.rank), ctx.device.part
    if outcome.difference:
        yield _report_difference(part_id, job, outcome.difference, rank, len(outcome.first))
    if outcome.wrong_sum:
        yield _report_wrong_sum(part_id, job, outcome.wrong_sum, rank)
    if step := next((n for n, v in outcome.first.items() if n.endswith(NOT_FINITE) and v), ""):
        text = f"rank {rank} got {outcome.first[step]} {NOT_FINITE} in {step.partition(':')[0]}"
        yield hv.Finding(NOT_FINITE_CODE, part_id, text, {"rank": str(rank)})
    if rank == ctx.rank:
        yield make_answer(ctx, job, outcome)
    # The ranks on a CPU are one part, and do not vote.
    elif mine and (contradiction := compare_replay(mine.first, outcome.first, 0)):
        yield _report_contradiction(part_id, job, contradiction, rank)


def classify_difference(job: TrainingJob, what: str) -> tuple[str, str]:
    """Name the finding code and the place of the fault, given *what* differed first."""
    if what.endswith(HOST_BATCH):
        return "misfed", "arithmetic or memory of the host"
    if what == INITIAL_PARAMETERS:
        return "miscopied", "memory"
    if what.endswith(DEVICE_BATCH):
        return "miscopied", "transfer to the device"
    exact = what.endswith(GRADIENT_SCATTER)  # sums integers of gradients that were the same
    reproducible = job.backend == "nccl" or exact
    return "irreproducible" if reproducible else "irreproducible_cpu", "compute"


def _report_difference(
    part_id: str, job: TrainingJob, difference: Difference, rank: int, digests: int
) -> hv.Finding:
    code, place = classify_difference(job, difference.what)
    evidence = {
        "rank": str(rank),
        "dtype": job.dtype,
        "replay": str(difference.replay),
        **difference.to_evidence(),
        "digests": f"{difference.count} of {digests} differ",
        "place": place,
        "gradients": " ".join(difference.gradients),
    }
    others = "the first replay" if difference.replay else "all other replays"
    finding = hv.Finding(
        code,
        vote.HOST if code == "misfed" else part_id,
        f"replay {difference.replay} of {job.steps} training steps differs from {others} on rank "
        f"{rank}: {evidence['what']} is {evidence['found']}, not {evidence['expected']} ({place})",
        evidence,
        {"rank": rank, **msgspec.to_builtins(difference)},
    )
    return _add_reruns(finding, difference.reruns) if difference.reruns else finding


def _add_reruns(finding: hv.Finding, reruns: Reruns) -> hv.Finding:
    text = reruns.describe()
    evidence = finding.evidence | {"reruns": text}
    return replace(finding, text=f"{finding.text}; {text}", evidence=evidence)


def _report_wrong_sum(part_id: str, job: TrainingJob, wrong: WrongSum, rank: int) -> hv.Finding:
    return hv.Finding(
        WITNESS_CODE,
        part_id,
        f"rank {rank} of {job.world} got {wrong.elements} wrong sums of gradients in "
        f"replay {wrong.replay}, step {wrong.step}",
        {
            "rank": str(rank),
            "replay": str(wrong.replay),
            "step": str(wrong.step),
            "wrong_elements": str(wrong.elements),
        },
        msgspec.to_builtins(wrong),
    )


def _report_contradiction(
    part_id: str, job: TrainingJob, difference: Difference, rank: int
) -> hv.Finding:
    code, _ = classify_difference(job, difference.what)
    evidence = {"rank": str(rank), **difference.to_evidence()}
    return hv.Finding(
        code,
        part_id,
        f"rank {rank} and rank 0 trained to different bits: {evidence['what']} is "
        f"{evidence['found']} on rank {rank}, and {evidence['expected']} on rank 0",
        evidence,
        msgspec.to_builtins(RankGradients(rank, difference.gradients)),
    )


def make_answer(ctx: hv.Context, job: TrainingJob, outcome: TrainingOutcome) -> hv.Finding:
    """Make the vote of this rank's first replay among all parts of its kind."""
    import torch

    shape = " ".join(f"{k}={v}" for k, v in msgspec.structs.asdict(job.shape).items())
    kind = vote.identify_kind(ctx.inventory, ctx.device.part)
    versions = f"torch {torch.__version__}, {job.dtype}, {shape}"
    answer = TrainingBallot(
        # With other batches a rank had another question to answer.
        group=f"{kind}, {versions}, batches {outcome.batches}",
        name="training",
        digest=outcome.digest,
        rank=ctx.rank,
        gradients=digest_gradients(outcome.first),
        batches=outcome.batches,
    )
    text = f"{job.steps} training steps in {job.dtype} have the digest {outcome.digest}"
    return vote.make_answer(ctx.device.part, text, answer)


def report_training(
    ctx: hv.Context, job: TrainingJob, outcome: TrainingOutcome
) -> Iterator[hv.CheckItem]:
    """Report the times of the steps, and what was exercised."""
    part_id = ctx.device.part
    # The ranks on a CPU are one part, with one peak.
    ranks = job.world if ctx.device.kind == "cpu" else 1
    yield from measure_steps(part_id, ranks * job.shape.tokens, outcome.steps)
    yield hv.Measurement("loss", read_loss(job, outcome), "", part_id)
    yield hv.Measurement("replays", outcome.replays, "", part_id)
    if peak := find_peak(ctx, job.dtype):
        typical = find_percentile([sum(step.values()) for step in outcome.steps], 0.5)
        rate = ranks * job.shape.operations / typical / GIGA
        yield hv.Measurement("mfu", rate / peak.value, "ratio", part_id)
        if peak.derived:
            yield hv.Measurement("peak_derived", peak.value, "GFLOP/s", part_id)
    yield hv.Coverage(part_id, describe_training(job, outcome))


def measure_steps(
    part_id: str, tokens: int, steps: Sequence[PhaseTimes]
) -> Iterator[hv.Measurement]:
    """Measure *steps* of *tokens* tokens each; leave out a phase that did not occur."""
    whole = [sum(step.values()) for step in steps]
    computed = [step[COMPUTE] for step in steps]
    typical = find_percentile(whole, 0.5)
    yield hv.Measurement("step_p50", typical * 1e3, "ms", part_id)
    yield hv.Measurement("step_p95", find_percentile(whole, 0.95) * 1e3, "ms", part_id)
    yield hv.Measurement("compute_p50", find_percentile(computed, 0.5) * 1e3, "ms", part_id)
    yield hv.Measurement("tokens", tokens / typical, "1/s", part_id)
    for phase in (COMPUTE, COMMUNICATION, INPUT):
        if any(phase in step for step in steps):
            spent = sum(step[phase] for step in steps)
            yield hv.Measurement(f"{phase}.share", spent / sum(whole), "ratio", part_id)


def read_loss(job: TrainingJob, outcome: TrainingOutcome) -> float:
    """Read the loss of a replay's last step from its bits."""
    bits = outcome.first[f"step {job.steps}: loss"] % 2**32
    value: float = struct.unpack("f", struct.pack("I", bits))[0]
    return value


def describe_training(job: TrainingJob, outcome: TrainingOutcome) -> str:
    """Describe what was exercised, and what error rate its success excludes."""
    shape, steps = job.shape, outcome.replays * job.steps
    text = (
        f"{job.dtype}: {outcome.replays} replays of {job.steps} training steps in "
        f"{outcome.seconds:.1f} s ({shape.layers} layers of {shape.hidden}, "
        f"{shape.parameters / 1e6:.3g} million parameters, {shape.tokens} tokens a "
        f"step), {len(outcome.first)} digests of each compared with the first"
    )
    if job.world > 1:
        sums = "every sum verified" if job.alike else "sums of different parts not verified"
        text += f"; {job.world} ranks by {job.backend}, {sums}"
    if outcome.difference or outcome.wrong_sum:
        return text
    rate = f"more than {compute_excluded_rate(outcome.seconds):.3g} wrong an hour"
    return f"{text}; {steps} steps: {rate} are excluded at 95 %"


def reconcile(items: Sequence[hv.JudgedItem], inventory: hv.Inventory) -> Iterator[hv.JudgedItem]:
    """Hold the vote; excuse wrong sums of gradients that were not the same."""
    merged = list(excuse_parts(merge_reruns(list(merge_lost_ranks(items, inventory)))))
    yield from report_misfed(merged, inventory)
    with_gradients = (f for f in merged if isinstance(f, hv.Finding) and "gradients" in f.data)
    ranks = [finding.data_as(RankGradients) for finding in with_gradients]
    gradients = {(rank.rank, rank.replay): rank.gradients for rank in ranks}
    sums: list[hv.Finding] = []
    for item in vote.reconcile(merged, inventory):
        if not isinstance(item, hv.Finding) or item.code != WITNESS_CODE:
            yield item
        elif had_unequal_gradients(item.data_as(WrongSum), gradients):
            yield explain(item, "not all ranks had the same gradients")
        else:
            sums.append(item)
    yield from attribute_wrong_sums(sums, read_place, inventory)


def excuse_parts(items: Iterable[hv.JudgedItem]) -> Iterator[hv.JudgedItem]:
    """Yield *items*, but fail no part for numbers that no part of the node keeps finite."""
    every = list(items)
    parts: dict[str, set[str]] = {}
    for item in every:
        if isinstance(item, hv.Finding):
            parts.setdefault(item.code, set()).add(item.part_id)
    excused = parts.get(hv.ANSWER_CODE, set()) <= parts.get(NOT_FINITE_CODE, set())
    for item in every:
        if excused and isinstance(item, hv.Finding) and item.code == NOT_FINITE_CODE:
            text = f"{item.text}, as all parts do: the library, or what they share, is wrong"
            yield replace(item, code=ALL_NOT_FINITE_CODE, text=text)
        else:
            yield item


def read_place(wrong: hv.Finding) -> tuple[int, int]:
    """Read in which replay and step of it a sum was *wrong*."""
    place = wrong.data_as(WrongSum)
    return place.replay, place.step


def merge_reruns(items: Iterable[hv.JudgedItem]) -> Iterator[hv.JudgedItem]:
    """Drop what was reported before the reruns, or say that there were none."""
    pairs = [
        (item, item.data_as(RankDifference))
        if isinstance(item, hv.Finding) and "reruns" in item.data
        else (item, None)
        for item in items
    ]
    # The reruns may have shown that another replay was wrong.
    again = {(d.rank, d.what) for _, d in pairs if d and d.reruns}
    for item, difference in pairs:
        if not isinstance(item, hv.Finding) or difference is None or difference.reruns:
            yield item
        elif (difference.rank, difference.what) not in again:
            yield _add_reruns(item, Reruns(error="the training ended first"))


def report_misfed(items: Iterable[hv.JudgedItem], inventory: hv.Inventory) -> Iterator[hv.Finding]:
    """Report that the host drew different batches from the same seed."""
    labels: dict[str, list[str]] = {}
    for item in items:
        if isinstance(item, hv.Finding) and item.code == hv.ANSWER_CODE:
            label = inventory.find_label(item.part_id)
            labels.setdefault(item.data_as(TrainingBallot).batches, []).append(label)
    if len(labels) > 1:
        groups = {batches: ", ".join(names) for batches, names in labels.items()}
        text = f"the host made different batches for {' and for '.join(groups.values())}"
        yield hv.Finding("misfed", vote.HOST, text, groups)


def had_unequal_gradients(
    wrong: WrongSum, gradients: Mapping[tuple[int, int], Sequence[str]]
) -> bool:
    """Whether *gradients*, by rank and replay, were unequal where a sum was *wrong*."""
    # A rank that reports nothing about that replay had the gradients of its first one. All
    # ranks had those, or their first sum would have been wrong.
    known = (0, wrong.replay)
    steps = [of_rank for (_, replay), of_rank in gradients.items() if replay in known]
    return len({of_rank[wrong.step - 1] for of_rank in steps}) > 1


CHECK = hv.Check(
    summary="a training step: the same bits each time and on all parts; its times",
    measure=measure,
    estimate=estimate,
    reconcile=reconcile,
    params=TrainingParams,
    metrics={
        "step_p50": hv.Metric("ms", "high", "median time of a training step").warn(of_baseline=1.4),
        "step_p95": hv.Metric("ms", "high", "95 % of steps take at most this").warn(
            of_baseline=1.6
        ),
        "compute_p50": hv.Metric(
            "ms", "high", "median time of forward, backward and optimizer"
        ).warn(of_siblings=1.1, source="hpcverify default: good GPUs of one node differ by 5 %"),
        "tokens": hv.Metric("1/s", "low", "tokens trained on by this part"),
        "compute.share": hv.Metric("ratio", "neither", "share of forward, backward and optimizer"),
        "communication.share": hv.Metric(
            "ratio", "neither", "share of summing gradients, with the wait for peers"
        ).warn(of_baseline=1.5),
        "input.share": hv.Metric("ratio", "neither", "share of waiting for the batch").warn(
            high=0.1, source="hpcverify default: a batch is small and ready before its turn"
        ),
        "mfu": hv.Metric("ratio", "low", "operations of the model / peak of the part"),
        "peak_derived": hv.Metric("GFLOP/s", "neither", "peak from cores, clock and vector width"),
        "stall": STALL,
        "loss": hv.Metric("", "neither", "cross entropy in the last step of a replay"),
        "replays": hv.Metric("", "low", "replays compared with the first"),
        "gradient_error": hv.Metric(
            "", "neither", "relative distance of gradients in fp32 from those in fp64, on a CPU"
        ).warn(
            high=MAX_GRADIENT_ERROR,
            source="hpcverify default: 20 times what fp32 rounds away on a good CPU",
        ),
    },
    finding_rules={
        **hv.fail_on("irreproducible", remedy=hv.Remedy.REPLACE, conclusive=True),
        **hv.fail_on("miscopied", conclusive=True),
        # Not conclusive: one core may have read or written it wrongly, once.
        **hv.fail_on("misfed"),
        # Not conclusive: a library may choose another kernel on one of several GPUs.
        **hv.fail_on(NOT_FINITE_CODE),
        **hv.error_on(ALL_NOT_FINITE_CODE, cause=hv.Cause.CHECKER),
        # No CPU library promises the same bits.
        **hv.warn_on("irreproducible_cpu"),
        **WRONG_SUM_RULES,
        hv.RANK_LOST_CODE: RANK_LOST_RULE,
        **{c: vote.PRODUCT_FINDING_RULES[c] for c in ("answer", "outvoted", "disagreement")},
    },
    placement=hv.Placement.DEVICES,
    timeout=300.0,
)
