"""
The site's configuration: ``site.toml``, its drop-ins, and where things are kept.

TOML in, typed values out. An unknown key is an error that names its path and a likely
correction; root refuses a file that others can write.

A package, Ansible and a person each have a file of their own: ``site.d/*.toml`` beside
``site.toml``, read after it in the order of their names. A later file is stronger.
"""

from __future__ import annotations

import math
import os
import pwd
import socket
import stat
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from hpcverify.check import Setting
from hpcverify.errors import ConfigError
from hpcverify.model import Cause
from hpcverify.peers.floors import PeerFloor
from hpcverify.trust import refuse_folder_of_others, refuse_if_others_can_change

T = TypeVar("T")

CONFIG_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
MAX_CONFIG_BYTES = 4 * 2**20
"""Larger files are not read: no site has that many limits."""


MetricSettings = Mapping[str, Setting | tuple[Setting, ...]]
"""Limits of a check by the measurement's name or pattern; several for different parts or nodes."""
Settings = Mapping[str, MetricSettings]
"""Limits by check."""


Share = Annotated[float, Meta(gt=0, le=1)]
MAX_YEARS = 100
"""A longer time is a mistake, and beyond what a date can be."""
MAX_DAYS, MAX_HOURS = MAX_YEARS * 365, MAX_YEARS * 365 * 24
MAX_COUNT = 100_000
Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Hours = Annotated[float, Meta(gt=0, le=MAX_HOURS)]


class Fleet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a site's nodes are verified from its controller: the table ``[fleet]``."""

    spool: str = ""
    """Where nodes leave their runs, on a shared file system; empty: none."""
    user: str = "root"
    """The user of the sweep's jobs, who owns what they leave in the spool."""
    program: str = ""
    """Where hpcverify is on the nodes; empty: as on the controller."""
    partition: str = "verify"
    """The sweep's jobs run here, with low priority and preemptible."""
    account: str = ""
    """The account of the sweep's jobs; empty: as Slurm chooses."""
    qos: str = ""
    """The QOS of the sweep's jobs, as preempt/qos needs it; empty: as Slurm chooses."""
    sbatch_options: tuple[str, ...] = ()
    """Further options of sbatch for these jobs, each as ``--name=value``."""
    suite: str = "idle"
    """What a sweep runs."""
    at_once: Count = 16
    """The most nodes to verify at once."""
    share: Share = 0.1
    """The same as a share of a partition; one node is always allowed."""
    fresh_hours: Annotated[float, Meta(ge=0, le=MAX_HOURS)] = 20
    """A node that passed within this time is skipped, or within a quarter of it for a week
    after it came back to service; 0: none is."""
    deadline_hours: Hours = 1
    """A job that has not started by then waits for the next sweep."""
    overdue_days: Annotated[float, Meta(ge=0, le=MAX_DAYS)] = 0
    """A node that has not passed for this long is reserved until it is verified; 0: never."""
    planned_reasons: tuple[str, ...] = ()
    """Words, as ``course*``, in the reason of a drain: it is planned, and says nothing of the node;
    beside those that ship."""
    gate_hours: Hours = 26
    """How long a gate file is valid."""
    keep_runs: Count = 200
    """Runs that the controller keeps for a node, besides the evidence."""


class Quarantine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a node is taken out of service: the table ``[quarantine]``."""

    enforce: tuple[str, ...] = ()
    """Checks whose FAIL takes a node out of service, ``"*"`` for all; the others only
    report. By default none."""
    fail_closed: tuple[str, ...] = ()
    """Enforced checks whose conclusive evidence makes the prolog refuse a job."""
    drain_errors: tuple[Cause, ...] = ()
    """Causes of ERROR for which a node is held for a person."""
    share: Share = 0.1
    """The most nodes to hold within the window, as a share of the eligible ones; two
    are always allowed."""
    cap: Count = 8
    """The same as a number of nodes, for any share."""
    window_hours: Hours = 24
    """The window of the circuit breaker and of *check_share*."""
    out_share: Share = 0.05
    """The most nodes that are out of service for failures at all, as a share of the
    eligible ones; twice as many as may be held within the window are always allowed, if
    that is no more than half of them."""
    check_share: Share = 0.3
    """If more than this share of the nodes that ran a check fail it within the window,
    and at least three do, the check is suspect."""
    repeat_quarantines: Count = 3
    """This many quarantines within *repeat_days* make a repeat offender."""
    repeat_days: Annotated[float, Meta(gt=0, le=MAX_DAYS)] = 28
    """The days within which quarantines of a node are counted."""
    verify_returned: bool = False
    """Whether a node that we drained, and that somebody else put back into service,
    gets no jobs until it has passed."""
    backend: Literal["slurm", "command"] = "slurm"
    """What takes nodes out of service: Slurm, or *command*."""
    command: str = ""
    """The site's own script, for the backend of that name."""
    on_transition: str = ""
    """The site's own program, run at each change of state; empty: none."""


class Bmcs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the BMCs of the nodes are asked from the controller: the table ``[bmc]``."""

    address: str = ""
    """Where the BMC of a node answers, as ``{node}-bmc``; empty: only those of *addresses*."""
    addresses: dict[str, str] = {}
    """The same for some nodes, by host list: as above, or a host list of as many."""
    credentials: str = ""
    """The file with user and password, which only its owner can read."""
    ca: str = ""
    """A file with the certificates to trust; empty: those of the system."""
    verify: bool = True
    """Whether a certificate must be trusted; if not, anybody may get the password."""
    at_once: Count = 8
    """The most BMCs to ask at once."""
    pause: Annotated[float, Meta(ge=0)] = 1
    """Seconds between one group of them and the next."""
    seconds: Annotated[float, Meta(gt=0)] = 120
    """Seconds for one BMC."""


class Fabric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The network between the nodes: the table ``[fabric]``."""

    switches: dict[str, str] = {}
    """The nodes at each leaf switch, or in each rack, as a host list; empty: as Slurm's
    topology has it."""
    period_days: Annotated[float, Meta(ge=0, le=MAX_DAYS)] = 0
    """Within so many days sweeps try each link between nodes that are idle; 0: never."""


class MeasurementRetention(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the controller keeps what runs measured: the table ``[history]``."""

    keep_nights: Annotated[int, Meta(ge=14, le=MAX_DAYS)] = 100
    """Nights that are kept run by run; older ones become a median for each week. Trends
    look at 90."""


class TextFiles(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Metrics for Prometheus, in text files of node_exporter: the table ``[metrics]``."""

    directory: str = ""
    """The directory of node_exporter's textfile collector, on the controller and on each node;
    empty: no metrics are written."""
    all_nodes: bool = False
    """Whether every node has series of its own in the controller's file, and not only those that
    need attention: 16 for each node, which take node_exporter seconds at 10,000 nodes."""


class Events(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What leaves the controller about changes of the fleet: the table ``[events]``."""

    file: bool = True
    """Whether events are appended to ``events.jsonl`` in the state directory."""
    keep_days: Annotated[float, Meta(ge=30, le=MAX_DAYS)] = 90
    """Days for which the ledger keeps them, and its audit log with them."""
    max_mib: Annotated[float, Meta(ge=0)] = 64
    """The size in MiB at which a new file is begun; 0: never, logrotate does it."""
    keep_files: Count = 8
    """Full files that are kept, as ``events.jsonl.1``."""
    journal: bool = False
    """Whether events are also sent to journald, from then on; it may forward them."""


class Suppression(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A known failure that nobody acts on: ``[[suppress]]``."""

    check: str
    """The check whose failure is known."""
    nodes: str
    """A host list, as Slurm writes it."""
    until: date
    """The last day on which it applies; it always has one."""
    reason: str
    """Why nobody acts on it, for whoever reads the next report."""
    by: str
    """Who decided it."""


class NodeKind(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that differ from the others by design: they are compared with each other alone."""

    name: str
    """As people call them, for example air."""
    nodes: str
    """A host list, as Slurm writes it."""


class SiteFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``site.toml`` and each drop-in may say; every field has a default."""

    check_packages: tuple[str, ...] = ()
    """Packages with the site's own checks, besides those that ship."""
    scratch: str = ""
    """The directory whose storage is verified; empty: the state directory."""
    limits: Settings = {}
    """Limits by check and measurement; several for different parts or nodes."""
    params: dict[str, dict[str, Any]] = {}
    """Parameters by check, in every suite: they go before those of the suite."""
    fleet: Fleet = Fleet()
    quarantine: Quarantine = Quarantine()
    bmc: Bmcs = Bmcs()
    fabric: Fabric = Fabric()
    history: MeasurementRetention = MeasurementRetention()
    metrics: TextFiles = TextFiles()
    events: Events = Events()
    suppress: tuple[Suppression, ...] = ()
    peers: tuple[PeerFloor, ...] = ()
    """From which distance parts are outliers among their peers: before the table that ships."""
    kinds: tuple[NodeKind, ...] = ()
    """Nodes that differ from the others by design."""


class SiteSource(Struct, frozen=True):
    """One file of the site."""

    path: str
    content: SiteFile
    raw: Mapping[str, Any] = {}
    """Its content as TOML has it: what the file says, without defaults."""


class Site(SiteFile, frozen=True, kw_only=True):
    """What all files of the site say together."""

    path: str = "(no site file)"
    """Of ``site.toml``, where a person adds what is missing."""
    sources: tuple[SiteSource, ...] = ()
    """The files, the strongest last."""

    @property
    def packages(self) -> tuple[str, ...]:
        """All packages with checks, the site's own first."""
        return (*self.check_packages, "hpcverify_checks")

    @property
    def files(self) -> tuple[SiteSource, ...]:
        """The files that limits and parameters are from, the strongest last."""
        return self.sources or (SiteSource(self.path, self),)

    def find_file(self, *place: str | int) -> str:
        """Find the file that sets *place*, as ``("fleet", "spool")``; else ``site.toml``."""
        from hpcverify.plan.drop_ins import find_file  # noqa: PLC0415 - most hooks need it not

        return find_file([(s.path, s.raw) for s in self.sources], place) or self.path


def site_path() -> Path:
    """Return the path of the site file."""
    return Path(os.environ.get("HPCVERIFY_CONFIG") or "/etc/hpcverify/site.toml")


def drop_in_folder(path: Path) -> Path:
    """Return the folder of the drop-ins of the site file *path*: ``site.d`` of ``site.toml``."""
    return path.with_name(f"{path.stem}.d") if path.name else path / ".d"


def load_site(path: Path | None = None) -> Site:
    """Read the site file and its drop-ins; without any, the defaults apply."""
    path = path or site_path()
    try:
        os.lstat(path)  # a link that leads nowhere is a mistake
        there = True
    except FileNotFoundError:
        there = False
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from exc
    if not there and os.environ.get("HPCVERIFY_CONFIG") and path == site_path():
        raise ConfigError(
            f"{path} (HPCVERIFY_CONFIG) does not exist. Fix: create it, or unset the variable"
        )
    files = [*([path] if there else []), *_list_drop_ins(drop_in_folder(path))]
    if not files:
        return Site()
    sources: tuple[SiteSource, ...] = ()
    for file in files:
        refuse_if_others_can_change(file)
        raw = load_toml(file)
        source = SiteSource(str(file), convert_config(raw, SiteFile, str(file)), raw)
        sources = (*sources, source)
    content = sources[0].content
    if len(sources) > 1:
        from hpcverify.plan.drop_ins import merge_files  # noqa: PLC0415 - most hooks need it not

        content = convert_config(merge_files([s.raw for s in sources]), SiteFile, str(path))
    return Site(**msgspec.structs.asdict(content), path=str(path), sources=sources)


def _list_drop_ins(folder: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - cheaper: each hook does this
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and not folder.is_symlink():
            return []
        raise ConfigError(f"{folder} cannot be read: {exc.strerror}") from exc
    refuse_if_others_can_change(folder)
    if strange := next((name for name in names if not name.isprintable()), None):
        raise ConfigError(f"{folder}: the name {strange!r} is not printable UTF-8. Fix: rename it")
    return [folder / name for name in names if name.endswith(".toml") and name[0] != "."]


def look_up_uid(user: str) -> int:
    """Return the uid of *user*."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ConfigError(f"fleet.user: there is no user {user!r} on this machine") from None


def find_uid(user: str) -> int:
    """Return the uid of *user*; root's, if there is no such user on this node."""
    try:
        return look_up_uid(user)
    except ConfigError:
        return 0


def suites_dir() -> Path:
    """Return the folder of the site's own suites: beside the site file."""
    return site_path().parent / "suites"


def state_dir() -> Path:
    """Return the directory of this user's runs and store."""
    if chosen := os.environ.get("HPCVERIFY_STATE"):
        path = Path(chosen)
    elif os.geteuid() == 0:
        path = Path("/var/lib/hpcverify")
    else:
        try:
            home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        except RuntimeError:
            raise ConfigError(
                f"user {os.geteuid()} has no entry in passwd and HOME is not set. Fix: set "
                "HPCVERIFY_STATE to a directory for runs"
            ) from None
        path = Path(home) / "hpcverify"
    if not str(path).isprintable():  # no document could hold it
        raise ConfigError(
            f"the state directory {str(path)!r} is not printable UTF-8. Fix: change HPCVERIFY_STATE"
        )
    refuse_folder_of_others(path)
    return path


def node_name() -> str:
    """Return the name of this node: Slurm's if it is known, else the host's."""
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    if not name.isprintable():
        raise ConfigError(
            f"this node is called {name!r}, which is not printable UTF-8: correct "
            "SLURMD_NODENAME or the host name"
        )
    return name


def read_toml(path: Path, kind: type[T]) -> T:
    """Read the TOML file *path* as a value of *kind*."""
    return convert_config(load_toml(path), kind, str(path))


def load_toml(path: Path) -> dict[str, Any]:
    """Read the TOML file *path* as it stands."""
    try:
        return tomllib.loads(_read_bytes(path).decode())
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
    except ValueError as exc:  # a number of thousands of digits too
        raise ConfigError(f"{path}: not TOML: {exc}") from exc
    except RecursionError:
        raise ConfigError(f"{path}: its values are nested too deeply") from None


def _read_bytes(path: Path) -> bytes:
    """Read a file, or a device such as /dev/null; a hook does not wait for who writes a pipe."""
    opened = os.open(path, CONFIG_FLAGS)
    try:
        mode = os.fstat(opened).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode) or stat.S_ISDIR(mode)):
            raise ConfigError(f"{path} is not a regular file")
        with os.fdopen(opened, "rb", closefd=False) as file:
            content = file.read(MAX_CONFIG_BYTES + 1) or b""
    finally:
        os.close(opened)
    if len(content) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path} exceeds {MAX_CONFIG_BYTES >> 20} MiB. Fix: split it")
    return content


def convert_config(raw: object, kind: type[T], subject: str) -> T:
    """Convert the content of a file to a value of *kind*; *subject* names the file."""
    try:
        for place, value in _list_numbers(raw):
            if not math.isfinite(value):
                raise ConfigError(f"{subject}: {place} must be a finite number, not {value:g}")
        return msgspec.convert(raw, kind)
    except RecursionError:  # a key of hundreds of names
        raise ConfigError(f"{subject}: its tables are nested too deeply") from None
    except msgspec.ValidationError as exc:
        from hpcverify.plan.config_errors import explain_mismatch  # noqa: PLC0415 - seldom needed

        raise ConfigError(f"{subject}: {explain_mismatch(str(exc), kind)}") from exc


def _list_numbers(raw: object, place: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(raw, float):
        yield place, raw
    elif isinstance(raw, Mapping):
        for key, inner in raw.items():
            yield from _list_numbers(inner, f"{place}.{key}".removeprefix("."))
    elif isinstance(raw, list | tuple):
        for index, inner in enumerate(raw):
            name = inner.get("name", index) if isinstance(inner, Mapping) else index
            yield from _list_numbers(inner, f"{place}[{name}]")


def to_json_types(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert *values* to types that JSON has."""
    converted: dict[str, Any] = msgspec.to_builtins(dict(values))
    return converted
