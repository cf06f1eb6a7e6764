"""``hpcverify fleet peers``: which parts of a fleet are worse than their peers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from hpcverify.commands._options import json_option, since_option
from hpcverify.console import print_json_text
from hpcverify.fleet.ledger import Ledger
from hpcverify.history.reader import Choice
from hpcverify.history.table import open_table
from hpcverify.insight.comparison import (
    describe_compared,
    judge_past,
    judge_peers,
    make_locator,
    map_kinds,
)
from hpcverify.insight.night import PAST_NIGHTS, PEER_NIGHTS
from hpcverify.insight.peer_tables import judge_table
from hpcverify.insight.peers_text import show, show_past
from hpcverify.model import Verdict
from hpcverify.peers.document import (
    PeersDocument,
)
from hpcverify.peers.floors import Worse
from hpcverify.peers.values import MetricName
from hpcverify.plan.config import load_site, state_dir
from hpcverify.trends.fleet import (
    TrendJudgement,
)

EXIT_FAIL = 1


def read_pairs(_: click.Context, option: click.Parameter, text: str) -> dict[str, str]:
    """Read an option of the form ``role=column,role=column``."""
    pairs = [pair.partition("=") for pair in filter(None, text.split(","))]
    for role, equals, column in pairs:
        if not column:
            how = f"{role}=COLUMN" if equals else f"ROLE={role}, as in value={role}"
            raise click.BadParameter(f"{role!r} names no column: write {how}", param=option)
    return {role.strip(): column.strip() for role, _equals, column in pairs}


def read_names(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    """Read an option that lists names, with commas between them."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


@click.command("peers")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@since_option("Compare runs from DATE on (default: a week ago); without FILE.")
@click.option(
    "--columns",
    default="",
    callback=read_pairs,
    metavar="ROLE=COLUMN,...",
    help="Map columns of FILE, for example node=host,value=tflops.",
)
@click.option(
    "--by",
    default="",
    callback=read_names,
    metavar="COLUMN,...",
    help="Compare groups by these columns (default: cabinet, rack, switch, driver and others).",
)
@click.option(
    "--worse",
    type=click.Choice(["low", "high"]),
    help="Treat low or high values as worse, if the unit does not imply it.",
)
@json_option
def command(
    *,
    file: Path | None,
    since: datetime | None,
    columns: Mapping[str, str],
    by: Sequence[str],
    worse: Worse | None,
    as_json: bool,
) -> None:
    """
    Compare each part with identical parts of the fleet, and with its own past.

    Without FILE, compares the runs of the last week with each other and with 90 nights before.
    FILE is CSV or Parquet with a row for each run of each part: node, part, metric, value,
    unit and, if known, time, cabinet, rack, driver, limit, clock, temperature, power.

    \b
    Example:
      hpcverify fleet peers sgemm.csv --columns part=gpu,value=milliseconds
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if file is not None:
        with open_table(file, columns, by, map_kinds(load_site())) as table:
            document, past = judge_table(file, table, worse)
    else:
        document, past = judge_history(since)
    if as_json:
        print_json_text(msgspec.json.format(encode(document, past), indent=1))
    else:
        show(document)
        show_past(past)
    sys.exit(EXIT_FAIL if document.verdict is Verdict.FAIL else 0)


def judge_history(
    since: datetime | None,
) -> tuple[PeersDocument, dict[MetricName, TrendJudgement]]:
    """Judge the runs of the history from *since* on by each other, and all by their past."""
    site, state = load_site(), state_dir()
    first = (since or datetime.now(UTC) - timedelta(days=PEER_NIGHTS)).date()
    ledger = Ledger(state)
    peers = judge_peers(state, Choice(since=first), site, make_locator(site, ledger))
    compared = describe_compared(peers.fleet, ledger.list_nodes(), first)
    quarter = Choice(since=first - timedelta(days=PAST_NIGHTS))
    return replace(peers.document, compared=compared), judge_past(state, quarter, site)


def encode(document: PeersDocument, past: Mapping[MetricName, TrendJudgement]) -> bytes:
    """Build the document of ``--json``."""
    return msgspec.json.encode(
        {
            "verdict": document.verdict,
            **msgspec.structs.asdict(document),
            "past": [
                {"name": name, **msgspec.structs.asdict(judged)} for name, judged in past.items()
            ],
        }
    )
