"""
Train a small transformer from the same state again and again: the same bits each time?

Each replay of a few steps is compared bitwise with the first one: every batch, loss,
group of gradients and parameters by its digest (see `_training`). Beside products this
exercises softmax, norms, reductions, sums by index and integer atomics. And since it is
what nodes are there for, its times, shares and MFU are measurements of the node.

What rests on what:

- A part that errs now and then differs from its own first replay. On a GPU that is its
  fault: each operation is deterministic by torch's list, cuBLAS promises the same bits
  on one stream with one version and workspace, and nothing is tuned at run time.
- A part that errs every time agrees with itself. All GPUs of a node train on the same
  data, and those of one kind put the digests of their first replay to the vote.
- Gradients are summed over the ranks, as in data-parallel training, in a type in which
  the sum of equal values is exact: a wrong sum where all ranks have the same gradients
  is the link's. Each tells the digests of its gradients, so that this is known.
- On a CPU no library promises the same bits. They were the same in tens of thousands of
  replays with threads fixed and data aligned (``bench/training.py``), but a difference
  only warns: `sdc` has products for the cores that have but one right answer.
- Copies and sums of integers are exact on any part: there a difference is a fault. The
  host makes the batches of integers; what it makes wrong is not held against a GPU.

What differs is told at once, and after the reruns once more: `reconcile` leaves one of
the two. GPUs that are not alike train the same model in the same type, one that all of
them are able to. On a node without GPUs two processes are the ranks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from hpcverify.check import (
    Check,
    Context,
    JudgedItem,
    Metric,
    Params,
    Placement,
    Rule,
    Skip,
    Unable,
)
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Device,
    Finding,
    FindingRule,
    Inventory,
    Measurement,
    Remedy,
    Verdict,
)
from hpcverify_checks import _training, _vote
from hpcverify_checks._collective import RankGroup, exchange_messages
from hpcverify_checks._crowd import CpuUsage
from hpcverify_checks._peers import start_peers
from hpcverify_checks._stats import compute_excluded_rate, percentile
from hpcverify_checks._torch import find_torch_device, list_native_dtypes, report_overrides
from hpcverify_checks._training import (
    COMMUNICATION,
    COMPUTE,
    DEVICE_BATCH,
    GRADIENT_SCATTER,
    HARDWARE,
    HOST_BATCH,
    INITIAL_PARAMETERS,
    INPUT,
    RERUNS,
    WRONG_SUMS,
    Difference,
    PhaseTimes,
    TrainingJob,
    TrainingOutcome,
    TrainingSeams,
    digest_gradients,
    train,
)
from hpcverify_checks._transformer import Layout, ModelShape
from hpcverify_checks.gemm import find_peak

if TYPE_CHECKING:
    import torch

CPU_SHAPE = ModelShape(hidden=128, layers=2, heads=4, sequence=64, batch=4, vocabulary=512)
GPU_SHAPES = (
    ModelShape(hidden=2048, layers=8, heads=16, sequence=1024, batch=8, vocabulary=2**15),
    ModelShape(hidden=1024, layers=8, heads=16, sequence=1024, batch=4, vocabulary=2**14),
    ModelShape(hidden=512, layers=4, heads=8, sequence=512, batch=4, vocabulary=2**13),
)
"""The first that fits into the smallest of all parts."""
USABLE_SHARE = 0.75
"""The share of a GPU's whole memory that may be taken."""
BYTES_PER_PARAMETER = 40
"""fp32: at the beginning, now, two moments, the sum, and up to three temporaries of
the optimizer; weights and gradients in the job's type, up to fp32 themselves."""
TORCH_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
GIGA = 1e9
HOST_PART = "cpu"
CONTENDED_METRICS = ("step_*", "compute_p50", "*.share")
"""What is left out on a CPU that others use."""
RERUNS_PENDING = "no reruns yet"
RERUNS_IMPOSSIBLE = "reruns: not possible: the training ended before them"


class TrainingParams(Params, frozen=True):
    """How long to replay how many steps."""

    seconds: Annotated[float, Meta(gt=0)] = 8.0
    steps: Annotated[int, Meta(ge=1)] = 3
    """In a replay: the later ones depend on all that the earlier ones computed."""
    ranks: Annotated[int, Meta(ge=1)] = 2
    """Processes on a CPU; GPUs are one rank each."""
    shape: ModelShape | None = None
    """Of the model and a batch; what suits the part if it is not given."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """After which a rank that does not answer is taken for lost."""


def measure(
    ctx: Context, params: TrainingParams, seams: TrainingSeams = HARDWARE
) -> Iterator[CheckItem]:
    """Train on this device, together with its peers, and compare every replay."""
    gpus = [d for d in ctx.inventory.devices if d.kind == "cuda"]
    if ctx.device.kind == "cpu" and gpus:
        raise Skip("the GPUs of this node train instead")
    device = find_torch_device(ctx)
    yield from report_overrides(ctx)
    job = _build_job(ctx, params, device)
    told_by = _run_cpu_ranks if device.type == "cpu" else _run_one_rank
    crowd = CpuUsage.read() if device.type == "cpu" else None
    yield from report_outcomes(ctx, job, told_by(job, ctx.rank, device, seams), crowd)


class Offer(Struct, frozen=True):
    """What the part of a rank can do; memory in bytes."""

    label: str
    bf16: bool
    """Whether it computes that type natively."""
    memory: int
    free: int


def make_offer(label: str, device: torch.device) -> Offer:
    """Say what the GPU *device*, called *label*, can do."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return Offer(label, "bf16" in list_native_dtypes(device), total, free)


def agree_on_model(offers: Sequence[Offer], wanted: ModelShape | None) -> tuple[ModelShape, str]:
    """
    Choose model and type for all ranks: with unlike ones they would never meet.

    That is the *wanted* shape or the largest that the smallest part has the memory for,
    in bf16 if all compute it.

    Raises:
        Unable: A part has too little memory free; says so on every rank.

    """
    dtype = "bf16" if all(offer.bf16 for offer in offers) else "fp32"
    total = min(offer.memory for offer in offers)
    shape = wanted or choose_shape(dtype, total)
    needed = estimate_memory(shape, dtype)
    short = [f"{o.free / 2**30:.1f} on {o.label}" for o in offers if o.free < needed]
    if short:
        raise Unable(
            f"{needed / 2**30:.1f} GiB of GPU memory are needed and fewer are free "
            f"({', '.join(short)}): end the processes that nvidia-smi lists",
            Cause.NO_SPACE,
        )
    return shape, dtype


def choose_shape(dtype: str, total: int) -> ModelShape:
    """Choose the largest model that *total* bytes of a GPU's memory are enough for."""
    fitting = (s for s in GPU_SHAPES if estimate_memory(s, dtype) <= USABLE_SHARE * total)
    return next(fitting, GPU_SHAPES[-1])


def estimate_memory(shape: ModelShape, dtype: str) -> int:
    """Estimate the bytes that training takes, from above."""
    width = {"bf16": 2, "fp32": 4}[dtype]
    return BYTES_PER_PARAMETER * Layout(shape).size + shape.estimate_activations(width)


def exchange_offers(group: RankGroup, rank: int, own: Offer) -> list[Offer]:
    """Tell the other ranks what this one's part can do, and be told of theirs."""
    told = exchange_messages(group, rank, "offer", msgspec.json.encode(own))
    return [msgspec.json.decode(word, type=Offer) for word in told]


def _build_job(ctx: Context, params: TrainingParams, device: torch.device) -> TrainingJob:
    import torch

    on_cpu = device.type == "cpu"
    world = params.ranks if on_cpu else len(ctx.peers)
    backend = "gloo" if on_cpu else "nccl"
    group = RankGroup(str(ctx.shared), world, backend, params.timeout_seconds)
    if on_cpu:
        shape, dtype = params.shape or CPU_SHAPE, "fp32"
    else:
        own = make_offer(ctx.device.label, device)
        shape, dtype = agree_on_model(exchange_offers(group, ctx.rank, own), params.shape)
    return TrainingJob(
        **msgspec.structs.asdict(group),
        shape=shape,
        dtype=TORCH_DTYPES[dtype],
        steps=params.steps,
        seconds=params.seconds,
        seed=ctx.seed,
        threads=max(1, torch.get_num_threads() // world),
        alike=len({identify_kind(ctx.inventory, peer) for peer in ctx.peers}) == 1,
    )


def identify_kind(inventory: Inventory, device: Device) -> str:
    """Say what has to be the same of two parts that are to compute the same bits."""
    part = next((p for p in inventory.parts if p.id == device.part), None)
    facts = part.facts if part else {}
    said = (facts.get(key, "") for key in ("name", "pci_device_id", "driver", "memory"))
    return " ".join((device.kind, *filter(None, said)))


def _run_one_rank(
    job: TrainingJob, rank: int, device: torch.device, seams: TrainingSeams
) -> Iterator[tuple[int, TrainingOutcome]]:
    """Be one rank; the others are other workers, which tell for themselves."""
    yield from ((rank, known) for known in train(job, rank, device, seams))


def _run_cpu_ranks(
    job: TrainingJob, rank: int, device: torch.device, seams: TrainingSeams
) -> Iterator[tuple[int, TrainingOutcome]]:
    """Be the first rank; the others are processes that are told what to do."""
    with start_peers(job, _training.__name__) as others:
        try:
            yield from _run_one_rank(job, rank, device, seams)
            yield from ((other.rank, other.wait_for_result(TrainingOutcome)) for other in others)
        except (RuntimeError, Unable):  # one is lost: what it had seen is not
            for other in others:
                yield from (
                    (other.rank, known) for known in other.read_results(TrainingOutcome)[-1:]
                )
            raise


def report_outcomes(
    ctx: Context,
    job: TrainingJob,
    outcomes: Iterable[tuple[int, TrainingOutcome]],
    usage: CpuUsage | None = None,
) -> Iterator[CheckItem]:
    """Yield at once what is new in what ranks *told*; at last, this rank's times."""
    last: dict[int, TrainingOutcome] = {}
    said: list[Finding] = []
    for rank, outcome in outcomes:
        last[rank] = outcome
        news = [f for f in find_differences(ctx, job, rank, last) if f not in said]
        said += news
        yield from news
    numbers = report_training(ctx, job, last[ctx.rank])
    yield from usage.omit_if_busy(CONTENDED_METRICS, numbers) if usage else numbers


def find_differences(
    ctx: Context, job: TrainingJob, rank: int, last: Mapping[int, TrainingOutcome]
) -> Iterator[Finding]:
    """Yield what *rank* saw differ: from its first replay, a peer, the exact sum."""
    outcome, mine = last[rank], last.get(ctx.rank)
    yield from _report_difference(ctx.device.part, job, outcome, rank)
    yield from _report_wrong_sum(ctx.device.part, job, outcome, rank)
    if rank == ctx.rank:
        yield make_answer(ctx, job, outcome)
    # The ranks on a CPU are one part, which does not vote with itself.
    elif mine and mine.digest != outcome.digest:
        yield _report_contradiction(ctx.device.part, job, (mine, outcome), rank)


def choose_code(job: TrainingJob, what: str) -> str:
    """Name the finding that *what* was the first digest to differ."""
    if what.endswith(HOST_BATCH):
        return "misfed"
    if locate_fault(what) != "compute":
        return "miscopied"
    exact = what.endswith(GRADIENT_SCATTER)  # integers, of gradients that do not differ
    return "irreproducible" if job.backend == "nccl" or exact else "irreproducible_cpu"


def _report_difference(
    where: str, job: TrainingJob, outcome: TrainingOutcome, rank: int
) -> Iterator[Finding]:
    one = outcome.difference
    if one is None:
        return
    code, reruns = choose_code(job, one.what), describe_reruns(one)
    expected, found = format_hex(one.expected), format_hex(one.found)
    others = "the first" if one.replay else "all others"
    yield Finding(
        code,
        HOST_PART if code == "misfed" else where,
        f"replay {one.replay} of {job.steps} training steps is not bitwise {others} on "
        f"rank {rank}: {one.what} is {found}, not {expected} ({locate_fault(one.what)}, "
        f"{reruns})",
        {
            "rank": str(rank),
            "dtype": job.dtype,
            "replay": str(one.replay),
            "what": one.what,
            "expected": expected,
            "found": found,
            "digests": f"{one.digests} of {len(outcome.first)} differ",
            "place": locate_fault(one.what),
            "reruns": reruns,
            "gradients": " ".join(one.gradients),
        },
    )


def describe_reruns(difference: Difference) -> str:
    """Say what became of the reruns after a *difference*."""
    if difference.again is None:
        return RERUNS_PENDING
    kind = "persistent" if difference.again == RERUNS else "intermittent"
    return f"{kind}: {difference.again} of {RERUNS} reruns differ"


def locate_fault(what: str) -> str:
    """Say what lies behind the digest that differs first: nothing else is wrong yet."""
    if what.endswith(HOST_BATCH):
        return "arithmetic or memory of the host"
    if what == INITIAL_PARAMETERS:
        return "memory"
    return "transfer to the device" if what.endswith(DEVICE_BATCH) else "compute"


def format_hex(digest: int) -> str:
    """Print a signed 64-bit *digest*."""
    return f"{digest % 2**64:#018x}"


def _report_wrong_sum(
    where: str, job: TrainingJob, outcome: TrainingOutcome, rank: int
) -> Iterator[Finding]:
    wrong = outcome.wrong_sum
    if wrong is None:
        return
    yield Finding(
        "wrong_sum",
        where,
        f"rank {rank} of {job.world} got {wrong.elements} wrong sums of gradients in "
        f"replay {wrong.replay}, {wrong.what.removesuffix(f': {WRONG_SUMS}')}",
        {
            "rank": str(rank),
            "replay": str(wrong.replay),
            "step": wrong.what.removesuffix(f": {WRONG_SUMS}").removeprefix("step "),
            "wrong_elements": str(wrong.elements),
        },
    )


def _report_contradiction(
    where: str, job: TrainingJob, outcomes: tuple[TrainingOutcome, TrainingOutcome], rank: int
) -> Finding:
    """Say in what the second of two *outcomes*, that of *rank*, is not the first's."""
    mine, other = outcomes
    what = next(
        name
        for name, value in mine.first.items()
        if value != other.first[name] and not name.endswith(WRONG_SUMS)
    )
    expected, found = format_hex(mine.first[what]), format_hex(other.first[what])
    return Finding(
        choose_code(job, what),
        where,
        f"rank {rank} trained to other bits than rank 0: {what} is {found}, and "
        f"{expected} on rank 0",
        {
            "rank": str(rank),
            "what": what,
            "expected": expected,
            "found": found,
            "gradients": " ".join(digest_gradients(other.first)),
        },
    )


def make_answer(ctx: Context, job: TrainingJob, outcome: TrainingOutcome) -> Finding:
    """Put the first replay to the vote of all parts of the same kind."""
    import torch

    shape = " ".join(f"{k}={v}" for k, v in _list_fields(job.shape))
    kind = identify_kind(ctx.inventory, ctx.device)
    versions = f"torch {torch.__version__}, {job.dtype}, {shape}"
    return Finding(
        "answer",
        ctx.device.part,
        f"{job.steps} training steps in {job.dtype} have the digest {outcome.digest}",
        {
            "name": "training",
            # Who was fed something else was asked something else.
            "group": f"{kind}, {versions}, batches {outcome.batches}",
            "digest": outcome.digest,
            "rank": str(ctx.rank),
            "batches": outcome.batches,
            "gradients": " ".join(digest_gradients(outcome.first)),
        },
    )


def _list_fields(shape: ModelShape) -> Iterator[tuple[str, int]]:
    yield from ((name, getattr(shape, name)) for name in shape.__struct_fields__)


def report_training(
    ctx: Context, job: TrainingJob, outcome: TrainingOutcome
) -> Iterator[CheckItem]:
    """Turn the times of the steps into measurements, and say what was exercised."""
    where = ctx.device.part
    # The ranks on a CPU are one part, with one peak.
    ranks = job.world if ctx.device.kind == "cpu" else 1
    yield from measure_steps(where, ranks * job.shape.tokens, outcome.steps)
    yield Measurement("loss", read_loss(job, outcome), "", where)
    yield Measurement("replays", outcome.replays, "", where)
    yield from _measure_utilization(ctx, job, outcome, ranks)
    yield Coverage(where, describe_training(job, outcome))


def measure_steps(where: str, tokens: int, steps: Sequence[PhaseTimes]) -> Iterator[Measurement]:
    """Measure *steps* of so many *tokens*; a phase that was not there is left out."""
    whole = [sum(step.values()) for step in steps]
    computed = [step[COMPUTE] for step in steps]
    typical = percentile(whole, 0.5)
    yield Measurement("step_p50", typical * 1e3, "ms", where)
    yield Measurement("step_p95", percentile(whole, 0.95) * 1e3, "ms", where)
    yield Measurement("compute_p50", percentile(computed, 0.5) * 1e3, "ms", where)
    yield Measurement("tokens", tokens / typical, "1/s", where)
    for phase in (COMPUTE, COMMUNICATION, INPUT):
        if any(phase in step for step in steps):
            spent = sum(step[phase] for step in steps)
            yield Measurement(f"{phase}.share", spent / sum(whole), "ratio", where)


def _measure_utilization(
    ctx: Context, job: TrainingJob, outcome: TrainingOutcome, ranks: int
) -> Iterator[Measurement]:
    dtype = next(name for name, torchs in TORCH_DTYPES.items() if torchs == job.dtype)
    peak = find_peak(ctx, dtype)
    if peak is None:
        return
    typical = percentile([sum(step.values()) for step in outcome.steps], 0.5)
    rate = ranks * job.shape.operations / typical / GIGA
    yield Measurement("mfu", rate / peak.value, "ratio", ctx.device.part)
    if peak.derived:
        yield Measurement("peak_derived", peak.value, "GFLOP/s", ctx.device.part)


def read_loss(job: TrainingJob, outcome: TrainingOutcome) -> float:
    """Read the loss of the last step of a replay out of its bits."""
    bits = outcome.first[f"step {job.steps}: loss"] % 2**32
    value: float = struct.unpack("f", struct.pack("I", bits))[0]
    return value


def describe_training(job: TrainingJob, outcome: TrainingOutcome) -> str:
    """Say in words what was exercised, and what no difference in it excludes."""
    shape, steps = job.shape, outcome.replays * job.steps
    text = (
        f"{job.dtype}: {outcome.replays} replays of {job.steps} training steps in "
        f"{outcome.seconds:.1f} s ({shape.layers} layers of {shape.hidden}, "
        f"{Layout(shape).size / 1e6:.3g} million parameters, {shape.tokens} tokens a "
        f"step), {len(outcome.first)} digests of each compared with the first"
    )
    if job.world > 1:
        sums = "every sum verified" if job.alike else "sums of unlike parts not verified"
        text += f"; {job.world} ranks by {job.backend}, {sums}"
    if outcome.difference or outcome.wrong_sum:
        return text
    rate = f"more than {compute_excluded_rate(outcome.seconds):.3g} wrong an hour"
    return f"{text}; {steps} steps: {rate} are excluded at 95 %"


def reconcile(found: Sequence[JudgedItem], inventory: Inventory) -> Iterator[JudgedItem]:
    """Put answers to the vote; excuse sums of gradients that were not the same."""
    known = list(settle_reruns(found))
    yield from accuse_host(known, inventory)
    had = collect_gradients(known)
    for item in _vote.reconcile(known, inventory):
        if (
            isinstance(item, Finding)
            and item.code == "wrong_sum"
            and had_unequal_gradients(item, had)
        ):
            text = f"{item.text}: not all ranks had the same gradients"
            yield replace(item, code="sum_of_wrong", text=text)
        else:
            yield item


def settle_reruns(found: Iterable[JudgedItem]) -> Iterator[JudgedItem]:
    """Leave out what was said before the reruns, or say that there were none."""
    items = list(found)
    facts = [item for item in items if isinstance(item, Finding)]
    again = {
        _identify_event(f)
        for f in facts
        if f.evidence.get("reruns", RERUNS_PENDING) != RERUNS_PENDING
    }
    for item in items:
        if not isinstance(item, Finding) or item.evidence.get("reruns") != RERUNS_PENDING:
            yield item
        elif _identify_event(item) not in again:
            yield replace(
                item,
                text=item.text.replace(RERUNS_PENDING, RERUNS_IMPOSSIBLE),
                evidence={**item.evidence, "reruns": RERUNS_IMPOSSIBLE},
            )


def _identify_event(fact: Finding) -> tuple[str, ...]:
    names = ("rank", "what")  # after reruns it may be another replay that was wrong
    return (fact.code, fact.where, *(fact.evidence[name] for name in names))


def accuse_host(found: Iterable[JudgedItem], inventory: Inventory) -> Iterator[Finding]:
    """Accuse the host if it has drawn different batches from the one seed."""
    fed: dict[str, list[str]] = {}
    for item in found:
        if isinstance(item, Finding) and item.code == "answer":
            label = inventory.find_label(item.where)
            fed.setdefault(item.evidence["batches"], []).append(label)
    if len(fed) > 1:
        groups = {batches: ", ".join(labels) for batches, labels in fed.items()}
        text = " and others for ".join(groups.values())
        yield Finding("misfed", HOST_PART, f"the host made batches for {text}", groups)


Gradients = Mapping[tuple[str, str], Sequence[str]]
"""Digests of the gradients of each step, by rank and replay."""


def collect_gradients(found: Iterable[JudgedItem]) -> Gradients:
    """Tell which gradients ranks had in the first replay and in one that differed."""
    facts = [item.evidence for item in found if isinstance(item, Finding)]
    return {
        (told["rank"], told.get("replay", "0")): told["gradients"].split()
        for told in facts
        if "gradients" in told
    }


def had_unequal_gradients(wrong: Finding, had: Gradients) -> bool:
    """Whether ranks had unequal gradients at the step and replay of a *wrong* sum."""
    step = int(wrong.evidence["step"]) - 1
    # A rank that says nothing of that replay had the gradients of its first one, which
    # were those of all ranks, or their sum would have been wrong then.
    told = ("0", wrong.evidence["replay"])
    return len({steps[step] for (_, number), steps in had.items() if number in told}) > 1


CHECK = Check(
    summary="a training step: the same bits each time and on all parts; its times",
    measure=measure,
    reconcile=reconcile,
    params=TrainingParams,
    metrics={
        "step_p50": Metric(unit="ms", meaning="median time of a training step"),
        "step_p95": Metric(unit="ms", meaning="95 % of steps take at most this"),
        "compute_p50": Metric(unit="ms", meaning="median time of forward, backward and optimizer"),
        "tokens": Metric(unit="1/s", meaning="tokens trained on by this part"),
        "compute.share": Metric(unit="ratio", meaning="share of forward, backward and optimizer"),
        "communication.share": Metric(
            unit="ratio", meaning="share of summing gradients, waiting for peers too"
        ),
        "input.share": Metric(
            unit="ratio", meaning="share of waiting for the batch to be on the device"
        ),
        "mfu": Metric(unit="ratio", meaning="operations of the model / peak of the part"),
        "peak_derived": Metric(unit="GFLOP/s", meaning="peak from cores, clock and vector width"),
        "loss": Metric(unit="", meaning="cross entropy in the last step of a replay"),
        "replays": Metric(unit="", meaning="replays compared with the first"),
    },
    rules={
        "compute_p50": Rule(
            of_siblings=1.1,
            otherwise=Verdict.WARN,
            optional=True,
            source="hpcverify default: good GPUs of one node differ by 5 %",
        ),
        "step_p50": Rule(of_baseline=1.4, otherwise=Verdict.WARN, optional=True),
        "step_p95": Rule(of_baseline=1.6, otherwise=Verdict.WARN, optional=True),
        "communication.share": Rule(of_baseline=1.5, otherwise=Verdict.WARN, optional=True),
        "input.share": Rule(
            high=0.1,
            otherwise=Verdict.WARN,
            optional=True,
            source="hpcverify default: a batch is some numbers, ready before its turn",
        ),
    },
    finding_rules={
        "irreproducible": FindingRule(Verdict.FAIL, Remedy.REPLACE, hard=True),
        "miscopied": FindingRule(Verdict.FAIL, Remedy.INSPECT, hard=True),
        "misfed": FindingRule(Verdict.FAIL, Remedy.INSPECT, hard=True),
        # Of a CPU's libraries nobody promises the same bits.
        "irreproducible_cpu": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "outvoted": FindingRule(Verdict.FAIL, Remedy.REPLACE, hard=True),
        "disagreement": FindingRule(Verdict.ERROR, Remedy.RERUN, Cause.NOISY),
        "wrong_sum": FindingRule(Verdict.FAIL, Remedy.INSPECT, hard=True),
        "sum_of_wrong": FindingRule(Verdict.PASS, Remedy.NONE),
        "answer": FindingRule(Verdict.PASS, Remedy.NONE),
    },
    placement=Placement.DEVICES,
    timeout=300.0,
)
