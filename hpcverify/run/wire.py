"""
The messages between the engine and its workers, one line of JSON each.

Requests and responses go through memory files, so that nothing blocks when one side is
gone, and findings survive a crash. The answer to a request is any number of items and
one `Outcome`, each with the request's number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from hpcverify.check import Context, Trial
from hpcverify.model import (
    CarryOver,
    Cause,
    Coverage,
    Fact,
    Finding,
    Inventory,
    Measurement,
    Remedy,
    Series,
    Verdict,
)
from hpcverify.plan.bmc import BmcAccess


class Probe(Struct, frozen=True, tag=True):
    """
    List the hardware of the node; if *sample* is set, start sampling its telemetry.

    Also list what is mounted below *folder*, where the checks write.
    """

    sample: bool = True
    folder: Path | None = None


class CheckTask(Struct, frozen=True, tag=True, kw_only=True):
    """What all tasks of a check share: its *name*, and the *packages* to find it in."""

    name: str
    packages: tuple[str, ...]


class Settle(CheckTask, frozen=True, kw_only=True):
    """
    Wait until the memory of the GPUs *released* is free, for *release_timeout* seconds,
    and then up to *timeout* seconds until the devices are cool and idle.

    Do not wait for the latter if the check, which comes next, applies to none of *contexts*.
    """

    timeout: float
    released: tuple[str, ...] = ()
    release_timeout: float = 0.0
    contexts: tuple[Context, ...]


class Measure(CheckTask, frozen=True, kw_only=True):
    """Run the check."""

    params: dict[str, Any]
    context: Context


class ReadBmc(CheckTask, frozen=True, kw_only=True):
    """Ask the BMC of another node, and let the check say what it means."""

    params: dict[str, Any]
    context: Context
    access: BmcAccess
    is_log_reported: bool
    """Whether the node reports its event log itself: an entry counts once."""


class Observe(CheckTask, frozen=True, kw_only=True):
    """Make findings from the telemetry from *start* to *end*, for each context."""

    params: dict[str, Any]
    contexts: tuple[Context, ...]
    start: float
    end: float


class Reconcile(CheckTask, frozen=True, kw_only=True):
    """Say what the numbers and facts of all devices mean together."""

    inventory: Inventory
    measurements: tuple[Measurement, ...]
    findings: tuple[Finding, ...]


class RunSelftest(CheckTask, frozen=True, kw_only=True):
    """Inject faults into the check, and report what became of each."""

    context: Context


class FindXids(Struct, frozen=True, tag=True):
    """List the Xids of *parts* from *start* to *end*, on the engine's monotonic clock."""

    parts: tuple[str, ...]
    start: float
    end: float
    with_error_states: bool = False
    """Whether to list the error states that the driver reports of them, too."""


Task = Probe | Settle | Measure | ReadBmc | Observe | Reconcile | RunSelftest | FindXids


class Request(Struct, frozen=True):
    """A task, and a number that its responses repeat."""

    number: int
    task: Task


class GpuHolder(Struct, frozen=True):
    """A process that uses a GPU."""

    part: str
    pid: int


class ProbeResult(Struct, frozen=True):
    """The node's hardware, and the processes on its GPUs."""

    inventory: Inventory
    holders: tuple[GpuHolder, ...] = ()
    probed_at: float = 0.0
    """Seconds, on the worker's monotonic clock."""


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a task ended; PASS means only that it finished."""

    verdict: Verdict = Verdict.PASS
    reason: str = ""
    cause: Cause = Cause.NONE
    remedy: Remedy = Remedy.NONE
    code: str = ""
    """The same code as in `Shortfall`, and the same fix."""
    fix: str = ""
    start: float = 0.0
    end: float = 0.0
    trace: str = ""
    is_worker_spent: bool = False
    """Whether the worker can take no other request, as after a CUDA error."""


Item = Measurement | Finding | Series | Coverage | CarryOver | Fact | Trial | ProbeResult
Response = Item | Outcome
"""One line from a worker: an item, or the end of the task."""
RESPONSE_KINDS: dict[str, type[Response]] = {
    kind.__name__: kind
    for kind in (
        *(Measurement, Finding, Series, Coverage, CarryOver, Fact),
        *(Trial, ProbeResult, Outcome),
    )
}


def encode_request(request: Request) -> bytes:
    """Write *request* as one line."""
    return msgspec.json.encode(request, enc_hook=_path_to_text)


def decode_request(line: bytes) -> Request:
    """Read the line of one request."""
    return msgspec.json.decode(line, type=Request, dec_hook=_text_to_path)


def encode_response(number: int, response: Response) -> bytes:
    """Write *response* to the request *number* as one line."""
    kind = type(response).__name__
    if type(response) is not RESPONSE_KINDS.get(kind):
        raise TypeError(f"a check may not yield {response!r}")
    return msgspec.json.encode((number, kind, response)) + b"\n"


def decode_response(line: bytes) -> tuple[int, Response]:
    """Read the number of the request, and the response to it, from one line."""
    number, kind, value = msgspec.json.decode(line, type=tuple[int, str, msgspec.Raw])
    return number, msgspec.json.decode(value, type=RESPONSE_KINDS[kind])


def _path_to_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))


def _text_to_path(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)
