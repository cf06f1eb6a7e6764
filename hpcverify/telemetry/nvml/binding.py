"""
pynvml, without what it imports and never uses.

It imports `ctypes.util`, which searches for libraries and brings subprocess, tempfile and
shutil along: half of the time that importing pynvml takes, and a job waits for it in the
prolog. So it gets a function in its place that imports the real one when it is called.
"""

from __future__ import annotations

import sys
from types import ModuleType

SEARCH_MODULE = "ctypes.util"


def _find_library(name: str) -> str | None:
    from ctypes.util import find_library  # noqa: PLC0415 - that is the point

    return find_library(name)


if SEARCH_MODULE in sys.modules:
    import pynvml
else:
    stand_in = ModuleType(SEARCH_MODULE)
    stand_in.__dict__["find_library"] = _find_library
    sys.modules[SEARCH_MODULE] = stand_in
    try:
        import pynvml
    finally:
        del sys.modules[SEARCH_MODULE]

__all__ = ["pynvml"]
