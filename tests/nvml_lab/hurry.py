"""
Has the command line wait a second for what it gives 30 on a real node.

As the ``preload`` of a command line: a GPU that hangs costs a test a second or two.
"""

from __future__ import annotations

HUNG_SECONDS = 1.0
HURRIED_SECONDS = 0.5
SCALE = HUNG_SECONDS / 30
"""Seconds here by seconds on a real node."""


def install() -> None:
    """Shorten the waits, before a session with NVML begins, also in workers."""
    from tests.rehearsal import forks  # noqa: PLC0415 - as below

    forks.install()
    from hpcverify.telemetry.nvml.poll import NvmlSource  # noqa: PLC0415 - in the warm process only

    NvmlSource.__init__.__defaults__ = (HUNG_SECONDS, HURRIED_SECONDS)
