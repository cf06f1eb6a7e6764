"""A node that is gone is forgotten, and nothing that may still be wanted with it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpcverify.errors import StoreError
from hpcverify.fleet.ledger import Ledger, LedgerChange
from hpcverify.fleet.states import Node, State
from hpcverify.insight.overview import read_overview
from hpcverify.model import Verdict
from hpcverify.records.spool import deposit, list_homes, remove_home
from hpcverify.records.store import Store
from tests.doubles import a_result, a_run

BAD = Node(name="n1", state=State.QUARANTINED, enforced=True, checks=("gemm",))
RUN = "20260101-000000-abcdef"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Know of a node that failed, and one that did not."""
    made = Ledger(tmp_path / "state")
    made.record_judgments([LedgerChange(BAD, RUN, {"gemm": True}, "quarantined", held=True)])
    made.issue_ticket("n1", "return", "idle")
    made.record_intent("n1", "drain", "hpcverify[aa11bb] slow")
    made.put(Node(name="n2", state=State.HEALTHY), "passed")
    return made


def test_what_the_controller_knew_of_it_is_gone_and_the_log_is_not(ledger: Ledger) -> None:
    ledger.forget("n1", "ada", "sold")

    assert list(ledger.list_nodes()) == ["n2"]
    assert (ledger.list_newly_held(0), ledger.read_outcomes(0)) == (set(), {})
    assert ledger.list_open_tickets() == []
    assert not ledger.has_given_hold_id("n1", "hpcverify[aa11bb]")
    newest, *_ = ledger.read_audit("n1")
    assert (newest.actor, newest.what, newest.detail) == ("ada", "forget", "sold")
    *_, told = ledger.list_pending_transitions(10)
    assert (told.event.node, told.change.before, told.change.after, told.by) == (
        *("n1", "quarantined"),
        *("forgotten", "ada"),
    )


def test_its_runs_are_kept_and_not_shown_until_a_new_one_comes(
    ledger: Ledger, tmp_path: Path
) -> None:
    store = Store(tmp_path / "state")
    store.save(a_run(id=RUN, node="n1"))

    ledger.forget("n1", "ada", "sold")

    assert [row.node.name for row in read_overview(ledger, store).rows] == ["n2"]
    assert [entry.id for entry in store.list_runs("n1")] == [RUN]
    later = a_run(id="20260102-000000-abcdef", node="n1", started=datetime.now(tz=UTC))
    store.save(later)
    names = sorted(row.node.name for row in read_overview(ledger, store).rows)
    assert names == ["n1", "n2"]


def test_a_node_that_comes_back_is_a_new_one(ledger: Ledger, tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    today = datetime.now(tz=UTC)
    wrong = a_result("gemm", verdict=Verdict.FAIL, reason="slow")
    bad = a_run(
        id=f"{today:%Y%m%d-%H%M%S}-abcdef",
        node="n1",
        started=today,
        verdict=Verdict.FAIL,
        results=(wrong,),
    )
    store.save(bad)
    (before,) = [r for r in read_overview(ledger, store).rows if r.node.name == "n1"]
    assert before.failures == 1

    ledger.forget("n1", "ada", "sold")
    ledger.add_nodes(["n1"])

    (row,) = [r for r in read_overview(ledger, store).rows if r.node.name == "n1"]
    assert (row.state, row.why) == (State.UNVERIFIED, "")
    assert (row.attention, row.failures, row.said) == (False, 0, ())


def test_its_folder_in_the_spool_goes_with_what_was_refused_there(tmp_path: Path) -> None:
    home = tmp_path / "n1"
    home.mkdir()
    (home / ".refused.x.json").touch()
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "n1").write_text("ok\n1\n\n\n")
    (tmp_path / "n2").mkdir()

    remove_home(tmp_path, "n1")

    assert (list_homes(tmp_path), list((tmp_path / "gate").iterdir())) == (["n2"], [])
    remove_home(tmp_path, "n1")  # whoever is killed in between asks again


def test_runs_that_were_not_taken_in_are_not_deleted(tmp_path: Path) -> None:
    deposit(a_run(node="n1"), tmp_path)
    with pytest.raises(StoreError, match="has runs in it: hpcverify fleet collect first"):
        remove_home(tmp_path, "n1")
    assert list_homes(tmp_path) == ["n1"]


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_is_no_nodes_own_is_not_deleted(tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    if kind == "link":
        (tmp_path / "n1").symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "n1" / "deep").mkdir(parents=True)

    with pytest.raises(StoreError, match="n1 cannot be removed"):
        remove_home(tmp_path, "n1")

    assert (tmp_path / "elsewhere" / "deep").is_dir()
