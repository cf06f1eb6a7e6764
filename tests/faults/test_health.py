"""No part is accused that is well: known or not, idle or at work, run after run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.limits.specs import Spec, load_specs
from hpcverify.model import Verdict
from tests.cli import Cli
from tests.faults.loaded import SECONDS, judged, watched
from tests.faults.test_passive import verified
from tests.nvml_lab.nvmllab import Lab
from tests.nvml_lab.parts import profile, strangers

pytestmark = [pytest.mark.system, pytest.mark.needs("root")]

QUIET = {"pass", "skip"}
IDLE, BUSY = (
    {s.key: profile(s, busy=busy) for s in load_specs()} | dict(strangers(busy=busy))
    for busy in (False, True)
)


def assert_quiet(cli: Cli, lab: Lab, lines: list[str]) -> None:
    """Run the prolog suite on the same board again and again."""
    lab.write(*lines)
    for _ in range(2):
        run = verified(cli, lab)
        loud = [r["reason"] for r in run["results"] if r["verdict"] not in QUIET]
        assert loud == []


@pytest.mark.parametrize("key", IDLE)
def test_an_idle_board_of_any_part_is_well(cli: Cli, lab: Lab, key: str) -> None:
    assert_quiet(cli, lab, IDLE[key])


@pytest.mark.parametrize("key", BUSY)
def test_a_board_of_any_part_is_well_at_work(lab: Lab, tmp_path: Path, key: str) -> None:
    inventory, watch = watched(lab, BUSY[key], SECONDS[::2])
    results = list(judged(inventory, watch, tmp_path))

    assert all(r.verdict in (Verdict.PASS, Verdict.SKIP) for r in results), [
        (r.check, r.reason) for r in results
    ]


@pytest.mark.parametrize(
    "sheet",
    [s for s in load_specs() if profile(s, busy=False, linked=False) != IDLE[s.key]],
    ids=lambda sheet: sheet.key,
)
def test_a_board_is_well_without_the_bridges_that_nobody_bought(
    cli: Cli, lab: Lab, sheet: Spec
) -> None:
    assert_quiet(cli, lab, profile(sheet, busy=False, linked=False))
