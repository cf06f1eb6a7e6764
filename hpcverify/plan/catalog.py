"""Find checks by name, importing only those that are needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from hpcverify.check import Check
from hpcverify.errors import ConfigError, UnknownNameError
from hpcverify.model import Side

BUILTIN_PACKAGE = "hpcverify_checks"
OTHER_FOLDERS = frozenset({"common", "qualification"})
"""Folders that are no checks: what checks share, and what only a qualification measures."""


def load_check(name: str, packages: tuple[str, ...] = (BUILTIN_PACKAGE,)) -> Check[Any]:
    """Import the check *name* from the first of *packages* that has it."""
    for package in packages:
        path = f"{package}.{name}"
        if name.startswith("_") or not name.isidentifier():
            continue
        try:
            module = import_module(path)
        except ModuleNotFoundError as exc:
            if exc.name == path:
                continue
            raise ConfigError(f"check {path} cannot be imported: {exc}") from exc
        except (
            ImportError,
            SyntaxError,
            TypeError,
        ) as exc:  # TypeError: a declaration lacks a field
            raise ConfigError(f"check {path} cannot be imported: {exc}") from exc
        check: Check[Any] | None = getattr(module, "CHECK", None)
        if not isinstance(check, Check):
            raise ConfigError(f"{path}: CHECK is not a Check; see CONTRIBUTING.md")
        return check
    raise UnknownNameError("check", name, list_check_names(packages))


def list_check_names(packages: tuple[str, ...] = (BUILTIN_PACKAGE,)) -> Iterator[str]:
    """List the checks by their files; nothing but the package is imported."""
    for package in packages:
        try:
            path = import_module(package).__path__
        except (ImportError, AttributeError, TypeError) as exc:
            raise ConfigError(
                f"check package {package!r} cannot be imported: install it, or take "
                "it out of check_packages"
            ) from exc
        for name in sorted({name for folder in path for name in _list_modules(folder)}):
            if name not in OTHER_FOLDERS and not name.startswith("_"):
                yield name


def _list_modules(folder: str) -> Iterator[str]:
    """List the modules of a folder; `pkgutil` imports `inspect`, which takes 5 ms."""
    with suppress(OSError), os.scandir(folder) as entries:  # a zip file has no checks
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.name.removesuffix(".py")
            elif Path(entry.path, "__init__.py").exists():
                yield entry.name


def make_side_finder(
    packages: tuple[str, ...] = (BUILTIN_PACKAGE,),
) -> Callable[[str, str], Side | None]:
    """
    Make what says which side of a metric is worse, as its check declares it.

    It takes the names of the check and of the metric. Where the check is not installed here or no
    longer has the metric, it says None: nobody knows.
    """

    @cache
    def load(name: str) -> Check[Any] | None:
        with suppress(ConfigError):
            return load_check(name, packages)
        return None

    def find_side(check: str, metric: str) -> Side | None:
        declared = load(check)
        found = declared.find_metric(metric) if declared else None
        return found.worse if found else None

    return find_side
