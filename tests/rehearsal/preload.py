"""What a process has that all processes of a rehearsal are forked from."""

from __future__ import annotations

import sys


def install() -> None:
    """Put the stand-in in place, before hpcverify or torch is imported."""
    from tests.rehearsal import clock, forks, smaller  # noqa: PLC0415 - the clock is first

    clock.install()
    smaller.install()
    sys.modules["triton"] = None  # type: ignore[assignment] # as where it is not installed

    from tests.rehearsal import cuda_on_cpu  # noqa: PLC0415 - imports torch

    cuda_on_cpu.install()
    forks.install()
