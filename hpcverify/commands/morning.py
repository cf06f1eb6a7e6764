"""``hpcverify fleet``: what is new, what needs a person today, and the trend."""

from __future__ import annotations

import click

from hpcverify.commands._options import json_option
from hpcverify.console import echo, print_json, say
from hpcverify.fleet.ledger import Ledger
from hpcverify.insight.morning import build_morning_report, describe_morning
from hpcverify.insight.outlook import read_shown_judgement
from hpcverify.insight.overview import add_judgement, read_overview
from hpcverify.plan.config import state_dir
from hpcverify.records.store import Store


@click.command("morning")
@json_option
def command(*, as_json: bool) -> None:
    """
    Show what is new since yesterday, what needs a person today, and the trend.

    The tasks are in the order of their urgency, each with its command. The trend compares the
    failures of the last seven days with those of the seven days before.

    \b
    Example:
      hpcverify fleet
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    ledger = Ledger(state_dir())
    judgement, fault = read_shown_judgement(state_dir())
    if fault:
        say(fault)
    fleet = add_judgement(read_overview(ledger, Store(state_dir())), judgement)
    report = build_morning_report(fleet, ledger)
    if as_json:
        print_json(report)
    else:
        echo("\n".join(describe_morning(report)))
