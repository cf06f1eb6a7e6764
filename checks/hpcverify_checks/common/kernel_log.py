"""What the checks that read the kernel log have in common: the mark, gaps, what still stands."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.check import (
    CarryOver,
    Context,
    Coverage,
    Finding,
    FindingRule,
    Remedy,
    Verdict,
)
from hpcverify.telemetry import kernel_log
from hpcverify.telemetry.kernel_log import KernelLog, format_moment
from hpcverify.units import DAY_SECONDS, format_count

CURSOR, UNRESOLVED_FAILURE = "cursor", "standing"
GAP_CODE = "log_gap"
GAP_RULE = FindingRule(Verdict.WARN, Remedy.FIX_CONFIGURATION, shared=True)
"""Every check that reads the log meets the same gap."""
MAX_LINE_CHARACTERS = 240
"""A message has this much of a line; the evidence has all of it."""
PROCESS_PATTERN = (
    r"(?:traps: )?(?:\\x[0-9a-f]{2}|#[0-7]{3}|[\s\S]){1,15}?"
    r"(?:\[\d+\]:?| ?\(\d+\):? | invoked oom-killer| cpuset=| uses obsolete "
    r"|(?:/\d+)?: (?:page allocation (?:failure|stalls)|vmalloc|sending ioctl "
    r"|(?:\d+: )?potentially unexpected fatal))"
)
"""
The start of a line that begins with the name of a process, which its user chooses.

In 15 bytes (TASK_COMM_LEN) any program can call itself ``EDAC MC0: UE x``, and crash in a
file whose name goes on as the line of a fault would. /dev/kmsg writes a byte that cannot be
printed in four characters, and so does rsyslog.
"""


def begins_with_process(text: str) -> bool:
    """Say whether *text* begins with the name of a process: nothing it says is evidence."""
    return re.match(PROCESS_PATTERN, text) is not None


class PartFailure(Struct, frozen=True):
    """What failed a part: in which boot of the node, when (seconds since 1970), and its code."""

    boot: str
    when: float
    code: str


def read_new_part(ctx: Context, words: Sequence[bytes], root: Path) -> KernelLog:
    """
    Read the messages with one of *words* since this check's last run on this node.

    Raises:
        Unable: the log cannot be read; `keep_mark` then.

    """
    return kernel_log.read(ctx.recall(CURSOR), words, root)


def find_last_look(ctx: Context) -> float | None:
    """Say until when the log was read, in seconds since 1970, if it ever was."""
    return kernel_log.parse_last_look(ctx.recall(CURSOR))


def keep_mark(ctx: Context) -> Iterator[CarryOver]:
    """Yield the mark again: the next run starts where this one should have."""
    if cursor := ctx.recall(CURSOR):  # a first run has none: it reads one day
        yield CarryOver(CURSOR, cursor)


def report_reading(log: KernelLog) -> Iterator[Finding | Coverage]:
    """Say what was read, and what was not."""
    if log.gap:
        fix = "boot with a larger log_buf_len, or keep a journal"
        yield Finding(GAP_CODE, "node", f"{log.source}: {log.gap}: {fix}")
    span = f"{format_moment(log.first)} to {format_moment(log.last)}"
    text = f"read {format_count(log.message_count, 'kernel message')} from {log.source}, {span}"
    yield Coverage("node", text if log.message_count else f"no new message in {log.source}")
    if log.unseen:
        text = f"{log.unseen}: the kernel log of this node is not kept across reboots"
        yield Coverage("node", text)


def report_unresolved(
    ctx: Context,
    log: KernelLog,
    failures: Mapping[str, tuple[float, str] | None],
    choose_code: Callable[[str], str],
) -> Iterator[Finding | CarryOver]:
    """
    Report what failed a part in an earlier run and may still be there.

    *choose_code* gives the code of the finding for that of the failure.

    A failed part must not pass just because the check runs again: it stays reported for a
    day, or until the node is rebooted. The log does not tell whether it was mended since.
    *failures* has each part that is new in the log, with its last failure:
    when, in seconds since 1970, and its code.
    """
    boot = log.cursor.partition(" ")[0]
    for part_id, failure in failures.items():
        if failure:
            value = msgspec.json.encode(PartFailure(boot, *failure)).decode()
            yield CarryOver(UNRESOLVED_FAILURE, value, part_id)
    for mark in ctx.carry_overs:
        if mark.name != UNRESOLVED_FAILURE or mark.part_id in failures:
            continue
        failed = _decode_failure(mark.value)
        if failed and failed.boot == boot and failed.when > time.time() - DAY_SECONDS:
            moment = format_moment(failed.when)
            text = f"failed at {moment} with {failed.code}; the node has not rebooted since"
            yield Finding(choose_code(failed.code), mark.part_id, text)
            yield mark


def _decode_failure(mark: str) -> PartFailure | None:
    """Understand *mark*; that of an older version has words with spaces between them."""
    try:
        return msgspec.json.decode(mark, type=PartFailure)
    except msgspec.MsgspecError:
        fields = mark.rsplit(" ", 2)
    try:
        boot, when, code = fields
        return PartFailure(boot, kernel_log.parse_moment(when), code)
    except ValueError:
        return None
