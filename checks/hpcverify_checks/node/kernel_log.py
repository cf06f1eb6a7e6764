"""What the checks that read the kernel log have in common: marks, gaps, what is unresolved."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

import hpcverify.check as hv
from hpcverify.telemetry import kernel_log
from hpcverify.telemetry.fault_table import KnownFault
from hpcverify.telemetry.kernel_log import KernelLog, format_moment
from hpcverify.units import DAY_SECONDS, format_count
from hpcverify_checks.node.log_events import LogEvent

CURSOR, UNRESOLVED_FAILURE = "cursor", "standing"
LOG_RULES = {
    # Every check that reads the log meets the same gap.
    **hv.warn_on("log_gap", remedy=hv.Remedy.FIX_CONFIGURATION, shared=True),
    **hv.listed("before_first_run"),
}
NAME_PATTERN = r"(?:\\x[0-9a-f]{2}|#[0-7]{3}|[\s\S]){1,15}?"
"""The name of a process, which its user chooses."""
BEYOND_END_PATTERN = r": attempt to access beyond end of device"
PROCESS_PATTERN = (
    rf"(?:traps: )?{NAME_PATTERN}"
    rf"(?:\[\d+\]:?| ?\(\d+\):? | invoked oom-killer| cpuset=| uses obsolete |{BEYOND_END_PATTERN}"
    r"|(?:/\d+)?: (?:page allocation (?:failure|stalls)|vmalloc|sending ioctl "
    r"|(?:\d+: )?potentially unexpected fatal))"
)
"""
The start of a line that begins with the name of a process.

In 15 bytes (TASK_COMM_LEN) any program can call itself ``EDAC MC0: UE x``, and crash in a
file whose name goes on as the line of a fault would. /dev/kmsg writes a byte that cannot be
printed in four characters, and so does rsyslog.
"""


PACKET_PATTERN = (
    r"IN=\S{0,15} OUT=\S{0,15}\s*(?:MAC=(?:\s+|$))?"  # a tunnel has no MAC
    r"(?:$|PHYS(?:IN|OUT)=\S|VPROTO=\d|MAC(?:SRC)?=[0-9a-f]{2}|MAC source = |SRC=\S+ DST="
    r"|TUNNEL=\d|ARP (?:HTYPE|TRUNC)|TRUNCATED)"
)
"""
What goes on after the prefix of a packet that was logged, as nf_log_syslog and ebt_log write it.

With net.netfilter.nf_log_all_netns any user writes the prefix, of up to 127 characters, in a
network namespace of their own. The pattern needs more than the 15 bytes of a program's name,
which could else hide a fault.
"""


def begins_with_users_words(text: str) -> bool:
    """
    Say whether a user may have written what *text* begins with: nothing it says is evidence.

    That is the name of a process, or the prefix of a packet that was logged.
    """
    is_packet = "OUT=" in text and re.search(PACKET_PATTERN, text)
    return bool(is_packet or re.match(PROCESS_PATTERN, text))


def drop_process(text: str) -> str:
    """Drop the name before what the kernel says of the disk that a process read beyond its end."""
    match = re.match(rf"{NAME_PATTERN}{BEYOND_END_PATTERN}\s*", text)
    return text[match.end() :] if match else text


class PartFailure(Struct, frozen=True):
    """What failed a part: in which boot of the node, when (seconds since 1970), and its code."""

    boot: str
    when: float
    code: str


def read_new_part(
    ctx: hv.Context, words: Sequence[bytes], root: Path
) -> Generator[hv.CarryOver, None, KernelLog]:
    """
    Read the messages with one of *words* since this check's last run on this node.

    If the log cannot be read, the marks are yielded again: the next run starts where this
    one should have.
    """
    try:
        return kernel_log.read(ctx.recall(CURSOR), words, root)
    except hv.Unable:
        yield from ctx.carry_overs
        raise


def report_reading(log: KernelLog) -> Iterator[hv.Finding | hv.Coverage | hv.CarryOver]:
    """Report what was read and what was not; keep the mark from which the next run reads on."""
    if log.gap:
        fix = "boot with a larger log_buf_len, or keep a journal"
        yield hv.Finding("log_gap", "node", f"{log.source}: {log.gap}: {fix}")
    span = f"{format_moment(log.first)} to {format_moment(log.last)}"
    text = f"read {format_count(log.message_count, 'kernel message')} from {log.source}, {span}"
    yield hv.Coverage("node", text if log.message_count else f"no new message in {log.source}")
    if log.unseen:
        text = f"{log.unseen}: the kernel log of this node is not kept across reboots"
        yield hv.Coverage("node", text)
    yield hv.CarryOver(CURSOR, log.cursor)


def report_unresolved(
    ctx: hv.Context,
    log: KernelLog,
    groups: Mapping[tuple[str, str], Sequence[LogEvent[KnownFault]]],
    choose_code: Callable[[str], str],
) -> Iterator[hv.Finding | hv.CarryOver]:
    """
    Report what failed a part in an earlier run and may still be there.

    *groups* has the new events, by part and code. *choose_code* gives the code of the finding
    for that of the failure.

    A failed part must not pass just because the check runs again: it stays reported for a
    day, or until the node is rebooted. The log does not show whether it was mended since.
    """
    failures: dict[str, PartFailure] = {}
    for (part_id, code), group in groups.items():
        when = group[-1].time
        if group[-1].row.verdict is hv.Verdict.FAIL and when:
            known = failures.get(part_id)
            if known is None or known.when <= when:
                failures[part_id] = PartFailure(log.boot, when, code)
    for part_id, failure in failures.items():
        yield hv.CarryOver(UNRESOLVED_FAILURE, msgspec.json.encode(failure).decode(), part_id)
    for mark in ctx.carry_overs:
        if mark.name != UNRESOLVED_FAILURE or mark.part_id in failures:
            continue
        try:
            past = msgspec.json.decode(mark.value, type=PartFailure)
        except msgspec.MsgspecError:  # it is none of ours
            continue
        if past.boot == log.boot and past.when > time.time() - DAY_SECONDS:
            moment = format_moment(past.when)
            text = f"failed at {moment} with {past.code}; the node has not rebooted since"
            yield hv.Finding(choose_code(past.code), mark.part_id, text)
            yield mark
