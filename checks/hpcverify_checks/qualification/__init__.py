"""
What only ``hpcverify qualify`` measures, on hardware that is new to hpcverify.

Each module is a check without limits, and each TOML file is a step of the qualification:
a suite of these measurements and of the checks that they are compared with. Unlike a check,
a measurement may stand on any check, since it says what that check is worth here.
"""

from __future__ import annotations

import hpcverify.check as hv


def require_gpu(ctx: hv.Context) -> None:
    """Raise `Skip` for the host: a qualification is about GPUs."""
    if ctx.device.kind == "cpu":
        raise hv.Skip("this is about GPUs")
