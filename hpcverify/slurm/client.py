"""
Reads from Slurm and writes to it.

Nothing here decides: a caller reads, writes and reads again. A write that failed may
still have been done. Repeating one does no harm, except `Slurm.drain`, which replaces
whatever reason a node had.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hpcverify.errors import SlurmError
from hpcverify.plan.hostlist import NODE_NAME_PATTERN
from hpcverify.slurm import (
    NO_PREEMPTION,
    HookSettings,
    Host,
    Job,
    Partition,
    Preemption,
    Reservation,
    accounting,
    hosts,
    jobs,
    reservations,
    topology,
)
from hpcverify.slurm.accounting import UserJob
from hpcverify.slurm.command import RunCommand, run_command

MIN_JSON_VERSION = (23, 2)
"""The first version whose ``scontrol show nodes`` has JSON."""

UNSET_VALUES = frozenset({"(null)", "none", "N/A"})

NO_LIMIT = 65534
"""How ``scontrol show config`` prints a time that is not limited."""

MAX_NAMED_NODES = 200
"""To ask for more nodes than this, it is simpler to ask for all."""


@dataclass(frozen=True)
class Slurm:
    """The cluster of SLURM_CONF; every method raises a SlurmError if the output is incomplete."""

    run: RunCommand = run_command
    user: str = "root"
    """The owner of our jobs: only theirs are listed, and may run in a reservation."""

    def read_version(self) -> tuple[int, int]:
        """Return the version of the commands, such as (22, 5)."""
        return self._version

    @cached_property
    def _version(self) -> tuple[int, int]:
        printed = self.run(["scontrol", "--version"])
        match = re.search(r" (\d+)\.(\d+)", printed)
        if match is None:
            raise SlurmError(f"scontrol does not print its version: {printed[:80]!r}")
        return int(match[1]), int(match[2])

    def read_slurm_user(self) -> str:
        """Return the user that Slurm itself runs as, ``SlurmUser``."""
        return _find_setting("SlurmUser", self._config).partition("(")[0]

    def read_start_time(self) -> float:
        """Say when slurmctld last started: changes made just before may be lost."""
        return float(_find_setting("BOOT_TIME", self.run(["scontrol", "show", "config"])))

    @property
    def _has_accounting(self) -> bool:
        return _find_setting("AccountingStorageType", self._config).endswith("/slurmdbd")

    @cached_property
    def _config(self) -> str:
        return self.run(["scontrol", "show", "config"])

    def list_hosts(self, *names: str) -> dict[str, Host]:
        """Read all nodes, or those called *names*; an error if one of these is missing."""
        command = ["scontrol", "show", "nodes"]
        if 0 < len(names) <= MAX_NAMED_NODES:
            command.append(",".join(_require_single_name(name) for name in names))
        if self.read_version() >= MIN_JSON_VERSION:
            there = hosts.from_json(self.run([*command, "--json"]))
        else:
            there = hosts.from_text(self.run(command))
        missing = [name for name in names if name not in there]
        if missing:
            raise SlurmError(f"Slurm has no node {missing[0]}")
        return {name: there[name] for name in names} if names else there

    def read_partition(self, name: str) -> Partition:
        """Read the partition *name*."""
        return _parse_partition(
            self.run(["scontrol", "show", "partition", "-o", _require_single_name(name)])
        )

    def list_partitions(self) -> dict[str, Partition]:
        """Read all partitions by name, including hidden ones."""
        shown = self.run(["scontrol", "show", "partition", "-a", "-o"])
        partitions = [_parse_partition(line) for line in shown.splitlines() if line.strip()]
        return {partition.name: partition for partition in partitions}

    def read_preemption(self) -> Preemption:
        """Read how jobs are preempted in this cluster."""
        return Preemption(
            kind=next(iter(self._list_values("PreemptType")), NO_PREEMPTION),
            exempt=_find_setting("PreemptExemptTime", self._config),
            mode=next(iter(self._list_values("PreemptMode")), "OFF"),
        )

    def read_hook_settings(self) -> HookSettings:
        """Read which hooks Slurm starts, and how it accounts for jobs."""
        timeouts = map(_parse_number, self._list_values("PrologEpilogTimeout", "PrologTimeout"))
        return HookSettings(
            version=self._version,
            conf=" ".join(self._list_values("SLURM_CONF")),
            prolog=self._list_values("Prolog"),
            epilog=self._list_values("Epilog"),
            health_check=" ".join(self._list_values("HealthCheckProgram")),
            health_seconds=sum(map(_parse_number, self._list_values("HealthCheckInterval"))),
            prolog_timeout=next((number for number in timeouts if number < NO_LIMIT), None),
            scheduler=_split_words(self._list_values("SchedulerParameters")),
            enforced=_split_words(self._list_values("AccountingStorageEnforce")),
        )

    def _list_values(self, *names: str) -> tuple[str, ...]:
        """List the values of settings; newer versions number those that may be several."""
        line = re.compile(rf"^(?:{'|'.join(names)})(?:\[\d+\])?\s*= *(\S.*)$", re.MULTILINE)
        values = (value.strip() for value in line.findall(self._config))
        return tuple(value for value in values if value not in UNSET_VALUES)

    def list_jobs(self, prefix: str, wanted: Collection[int] = ()) -> dict[int, Job]:
        """
        Read the jobs whose name starts with *prefix*, in one query.

        Slurm forgets a job some minutes after its end (``MinJobAge``). If it has
        forgotten one of the ids *wanted* and the site has accounting, that is queried
        too. A job that is in neither is missing from the answer.
        """
        columns = ",".join(f"{column}:|" for column in jobs.SQUEUE_COLUMNS)
        squeue = ["squeue", "-h", "-t", "all", "-u", self.user, "-O", columns]
        there = jobs.from_squeue(self.run(squeue), prefix)
        gone = sorted(set(wanted) - there.keys())
        if not gone or not self._has_accounting:
            return there
        command = ["sacct", "-nXP", "-o", ",".join(jobs.SACCT_COLUMNS)]
        printed = self.run([*command, "-j", ",".join(map(str, gone))])
        return jobs.from_sacct(printed, prefix) | there

    def list_accounting_names(self, kind: str) -> set[str] | None:
        """List the accounts, or whatever *kind* is; None without accounting."""
        if not self._has_accounting:
            return None
        column = "account" if kind == "account" else "name"
        return set(self.run(["sacctmgr", "-nP", "show", kind, f"format={column}"]).split())

    def list_user_jobs(self, minutes: int) -> list[UserJob] | None:
        """Read all users' jobs of the last *minutes*, with reruns; None without accounting."""
        if not self._has_accounting:
            return None
        command = ["sacct", "-anXDP", "-S", f"now-{minutes}minutes", "-E", "now"]
        printed = self.run([*command, "-o", ",".join(accounting.JOB_COLUMNS)])
        return list(accounting.parse_user_jobs(printed))

    def list_avoided_nodes(self) -> dict[str, set[int]]:
        """Read which nodes everybody's jobs that wait or run must not use, and their users."""
        printed = self.run(["squeue", "-ha", "-o", accounting.AVOIDED_FORMAT])
        return accounting.parse_avoided_nodes(printed)

    def submit(self, script: Path, *options: str) -> int:
        """Submit *script* with sbatch's *options*; return the job's id."""
        printed = self.run(["sbatch", "--parsable", *options, str(script)])
        match = re.match(r"(\d+)(?:;|\s|$)", printed)
        if match is None:
            raise SlurmError(f"sbatch printed {printed[:80]!r} instead of a job id")
        return int(match[1])

    def cancel(self, *ids: int) -> None:
        """Cancel jobs; this does nothing to one that has ended."""
        if ids:
            self.run(["scancel", *map(str, ids)])

    def drain(self, name: str, reason: str) -> None:
        """Keep new jobs off a node; replaces the reason that it had, if any."""
        self._update(name, "state=drain", _format_reason(reason))

    def resume(self, name: str) -> None:
        """
        Remove a drain and its reason; a node that is down stays as it is.

        24.11 leaves the reason behind, accepts no empty one, and keeps the old one when
        it drains the node itself: a blank at least is not ours.
        """
        down = self.list_hosts(name)[name].state == "DOWN"
        self._update(name, "state=undrain", *([] if down else [_format_reason(" ")]))

    def set_reason(self, name: str, reason: str) -> None:
        """Replace the reason of a node that is drained or down."""
        self._update(name, _format_reason(reason))

    def _update(self, name: str, *what: str) -> None:
        self.run(["scontrol", "update", f"nodename={_require_single_name(name)}", *what])

    def list_reservations(self) -> dict[str, Reservation]:
        """Read all reservations, by name."""
        return reservations.from_text(self.run(["scontrol", "show", "reservation", "-o"]))

    def read_switches(self) -> dict[str, str]:
        """Name the leaf switch, or the block, of each node; none without a topology."""
        try:
            printed = self.run(["scontrol", "show", "topology"])
        except SlurmError as exc:
            if topology.NO_TOPOLOGY_TEXT in str(exc):
                return {}
            raise
        return topology.from_text(printed)

    def reserve(self, name: str, *nodes: str, minutes: int = 0) -> None:
        """
        Reserve *nodes* for our user's jobs for *minutes*, or without end; running jobs continue.

        The nodes may show the reservation only some seconds later: use `list_reservations`.
        """
        where = [
            f"reservationname={_require_single_name(name)}",
            f"nodes={','.join(map(_require_single_name, nodes))}",
        ]
        when = ["starttime=now", f"duration={minutes or 'UNLIMITED'}"]
        how = [f"users={self.user}", "flags=maint,ignore_jobs"]
        self.run(["scontrol", "create", "reservation", *where, *when, *how])

    def unreserve(self, name: str) -> None:
        """Delete a reservation."""
        self.run(["scontrol", "delete", f"reservationname={_require_single_name(name)}"])


def _split_words(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(word for value in values for word in value.split(",") if word)


def _parse_number(value: str) -> int:
    found = re.match(r"\d+", value)
    return int(found[0]) if found else 0


def _find_setting(name: str, config: str) -> str:
    match = re.search(rf"^{name}\s*=\s*(\S+)", config, re.MULTILINE)
    if match is None:
        raise SlurmError(f"scontrol show config does not list {name}")
    return match[1]


def _parse_partition(line: str) -> Partition:
    fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
    try:
        return Partition(
            name=fields["PartitionName"],
            max_minutes=parse_minutes(fields["MaxTime"]),
            preempt_mode=fields["PreemptMode"],
            tier=int(fields["PriorityTier"]),
            root_only=fields["RootOnly"] == "YES",
            grace=fields["GraceTime"],
            state=fields["State"],
            hostlist=fields["Nodes"].replace("(null)", ""),
            open_to_all=all(fields[f"Allow{by}"] == "ALL" for by in ("Groups", "Accounts", "Qos")),
        )
    except (KeyError, ValueError) as exc:
        raise SlurmError(
            f"the output of scontrol show partition is incomplete: {line[:80]!r}"
        ) from exc


def parse_minutes(limit: str) -> float:
    """Read a time limit as Slurm prints it, ``[days-]hours:minutes:seconds``, in minutes."""
    if limit == "UNLIMITED":
        return math.inf
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", limit)
    if match is None:
        raise SlurmError(f"{limit!r} is not a time limit")
    days, hours, rest, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + rest + seconds / 60


def _require_single_name(name: str) -> str:
    """Refuse what Slurm would read as several nodes, or as an option."""
    if not NODE_NAME_PATTERN.fullmatch(name):
        raise SlurmError(f"{name!r} is not a single name")
    return name


def _format_reason(reason: str) -> str:
    """Quote a reason so that it arrives unchanged: scontrol removes one pair of quotes."""
    return f'reason="{reason}"'
