"""
What a site says of itself: ``site.toml`` and where things are kept.

TOML in, typed values out. A key that nobody knows is an error that names its path
and what was probably meant; as root, a file that others can write is refused.
"""

from __future__ import annotations

import math
import os
import re
import socket
import stat
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import Struct

from hpcverify.errors import ConfigError
from hpcverify.model import Remedy, Verdict

T = TypeVar("T")


class Setting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit as a file writes it: `hpcverify.check.Rule`, with the unit it is in."""

    low: float | None = None
    high: float | None = None
    unit: str | None = None
    of_spec: float | None = None
    of_siblings: float | None = None
    of_baseline: float | None = None
    otherwise: Verdict | None = None
    """As the check says, like all that follows, if it has a limit for the same and the
    file says nothing; else FAIL."""
    remedy: Remedy | None = None
    optional: bool | None = None
    """Whether a run in which nothing was measured is sound."""


Settings = dict[str, dict[str, Setting]]
"""Limits by check, then by the measurement's name or pattern."""


class Site(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The site file; every field has a default, so that no file is needed."""

    check_packages: tuple[str, ...] = ()
    """Packages with checks of the site's own, beside the ones that ship."""
    scratch: str = ""
    """The directory whose storage is verified; the state directory when empty."""
    limits: Settings = {}
    path: str = "(no site file)"

    @property
    def packages(self) -> tuple[str, ...]:
        """All packages to find checks in, the site's own first."""
        return (*self.check_packages, "hpcverify_checks")


def site_path() -> Path:
    """Say which file the site's configuration is read from."""
    return Path(os.environ.get("HPCVERIFY_CONFIG", "/etc/hpcverify/site.toml"))


def load_site(path: Path | None = None) -> Site:
    """
    Read the site file; without one, every default holds.

    Raises:
        ConfigError: it is named by HPCVERIFY_CONFIG and missing, or it is wrong.

    """
    path = path or site_path()
    try:
        there = path.exists()
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from exc
    if not there and "HPCVERIFY_CONFIG" not in os.environ:
        return Site()
    site = read_toml(path, Site)
    return msgspec.structs.replace(site, path=str(path))


def suites_dir() -> Path:
    """Say where the site keeps suites of its own: beside the site file."""
    return site_path().parent / "suites"


def state_dir() -> Path:
    """Say where runs and the store are kept, for this user."""
    if chosen := os.environ.get("HPCVERIFY_STATE"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/lib/hpcverify")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(home) / "hpcverify"


def node_name() -> str:
    """Name this node as Slurm does where it can be known, else as the host."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def read_toml(path: Path, kind: type[T]) -> T:
    """
    Read the TOML file *path* as a value of *kind*.

    Raises:
        ConfigError: one line that names the file, the place and the fix.

    """
    for guarded in (path.parent, path):
        refuse_if_others_can_write(guarded)
    try:
        return convert(tomllib.loads(path.read_text(encoding="utf-8")), kind, str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not TOML: {exc}") from exc


def convert(raw: object, kind: type[T], subject: str) -> T:
    """
    Make a value of *kind* of what a file holds; *subject* names the file.

    Raises:
        ConfigError: it does not fit, or a number in it is not finite.

    """
    for place, value in _numbers(raw):
        if not math.isfinite(value):
            raise ConfigError(
                f"{subject}: {place} must be a finite number, not {value:g}"
            )
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as exc:
        told = _in_words(str(exc))
        raise ConfigError(f"{subject}: {told}{_hint(told, kind)}") from exc


def _numbers(raw: object, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in what a file holds, with its place."""
    if isinstance(raw, float):
        yield place, raw
    elif isinstance(raw, Mapping):
        for key, inner in raw.items():
            yield from _numbers(inner, f"{place}.{key}".removeprefix("."))
    elif isinstance(raw, list | tuple):
        for index, inner in enumerate(raw):
            name = inner.get("name", index) if isinstance(inner, Mapping) else index
            yield from _numbers(inner, f"{place}[{name}]")


def _in_words(complaint: str) -> str:
    """Say of a number out of range where it is and what it must be."""
    found = re.fullmatch(
        r"Expected `(?:float|int)` ([<>]=? \S+?)(?:\.0)? - at `\$\.?(.*)`", complaint
    )
    return complaint if found is None else f"{found[2]} must be {found[1]}"


def _hint(complaint: str, kind: object) -> str:
    unknown = re.search(r"unknown field `(.*?)`", complaint)
    if unknown is None:
        return ""
    known = sorted(set(_fields(kind)))
    near = get_close_matches(unknown[1], known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"


def _fields(kind: object) -> Iterator[str]:
    """Name the fields of *kind* and of every struct within it."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        for field in msgspec.structs.fields(kind):
            yield field.encode_name
            yield from _fields(field.type)
    for inner in get_args(kind):
        yield from _fields(inner)


def refuse_if_others_can_write(path: Path) -> None:
    """As root, refuse a file or directory that another user can change."""
    if os.geteuid() != 0 or not path.exists():
        return
    found = path.stat()
    # In a sticky directory, as /tmp, nobody can replace what is another's.
    others = 0o022 if found.st_gid else 0o002
    loose = found.st_mode & others and not found.st_mode & stat.S_ISVTX
    if found.st_uid != 0 or loose:
        raise ConfigError(
            f"{path} can be changed by other users, and root would act on it: "
            f"chown root {path} && chmod go-w {path}"
        )


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn *values* into what JSON can hold."""
    converted: dict[str, Any] = msgspec.to_builtins(dict(values))
    return converted
