"""Finds what a file beside the site file says that this node has: for tests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from hpcverify.check import (
    Check,
    Context,
    Metric,
    Params,
    Placement,
    Rule,
    Unable,
)
from hpcverify.model import Cause, Finding, Found, Measurement, Remedy, Ruling, Verdict


class ToldParams(Params, frozen=True):
    """How long it takes."""

    seconds: float = 0.0


def measure(ctx: Context, params: ToldParams) -> Iterator[Found]:
    """Yield the speed that the file of this node says; a word in it is a fault."""
    told = Path(os.environ["HPCVERIFY_CONFIG"]).with_name("told") / ctx.node
    yield Measurement("seconds", params.seconds, "s")
    time.sleep(params.seconds)
    word = told.read_text().strip() if told.exists() else "100"
    if word == "corrupt":
        yield Finding("corruption", "node", "a wrong word")
    if word == "missing":
        raise Unable("the tool is not installed: apt-get install tool", Cause.MISSING)
    yield Measurement("speed", float(word) if word.isdigit() else 100.0, "GB/s")


CHECK = Check(
    summary="what a file says of the node",
    placement=Placement.NODE,
    params=ToldParams,
    measure=measure,
    metrics={
        "speed": Metric(unit="GB/s", meaning="as told"),
        "seconds": Metric(unit="s", meaning="as wished"),
    },
    rules={"speed": Rule(low=50, remedy=Remedy.INSPECT)},
    rulings={"corruption": Ruling(Verdict.FAIL, Remedy.REPLACE, hard=True)},
)
