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
    Judged,
    Metric,
    Params,
    Placement,
    Rule,
    Skip,
    Unable,
)
from hpcverify.model import (
    Cause,
    Covered,
    Device,
    Finding,
    Found,
    Inventory,
    Measurement,
    Remedy,
    Ruling,
    Verdict,
)
from hpcverify_checks import _training, _vote
from hpcverify_checks._collective import Group, exchanged
from hpcverify_checks._crowd import Crowd
from hpcverify_checks._peers import peers
from hpcverify_checks._stats import excluded, percentile
from hpcverify_checks._torch import dtypes_of, overrides_told, torch_device
from hpcverify_checks._training import (
    BATCH,
    BEGINNING,
    COMMUNICATION,
    COMPUTE,
    HARDWARE,
    HOST,
    INPUT,
    RERUNS,
    SCATTER,
    WRONG_SUMS,
    Difference,
    Outcome,
    Seams,
    Times,
    Training,
    gradients_of,
    train,
)
from hpcverify_checks._transformer import Layout, Shape
from hpcverify_checks.gemm import peak_of

if TYPE_CHECKING:
    import torch

CPU_SHAPE = Shape(hidden=128, layers=2, heads=4, sequence=64, batch=4, vocabulary=512)
GPU_SHAPES = (
    Shape(hidden=2048, layers=8, heads=16, sequence=1024, batch=8, vocabulary=2**15),
    Shape(hidden=1024, layers=8, heads=16, sequence=1024, batch=4, vocabulary=2**14),
    Shape(hidden=512, layers=4, heads=8, sequence=512, batch=4, vocabulary=2**13),
)
"""The first that fits into the smallest of all parts."""
USABLE = 0.75
"""The share of a GPU's whole memory that may be taken."""
BYTES_PER_PARAMETER = 40
"""fp32: at the beginning, now, two moments, the sum, and up to three temporaries of
the optimizer; weights and gradients in the job's type, up to fp32 themselves."""
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
GIGA = 1e9
HOST_PART = "cpu"
TIMES = ("step_*", "compute_p50", "*.share")
"""What is left out on a CPU that others use."""
PENDING = "no reruns yet"
IMPOSSIBLE = "reruns: not possible: the training ended before them"


class TrainingParams(Params, frozen=True):
    """How long to replay how many steps."""

    seconds: Annotated[float, Meta(gt=0)] = 8.0
    steps: Annotated[int, Meta(ge=1)] = 3
    """In a replay: the later ones depend on all that the earlier ones computed."""
    ranks: Annotated[int, Meta(ge=1)] = 2
    """Processes on a CPU; GPUs are one rank each."""
    shape: Shape | None = None
    """Of the model and a batch; what suits the part if it is not given."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """After which a rank that does not answer is taken for lost."""


def measure(
    ctx: Context, params: TrainingParams, seams: Seams = HARDWARE
) -> Iterator[Found]:
    """Train on this device, together with its peers, and compare every replay."""
    gpus = [d for d in ctx.inventory.devices if d.kind == "cuda"]
    if ctx.device.kind == "cpu" and gpus:
        raise Skip("the GPUs of this node train instead")
    device = torch_device(ctx)
    yield from overrides_told(ctx)
    job = _job(ctx, params, device)
    told_by = _on_cpu if device.type == "cpu" else _as_one
    crowd = Crowd.now() if device.type == "cpu" else None
    yield from reported(ctx, job, told_by(job, ctx.rank, device, seams), crowd)


class Offer(Struct, frozen=True):
    """What the part of a rank can do; memory in bytes."""

    label: str
    bf16: bool
    """Whether it computes that type natively."""
    memory: int
    free: int


def offer_of(label: str, device: torch.device) -> Offer:
    """Say what the GPU *device*, called *label*, can do."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return Offer(label, "bf16" in dtypes_of(device), total, free)


def agreed(offers: Sequence[Offer], wanted: Shape | None) -> tuple[Shape, str]:
    """
    Choose model and type for all ranks: with unlike ones they would never meet.

    That is the *wanted* shape or the largest that the smallest part has the memory for,
    in bf16 if all compute it.

    Raises:
        Unable: A part has too little memory free; says so on every rank.

    """
    dtype = "bf16" if all(offer.bf16 for offer in offers) else "fp32"
    total = min(offer.memory for offer in offers)
    shape = wanted or shape_for(dtype, total)
    needed = memory(shape, dtype)
    short = [f"{o.free / 2**30:.1f} on {o.label}" for o in offers if o.free < needed]
    if short:
        raise Unable(
            f"{needed / 2**30:.1f} GiB of GPU memory are needed and fewer are free "
            f"({', '.join(short)}): end the processes that nvidia-smi lists",
            Cause.NO_SPACE,
        )
    return shape, dtype


def shape_for(dtype: str, total: int) -> Shape:
    """Choose the largest model that *total* bytes of a GPU's memory are enough for."""
    fitting = (s for s in GPU_SHAPES if memory(s, dtype) <= USABLE * total)
    return next(fitting, GPU_SHAPES[-1])


def memory(shape: Shape, dtype: str) -> int:
    """Estimate the bytes that training takes, from above."""
    width = {"bf16": 2, "fp32": 4}[dtype]
    return BYTES_PER_PARAMETER * Layout(shape).size + shape.activations(width)


def exchange(group: Group, rank: int, own: Offer) -> list[Offer]:
    """Tell the other ranks what this one's part can do, and be told of theirs."""
    told = exchanged(group, rank, "offer", msgspec.json.encode(own))
    return [msgspec.json.decode(word, type=Offer) for word in told]


def _job(ctx: Context, params: TrainingParams, device: torch.device) -> Training:
    import torch

    on_cpu = device.type == "cpu"
    world = params.ranks if on_cpu else len(ctx.peers)
    backend = "gloo" if on_cpu else "nccl"
    group = Group(str(ctx.shared), world, backend, params.timeout_seconds)
    if on_cpu:
        shape, dtype = params.shape or CPU_SHAPE, "fp32"
    else:
        own = offer_of(ctx.device.label, device)
        shape, dtype = agreed(exchange(group, ctx.rank, own), params.shape)
    return Training(
        **msgspec.structs.asdict(group),
        shape=shape,
        dtype=DTYPES[dtype],
        steps=params.steps,
        seconds=params.seconds,
        seed=ctx.seed,
        threads=max(1, torch.get_num_threads() // world),
        alike=len({kind_of(ctx.inventory, peer) for peer in ctx.peers}) == 1,
    )


def kind_of(inventory: Inventory, device: Device) -> str:
    """Say what has to be the same of two parts that are to compute the same bits."""
    part = next((p for p in inventory.parts if p.id == device.part), None)
    facts = part.facts if part else {}
    said = (facts.get(key, "") for key in ("name", "pci_device_id", "driver", "memory"))
    return " ".join((device.kind, *filter(None, said)))


def _as_one(
    job: Training, rank: int, device: torch.device, seams: Seams
) -> Iterator[tuple[int, Outcome]]:
    """Be one rank; the others are other workers, which tell for themselves."""
    yield from ((rank, known) for known in train(job, rank, device, seams))


def _on_cpu(
    job: Training, rank: int, device: torch.device, seams: Seams
) -> Iterator[tuple[int, Outcome]]:
    """Be the first rank; the others are processes that are told what to do."""
    with peers(job, _training.__name__) as others:
        try:
            yield from _as_one(job, rank, device, seams)
            yield from ((other.rank, other.result(Outcome)) for other in others)
        except (RuntimeError, Unable):  # one is lost: what it had seen is not
            for other in others:
                yield from ((other.rank, known) for known in other.told(Outcome)[-1:])
            raise


def reported(
    ctx: Context,
    job: Training,
    told: Iterable[tuple[int, Outcome]],
    crowd: Crowd | None = None,
) -> Iterator[Found]:
    """Yield at once what is new in what ranks *told*; at last, this rank's times."""
    last: dict[int, Outcome] = {}
    said: list[Finding] = []
    for rank, outcome in told:
        last[rank] = outcome
        news = [f for f in found_by(ctx, job, rank, last) if f not in said]
        said += news
        yield from news
    numbers = described(ctx, job, last[ctx.rank])
    yield from crowd.without(TIMES, numbers) if crowd else numbers


def found_by(
    ctx: Context, job: Training, rank: int, last: Mapping[int, Outcome]
) -> Iterator[Finding]:
    """Yield what *rank* saw differ: from its first replay, a peer, the exact sum."""
    outcome, mine = last[rank], last.get(ctx.rank)
    yield from _differing(ctx.device.part, job, outcome, rank)
    yield from _missummed(ctx.device.part, job, outcome, rank)
    if rank == ctx.rank:
        yield answer(ctx, job, outcome)
    # The ranks on a CPU are one part, which does not vote with itself.
    elif mine and mine.digest != outcome.digest:
        yield _contradiction(ctx.device.part, job, (mine, outcome), rank)


def code_of(job: Training, what: str) -> str:
    """Name the finding that *what* was the first digest to differ."""
    if what.endswith(HOST):
        return "misfed"
    if place(what) != "compute":
        return "miscopied"
    exact = what.endswith(SCATTER)  # integers, of gradients that do not differ
    return "irreproducible" if job.backend == "nccl" or exact else "irreproducible_cpu"


def _differing(
    where: str, job: Training, outcome: Outcome, rank: int
) -> Iterator[Finding]:
    one = outcome.difference
    if one is None:
        return
    code, reruns = code_of(job, one.what), rerun(one)
    expected, found = hexadecimal(one.expected), hexadecimal(one.found)
    others = "the first" if one.replay else "all others"
    yield Finding(
        code,
        HOST_PART if code == "misfed" else where,
        f"replay {one.replay} of {job.steps} training steps is not bitwise {others} on "
        f"rank {rank}: {one.what} is {found}, not {expected} ({place(one.what)}, "
        f"{reruns})",
        {
            "rank": str(rank),
            "dtype": job.dtype,
            "replay": str(one.replay),
            "what": one.what,
            "expected": expected,
            "found": found,
            "digests": f"{one.digests} of {len(outcome.first)} differ",
            "place": place(one.what),
            "reruns": reruns,
            "gradients": " ".join(one.gradients),
        },
    )


def rerun(difference: Difference) -> str:
    """Say what became of the reruns after a *difference*."""
    if difference.again is None:
        return PENDING
    kind = "persistent" if difference.again == RERUNS else "intermittent"
    return f"{kind}: {difference.again} of {RERUNS} reruns differ"


def place(what: str) -> str:
    """Say what lies behind the digest that differs first: nothing else is wrong yet."""
    if what.endswith(HOST):
        return "arithmetic or memory of the host"
    if what == BEGINNING:
        return "memory"
    return "transfer to the device" if what.endswith(BATCH) else "compute"


def hexadecimal(digest: int) -> str:
    """Print a signed 64-bit *digest*."""
    return f"{digest % 2**64:#018x}"


def _missummed(
    where: str, job: Training, outcome: Outcome, rank: int
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


def _contradiction(
    where: str, job: Training, outcomes: tuple[Outcome, Outcome], rank: int
) -> Finding:
    """Say in what the second of two *outcomes*, that of *rank*, is not the first's."""
    mine, other = outcomes
    what = next(
        name
        for name, value in mine.first.items()
        if value != other.first[name] and not name.endswith(WRONG_SUMS)
    )
    expected, found = hexadecimal(mine.first[what]), hexadecimal(other.first[what])
    return Finding(
        code_of(job, what),
        where,
        f"rank {rank} trained to other bits than rank 0: {what} is {found}, and "
        f"{expected} on rank 0",
        {
            "rank": str(rank),
            "what": what,
            "expected": expected,
            "found": found,
            "gradients": " ".join(gradients_of(other.first)),
        },
    )


def answer(ctx: Context, job: Training, outcome: Outcome) -> Finding:
    """Put the first replay to the vote of all parts of the same kind."""
    import torch

    shape = " ".join(f"{k}={v}" for k, v in _fields(job.shape))
    kind = kind_of(ctx.inventory, ctx.device)
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
            "gradients": " ".join(gradients_of(outcome.first)),
        },
    )


def _fields(shape: Shape) -> Iterator[tuple[str, int]]:
    yield from ((name, getattr(shape, name)) for name in shape.__struct_fields__)


def described(ctx: Context, job: Training, outcome: Outcome) -> Iterator[Found]:
    """Turn the times of the steps into measurements, and say what was exercised."""
    where = ctx.device.part
    # The ranks on a CPU are one part, with one peak.
    ranks = job.world if ctx.device.kind == "cpu" else 1
    yield from numbers(where, ranks * job.shape.tokens, outcome.steps)
    yield Measurement("loss", loss(job, outcome), "", where)
    yield Measurement("replays", outcome.replays, "", where)
    yield from _utilization(ctx, job, outcome, ranks)
    yield Covered(where, said(job, outcome))


def numbers(where: str, tokens: int, steps: Sequence[Times]) -> Iterator[Measurement]:
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


def _utilization(
    ctx: Context, job: Training, outcome: Outcome, ranks: int
) -> Iterator[Measurement]:
    dtype = next(name for name, torchs in DTYPES.items() if torchs == job.dtype)
    peak = peak_of(ctx, dtype)
    if peak is None:
        return
    typical = percentile([sum(step.values()) for step in outcome.steps], 0.5)
    rate = ranks * job.shape.operations / typical / GIGA
    yield Measurement("mfu", rate / peak.value, "ratio", ctx.device.part)
    if peak.derived:
        yield Measurement("peak_derived", peak.value, "GFLOP/s", ctx.device.part)


def loss(job: Training, outcome: Outcome) -> float:
    """Read the loss of the last step of a replay out of its bits."""
    bits = outcome.first[f"step {job.steps}: loss"] % 2**32
    value: float = struct.unpack("f", struct.pack("I", bits))[0]
    return value


def said(job: Training, outcome: Outcome) -> str:
    """Say in words what was exercised, and what no difference in it excludes."""
    shape, steps = job.shape, outcome.replays * job.steps
    text = (
        f"{job.dtype}: {outcome.replays} replays of {job.steps} training steps in "
        f"{outcome.seconds:.1f} s ({shape.layers} layers of {shape.hidden}, "
        f"{Layout(shape).size / 1e6:.3g} million parameters, {shape.tokens} tokens a "
        f"step), {len(outcome.first)} digests of each compared with the first"
    )
    if job.world > 1:
        sums = (
            "every sum verified" if job.alike else "sums of unlike parts not verified"
        )
        text += f"; {job.world} ranks by {job.backend}, {sums}"
    if outcome.difference or outcome.wrong_sum:
        return text
    rate = f"more than {excluded(outcome.seconds):.3g} wrong an hour"
    return f"{text}; {steps} steps: {rate} are excluded at 95 %"


def reconcile(found: Sequence[Judged], inventory: Inventory) -> Iterator[Judged]:
    """Put answers to the vote; excuse sums of gradients that were not the same."""
    known = list(settled(found))
    yield from misfed(known, inventory)
    had = gradients_by_rank(known)
    for item in _vote.reconcile(known, inventory):
        if (
            isinstance(item, Finding)
            and item.code == "wrong_sum"
            and unequal(item, had)
        ):
            text = f"{item.text}: not all ranks had the same gradients"
            yield replace(item, code="sum_of_wrong", text=text)
        else:
            yield item


def settled(found: Iterable[Judged]) -> Iterator[Judged]:
    """Leave out what was said before the reruns, or say that there were none."""
    items = list(found)
    facts = [item for item in items if isinstance(item, Finding)]
    again = {_event(f) for f in facts if f.evidence.get("reruns", PENDING) != PENDING}
    for item in items:
        if not isinstance(item, Finding) or item.evidence.get("reruns") != PENDING:
            yield item
        elif _event(item) not in again:
            yield replace(
                item,
                text=item.text.replace(PENDING, IMPOSSIBLE),
                evidence={**item.evidence, "reruns": IMPOSSIBLE},
            )


def _event(fact: Finding) -> tuple[str, ...]:
    names = ("rank", "what")  # after reruns it may be another replay that was wrong
    return (fact.code, fact.where, *(fact.evidence[name] for name in names))


def misfed(found: Iterable[Judged], inventory: Inventory) -> Iterator[Finding]:
    """Accuse the host if it has drawn different batches from the one seed."""
    fed: dict[str, list[str]] = {}
    for item in found:
        if isinstance(item, Finding) and item.code == "answer":
            label = inventory.label(item.where)
            fed.setdefault(item.evidence["batches"], []).append(label)
    if len(fed) > 1:
        groups = {batches: ", ".join(labels) for batches, labels in fed.items()}
        text = " and others for ".join(groups.values())
        yield Finding("misfed", HOST_PART, f"the host made batches for {text}", groups)


Gradients = Mapping[tuple[str, str], Sequence[str]]
"""Digests of the gradients of each step, by rank and replay."""


def gradients_by_rank(found: Iterable[Judged]) -> Gradients:
    """Tell which gradients ranks had in the first replay and in one that differed."""
    facts = [item.evidence for item in found if isinstance(item, Finding)]
    return {
        (told["rank"], told.get("replay", "0")): told["gradients"].split()
        for told in facts
        if "gradients" in told
    }


def unequal(wrong: Finding, had: Gradients) -> bool:
    """Whether ranks had unequal gradients at the step and replay of a *wrong* sum."""
    step = int(wrong.evidence["step"]) - 1
    # A rank that says nothing of that replay had the gradients of its first one, which
    # were those of all ranks, or their sum would have been wrong then.
    told = ("0", wrong.evidence["replay"])
    return (
        len({steps[step] for (_, number), steps in had.items() if number in told}) > 1
    )


CHECK = Check(
    summary="a training step: the same bits each time and on all parts; its times",
    measure=measure,
    reconcile=reconcile,
    params=TrainingParams,
    metrics={
        "step_p50": Metric(unit="ms", meaning="median time of a training step"),
        "step_p95": Metric(unit="ms", meaning="95 % of steps take at most this"),
        "compute_p50": Metric(
            unit="ms", meaning="median time of forward, backward and optimizer"
        ),
        "tokens": Metric(unit="1/s", meaning="tokens trained on by this part"),
        "compute.share": Metric(
            unit="ratio", meaning="share of forward, backward and optimizer"
        ),
        "communication.share": Metric(
            unit="ratio", meaning="share of summing gradients, waiting for peers too"
        ),
        "input.share": Metric(
            unit="ratio", meaning="share of waiting for the batch to be on the device"
        ),
        "mfu": Metric(
            unit="ratio", meaning="operations of the model / peak of the part"
        ),
        "peak_derived": Metric(
            unit="GFLOP/s", meaning="peak from cores, clock and vector width"
        ),
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
        "communication.share": Rule(
            of_baseline=1.5, otherwise=Verdict.WARN, optional=True
        ),
        "input.share": Rule(
            high=0.1,
            otherwise=Verdict.WARN,
            optional=True,
            source="hpcverify default: a batch is some numbers, ready before its turn",
        ),
    },
    rulings={
        "irreproducible": Ruling(Verdict.FAIL, Remedy.REPLACE, hard=True),
        "miscopied": Ruling(Verdict.FAIL, Remedy.INSPECT, hard=True),
        "misfed": Ruling(Verdict.FAIL, Remedy.INSPECT, hard=True),
        # Of a CPU's libraries nobody promises the same bits.
        "irreproducible_cpu": Ruling(Verdict.WARN, Remedy.INSPECT),
        "outvoted": Ruling(Verdict.FAIL, Remedy.REPLACE, hard=True),
        "disagreement": Ruling(Verdict.ERROR, Remedy.RERUN, Cause.NOISY),
        "wrong_sum": Ruling(Verdict.FAIL, Remedy.INSPECT, hard=True),
        "sum_of_wrong": Ruling(Verdict.PASS, Remedy.NONE),
        "answer": Ruling(Verdict.PASS, Remedy.NONE),
    },
    placement=Placement.DEVICES,
    timeout=300.0,
)
