"""
The offsets at which a library multiplies operands of one byte, tried before the hunt.

Only such operands begin at multiples of 16 bytes, and only their products have demands on
alignment, which differ from one architecture and library to the next. A kernel that loads
from an address that it cannot load from breaks the context of its process, so a GPU is tried
in a process of its own:

``python -P -m hpcverify_checks.sdc.offsets PARENT ORDER`` writes a line for each trial.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

import hpcverify.check as hv
from hpcverify.processes import die_with_parent, name_signal, run_tool
from hpcverify_checks.exact.families import FAMILIES, Family
from hpcverify_checks.exact.products import SHIFT_STEP, Shape, allocate_operands, view_shifted
from hpcverify_checks.node.device import wait_for_device
from hpcverify_checks.node.dtypes import Multiply, find_refusal, multiply
from hpcverify_checks.sdc.prepare import DeviceTask

if TYPE_CHECKING:
    import torch

MISALIGNED = "misaligned address"
"""CUDA's words for an address that an instruction cannot load from: cudaErrorMisalignedAddress."""
TRIAL_SECONDS = 120.0
"""The time to import torch from a slow file system and to start the driver."""


@dataclass(frozen=True, slots=True)
class OffsetTrial:
    """At which offsets of the operands a library multiplies those of a *task*."""

    task: DeviceTask
    """It has the shifts that remain: none if the library refuses them all."""
    left_out: Mapping[int, str] = field(default_factory=dict[int, str])
    """Why each of the other shifts is left out."""
    status: str = ""
    """How the library refused the last of them."""

    def describe(self) -> str:
        """Describe what is left out, and why."""
        name = self.task.family.name
        if not self.task.shifts:
            return f"{name} is not verified: the library refuses its products ({self.status})"
        offsets: dict[str, list[str]] = {}
        for shift, why in self.left_out.items():
            offsets.setdefault(why, []).append(str(shift * SHIFT_STEP))
        texts = (f"operand offsets {', '.join(o)} left out: {why}" for why, o in offsets.items())
        return f"{name}: {'; '.join(texts)}"


class ShiftTrial(Struct, frozen=True):
    """How one product of the type *family* at one shift ended."""

    family: str
    shift: int
    status: str = ""
    """How the library refused it."""
    error: str = ""
    """What it raised that is no refusal, after which the process tries nothing more."""


class OffsetOrder(Struct, frozen=True):
    """What a process is to try on the GPU *device*: (type, size, depth, shifts)."""

    device: int
    products: Sequence[tuple[str, int, int, Sequence[int]]]


RunApart = Callable[[OffsetOrder], tuple[Sequence[ShiftTrial], str]]
"""Tries an order in a process of its own; returns the trials, and how it died if it did."""


def run_apart(order: OffsetOrder) -> tuple[Sequence[ShiftTrial], str]:
    """Try *order*: a `RunApart`."""
    text = msgspec.json.encode(order).decode()
    command = [sys.executable, "-P", "-m", __name__, str(os.getpid()), text]
    done = run_tool(command, timeout=TRIAL_SECONDS)
    lines = [line for line in done.stdout.splitlines() if line.startswith(b'{"family"')]
    trials = [msgspec.json.decode(line, type=ShiftTrial) for line in lines]
    if not done.returncode:
        return trials, ""
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    how = name_signal(-done.returncode) if done.returncode < 0 else f"status {done.returncode}"
    return trials, f"{how}; {last}" if last else how


def try_offsets(tasks: Sequence[DeviceTask], apart: RunApart = run_apart) -> list[OffsetTrial]:
    """
    Try a product of each of *tasks* at each of its offsets, so that none is refused later.

    Raises:
        RuntimeError: Whatever else is no refusal, as what CUDA raised.

    """
    import torch

    narrow = [task for task in tasks if getattr(torch, task.family.operand).itemsize == 1]
    trials: list[ShiftTrial] = []
    broken: dict[tuple[str, int], str] = {}
    if narrow and narrow[0].device.type != "cpu":
        trials, broken = _try_on_gpu(narrow, apart)
    else:
        for task in narrow:
            trials += _try_shifts(
                task.family, task.shape, task.device, task.shifts, task.seams.multiply
            )
    made: list[OffsetTrial] = []
    for task in tasks:
        name = task.family.name
        refused = {t.shift: t.status for t in trials if t.status and t.family == name}
        left_out = dict.fromkeys(refused, "the library refuses them")
        left_out |= {shift: why for (family, shift), why in broken.items() if family == name}
        usable = tuple(shift for shift in task.shifts if shift not in left_out)
        status = [*refused.values()][-1] if refused else ""
        made.append(OffsetTrial(replace(task, shifts=usable), left_out, status))
    return made


def _try_shifts(
    family: Family,
    shape: Shape,
    device: torch.device,
    shifts: Sequence[int],
    multiply: Multiply,
) -> Iterator[ShiftTrial]:
    import torch

    dtype, output = getattr(torch, family.operand), getattr(torch, family.output)
    a, b = allocate_operands(shape, dtype, device, by_columns=family.by_columns)
    out = torch.empty(shape.size, shape.size, dtype=output, device=device)
    for shift in shifts:
        status = ""
        try:
            multiply(*view_shifted(a, b, shift), out)
            wait_for_device(device)
        except RuntimeError as exc:
            status = find_refusal(exc)
            if not status:
                raise
        yield ShiftTrial(family.name, shift, status)


def _try_on_gpu(
    tasks: Sequence[DeviceTask], apart: RunApart
) -> tuple[list[ShiftTrial], dict[tuple[str, int], str]]:
    """
    Try *tasks* on their GPU; also return why shifts are left out that broke a process.

    What one kernel cannot load from, it cannot load from any address that is aligned no
    better, so these are not tried.
    """
    first = tasks[0]
    left = {task.family.name: list(task.shifts) for task in tasks}
    trials: list[ShiftTrial] = []
    broken: dict[tuple[str, int], str] = {}
    gpu = first.ctx.inventory.find_part(first.ctx.device.part)
    if gpu and gpu.facts.get("compute_mode", "").startswith("exclusive"):
        why = "the GPU takes one process, so they were not tried (nvidia-smi -c 0)"
        return [], {(name, s): why for name, shifts in left.items() for s in shifts if s}
    while any(left.values()):
        shapes = {task.family.name: task.shape for task in tasks}
        products = [(n, shapes[n].size, shapes[n].depth, s) for n, s in left.items() if s]
        done, death = apart(OffsetOrder(first.device.index, products))
        for trial in done:
            left[trial.family].remove(trial.shift)
            trials.append(trial)
        error = trials[-1].error if done else ""
        if not error and not death:
            break
        name = trials[-1].family if error else next(n for n, s in left.items() if s)
        shift = trials[-1].shift if error else left[name].pop(0)
        if not shift or (error and MISALIGNED not in error):
            if error:
                raise RuntimeError(error)
            text = f"the process that tried products of {name} died ({death})"
            raise hv.Unable(text, hv.Cause.CRASHED, hv.Remedy.RERUN)
        why = f'there a kernel of the library ended in "{(error and MISALIGNED) or death}"'
        unlike = [s for s in left[name] if (s & -s or s) > (shift & -shift) or not s]
        broken |= {(name, s): why for s in (shift, *left[name]) if s not in unlike}
        left[name] = unlike
    return trials, broken


def main() -> None:
    """Try an order, and write a line for each trial."""
    import torch

    parent, text = sys.argv[1:]
    die_with_parent(int(parent))
    order = msgspec.json.decode(text, type=OffsetOrder)
    device = torch.device("cuda", order.device)
    for name, size, depth, shifts in order.products:
        tried = 0
        try:
            torch.cuda.set_device(device)
            for trial in _try_shifts(FAMILIES[name], Shape(size, depth), device, shifts, multiply):
                tried += 1
                write_trial(trial)
        except RuntimeError as exc:
            write_trial(ShiftTrial(name, shifts[tried], error=str(exc)))
            return


def write_trial(trial: ShiftTrial) -> None:
    """Write *trial* at once: the next one may end the process."""
    sys.stdout.write(msgspec.json.encode(trial).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
