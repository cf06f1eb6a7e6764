"""The last 30 days of a fleet, from the runs in the store and the outages in the ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.outages import NodeOutage, OutageCause
from hpcverify.insight.month import MONTH_DAYS, build_month, read_month
from hpcverify.model import Verdict
from hpcverify.records.store import Store
from tests.doubles import a_run

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def save(store: Store, *runs: tuple[str, int, Verdict]) -> None:
    """Save a run of a node, so many days ago, with a verdict."""
    for place, (node, age, verdict) in enumerate(runs):
        started = NOON - timedelta(days=age, minutes=place + 1)
        run_id = f"{started:%Y%m%dT%H%M%SZ}-{node}-{place:06x}"
        store.save(replace(a_run(), id=run_id, node=node, started=started, verdict=verdict))


def test_a_day_counts_each_node_once_and_a_night_is_its_worst_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save(
        store,
        *(("n1", 0, Verdict.PASS), ("n1", 0, Verdict.FAIL), ("n2", 0, Verdict.PASS)),
        *(("n1", 1, Verdict.FAIL), ("n2", MONTH_DAYS, Verdict.FAIL)),
    )

    month = read_month(Ledger(tmp_path), store, NOON.timestamp())

    *_, yesterday, today = month.days
    assert (today.day, today.failed, today.passed) == (NOON.date(), 1, 2)
    assert (yesterday.failed, yesterday.passed) == (1, 0)
    assert month.nodes["n1"][-3:] == (None, Verdict.FAIL, Verdict.FAIL)
    assert month.nodes["n2"] == (*[None] * (MONTH_DAYS - 1), Verdict.PASS)


def test_runs_before_a_node_was_forgotten_are_not_shown(tmp_path: Path) -> None:
    store, ledger = Store(tmp_path), Ledger(tmp_path, clock=NOON.timestamp)
    save(store, ("n1", 3, Verdict.FAIL), ("n2", 3, Verdict.FAIL))
    ledger.add_nodes(["n1", "n2"])
    ledger.forget("n1", "anna", "sold")

    assert read_month(ledger, store, NOON.timestamp()).nodes.keys() == {"n2"}


def test_a_node_is_held_on_each_day_of_its_outage_unless_it_was_only_observed() -> None:
    def outage(node: str, *, held: bool, ended: float) -> NodeOutage:
        began = (NOON - timedelta(days=4)).timestamp()
        return NodeOutage(
            node=node,
            began=began,
            ended=ended,
            cause=OutageCause.PERSON,
            reason="fans",
            held=held,
        )

    back = (NOON - timedelta(days=2)).timestamp()
    outages = [
        outage("n1", held=True, ended=back),
        outage("n2", held=True, ended=0.0),
        outage("n3", held=False, ended=0.0),
    ]
    held = [day.held for day in build_month((), outages, NOON.date()).days]

    assert held[-6:] == [0, 2, 2, 2, 1, 1]
