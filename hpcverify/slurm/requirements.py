"""
What hpcverify needs of a site's Slurm: one table, for `setup slurm` and for `doctor`.

Each requirement has the lines that meet it, for the version of Slurm that answers. Nothing
of the site's is replaced: a prolog, epilog or health check of its own runs first, then ours.
"""

from __future__ import annotations

import glob
import grp
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from enum import IntEnum, StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct

from hpcverify.plan.config import Fleet
from hpcverify.slurm import NO_PREEMPTION, HookSettings, Partition, Preemption
from hpcverify.slurm.hooks import HOOK_LIBRARY, MAX_HOOK_S
from hpcverify.slurm.partitions import PREEMPT_BY_PARTITION, PREEMPT_BY_QOS

SEVERAL_PROGRAMS_VERSION = (24, 11)
"""Takes several lines Prolog= and Epilog= (measured); in 22.05 the last one wins (measured)."""
DEFAULT_FOLDER = Path("/etc/slurm")
MAX_SCRIPT_BYTES = 1 << 16
MAX_PROGRAMS = 100
"""In a folder that a script of the site may run; one with more is of something else."""
MAX_DEPTH = 3
"""Of scripts that start each other: Slurm's program sources one that runs a folder."""
SOURCING = re.compile(r"(?:^|[\s;&|])(?:\.|source)\s", re.MULTILINE)
"""What it reads need not be executable."""
UNUSED_NAME = re.compile(r"~$|\.(?:bak|disabled|dpkg-\w+|log|off|old|orig|rpm\w+)$")
"""Names of files that no script starts: switched off, saved by a package manager, or written."""
RUN_TIME_FOLDER = "/run"
"""Where nodes without a slurm.conf of their own keep what the controller sent them."""
SITE_SCRIPT, OUR_SCRIPT = "90-site", "00-hpcverify"
"""In a folder of programs: Slurm starts the last name first (measured: 22.05, 24.11)."""
Script = tuple[str, ...]
ONCE = '[ -z "$HPCVERIFY_CHAIN" ] || exit 0'
"""A line of our scripts: one that a program of the site starts, which started it, ends."""
QOS = "verify"
"""What `setup slurm` proposes, if the site preempts by QOS and has named none."""
NOHOLD = "nohold_on_prolog_fail"
PROLOG_SECONDS = 120
"""The limit of a prolog that is proposed: well above that of ours."""


class Stage(IntEnum):
    """In which order to switch on; each is useful by itself."""

    OBSERVE = 1
    VERIFY = 2
    REFUSE = 3


class Place(StrEnum):
    """Where the lines of a requirement go."""

    OURS = "hpcverify setup slurm --write puts in place on this host"
    NODES = "run on every node, as root"
    ABOVE = "add above the first PartitionName line of slurm.conf"
    REPLACE = "write in slurm.conf or a file that it includes, in place of the line of that name"
    END = "add at the end of slurm.conf"
    ONCE = "run once, as root on the controller's host"


class Instruction(Struct, frozen=True):
    """Lines to add or to run."""

    place: Place
    lines: tuple[str, ...]


class Requirement(Struct, frozen=True):
    """One thing that hpcverify needs."""

    stage: Stage
    subject: str
    state: str
    instructions: tuple[Instruction, ...] = ()
    fix: str = ""
    """The same in words, where lines cannot say it."""

    @property
    def is_met(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.instructions or self.fix)

    def list_lines(self, *places: Place) -> list[str]:
        """List the lines that go to *places*."""
        return [line for i in self.instructions if i.place in places for line in i.lines]


def list_hook_requirements(settings: HookSettings, hooks: Path) -> Iterator[Requirement]:
    """List what Slurm's *settings* need to start the hooks that lie in *hooks*."""
    yield _need_health_check(settings, hooks / "healthcheck")
    yield _need_program(Stage.OBSERVE, "Epilog", settings.epilog, hooks / "epilog", settings)
    yield _need_program(Stage.REFUSE, "Prolog", settings.prolog, hooks / "prolog", settings)
    yield _need_prolog_timeout(settings)
    yield _need_requeue(settings)


def _need_health_check(settings: HookSettings, hook: Path) -> Requirement:
    name, value = "HealthCheckProgram", settings.health_check
    interval = Instruction(Place.END, ("HealthCheckInterval=300",))
    instructions = () if settings.health_seconds else (interval,)
    if not value:
        lines = (f"{name}={hook}", *interval.lines, "HealthCheckNodeState=IDLE,CYCLE")
        instructions = (Instruction(Place.END, lines),)
    elif _starts(value, hook):
        pass
    elif _is_copy(value, hook):
        instructions = (Instruction(Place.REPLACE, (f"{name}={hook}",)), *instructions)
    elif fix := _explain_unclear(name, value):
        return Requirement(Stage.OBSERVE, name, value, fix=fix)
    else:
        both = _find_folder(settings) / "hpcverify-healthcheck"
        lines = _call_site(f'{shlex.quote(value)} "$@"', f"exec {shlex.quote(str(hook))}")
        if fix := _explain_taken(value, both, hook, {both: lines}):
            return Requirement(Stage.OBSERVE, name, value, fix=fix)
        instructions = (
            Instruction(Place.NODES, (_write_script(both, lines),)),
            Instruction(Place.REPLACE, (f"{name}={both}",)),
            *instructions,
        )
    return Requirement(Stage.OBSERVE, name, _describe(value, hook), instructions)


def _need_program(
    stage: Stage, name: str, values: tuple[str, ...], hook: Path, settings: HookSettings
) -> Requirement:
    ours = Instruction(Place.END, (f"{name}={hook}",))
    copies = [value for value in values if _is_copy(value, hook)]
    state = _describe(", ".join(values), hook)
    instructions: tuple[Instruction, ...] = ()
    if any(_starts(value, hook) for value in values):
        pass
    elif len(copies) == len(values) == 1:
        instructions = (Instruction(Place.REPLACE, ours.lines),)
    elif copies:  # one line of several
        return Requirement(stage, name, state, fix=f"write {hook} in place of {copies[0]}")
    elif earlier := [
        value
        for value in values
        if glob.has_magic(value)
        and (own := _choose_name(value))
        and os.path.lexists(Path(value).parent / own)
    ]:  # our script lies there: it started a hook that is elsewhere now
        return _need_both(stage, name, earlier[0], hook, settings)
    elif not values or settings.version >= SEVERAL_PROGRAMS_VERSION:
        instructions = (ours,)
    elif fix := _explain_unclear(name, values[0]):
        return Requirement(stage, name, state, fix=fix)
    else:
        return _need_both(stage, name, values[0], hook, settings)
    return Requirement(stage, name, state, instructions)


def _need_both(
    stage: Stage, name: str, value: str, hook: Path, settings: HookSettings
) -> Requirement:
    """Have Slurm run all programs of a folder: that is one value in every version."""
    start: Script = ("#!/bin/sh", ONCE, f'exec {shlex.quote(str(hook))} "$@"')
    replaced: tuple[Instruction, ...] = ()
    if glob.has_magic(value):
        own, folder = _choose_name(value), Path(value).parent
        if not own:
            fix = f"start {hook} from a program that {value} matches"
            return Requirement(stage, name, value, fix=fix)
        taken, scripts = folder / own, {folder / own: start}
        command = _write_script(taken, start)
    else:
        taken = folder = _find_folder(settings) / f"hpcverify-{name.lower()}.d"
        site = _call_site(f'exec {shlex.quote(value)} "$@"')
        scripts = {folder / SITE_SCRIPT: site, folder / OUR_SCRIPT: start}
        make = f"mkdir -m 0755 {shlex.quote(str(folder))}"  # fails if it is there
        command = " && ".join((make, *(_write_script(*item) for item in scripts.items())))
        replaced = (Instruction(Place.REPLACE, (f"{name}={folder}/*",)),)
    if fix := _explain_taken(value, taken, hook, scripts):
        return Requirement(stage, name, value, fix=fix)
    written = Instruction(Place.NODES, (command,))
    return Requirement(stage, name, value, (written, *replaced))


def _call_site(*lines: str) -> Script:
    """Write a script that starts a program of the site, which may run whole folders itself."""
    return ("#!/bin/sh", ONCE, "export HPCVERIFY_CHAIN=1", *lines)


def _explain_taken(value: str, place: Path, hook: Path, scripts: Mapping[Path, Script]) -> str:
    """Say what to do if *place*, where our *scripts* would go, has others; empty if it has none."""
    if value == str(place):  # as on a host that is no node: the site's own program is not known
        return f"make {value} start {hook}, which it does not do on this host"
    there = os.path.lexists(place)
    if there and any(_read_script(path).splitlines() != [*x] for path, x in scripts.items()):
        fix = "remove it on every node, and run this again"
        return f"{place} exists, but does not start {hook}; {fix}"
    return ""


def _explain_unclear(name: str, value: str) -> str:
    """Say what to do about a program that a script of ours could not start; empty if it could."""
    if Path(value).is_absolute():
        return ""
    return f"write the absolute path of {value} in {name}"


def _choose_name(pattern: str) -> str:
    """Choose the name of a program that *pattern* matches; empty if none of ours does."""
    folder, name = Path(pattern).parent, Path(pattern).name
    before, _, after = name.rpartition("*")
    proposed = (f"{OUR_SCRIPT}{after}", f"{before}{OUR_SCRIPT}{after}")
    fitting = (ours for ours in proposed if fnmatchcase(ours, name))
    return "" if glob.has_magic(str(folder)) else next(fitting, "")


def _need_prolog_timeout(settings: HookSettings) -> Requirement:
    name, seconds = "PrologEpilogTimeout", settings.prolog_timeout
    if seconds is None:
        state = "Slurm waits for a prolog without limit"
        instruction = Instruction(Place.END, (f"{name}={PROLOG_SECONDS}",))
        return Requirement(Stage.REFUSE, name, state, (instruction,))
    fix = f"raise it to {PROLOG_SECONDS}; Slurm drains a node whose prolog exceeds it"
    return Requirement(Stage.REFUSE, name, f"{seconds} s", fix="" if seconds > MAX_HOOK_S else fix)


def _need_requeue(settings: HookSettings) -> Requirement:
    name, values = "SchedulerParameters", settings.scheduler
    if NOHOLD in map(str.lower, values):
        return Requirement(Stage.REFUSE, name, NOHOLD)
    place = Place.REPLACE if values else Place.END
    instruction = Instruction(place, (f"{name}={','.join((*values, NOHOLD))}",))
    state = "Slurm would hold a job that the prolog refuses"
    return Requirement(Stage.REFUSE, name, state, (instruction,))


def list_partition_requirements(
    fleet: Fleet, preemption: Preemption, partitions: Mapping[str, Partition]
) -> Iterator[Requirement]:
    """List what the sweep's jobs need: a partition, and that they give way to users' jobs."""
    instructions: tuple[Instruction, ...] = ()
    fix = ""
    if preemption.kind == NO_PREEMPTION and preemption.mode != "OFF":
        state = f"{preemption.kind} with PreemptMode={preemption.mode}"
        fix = f"choose a PreemptType that works with PreemptMode={preemption.mode}"
    elif preemption.kind == NO_PREEMPTION:
        # Of partitions that say nothing, Slurm takes the mode of the cluster: off until now.
        above = Instruction(Place.ABOVE, ("PartitionName=DEFAULT PreemptMode=OFF",))
        lines = (f"PreemptType={PREEMPT_BY_PARTITION}", "PreemptMode=REQUEUE")
        state = f"{preemption.kind}: users' jobs would wait for verifications"
        instructions = (above, Instruction(Place.END, lines))
    else:
        state = preemption.kind
    yield Requirement(Stage.VERIFY, "PreemptType", state, instructions, fix)
    subject = f"partition {fleet.partition}"
    if fleet.partition in partitions:
        yield Requirement(Stage.VERIFY, subject, "is there")
        return
    access = "RootOnly=YES" if fleet.user == "root" else f"AllowGroups={fleet.user}"
    instructions = ()
    try:
        grp.getgrnam(fleet.user)
    except KeyError:
        group = (f"groupadd --system {fleet.user}", f"gpasswd --add {fleet.user} {fleet.user}")
        instructions = (Instruction(Place.ONCE, group),)
    line = (
        f"PartitionName={fleet.partition} Nodes=ALL PriorityTier=0 PreemptMode=CANCEL GraceTime=0 "
        f"Hidden=YES {access} MaxTime=2-00:00:00"
    )
    instructions = (*instructions, Instruction(Place.END, (line,)))
    yield Requirement(Stage.VERIFY, subject, "is missing", instructions)


def propose_partition(fleet: Fleet, partitions: Mapping[str, Partition]) -> Partition:
    """Return the partition of the sweep's jobs as `list_partition_requirements` has it."""
    nodes = ",".join(p.hostlist for p in partitions.values() if p.hostlist)
    return Partition(
        name=fleet.partition,
        max_minutes=2 * 24 * 60.0,
        preempt_mode="CANCEL",
        tier=0,
        root_only=fleet.user == "root",
        hostlist=nodes,
    )


def list_account_requirements(
    fleet: Fleet, settings: HookSettings, preemption: Preemption, names: Mapping[str, set[str]]
) -> Iterator[Requirement]:
    """List the accounts that the sweep's jobs need; *names* are users and QOS."""
    commands: list[str] = []
    if "associations" in settings.enforced and fleet.user not in names["user"]:
        account = fleet.account or "root"
        commands.append(f"sacctmgr -i add user {fleet.user} account={account}")
    qos, others = fleet.qos or QOS, ",".join(sorted(names["qos"]))
    if preemption.kind == PREEMPT_BY_QOS and qos.lower() not in names["qos"]:
        commands.append(f"sacctmgr -i add qos {qos} set priority=0 preemptmode=cancel gracetime=0")
        if others:  # without a name, sacctmgr would change every QOS, the new one as well
            commands.append(f"sacctmgr -i modify qos {others} set preempt+={qos}")
        commands.append(f"sacctmgr -i modify user {fleet.user} set qos+={qos}")
    state = f"{fleet.user} lacks what the sweep's jobs need" if commands else "complete"
    instructions = (Instruction(Place.ONCE, tuple(commands)),) if commands else ()
    yield Requirement(Stage.VERIFY, "accounting", state, instructions)


def _starts(value: str, hook: Path) -> bool:
    """Whether the program or pattern *value* starts *hook*, by what lies on this host."""
    if value == str(hook):
        return True
    if not Path(value).is_absolute():
        return False
    found = {Path(name) for name in glob.glob(value)}  # noqa: PTH207 - a whole path may be a pattern
    seen, target = set[Path](), os.path.realpath(hook)  # which no circle of links makes fail
    # It, and no path that contains its own.
    names_hook = re.compile(rf"(?<![\w./-]){re.escape(str(hook))}(?![\w./-])")
    for _ in range(MAX_DEPTH):
        seen |= found
        for path in found:
            if os.path.realpath(path) == target or names_hook.search(_read_code(path)):
                return True
        found = {program for path in found for program in _list_started(path, hook)} - seen
    return False


def _list_started(path: Path, hook: Path) -> Iterator[Path]:
    """List what the script *path* names: programs, and those of folders, as for run-parts."""
    code = _read_code(path)
    is_sourcing = bool(SOURCING.search(code))
    for word in {*re.findall(r"[\w./-]*/[\w.-]+", code)}:
        # What follows a variable, as in "$(dirname "$0")/prolog.d", is taken for a neighbour.
        for named in {Path(word), path.parent / Path(word).name} - {hook.parent}:
            inside = glob.glob(f"{glob.escape(str(named))}/*")  # noqa: PTH207 - raises nothing
            for program in (str(named), *(inside if len(inside) <= MAX_PROGRAMS else ())):
                is_started = is_sourcing or os.access(program, os.X_OK)
                if is_started and not UNUSED_NAME.search(program):
                    yield Path(program)


def _read_code(path: Path) -> str:
    """Read the script *path* without comments; a program that is no script has no code."""
    text = _read_script(path)
    return "" if "\0" in text else re.sub(r"(^|\s)#.*", "", text, flags=re.MULTILINE)


def _read_script(path: Path) -> str:
    try:
        if not path.is_file():  # a pipe would have us wait
            return ""
        with path.open("rb") as file:
            return file.read(MAX_SCRIPT_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _is_copy(value: str, hook: Path) -> bool:
    """Whether *value* is *hook* in another folder: a copy, or where it was before an upgrade."""
    path = Path(value)
    if path.name != hook.name:
        return False
    return (path.parent / HOOK_LIBRARY).exists() or ("hpcverify" in value and not path.exists())


def _describe(value: str, hook: Path) -> str:
    if not value:
        return "is not set"
    if value == str(hook):
        return value
    return f"{value}, which no upgrade renews" if _is_copy(value, hook) else value


def _find_folder(settings: HookSettings) -> Path:
    folder = Path(settings.conf).parent
    temporary = settings.conf.startswith(f"{RUN_TIME_FOLDER}/") or not folder.is_absolute()
    return DEFAULT_FOLDER if temporary else folder


def _write_script(path: Path, lines: Script) -> str:
    name = shlex.quote(str(path))
    return f"(set -C; printf '%s\\n' {shlex.join(lines)} >{name}) && chmod 0755 {name}"
