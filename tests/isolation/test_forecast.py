"""A forecast says what the same isolation then takes."""

from __future__ import annotations

from pathlib import Path

from hpcverify.isolation.forecast import forecast_isolation
from tests.isolation.paper import make_paper
from tests.isolation.stand_in import SimulatedCluster


def test_a_healthy_cluster_takes_what_was_forecast(tmp_path: Path) -> None:
    paper = make_paper(tmp_path, 64, SimulatedCluster())
    plan = forecast_isolation(paper.order(), at_once=32)
    answer = paper.run()
    assert (plan.forecasts[0].tests, plan.forecasts[0].rounds) == (answer.tests, answer.rounds)
    assert [one.bad for one in plan.forecasts] == [0, 1, 2, 12]


def test_fewer_jobs_at_once_take_longer_and_no_more_node_minutes(tmp_path: Path) -> None:
    order = make_paper(tmp_path, 100, SimulatedCluster()).order()
    many, few = (forecast_isolation(order, at_once).forecasts[-1] for at_once in (100, 2))
    assert few.minutes > many.minutes
    assert few.node_minutes == many.node_minutes
