"""How often Slurm is asked."""

from __future__ import annotations

from collections.abc import Sequence

from hpcverify.slurm.command import MAX_BURST_QUERIES, RateLimitedRun
from tests.doubles import Clock


def seconds_for(commands: Sequence[Sequence[str]]) -> float:
    clock = Clock(1000.0)
    paced = RateLimitedRun(lambda _: "", clock, clock.sleep)
    for command in commands:
        paced(command)
    return clock.now - 1000.0


def test_a_thousand_questions_take_a_thousand_seconds_less_those_at_once() -> None:
    assert seconds_for([["squeue"]] * 1000) == 1000 - MAX_BURST_QUERIES


def test_a_few_questions_and_whatever_acts_are_not_held_back() -> None:
    acts = [["sbatch", "x"], ["scontrol", "update"], ["scancel", "1"]] * 100
    assert seconds_for([*[["scontrol", "show", "nodes"]] * 10, *acts]) == 0
