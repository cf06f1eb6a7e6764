"""The time that a run is expected to take, by the last run of the same checks."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from hpcverify.commands._run import estimate_seconds
from hpcverify.model import Run, Verdict
from hpcverify.plan.suite import load_suite, make_plan
from hpcverify.records.store import Store
from tests.doubles import a_run
from tests.plan.test_suite import SITE


def test_progress_expects_what_the_last_run_of_the_same_checks_took(tmp_path: Path) -> None:
    store, suite = Store(tmp_path), load_suite("prolog")
    runs: list[Run] = [
        a_run(suite="prolog", seconds=7.0),
        a_run(suite="prolog", seconds=3.0, chosen=("steady",)),
        a_run(suite="idle", seconds=90.0),
        a_run(suite="prolog", seconds=1.0, complete=False, verdict=Verdict.ERROR),
    ]
    for number, run in enumerate(runs):
        began = run.started + timedelta(hours=number)
        store.save(replace(run, id=f"20260101-00000{number}-abcdef", started=began))
    whole, one = (make_plan(suite, SITE, checks) for checks in ((), ("steady",)))

    assert estimate_seconds(store, "n1", whole, ()) == 7.0
    assert estimate_seconds(store, "n1", one, ("steady",)) == 3.0
    assert estimate_seconds(store, "n2", whole, ()) is None
