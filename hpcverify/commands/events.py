"""``hpcverify events``: what changed in the fleet, and whether the log of it is whole."""

from __future__ import annotations

import gzip
import sys
import time
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import click
import msgspec

from hpcverify.commands._json import print_json_text
from hpcverify.commands._since import SINCE_TYPE
from hpcverify.console import echo
from hpcverify.errors import ConfigError
from hpcverify.events.chain import ChainedLine, ChainReport, verify_chain
from hpcverify.events.event import EventKind
from hpcverify.events.formats import FORMATS, JSON_FORMAT, format_line
from hpcverify.fleet.ledger import Ledger
from hpcverify.plan.config import state_dir
from hpcverify.units import format_count

BATCH_EVENTS = 1000
"""Events that are read at a time."""
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
@click.option("--since", type=SINCE_TYPE, help="Only events from then on (UTC).")
@click.option("--node", default="", help="Only events of this node.")
@click.option("--kind", default="", help="Only these: finding.opened, or finding for all of it.")
@click.option("--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option(
    "--format",
    "style",
    type=click.Choice(FORMATS),
    default=JSON_FORMAT,
    show_default=True,
    help="How each line is written.",
)
@click.pass_context
def command(
    ctx: click.Context, since: datetime | None, node: str, kind: str, style: str, *, follow: bool
) -> None:
    """
    List what changed in the fleet, one event a line, the oldest first.

    It is read from the ledger, on the controller. The same lines are in events.jsonl beside
    it, for the collectors of the site. With --format, each line is an event of OCSF 1.8.0
    or of CloudEvents 1.0 instead.

    \b
    Examples:
      hpcverify events --since 2026-11-01 --node n17
      hpcverify events --kind finding --follow --format ocsf
      hpcverify events verify
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
    """Yield the lines that are *wanted*, without newlines; with *follow*, without end."""
    clause, values = wanted.write_clause()
    last = 0
    while True:
        lines = ledger.read_lines(last, BATCH_EVENTS, clause, *values)
        for last, line in lines:  # noqa: B007 - the last number is where the next batch begins
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


@command.command("verify")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
def verify(files: Sequence[Path]) -> None:
    """
    Verify that no event was changed, left out or put in.

    Without FILES, those in the ledger; otherwise those in the files together, such as
    events.jsonl and its rotated ones, also with .gz. Exit status 1 if the chain is broken.

    \b
    Example:
      hpcverify events verify /var/lib/hpcverify/events.jsonl*
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    report = verify_files(files) if files else Ledger(state_dir()).verify_events()
    if not report.first and not report.wrong:
        echo("there is no event")
    if report.first:
        count = format_count(report.last.number - report.first + 1, "event")
        last = report.last
        echo(f"{count} in order: {report.first} to {last.number}, digest {last.digest}")
    if report.wrong:
        echo(f"event {report.wrong}: {report.why}")
        sys.exit(EXIT_BROKEN)


def verify_files(files: Iterable[Path]) -> ChainReport:
    """
    Verify the lines of *files* together, in the order of their numbers.

    Raises:
        ConfigError: one cannot be read.

    """
    parts = [lines for path in files if (lines := _read_lines(path))]
    parts.sort(key=lambda lines: _read_first_number(lines[0]))
    return verify_chain(chain.from_iterable(parts))


def _read_lines(path: Path) -> list[bytes]:
    """Read the whole lines of *path*; one without its end is still being written."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as exc:
        why = getattr(exc, "strerror", None) or exc
        raise ConfigError(f"{path} cannot be read: {why}") from exc
    return content.split(b"\n")[:-1]


def _read_first_number(line: bytes) -> int:
    try:
        return msgspec.json.decode(line, type=ChainedLine).number
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0  # `verify_chain` says what is wrong with it
