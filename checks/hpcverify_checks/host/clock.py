"""The clock: whether the kernel holds it to be in step, and how far off its daemon says it is."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

import hpcverify.check as hv
from hpcverify.processes import ToolRunner

TIME_DAEMONS = ("chronyd", "ntpd", "systemd-timesyn", "ptp4l", "phc2sys")
"""By the name of the process, of which the kernel keeps 15 characters."""
STEERING = frozenset({"chronyd", "ntpd", "systemd-timesyn"})
"""Those that tell the kernel whether the clock is in step (adjtimex)."""
STA_UNSYNC = 0x40
TIMEX_BYTES = 208
"""struct timex of 64-bit Linux."""
CHRONY_OFFSET_FIELD, CHRONY_LEAP_FIELD = 4, 13
"""Fields of the line that chronyc -c tracking prints."""
FIX = "see chronyc sources or ntpq -p, and that the node reaches its time servers (UDP 123)"


class KernelClock(Struct, frozen=True):
    """What a time daemon set in the kernel."""

    in_step: bool
    estimated_error: float
    """In seconds; of chronyd it holds what it still has to correct."""


def read_kernel_clock() -> KernelClock | None:
    """Read the state of the clock; None if the kernel does not tell, as in some sandboxes."""
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)
    library = ctypes.CDLL(None)
    if library.adjtimex(buffer) < 0:
        return None
    # They begin with the modes; of the errors, the second is the estimate in us; then the status.
    fields = (ctypes.c_long * 6).from_buffer(buffer)
    status = fields[5] & 0xFFFFFFFF
    return KernelClock(not status & STA_UNSYNC, fields[4] / 1e6)


KernelClockReader = Callable[[], KernelClock | None]


def measure_clock(
    names: Iterable[str], read: KernelClockReader, tool: ToolRunner, wanted: float, seconds: float
) -> Iterator[hv.CheckItem]:
    """
    Report the offset of the clock, among processes of these *names*.

    A program is asked only where the kernel says that the clock is out of step, or where
    the site *wanted* it in step within these seconds.
    """
    running = [daemon for daemon in TIME_DAEMONS if daemon in set(names)]
    state = read()
    if not running or state is None:
        yield hv.Coverage("node", "the clock is not judged: no time daemon runs here")
        if wanted:
            text = "no time daemon runs: systemctl start chronyd, or install chrony"
            fix = "systemctl start chronyd"
            yield hv.Finding("clock_unsynchronized", "node", text, fix=fix)
        return
    steering = [daemon for daemon in running if daemon in STEERING]
    offset: float | None = None
    in_step = state.in_step or not steering
    if steering and state.in_step:
        offset = state.estimated_error
        yield hv.Measurement("clock.error", offset, "s")
    if wanted or not in_step:
        asked, in_step_by_daemon = _ask(running, tool, seconds)
        offset = asked if asked is not None else offset
        in_step = in_step_by_daemon if in_step_by_daemon is not None else in_step
    if offset is not None:
        yield hv.Measurement("clock.offset", offset, "s")
    yield hv.Coverage("node", f"the clock is kept by {', '.join(running)}")
    if not in_step:
        code = "clock_unsynchronized" if wanted else "clock_free"
        yield hv.Finding(code, "node", f"{running[0]} runs and has no time to follow: {FIX}")
    elif wanted and offset is None:
        text = f"{', '.join(running)} does not say how far off it is: install chrony or linuxptp"
        yield hv.Finding("clock_unsynchronized", "node", text)


def _ask(
    running: Iterable[str], tool: ToolRunner, seconds: float
) -> tuple[float | None, bool | None]:
    """Ask the daemon for its absolute offset in s, and whether it follows a source."""
    for daemon in running:
        ask = {"chronyd": _ask_chrony, "ptp4l": _ask_ptp}.get(daemon)
        if ask is not None:
            try:
                return ask(tool, seconds)
            except hv.Unable:  # not installed, or without an answer: the kernel's word stands
                return None, None
    return None, None


def _ask_chrony(tool: ToolRunner, seconds: float) -> tuple[float | None, bool | None]:
    done = tool(["chronyc", "-n", "-c", "tracking"], timeout=seconds, package="chrony")
    fields = done.stdout.decode(errors="replace").strip().split(",")
    if done.returncode or len(fields) <= CHRONY_LEAP_FIELD:
        return None, None
    follows = fields[CHRONY_LEAP_FIELD] != "Not synchronised"
    return (abs(float(fields[CHRONY_OFFSET_FIELD])) if follows else None), follows


def _ask_ptp(tool: ToolRunner, seconds: float) -> tuple[float | None, bool | None]:
    command = ["pmc", "-u", "-b", "0", "GET TIME_STATUS_NP"]
    done = tool(command, timeout=seconds, package="linuxptp")
    output = done.stdout.decode(errors="replace")
    offset = re.search(r"master_offset\s+(-?\d+)", output)
    present = re.search(r"gmPresent\s+(\w+)", output)
    if done.returncode or not offset or not present:
        return None, None
    return abs(int(offset[1])) * 1e-9, present[1] == "true"
