"""``hpcverify setup slurm``: what this site lacks, and the lines that add it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import click
from msgspec.structs import replace

from hpcverify.commands._controller import record_command
from hpcverify.console import echo
from hpcverify.errors import ConfigError
from hpcverify.fleet.own_files import find_program, list_own_requirements, put_in_place
from hpcverify.fleet.surroundings import check_accounting
from hpcverify.plan.config import Fleet, Site, load_site
from hpcverify.slurm import NO_PREEMPTION, HookSettings, Preemption
from hpcverify.slurm.client import Slurm
from hpcverify.slurm.hooks import PACKAGED_FILES, find_hooks, find_slurm_files
from hpcverify.slurm.partitions import PREEMPT_BY_PARTITION, PREEMPT_BY_QOS, check_partitions
from hpcverify.slurm.requirements import (
    QOS,
    Instruction,
    Place,
    Requirement,
    Stage,
    list_account_requirements,
    list_hook_requirements,
    list_partition_requirements,
    propose_partition,
)

STAGES = {
    Stage.OBSERVE: "Observe: the hooks read the hardware, and no job waits.",
    Stage.VERIFY: "Verify idle nodes: the sweep's jobs give way to those of users.",
    Stage.REFUSE: "Refuse jobs on nodes that are held: the prolog reads the gate file.",
}
CONF_PLACES = (Place.ABOVE, Place.REPLACE, Place.END)
UNIT_FOLDERS = ("/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system")
UNIT = "hpcverify-sweep"
CRON_JOB = "hpcverify.cron"
UNIT_PROGRAM = "/opt/hpcverify/bin/hpcverify"
"""What the units start."""


@click.command("slurm")
@click.option("--spool", metavar="DIR", help="Use this directory, shared by all nodes.")
@click.option("--write", is_flag=True, help="Install hpcverify's own files on this host.")
@record_command()
def slurm(*, spool: str | None, write: bool) -> None:
    """
    Show the Slurm settings that hpcverify needs and this site lacks.

    Does not change the configuration of the site. With --write (as root, on each node),
    installs the directory of the spool, a drop-in of the site file and the settings of the
    hooks on this host. Run it again to see what is still missing.

    \b
    Example:
      hpcverify setup slurm --spool /shared/hpcverify/spool
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    site = load_site()
    client = Slurm(user=site.fleet.user)
    settings, preemption = client.read_hook_settings(), client.read_preemption()
    fleet = _choose_fleet(site, spool, preemption)
    requirements = [*_list_slurm_requirements(fleet, client, settings, preemption)]
    if write:
        if not fleet.spool:
            raise ConfigError("--write needs a spool: add --spool DIR, a directory of all nodes")
        for path in put_in_place(site, fleet):
            echo(f"made: {path}")
        site = load_site()
    requirements = [*list_own_requirements(site, fleet), *requirements]
    major, minor = settings.version
    echo(f"Slurm {major}.{minor:02}, {settings.conf}; hooks in {find_hooks()}")
    notes = (f"note: {note}" for note in _list_notes(fleet, client, preemption))
    for line in chain(write_plan(requirements), notes):
        echo(line)


def _choose_fleet(site: Site, spool: str | None, preemption: Preemption) -> Fleet:
    """
    Add to the site's own settings what is missing in them.

    Raises:
        ConfigError: *spool* is another than the site's, or no absolute path.

    """
    fleet = site.fleet
    if spool is not None:
        if fleet.spool and spool != fleet.spool:
            file = site.find_file("fleet", "spool")
            raise ConfigError(f"{file} has spool = {fleet.spool!r}: change it there")
        if not (Path(spool).is_absolute() and spool.isprintable()):
            raise ConfigError(f"--spool {spool!r} is not an absolute path")
        fleet = replace(fleet, spool=spool)
    if preemption.kind == PREEMPT_BY_QOS and not fleet.qos:
        fleet = replace(fleet, qos=QOS)
    return fleet


def _list_slurm_requirements(
    fleet: Fleet, client: Slurm, settings: HookSettings, preemption: Preemption
) -> Iterator[Requirement]:
    yield from list_hook_requirements(settings, find_hooks())
    yield from list_partition_requirements(fleet, preemption, client.list_partitions())
    users, levels = client.list_accounting_names("user"), client.list_accounting_names("qos")
    if users is not None and levels is not None:
        names = {"user": users, "qos": levels}
        yield from list_account_requirements(fleet, settings, preemption, names)
    yield _need_timer()


def _need_timer() -> Requirement:
    """Require what starts the sweeps, on one host."""
    subject = "sweeps"
    enabled = Path(f"/etc/systemd/system/timers.target.wants/{UNIT}.timer")
    cron = Path("/etc/cron.d/hpcverify")
    if os.path.lexists(enabled) or cron.exists():
        return Requirement(Stage.VERIFY, subject, "are started by this host")
    state, files = "are started by no timer of this host", find_slurm_files()
    if files == PACKAGED_FILES and not (files / CRON_JOB).exists():
        return Requirement(Stage.VERIFY, subject, state, fix="install hpcverify-controller here")
    if not Path("/run/systemd/system").exists():
        lines = [f"cp {files}/{CRON_JOB} {cron}"]
    else:
        lines = [f"systemctl enable --now {UNIT}.timer"]
        if not any(Path(folder, f"{UNIT}.timer").exists() for folder in UNIT_FOLDERS):
            lines.insert(0, f"systemctl link {files}/{UNIT}.service {files}/{UNIT}.timer")
    if not Path(UNIT_PROGRAM).exists():
        folder = Path(UNIT_PROGRAM).parent
        lines.insert(0, f"install -d {folder} && ln -s {find_program()} {folder}/")
    return Requirement(Stage.VERIFY, subject, state, (Instruction(Place.ONCE, tuple(lines)),))


def write_plan(requirements: Sequence[Requirement]) -> Iterator[str]:
    """Write what is missing: stage by stage, and by where the lines go."""
    missing = [requirement for requirement in requirements if not requirement.is_met]
    for stage, title in STAGES.items():
        todo = [requirement for requirement in missing if requirement.stage is stage]
        if not todo:
            continue
        yield from ("", f"{stage.value}. {title}")
        for requirement in todo:
            yield f"   {requirement.subject}: {requirement.state}"
            if requirement.fix and not requirement.instructions:
                yield f"      {requirement.fix}"
        for place in Place:
            lines = [line for requirement in todo for line in requirement.list_lines(place)]
            if lines:
                yield f"   {place.value}:"
                yield from (f"      {line}" for line in lines)
    if any(requirement.list_lines(*CONF_PLACES) for requirement in missing):
        yield from ("", "Then have Slurm read its file again: scontrol reconfigure")
    yield ""
    yield "Then run it again; it prints what is left." if missing else "nothing is missing"


def is_on_root(path: Path) -> bool:
    """Whether *path* is on the file system of the root, as where nothing is mounted."""
    return path.exists() and path.stat().st_dev == Path("/").stat().st_dev


def _list_notes(fleet: Fleet, client: Slurm, preemption: Preemption) -> Iterator[str]:
    """Say what will surprise once the lines above are in place; a person decides about it."""
    if fleet.spool and is_on_root(Path(fleet.spool)):
        yield f"{fleet.spool} is on the disk of this host: do the nodes see it? is it mounted?"
    partitions = client.list_partitions()
    if fleet.partition not in partitions:
        partitions = {**partitions, fleet.partition: propose_partition(fleet, partitions)}
    if preemption.kind == NO_PREEMPTION:
        preemption = replace(preemption, kind=PREEMPT_BY_PARTITION)
    yield from chain(
        check_partitions(fleet, preemption, partitions), check_accounting(fleet, client)
    )
