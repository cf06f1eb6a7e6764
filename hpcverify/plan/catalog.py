"""Find checks by name, importing only those that are needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any

import msgspec

from hpcverify.check import Check, FindingRule, Maturity, Metric, Placement, may_cover
from hpcverify.errors import BrokenCheckError, ConfigError, UnknownNameError
from hpcverify.model import Side

BUILTIN_PACKAGE = "hpcverify_checks"
CALLED = {"measure": True} | dict.fromkeys(
    ("estimate", "demand", "observe", "applies", "reconcile", "selftest", "interpret"), False
)
"""The functions that a check declares, and whether it must."""
OTHER_FOLDERS = frozenset({"exact", "node", "ranks", "qualification"})
"""Folders that are no checks: what checks share, and what only a qualification measures."""


def load_check(name: str, packages: tuple[str, ...] = (BUILTIN_PACKAGE,)) -> Check[Any]:
    """Import the check *name* from the first of *packages* that has it."""
    for package in packages:
        path = f"{package}.{name}"
        if name.startswith("_") or not name.isidentifier():
            continue
        try:
            module = import_module(path)
        except (Exception, SystemExit) as exc:  # a script that ends itself would end us, as a PASS
            if isinstance(exc, ModuleNotFoundError) and exc.name == path:
                continue
            if package == BUILTIN_PACKAGE and not isinstance(exc, ImportError | SyntaxError):
                raise
            raise BrokenCheckError(
                f"check {path} cannot be imported: {find_place(path, exc)}: "
                f"{type(exc).__name__}: {exc}"
            ) from exc
        check: Check[Any] | None = getattr(module, "CHECK", None)
        if not isinstance(check, Check):
            raise BrokenCheckError(
                f"{module.__file__}: CHECK is not a Check; see docs/how-to/write-a-check.md"
            )
        if package != BUILTIN_PACKAGE:
            refuse_wrong_types(check, f"{module.__file__}: CHECK")
        return check
    raise UnknownNameError("check", name, list_check_names(packages))


def load_checks(packages: tuple[str, ...]) -> tuple[dict[str, Check[Any]], list[str]]:
    """Import all checks of *packages*, by name, and say what is wrong with the others."""
    checks: dict[str, Check[Any]] = {}
    mistakes: list[str] = []
    for name in sorted(set(list_check_names(packages))):
        try:
            checks[name] = load_check(name, packages)
        except BrokenCheckError as exc:
            mistakes.append(str(exc))
    return checks, mistakes


def find_place(path: str, exc: BaseException) -> str:
    """Say in which file, and at which line, the module *path* raised *exc*."""
    from importlib.util import find_spec  # noqa: PLC0415 - only for a mistake

    if isinstance(exc, SyntaxError) and exc.filename:
        return f"{exc.filename}:{exc.lineno}"
    spec = find_spec(path)
    place = file = (spec.origin if spec else None) or path
    step = exc.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == file:
            place = f"{file}:{step.tb_lineno}"
        step = step.tb_next
    return place


def refuse_wrong_types(check: Check[Any], subject: str) -> None:
    """Refuse a *check* of a site with a value of a wrong type, which Python takes as it is."""
    wanted: tuple[tuple[str, type | UnionType], ...] = (
        ("summary", str),
        ("params", type),
        ("metrics", Mapping),
        ("finding_rules", Mapping),
        ("placement", Placement),
        ("maturity", Maturity),
        ("timeout", int | float),
        ("only_named", bool),
    )
    for field, kind in wanted:
        if not isinstance(getattr(check, field), kind):
            name = getattr(kind, "__name__", str(kind))
            raise BrokenCheckError(f"{subject}.{field} is {getattr(check, field)!r}, not a {name}")
    for field, is_needed in CALLED.items():
        value = getattr(check, field)
        if not callable(value) and (is_needed or value is not None):
            raise BrokenCheckError(f"{subject}.{field} is {value!r}, which cannot be called")
    for field, kind in (("metrics", Metric), ("finding_rules", FindingRule)):
        for name, value in getattr(check, field).items():
            try:
                msgspec.convert(msgspec.to_builtins(value), kind)
            except (msgspec.ValidationError, TypeError) as exc:
                raise BrokenCheckError(f"{subject}.{field}[{name!r}]: {exc}") from exc
    _refuse_stray_limits(check, subject)
    try:
        check.params()
    except TypeError as exc:
        raise BrokenCheckError(f"{subject}.params: every field needs a default: {exc}") from exc


def _refuse_stray_limits(check: Check[Any], subject: str) -> None:
    """Refuse a limit for what its metric does not measure: a misspelt one would judge nothing."""
    for own, metric in check.metrics.items():
        for name in filter(None, metric.limits):
            if not may_cover(own, name) and not may_cover(name, own):
                stray = f"has a limit for {name!r}, which the metric does not cover"
                raise BrokenCheckError(f"{subject}.metrics[{own!r}] {stray}")


def list_check_names(packages: tuple[str, ...] = (BUILTIN_PACKAGE,)) -> Iterator[str]:
    """List the checks by their files; nothing but the package is imported."""
    for package in packages:
        try:
            path = import_module(package).__path__
        except (Exception, SystemExit) as exc:  # code of a site
            absent = isinstance(exc, ModuleNotFoundError | AttributeError | TypeError)
            why = "" if absent else f"{find_place(package, exc)}: {type(exc).__name__}: {exc}: "
            fix = "install" if absent else "correct"
            raise ConfigError(
                f"check package {package!r} cannot be imported: {why}{fix} it, or take it out of "
                "check_packages"
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
    """Make the function that returns the worse side of a check's metric; None if unknown."""

    @cache
    def load(name: str) -> Check[Any] | None:
        with suppress(ConfigError):
            return load_check(name, packages)
        return None

    def find_side(check: str, metric: str) -> Side | None:
        declared = load(check)
        declaration = declared.find_metric(metric) if declared else None
        return declaration.worse if declaration else None

    return find_side
