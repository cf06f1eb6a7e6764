"""Finds what a file beside the site file says that this node has: for tests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from hpcverify.check import (
    Cause,
    Check,
    CheckItem,
    Context,
    Finding,
    Measurement,
    Metric,
    Params,
    Placement,
    Remedy,
    Unable,
    fail_on,
)

PAUSE = "paused"
"""While there is a file of this name next to the site file, the check does not end; it makes a
file of the name with that of its node, to show that it waits."""


def measure(ctx: Context, _params: Params) -> Iterator[CheckItem]:
    """Yield the speed that the file of this node says; a word in it is a fault."""
    site = Path(os.environ["HPCVERIFY_CONFIG"])
    told = site.with_name("told") / ctx.node
    while site.with_name(PAUSE).exists():
        site.with_name(f"{PAUSE}-{ctx.node}").touch()
        time.sleep(0.1)
    word = told.read_text().strip() if told.exists() else "100"
    if word == "corrupt":
        yield Finding("corruption", "node", "a wrong word")
    if word == "missing":
        raise Unable("the tool is not installed: apt-get install tool", Cause.MISSING)
    yield Measurement("speed", float(word) if word.isdigit() else 100.0, "GB/s")


CHECK = Check(
    summary="what a file says of the node",
    placement=Placement.NODE,
    params=Params,
    measure=measure,
    metrics={"speed": Metric("GB/s", "low", "as told").fail(low=50, optional=False)},
    finding_rules=fail_on("corruption", remedy=Remedy.REPLACE, conclusive=True),
)
