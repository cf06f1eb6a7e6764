"""
pynvml, without what it imports and never uses.

It imports `ctypes.util`, which searches for libraries, and so subprocess, tempfile and
shutil: half of the time that importing pynvml takes. What stands in for it imports the real
one when it is called.
"""

from __future__ import annotations

from types import ModuleType

from hpcverify.imports import replace_modules

SEARCH_MODULE = "ctypes.util"


def _find_library(name: str) -> str | None:
    from ctypes.util import find_library  # noqa: PLC0415 - that is the point

    return find_library(name)


_stand_in = ModuleType(SEARCH_MODULE)
_stand_in.__dict__["find_library"] = _find_library
with replace_modules({SEARCH_MODULE: _stand_in}):
    import pynvml

__all__ = ["pynvml"]
