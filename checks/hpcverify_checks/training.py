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
  is the link's.
- On a CPU no library promises the same bits. They were the same in tens of thousands of
  replays with threads fixed and data aligned (``bench/training.py``), but a difference
  only warns: `sdc` has products for the cores that have but one right answer.
- Copies and sums of integers are exact on any part: there a difference is a fault.

On a node without GPUs two processes are the ranks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta
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
from hpcverify_checks._peers import peers
from hpcverify_checks._stats import excluded, percentile
from hpcverify_checks._torch import dtypes_of, require_memory, torch_device
from hpcverify_checks._training import (
    BATCH,
    BEGINNING,
    COMMUNICATION,
    COMPUTE,
    HARDWARE,
    INPUT,
    RERUNS,
    SCATTER,
    WRONG_SUMS,
    Outcome,
    Seams,
    Times,
    Training,
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
"""The first that fits: the same one on all parts of a kind."""
USABLE = 0.75
"""The share of a GPU's whole memory that may be taken."""
BYTES_PER_PARAMETER = 40
"""fp32: at the beginning, now, two moments, the sum, and up to three temporaries of
the optimizer; weights and gradients in the job's type, up to fp32 themselves."""
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
GIGA = 1e9
EXPLAINS = frozenset(
    {"irreproducible", "irreproducible_cpu", "miscopied", "outvoted", "disagreement"}
)
"""Codes of findings that gradients were wrong: then so are the sums of all ranks."""


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
    dtype = dtype_of(device)
    job = _job(ctx, params, params.shape or shape_for(dtype, device), dtype)
    if device.type == "cuda":
        require_memory(device, memory(job.shape, dtype))
        outcomes = [train(job, ctx.rank, device, seams)]
    else:
        outcomes = _on_cpu(job, device, seams)
    yield from found_by(ctx, job, outcomes)
    yield from described(ctx, job, outcomes[0])


def dtype_of(device: torch.device) -> str:
    """Choose what to train in: bf16 on GPUs that compute it, else fp32."""
    native = device.type == "cuda" and "bf16" in dtypes_of(device)
    return "bf16" if native else "fp32"


def shape_for(dtype: str, device: torch.device) -> Shape:
    """Choose the largest model that the part has the memory for."""
    import torch

    if device.type == "cpu":
        return CPU_SHAPE
    total = torch.cuda.get_device_properties(device).total_memory
    fitting = (s for s in GPU_SHAPES if memory(s, dtype) <= USABLE * total)
    return next(fitting, GPU_SHAPES[-1])


def memory(shape: Shape, dtype: str) -> int:
    """Estimate the bytes that training takes, from above."""
    width = {"bf16": 2, "fp32": 4}[dtype]
    return BYTES_PER_PARAMETER * Layout(shape).size + shape.activations(width)


def _job(ctx: Context, params: TrainingParams, shape: Shape, dtype: str) -> Training:
    import torch

    on_cpu = ctx.device.kind == "cpu"
    world = params.ranks if on_cpu else len(ctx.peers)
    return Training(
        folder=str(ctx.shared),
        world=world,
        backend="gloo" if on_cpu else "nccl",
        timeout=params.timeout_seconds,
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


def _on_cpu(job: Training, device: torch.device, seams: Seams) -> list[Outcome]:
    """Be the first rank; the others are processes that are told what to do."""
    with peers(job, _training.__name__) as others:
        return [train(job, 0, device, seams), *(o.result(Outcome) for o in others)]


def found_by(
    ctx: Context, job: Training, outcomes: Sequence[Outcome]
) -> Iterator[Finding]:
    """Yield what differed: from the first replay, from a peer, from the exact sum."""
    where = ctx.device.part
    for rank, outcome in enumerate(outcomes, ctx.rank):
        yield from _differing(where, job, outcome, rank)
        yield from _missummed(where, job, outcome, rank)
        # The ranks on a CPU are one part, which does not vote with itself.
        if outcome.digest != outcomes[0].digest:
            yield _contradiction(where, outcomes[0], outcome, rank)
    yield answer(ctx, job, outcomes[0])


def code_of(job: Training, what: str) -> str:
    """Name the finding that *what* was the first digest to differ."""
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
    kind = "persistent" if one.again == RERUNS else "intermittent"
    reruns = f"{kind}: {one.again} of {RERUNS} reruns differ"
    expected, found = hexadecimal(one.expected), hexadecimal(one.found)
    yield Finding(
        code_of(job, one.what),
        where,
        f"replay {one.replay} of {job.steps} training steps is not bitwise the first: "
        f"{one.what} is {found}, not {expected} ({place(one.what)}, {reruns})",
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
        },
    )


def place(what: str) -> str:
    """Say what lies behind the digest that differs first: nothing else is wrong yet."""
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
            "step": wrong.what.removesuffix(f": {WRONG_SUMS}"),
            "wrong_elements": str(wrong.elements),
        },
    )


def _contradiction(where: str, mine: Outcome, other: Outcome, rank: int) -> Finding:
    what = next(
        name
        for name, value in mine.first.items()
        if value != other.first[name] and not name.endswith(WRONG_SUMS)
    )
    expected, found = hexadecimal(mine.first[what]), hexadecimal(other.first[what])
    return Finding(
        "irreproducible_cpu",
        where,
        f"rank {rank} trained to other bits than rank 0: {what} is {found}, and "
        f"{expected} on rank 0",
        {"rank": str(rank), "what": what, "expected": expected, "found": found},
    )


def answer(ctx: Context, job: Training, outcome: Outcome) -> Finding:
    """Put the first replay to the vote of all parts of the same kind."""
    import torch

    shape = " ".join(f"{k}={v}" for k, v in _fields(job.shape))
    kind = kind_of(ctx.inventory, ctx.device)
    return Finding(
        "answer",
        ctx.device.part,
        f"{job.steps} training steps in {job.dtype} have the digest {outcome.digest}",
        {
            "name": "training",
            "group": f"{kind}, torch {torch.__version__}, {job.dtype}, {shape}",
            "digest": outcome.digest,
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
    """Put the answers to the vote; wrong gradients explain the sums of all ranks."""
    together = list(_vote.reconcile(found, inventory))
    codes = {item.code for item in together if isinstance(item, Finding)}
    for item in together:
        if isinstance(item, Finding) and item.code == "wrong_sum" and codes & EXPLAINS:
            text = f"{item.text}: not all ranks had the same gradients"
            yield replace(item, code="sum_of_wrong", text=text)
        else:
            yield item


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
        "irreproducible": Ruling(Verdict.FAIL, Remedy.REPLACE),
        "miscopied": Ruling(Verdict.FAIL, Remedy.INSPECT),
        # Of a CPU's libraries nobody promises the same bits.
        "irreproducible_cpu": Ruling(Verdict.WARN, Remedy.INSPECT),
        "outvoted": Ruling(Verdict.FAIL, Remedy.REPLACE),
        "disagreement": Ruling(Verdict.ERROR, Remedy.RERUN, Cause.NOISY),
        "wrong_sum": Ruling(Verdict.FAIL, Remedy.INSPECT),
        "sum_of_wrong": Ruling(Verdict.PASS, Remedy.NONE),
        "answer": Ruling(Verdict.PASS, Remedy.NONE),
    },
    placement=Placement.DEVICES,
    timeout=300.0,
)
