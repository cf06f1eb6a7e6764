"""Controllers of a Slurm on paper, their time, and the failure that they act on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcverify.fleet.controller import Controller
from hpcverify.fleet.holds_slurm import SlurmBackend
from hpcverify.fleet.ledger import Ledger
from hpcverify.model import Finding, FindingRule, Remedy, Result, Verdict
from hpcverify.plan.config import Site
from hpcverify.records.store import Store
from hpcverify.slurm.client import Slurm
from tests.doubles import a_result


def make_controller(
    state: Path,
    site: Site,
    run: Callable[[Sequence[str]], str],
    clock: Callable[[], float],
    say: Callable[[str], None],
    **changes: Any,
) -> Controller:
    """Start a controller whose commands of Slurm are run by *run*."""
    slurm = Slurm(run=run)
    return Controller(
        site=site,
        state=state,
        ledger=Ledger(state, clock),
        store=Store(state),
        slurm=slurm,
        backend=SlurmBackend(slurm),
        say=say,
        clock=clock,
        **changes,
    )


class Ticking:
    """Has a time of its own, *now*."""

    now: float

    def clock(self) -> float:
        """Go on a little each time that somebody looks."""
        self.now += 0.001
        return self.now


def make_wrong_word(check: str = "sdc", *, conclusive: bool = True, **changes: Any) -> Result:
    """Make a failure that no rerun takes back, unless it is not *conclusive*."""
    return a_result(
        check,
        verdict=Verdict.FAIL,
        reason="a wrong word",
        findings=(Finding("corruption", "cpu", "a wrong word"),),
        rulings={"corruption": FindingRule(Verdict.FAIL, Remedy.REPLACE, conclusive=conclusive)},
        **changes,
    )
