"""``hpcverify fleet events``: what changed in the fleet, and whether the log of it is whole."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import click
import msgspec

from hpcverify.commands._options import NODE, Name, since_option
from hpcverify.console import echo, print_json_text
from hpcverify.errors import ConfigError
from hpcverify.events.chain import ChainLink, ChainReport, compute_digest
from hpcverify.events.event import EventKind
from hpcverify.events.formats import FORMATS, JSON_FORMAT, format_line
from hpcverify.fleet.event_audit import list_event_files, verify_files, verify_ledger
from hpcverify.fleet.event_stream import FILE_READER
from hpcverify.fleet.ledger import LEDGER_FILE_NAME, Ledger
from hpcverify.plan.config import state_dir
from hpcverify.units import format_count

BATCH_EVENTS = 1000
"""Events that are read at a time."""
MAX_SEEN_EVENTS = 10_000
"""Events behind the last one in which ``--follow`` finds where a restored ledger departs."""
POLL_S = 1.0
"""Between looks for new events with ``--follow``."""
EXIT_BROKEN = 1
"""The exit status if the chain of events is broken."""
SUBJECTS = tuple(dict.fromkeys(kind.partition(".")[0] for kind in EventKind))


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are wanted; empty: all."""

    since: datetime | None = None
    node: str = ""
    kind: str = ""

    def write_clause(self) -> tuple[str, tuple[object, ...]]:
        """Write the conditions as SQL, and their values."""
        at = self.since.replace(tzinfo=UTC).timestamp() if self.since else None
        conditions: dict[str, object] = {
            "and at >= ?": at,
            "and node = ?": self.node or None,
            "and (kind = ? or kind glob ? || '.*')": self.kind or None,
        }
        wanted = {sql: value for sql, value in conditions.items() if value is not None}
        values = chain.from_iterable([value] * sql.count("?") for sql, value in wanted.items())
        return " ".join(wanted), tuple(values)


@click.group("events", invoke_without_command=True)
@since_option("Print only events from DATE on (UTC).")
@click.option("--node", type=NODE, default="", help="Print only events of this node.")
@click.option(
    "--kind",
    type=Name("kind", lambda: (*SUBJECTS, *EventKind)),
    default="",
    help="Print only this kind, for example finding.opened; finding matches all finding.*.",
)
@click.option("--follow", is_flag=True, help="Continue with new events until Ctrl-C.")
@click.option(
    "--format",
    "style",
    type=click.Choice(FORMATS),
    default=JSON_FORMAT,
    show_default=True,
    help="Write events in this format.",
)
@click.pass_context
def command(
    ctx: click.Context, since: datetime | None, node: str, kind: str, style: str, *, follow: bool
) -> None:
    """
    List the changes in the fleet, one event per line, the oldest first.

    Reads the ledger of the controller. The file events.jsonl next to it has the same lines,
    for the collectors of the site. --format chooses OCSF 1.8.0 or CloudEvents 1.0 instead.

    \b
    Examples:
      hpcverify fleet events --since 2026-11-01 --node n17
      hpcverify fleet events --kind finding --follow --format ocsf
      hpcverify fleet events verify
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if ctx.invoked_subcommand is not None:
        return
    if kind and kind not in {*EventKind, *SUBJECTS}:
        known = ", ".join(SUBJECTS)
        raise click.UsageError(f"--kind {kind}: no event is of that kind; there are {known}")
    ledger = Ledger(state_dir())
    wanted = EventFilter(since=since, node=node, kind=kind)
    with _end_quietly():
        for line in iterate_events(ledger, wanted, follow=follow):
            print_json_text(format_line(line, style))


def iterate_events(ledger: Ledger, wanted: EventFilter, *, follow: bool) -> Iterator[bytes]:
    """
    Yield the lines that are *wanted*, without newlines; with *follow*, without end.

    After a ledger was restored, that goes on behind the last line which is still there.
    """
    clause, values = wanted.write_clause()
    seen: deque[ChainLink] = deque(maxlen=MAX_SEEN_EVENTS)
    while True:
        while seen and not ledger.has_event(seen[-1]):
            seen.pop()
        last = seen[-1].number if seen else 0
        lines = ledger.read_lines(last, BATCH_EVENTS, clause, *values)
        for number, line in lines:
            seen.append(ChainLink(number, compute_digest(line)))
            yield bytes(line)
        if not lines and not follow:
            return
        if not lines:
            sys.stdout.flush()
            time.sleep(POLL_S)


@contextmanager
def _end_quietly() -> Generator[None]:
    """Let Ctrl-C end what would go on for ever."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(0)


class ExpectedDigest(click.ParamType[tuple[int, str]]):
    """The number of an event and the digest of its line."""

    name = "NUMBER:DIGEST"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, str]:
        """Read a number and 64 hexadecimal digits."""
        found = re.fullmatch(r"([1-9][0-9]{0,17}):([0-9a-f]{64})", value)
        if not found:
            self.fail(f"{value!r} is not a number, a colon and 64 hexadecimal digits", param, ctx)
        return int(found[1]), found[2]


@command.command("verify")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--expect",
    "expected",
    type=ExpectedDigest(),
    multiple=True,
    help="Require this digest of this event, as your collector has it; repeatable.",
)
def verify(files: Sequence[Path], expected: Sequence[tuple[int, str]]) -> None:
    """
    Verify that no event was changed, removed or added.

    On the controller, verifies the ledger, and FILES by the ledger (default: events.jsonl and
    its rotated files). On other hosts, verifies the chain in FILES, also with .gz. Exit
    status 1 if an event is wrong or missing; the first such event is printed.

    Each event has the digest of the event before it as "previous". If your collector has
    event 50, expect 49 with that digest.

    \b
    Examples:
      hpcverify fleet events verify
      hpcverify fleet events verify events.jsonl* --expect 49:"$PREVIOUS_OF_EVENT_50"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    state, digests = state_dir(), dict(expected)
    reports: dict[str, tuple[ChainReport, str]] = {}
    pruned = 0
    if os.path.exists(state / LEDGER_FILE_NAME):  # noqa: PTH110 - never raises
        ledger = Ledger(state)
        pruned = ledger.read_anchor().number
        kept = {number: digest for number, digest in digests.items() if number > pruned}
        reports["ledger"] = verify_ledger(ledger, kept), "ledger"
        older = {number: digests[number] for number in digests.keys() - kept.keys()}
        files = files or list_event_files(state)
        if files or older or FILE_READER in ledger.read_cursors():
            reports["files"] = verify_files(files, ledger, older)
    elif files:
        reports["files"] = verify_files(files, expected=digests)
    else:
        raise ConfigError(f"there is no ledger in {state}: name files, such as events.jsonl")
    for name, (report, place) in reports.items():
        _print_report(name, report, place)
    found = {name: report for name, (report, _) in reports.items()}
    if any(report.wrong for report in found.values()):
        sys.exit(EXIT_BROKEN)
    limits = _list_limits(found, pruned, max(digests, default=0))
    echo(f"not shown: {', or '.join(limits)}; your collector has the digests for --expect")


def _print_report(name: str, report: ChainReport, place: str) -> None:
    last = report.last
    if report.first:
        count = format_count(last.number - report.first + 1, "event")
        echo(f"{name}: {count} in order: {report.first} to {last.number}, digest {last.digest}")
    elif not report.wrong:
        echo(f"{name}: there is no event")
    if report.wrong:
        echo(f"{place}: event {report.wrong}: {report.why}")


def _list_limits(reports: Mapping[str, ChainReport], pruned: int, proven: int) -> Iterator[str]:
    """List what good *reports* do not show; events up to *proven* were expected so."""
    ledger, files = reports.get("ledger"), reports.get("files")
    alike = " in ledger and files alike" if ledger and files else ""
    if files and files.first > 1:
        yield f"{'old files' if ledger else 'events'} removed before {files.first}"
    if files and files.first and files.last.number < pruned:
        yield f"files written anew, as the ledger begins with {pruned + 1}"
    report = ledger or files or ChainReport()
    yield f"events deleted after {report.last.number}{alike}"
    if proven < report.last.number:
        yield f"all events{f' after {proven}' if proven else ''} written anew{alike}"
