"""What a process has that all processes of a rehearsal are forked from."""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

TRITON = "REHEARSAL_TRITON"


class NoTriton(MetaPathFinder):
    """Has Triton not installed, unless a run asks for the real one: that needs a GPU."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname == "triton" and os.environ.get(TRITON) != "real":
            raise ModuleNotFoundError("No module named 'triton'", name=fullname)
        return None


def install() -> None:
    """Put the stand-in in place, before hpcverify or torch is imported."""
    from tests.rehearsal import clock, covered, forks, smaller  # noqa: PLC0415 - before all

    covered.install()
    clock.install()
    smaller.install()
    sys.meta_path.insert(0, NoTriton())

    from tests.rehearsal import cuda_on_cpu  # noqa: PLC0415 - imports torch

    cuda_on_cpu.install()
    forks.install()
