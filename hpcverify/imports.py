"""
Import a library without what it imports and we never use.

A job waits in the prolog while Python imports.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def replace_modules(others: Mapping[str, ModuleType | None]) -> Generator[None]:
    """Let imports in the block find *others* under these names; None means "not installed"."""
    modules: dict[str, Any] = sys.modules
    missing = [name for name in others if name not in modules]
    modules.update((name, others[name]) for name in missing)
    try:
        yield
    finally:
        for name in missing:
            del modules[name]
