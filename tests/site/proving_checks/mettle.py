"""Try itself in the way that the environment names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping

from hpcverify.check import Cause, Check, Context, Metric, Skip, Trial, Unable
from tests.site.acme_checks.steady import SteadyParams, measure


def selftest(ctx: Context) -> Iterator[Trial]:
    """Hold in one trial, and then do as told."""
    way = os.environ.get("METTLE", "holds")
    if way == "skip":
        raise Skip("there is no such part")
    yield trial(ctx, "none", "nothing found")
    yield WAYS[way](ctx)


def trial(ctx: Context, fault: str, outcome: str, expected: str = "nothing found") -> Trial:
    """Make a trial on the part at hand."""
    part_id = ctx.device.part
    return Trial(
        fault=fault,
        part_id=part_id,
        expected=expected,
        outcome=outcome,
        detail="by comparing twice",
    )


def unable(_ctx: Context) -> Trial:
    """Need what is not there."""
    raise Unable("frob is not installed: apt-get install frob", Cause.MISSING)


def wait(ctx: Context) -> Trial:
    """Take for ever."""
    time.sleep(3600)
    return trial(ctx, "never", "found")


WAYS: Mapping[str, Callable[[Context], Trial]] = {
    "holds": lambda ctx: trial(ctx, "a flipped bit", "found", "found"),
    "wrong": lambda ctx: trial(ctx, "a flipped bit", "nothing found", "found"),
    "unable": unable,
    "exit": lambda _ctx: os._exit(7),
    "wait": wait,
}

CHECK = Check(
    summary="a check that tries itself",
    measure=measure,
    params=SteadyParams,
    metrics={"level": Metric("ms", "high", "the number").fail(low=1.0, optional=False)},
    selftest=selftest,
    timeout=60.0,
)
