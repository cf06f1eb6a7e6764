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
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from hpcverify.errors import ConfigError
from hpcverify.model import Cause, Remedy, Verdict
from hpcverify.trust import refuse_folder_of_others, refuse_if_others_can_change

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


Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=1)]
Hours = Annotated[float, Meta(gt=0)]


class Fleet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a site's nodes are verified from its controller: the table ``[fleet]``."""

    spool: str = ""
    """Where nodes leave their runs, on a file system that they share; empty: none."""
    user: str = "root"
    """Who the sweep's jobs run as, who owns what they leave in the spool."""
    program: str = ""
    """Where hpcverify is on the nodes; empty: where it is on the controller."""
    partition: str = "verify"
    """Of low priority and preemptible: the sweep's jobs run there."""
    account: str = ""
    """Whom the sweep's jobs are booked on; empty: as Slurm chooses."""
    qos: str = ""
    """The QOS of the sweep's jobs, as preempt/qos needs it; empty: as Slurm chooses."""
    sbatch_options: tuple[str, ...] = ()
    """Further options of sbatch for these jobs, each as ``--name=value``."""
    suite: str = "idle"
    """What a sweep runs."""
    at_once: Count = 16
    """Nodes that are verified at the same time, at most."""
    share: Share = 0.1
    """Of the nodes of a partition, likewise; one node is always allowed."""
    fresh_hours: Hours = 20
    """A node that passed within is skipped."""
    deadline_hours: Hours = 1
    """A job that could not start by then is given up until the next sweep."""
    overdue_days: Annotated[float, Meta(ge=0)] = 0
    """A node that has not passed for so long is reserved until it is verified; 0: never."""
    gate_hours: Hours = 26
    """How long a gate file is valid."""
    keep_runs: Count = 200
    """Runs of a node that the controller keeps, beside those that are evidence."""


class Quarantine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a node is taken out of service: the table ``[quarantine]``."""

    enforce: tuple[str, ...] = ()
    """Checks whose FAIL takes a node out of service, ``"*"`` for all; others only
    show. A site begins with none."""
    fail_closed: tuple[str, ...] = ()
    """Checks whose hard evidence refuses a job in the prolog, once enforced."""
    drain_errors: tuple[Cause, ...] = ()
    """What keeps a node from being judged so that it is held for a person."""
    share: Share = 0.1
    """Of the eligible nodes: held anew within the window, two are always allowed."""
    cap: Count = 8
    """The same, in nodes, whatever the share is."""
    window_hours: Hours = 24
    check_share: Share = 0.3
    """Of the nodes that ran a check: more that fail it within the window, and at
    least three, accuse the check."""
    repeat_quarantines: Count = 3
    repeat_days: Annotated[float, Meta(gt=0)] = 28
    """So many quarantines within so many days make a repeat offender."""
    verify_returned: bool = False
    """Whether a node that we had drained, and that somebody else put back into
    service, is kept from jobs until it has passed."""
    backend: Literal["slurm", "command"] = "slurm"
    command: str = ""
    """The site's own script, for the backend of that name."""
    on_transition: str = ""
    """The site's own program, which is told of each change of state; empty: none."""


class Suppression(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A failure that a person knows of and that is not acted on: ``[[suppress]]``."""

    check: str
    nodes: str
    """A host list, as Slurm writes it."""
    until: date
    """The last day on which it holds; there is none that holds for ever."""
    reason: str
    by: str


class Site(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The site file; every field has a default, so that no file is needed."""

    check_packages: tuple[str, ...] = ()
    """Packages with checks of the site's own, beside the ones that ship."""
    scratch: str = ""
    """The directory whose storage is verified; the state directory when empty."""
    limits: Settings = {}
    fleet: Fleet = Fleet()
    quarantine: Quarantine = Quarantine()
    suppress: tuple[Suppression, ...] = ()
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
    refuse_if_others_can_change(path)
    site = read_toml(path, Site)
    return msgspec.structs.replace(site, path=str(path))


def suites_dir() -> Path:
    """Say where the site keeps suites of its own: beside the site file."""
    return site_path().parent / "suites"


def state_dir() -> Path:
    """
    Say where runs and the store are kept, for this user.

    Raises:
        ConfigError: its name cannot be written, or another user could change what is
            there.

    """
    path = _state_path()
    refuse_folder_of_others(path)
    return path


def _state_path() -> Path:
    if chosen := os.environ.get("HPCVERIFY_STATE"):
        path = Path(chosen)
    elif os.geteuid() == 0:
        path = Path("/var/lib/hpcverify")
    else:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        path = Path(home) / "hpcverify"
    if not str(path).isprintable():  # no document could hold it
        raise ConfigError(
            f"the state directory {str(path)!r} is no printable UTF-8: set "
            "HPCVERIFY_STATE to another"
        )
    return path


def node_name() -> str:
    """
    Name this node as Slurm does where it can be known, else as the host.

    Raises:
        ConfigError: no host can have that name.

    """
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    if not name.isprintable():
        raise ConfigError(
            f"this node is called {name!r}, which is no printable UTF-8: correct "
            "SLURMD_NODENAME or the host name"
        )
    return name


def read_toml(path: Path, kind: type[T]) -> T:
    """
    Read the TOML file *path* as a value of *kind*.

    Raises:
        ConfigError: one line that names the file, the place and the fix.

    """
    try:
        return convert_config(tomllib.loads(path.read_text(encoding="utf-8")), kind, str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not TOML: {exc}") from exc


def convert_config(raw: object, kind: type[T], subject: str) -> T:
    """
    Make a value of *kind* of what a file holds; *subject* names the file.

    Raises:
        ConfigError: it does not fit, or a number in it is not finite.

    """
    for place, value in _list_numbers(raw):
        if not math.isfinite(value):
            raise ConfigError(f"{subject}: {place} must be a finite number, not {value:g}")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as exc:
        told = _explain_range_error(str(exc))
        raise ConfigError(f"{subject}: {told}{_suggest_fix(told, kind)}") from exc


def _list_numbers(raw: object, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in what a file holds, with its place."""
    if isinstance(raw, float):
        yield place, raw
    elif isinstance(raw, Mapping):
        for key, inner in raw.items():
            yield from _list_numbers(inner, f"{place}.{key}".removeprefix("."))
    elif isinstance(raw, list | tuple):
        for index, inner in enumerate(raw):
            name = inner.get("name", index) if isinstance(inner, Mapping) else index
            yield from _list_numbers(inner, f"{place}[{name}]")


def _explain_range_error(complaint: str) -> str:
    """Say of a number out of range where it is and what it must be."""
    found = re.fullmatch(
        r"Expected `(?:float|int)` ([<>]=? \S+?)(?:\.0)? - at `\$\.?(.*)`", complaint
    )
    return complaint if found is None else f"{found[2]} must be {found[1]}"


def _suggest_fix(complaint: str, kind: object) -> str:
    if choice := re.match(r"Invalid enum value .* at `\$\.(.*)`", complaint):
        place = re.sub(r"\[.*?\]", "", choice[1])
        return f"; known: {', '.join(filter(None, _list_choices(place, kind)))}"
    unknown = re.search(r"unknown field `(.*?)`", complaint)
    if unknown is None:
        return ""
    known = sorted(set(_list_field_names(kind)))
    from difflib import get_close_matches  # noqa: PLC0415 - nobody should need it

    near = get_close_matches(unknown[1], known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"


def _list_choices(place: str, kind: object) -> Iterator[str]:
    """Name the values that may stand at *place*, as ``quarantine.backend``."""
    name, _, rest = place.partition(".")
    if isinstance(kind, type) and issubclass(kind, Struct):
        for field in msgspec.structs.fields(kind):
            if field.encode_name == name:
                yield from _list_choices(rest, field.type)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield from (str(each.value) for each in kind)
    elif get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    else:
        for inner in get_args(kind):
            yield from _list_choices(place, inner)


def _list_field_names(kind: object) -> Iterator[str]:
    """Name the fields of *kind* and of every struct within it."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        for field in msgspec.structs.fields(kind):
            yield field.encode_name
            yield from _list_field_names(field.type)
    for inner in get_args(kind):
        yield from _list_field_names(inner)


def to_json_types(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn *values* into what JSON can hold."""
    converted: dict[str, Any] = msgspec.to_builtins(dict(values))
    return converted
