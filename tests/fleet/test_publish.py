"""What each node's prolog is told, and for how long that stands."""

from __future__ import annotations

import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify import gate
from hpcverify.errors import StoreError
from hpcverify.fleet.breaker import Doubt
from hpcverify.fleet.publish import (
    PLACE_S,
    build_job_gate,
    publish_job_gates,
    publish_refusal_places,
)
from hpcverify.fleet.states import Node, State
from hpcverify.plan.config import Fleet, Quarantine, Site, Suppression
from hpcverify.records.spool import take_place

NOW = 1_800_000_000.0
HOURS = 26
UNTIL = int(NOW + HOURS * 3600)
CLOSED = Quarantine(enforce=("xid",), fail_closed=("xid", "ecc"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Make a site with a spool, in which xid may refuse a job."""
    (tmp_path / gate.GATE_NAME).mkdir()
    fleet = Fleet(spool=str(tmp_path), gate_hours=HOURS)
    return Site(path=str(tmp_path / "site.toml"), fleet=fleet, quarantine=CLOSED)


def node(state: State, **changes: Any) -> Node:
    return Node(name="n1", state=state, reason="fans", enforced=True, **changes)


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        (State.HEALTHY, "ok"),
        (State.UNVERIFIED, "ok"),
        (State.SUSPECT, "ok"),
        (State.VERIFYING, "ok"),
        (State.HELD, "hold"),
        (State.QUARANTINED, "quarantined"),
        (State.REPEAT_OFFENDER, "quarantined"),
    ],
)
def test_a_word_refuses_where_a_drain_is_wanted(site: Site, state: State, verdict: str) -> None:
    said = build_job_gate(node(state), site, "", (), UNTIL)
    assert (said.verdict, said.checks) == (verdict, ("xid",))
    assert said.reason == ("" if verdict == "ok" else "fans")


def test_a_long_reason_of_a_gate_ends_with_a_whole_word(site: Site) -> None:
    sick = replace(node(State.QUARANTINED), reason="word " * 1000)
    reason = build_job_gate(sick, site, "", (), UNTIL).reason
    assert len(reason) <= gate.MAX_REASON_CHARACTERS
    assert reason.endswith("word…")


def test_what_is_only_observed_refuses_nothing(site: Site) -> None:
    observed = Node(name="n1", state=State.QUARANTINED, reason="fans")
    assert build_job_gate(observed, site, "", (), UNTIL).verdict == "ok"


def test_while_the_breaker_is_tripped_no_word_refuses_and_none_lists_a_check(site: Site) -> None:
    said = build_job_gate(node(State.QUARANTINED), site, "3 of 4 nodes", (), UNTIL)
    assert (said.verdict, said.checks) == ("ok", ())
    assert "3 of 4 nodes" in said.reason


def left(site: Site, now: float = NOW, name: str = "n1") -> gate.JobGate:
    found = gate.read(Path(site.fleet.spool, gate.GATE_NAME, name), now)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("hours", "renewed"),
    [(0, False), (HOURS / 2 - 0.1, False), (HOURS / 2 + 0.1, True), (-1000, True)],
)
def test_a_word_is_renewed_at_half_its_time_and_when_a_clock_was_ahead(
    site: Site, hours: float, *, renewed: bool
) -> None:
    nodes = {"n1": node(State.HEALTHY)}
    publish_job_gates(nodes, site, "", {}, NOW)
    assert left(site).until == UNTIL

    later = NOW + hours * 3600
    publish_job_gates(nodes, site, "", {}, later)

    assert left(site, later).until == (int(later + HOURS * 3600) if renewed else UNTIL)


def test_a_word_that_says_something_else_is_written_at_once(site: Site) -> None:
    publish_job_gates({"n1": node(State.HEALTHY)}, site, "", {}, NOW)
    publish_job_gates({"n1": node(State.HELD)}, site, "", {}, NOW + 60)
    assert (left(site).verdict, left(site).until) == ("hold", UNTIL + 60)


def test_a_spool_that_cannot_be_written_is_one_line(site: Site) -> None:
    Path(site.fleet.spool, gate.GATE_NAME).rmdir()
    Path(site.fleet.spool, gate.GATE_NAME).touch()
    with pytest.raises(StoreError, match=r"n1 cannot be written: "):
        publish_job_gates({"n1": node(State.HELD)}, site, "", {}, NOW)


def test_a_word_that_cannot_be_left_keeps_no_other_back(site: Site) -> None:
    Path(site.fleet.spool, gate.GATE_NAME, "n0").mkdir()  # as who is root there can
    nodes = {"n0": node(State.HELD), "n1": node(State.HELD)}
    with pytest.raises(StoreError, match=r"n0 cannot be written: Is a directory$"):
        publish_job_gates(nodes, site, "", {}, NOW)
    assert left(site).verdict == "hold"


def test_free_places_follow_what_the_breaker_allows_beside_those_taken(site: Site) -> None:
    def publish(
        allowed: int, *, after: float = 0, refusing: tuple[str, ...] = (), tripped: str = ""
    ) -> list[int]:
        count = lambda taken: max(0, allowed - len(taken))  # noqa: E731 - as the controller does
        publish_refusal_places(site, tripped, count, refusing, time.time() + after)
        names = [path.name for path in places.iterdir()]
        free = sum(name.startswith(gate.FREE_PREFIX) for name in names)
        return [free, len(names) - free]

    places = Path(site.fleet.spool, gate.GATE_NAME, gate.PLACES_NAME)
    assert publish(3) == publish(3) == [3, 0]
    assert take_place(Path(site.fleet.spool), "n1")
    assert publish(3) == [2, 1]
    assert publish(0) == [0, 1]
    late = PLACE_S + 1
    assert publish(3, after=late, refusing=("n1",)) == [2, 1]
    assert publish(3, refusing=("n1",), tripped="3 of 4 nodes") == [0, 1]
    assert publish(3, tripped="3 of 4 nodes") == [0, 0]
    assert take_place(Path(site.fleet.spool), "n2") is False
    publish(3)
    assert take_place(Path(site.fleet.spool), "n2")
    assert publish(3, after=late) == [3, 0]


def test_what_is_in_doubt_or_suppressed_refuses_no_job(site: Site) -> None:
    known = Suppression(check="xid", nodes="n[1-3]", until=date(2027, 1, 31), reason="x", by="ada")
    healthy = {"n1": node(State.HEALTHY), "n4": node(State.HEALTHY)}

    publish_job_gates(healthy, replace(site, suppress=(known,)), "", {}, NOW)
    assert (left(site).checks, left(site, name="n4").checks) == ((), ("xid",))
    publish_job_gates(healthy, site, "", {}, NOW)
    assert left(site).checks == ("xid",)
    doubt = Doubt(check="xid", why="", nodes=("n1", "n4"), until=None, unchanged=("n4",))
    publish_job_gates(healthy, site, "", {"xid": doubt}, NOW)
    assert (left(site).checks, left(site, name="n4").checks) == ((), ("xid",))
