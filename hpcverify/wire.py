"""
What the engine and its workers say to each other, one line of JSON each.

Orders go to a worker's standard input; replies come back through a file, so that
nothing blocks when one side is gone, and what was found before a crash is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from hpcverify.check import Context, Trial
from hpcverify.model import (
    CarryOver,
    Cause,
    CheckItem,
    Coverage,
    Finding,
    Inventory,
    Measurement,
    Remedy,
    Series,
    Verdict,
)

T = TypeVar("T")


class Probe(Struct, frozen=True, tag=True):
    """
    Say what the node is made of, and begin to *sample* its telemetry if told so.

    What is mounted below *folder*, where the checks write, belongs to it.
    """

    sample: bool = True
    folder: Path | None = None


class Settle(Struct, frozen=True, tag=True, kw_only=True):
    """
    Wait until the devices are cool and idle, for *patience* seconds at most.

    Not for the check *name* if it applies to none of *contexts*.
    """

    timeout: float
    name: str
    packages: tuple[str, ...]
    contexts: tuple[Context, ...]


class Measure(Struct, frozen=True, tag=True, kw_only=True):
    """Run the check *name*."""

    name: str
    packages: tuple[str, ...]
    params: dict[str, Any]
    context: Context


class Observe(Struct, frozen=True, tag=True, kw_only=True):
    """Make findings of the telemetry from *start* to *end*, for each context."""

    name: str
    packages: tuple[str, ...]
    params: dict[str, Any]
    contexts: tuple[Context, ...]
    start: float
    end: float


class Reconcile(Struct, frozen=True, tag=True, kw_only=True):
    """Say what the numbers and facts of all devices mean together."""

    name: str
    packages: tuple[str, ...]
    inventory: Inventory
    measurements: tuple[Measurement, ...]
    findings: tuple[Finding, ...]


class RunSelftest(Struct, frozen=True, tag=True, kw_only=True):
    """Inject faults into the check *name*, and say what became of each."""

    name: str
    packages: tuple[str, ...]
    context: Context


Task = Probe | Settle | Measure | Observe | Reconcile | RunSelftest


class Request(Struct, frozen=True):
    """A task with a number, by which its replies are known."""

    number: int
    task: Task


class GpuHolder(Struct, frozen=True):
    """A process that uses a GPU."""

    part: str
    pid: int


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a task ended; PASS says only that it came to its end."""

    verdict: Verdict = Verdict.PASS
    reason: str = ""
    cause: Cause = Cause.NONE
    remedy: Remedy = Remedy.NONE
    start: float = 0.0
    end: float = 0.0
    trace: str = ""
    """The traceback of a bug, for the log."""
    is_worker_spent: bool = False
    """Whether the worker is fit for no other order, as after a CUDA error."""


class Response(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing found, or the end of an order."""

    number: int
    measurement: Measurement | None = None
    finding: Finding | None = None
    series: Series | None = None
    covered: Coverage | None = None
    carry_over: CarryOver | None = None
    trial: Trial | None = None
    inventory: Inventory | None = None
    holders: tuple[GpuHolder, ...] = ()
    outcome: Outcome | None = None

    @property
    def item(self) -> CheckItem | None:
        """What was found, if that is what this says."""
        return self.measurement or self.finding or self.series or self.covered or self.carry_over


def make_response(number: int, found: CheckItem) -> Response:
    """Wrap what a check yielded."""
    match found:
        case Measurement():
            return Response(number=number, measurement=found)
        case Finding():
            return Response(number=number, finding=found)
        case Series():
            return Response(number=number, series=found)
        case Coverage():
            return Response(number=number, covered=found)
        case CarryOver():
            return Response(number=number, carry_over=found)
        case _:
            raise TypeError(f"a check may not yield {found!r}")


def encode(value: Struct) -> bytes:
    """Make one line of *value*."""
    return msgspec.json.encode(value, enc_hook=_path_to_text) + b"\n"


def decode(line: bytes, kind: type[T]) -> T:
    """Read one line."""
    return msgspec.json.decode(line, type=kind, dec_hook=_text_to_path)


def _path_to_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))


def _text_to_path(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)
