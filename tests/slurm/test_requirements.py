"""What a site's Slurm lacks is a table; its own programs are kept."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify.plan.config import Fleet
from hpcverify.slurm import HookSettings, Partition, Preemption
from hpcverify.slurm.client import Slurm
from hpcverify.slurm.partitions import PREEMPT_BY_PARTITION, PREEMPT_BY_QOS, check_partitions
from hpcverify.slurm.requirements import (
    SEVERAL_PROGRAMS_VERSION,
    Place,
    Requirement,
    Stage,
    list_account_requirements,
    list_hook_requirements,
    list_partition_requirements,
    propose_partition,
)

OLD, NEW = (22, 5), SEVERAL_PROGRAMS_VERSION
HOOKS = Path("/usr/libexec/hpcverify")
BATCH = Partition(
    name="batch",
    max_minutes=60,
    preempt_mode="OFF",
    tier=1,
    root_only=False,
    hostlist="n[1-4]",
    open_to_all=True,
)
OFF = Preemption(kind="preempt/none", exempt="00:00:00")
BY_QOS = Preemption(kind=PREEMPT_BY_QOS, exempt="00:00:00")


def read_settings(*lines: str, version: str = "22.05.8") -> HookSettings:
    """Read settings as scontrol prints them."""

    def answer(command: Any) -> str:
        return f"slurm-wlm {version}" if "--version" in command else "\n".join(lines)

    return Slurm(run=answer).read_hook_settings()


def list_missing(settings: HookSettings, hooks: Path = HOOKS) -> dict[str, Requirement]:
    requirements = list_hook_requirements(settings, hooks)
    return {item.subject: item for item in requirements if not item.is_met}


def test_settings_are_read_as_either_version_prints_them() -> None:
    shared = (
        "HealthCheckInterval     = 300 sec",
        "HealthCheckProgram      = /usr/sbin/nhc",
        "PrologSlurmctld         = /other",
        "SLURM_CONF              = /etc/slurm/slurm.conf",
        "SchedulerParameters     = bf_interval=1,nohold_on_prolog_fail",
        "AccountingStorageEnforce = associations,limits",
    )
    old = read_settings("Epilog = (null)", "Prolog = /a", "PrologEpilogTimeout = 65534", *shared)
    new = read_settings(
        "Prolog[0] = /a", "Prolog[1] = /b", "PrologTimeout = 120 sec", *shared, version="24.11.5"
    )

    assert (old.version, old.prolog, old.epilog, old.prolog_timeout) == (OLD, ("/a",), (), None)
    assert (new.version, new.prolog, new.epilog, new.prolog_timeout) == (NEW, ("/a", "/b"), (), 120)
    assert (new.health_check, new.health_seconds) == ("/usr/sbin/nhc", 300)
    assert new.scheduler == ("bf_interval=1", "nohold_on_prolog_fail")
    assert new.enforced == ("associations", "limits")


@pytest.mark.parametrize("printed", ["(null)", "preempt/none"])
def test_a_slurm_without_preemption_is_known_as_either_version_prints_it(printed: str) -> None:
    lines = f"PreemptType             = {printed}\nPreemptExemptTime       = 00:00:00\n"
    assert Slurm(run=lambda _: lines).read_preemption() == OFF


def test_a_bare_slurm_needs_each_hook_where_it_lies() -> None:
    missing = list_missing(HookSettings(version=OLD))

    assert missing["HealthCheckProgram"].list_lines(Place.END) == [
        "HealthCheckProgram=/usr/libexec/hpcverify/healthcheck",
        "HealthCheckInterval=300",
        "HealthCheckNodeState=IDLE,CYCLE",
    ]
    assert missing["Epilog"].list_lines(Place.END) == ["Epilog=/usr/libexec/hpcverify/epilog"]
    assert missing["Prolog"].list_lines(Place.END) == ["Prolog=/usr/libexec/hpcverify/prolog"]
    assert {item.subject for item in missing.values() if item.stage is Stage.REFUSE} == {
        "Prolog",
        "PrologEpilogTimeout",
        "SchedulerParameters",
    }


def test_a_slurm_with_all_of_it_needs_nothing() -> None:
    complete = HookSettings(
        version=OLD,
        prolog=(f"{HOOKS}/prolog",),
        epilog=("/site/epilog", f"{HOOKS}/epilog"),
        health_check=f"{HOOKS}/healthcheck",
        health_seconds=60,
        prolog_timeout=300,
        scheduler=("nohold_on_prolog_fail",),
    )

    assert list_missing(complete) == {}


def test_a_health_check_that_never_runs_needs_an_interval() -> None:
    idle = HookSettings(version=OLD, health_check=f"{HOOKS}/healthcheck")
    assert list_missing(idle)["HealthCheckProgram"].list_lines(Place.END) == [
        "HealthCheckInterval=300"
    ]


def test_where_slurm_takes_several_programs_ours_is_one_more_line() -> None:
    missing = list_missing(HookSettings(version=NEW, prolog=("/site/prolog",)))
    assert missing["Prolog"].list_lines(*Place) == [f"Prolog={HOOKS}/prolog"]


def test_where_it_takes_one_both_lie_in_a_folder() -> None:
    settings = HookSettings(version=OLD, conf="/etc/slurm/slurm.conf", prolog=("/site/it's",))
    prolog = list_missing(settings)["Prolog"]

    assert prolog.list_lines(Place.REPLACE) == ["Prolog=/etc/slurm/hpcverify-prolog.d/*"]
    (line,) = prolog.list_lines(Place.NODES)
    make, *scripts = line.split(" && ")
    assert make == "mkdir -m 0755 /etc/slurm/hpcverify-prolog.d"
    written = re.findall(r">/etc/slurm/hpcverify-prolog.d/(\S+)\)", line)
    assert written == sorted(written, reverse=True)  # Slurm starts the last one first: the site's
    assert "exec /usr/libexec/hpcverify/prolog" in scripts[-2]
    assert prolog.list_lines(Place.END) == []


LOOP = 'for f in {folder}/*; do "$f" || exit 1; done'
RUN_PARTS = "run-parts --exit-on-error {folder}"
BESIDE = 'for f in "$(dirname "$0")"/parts/*; do\n"$f"\ndone'


@pytest.mark.parametrize("body", [LOOP, RUN_PARTS, BESIDE])
@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_folder_that_the_sites_program_runs_may_have_ours(
    tmp_path: Path, body: str, version: tuple[int, int]
) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    program = tmp_path / "prolog.sh"
    program.write_text(f"#!/bin/sh\n{body.format(folder=parts)}\n")
    os.mkfifo(parts / "pipe")
    settings = HookSettings(version=version, conf=f"{tmp_path}/slurm.conf", prolog=(str(program),))
    assert "Prolog" in list_missing(settings)

    ours = parts / "50-ours"
    ours.write_text(f"#!/bin/sh\n# exec {HOOKS}/prolog\n")
    ours.chmod(0o755)
    assert "Prolog" in list_missing(settings), "it is commented out"
    ours.write_text(f"#!/bin/sh\nexec {HOOKS}/prolog\n")
    assert "Prolog" not in list_missing(settings)
    ours.chmod(0o644)
    assert "Prolog" in list_missing(settings), "it is switched off"


@pytest.mark.parametrize(
    ("body", "file", "code", "is_met"),
    [
        (". {folder}/common.sh", "common.sh", "{hook}", True),
        ('source "$(dirname "$0")/common.sh"', "common.sh", 'if "{hook}" "$@"; then :; fi', True),
        ("{folder}/inner", "inner", "exec {hook}", False),  # which is not executable
        ("for f in {folder}/*.sh; do . $f; done", "50-ours.sh", "{hook}", True),
        ("for f in {folder}/*.sh; do . $f; done", "50-ours.sh.disabled", "{hook}", False),
        (". {folder}/common.sh", "common.sh", ": was {hook}.old", False),
        (". {folder}/common.sh", "common.sh", ": /mnt{hook}", False),
        (". {folder}/common.sh", "common.sh", ": # was {hook}", False),
        (". {folder}/x >>{folder}/prolog.log", "prolog.log", "started {hook}", False),
    ],
)
def test_a_program_of_the_site_may_source_what_starts_ours(
    tmp_path: Path, body: str, file: str, code: str, *, is_met: bool
) -> None:
    program, settings = tmp_path / "prolog.sh", HookSettings(version=NEW)
    program.write_text(f"#!/bin/sh\n{body.format(folder=tmp_path)}\n")
    (tmp_path / file).write_text(f"{code.format(hook=HOOKS / 'prolog')}\n")
    for value in (str(program), f"{tmp_path}/*.sh"):
        if value == str(program) or not file.endswith(".sh"):
            missing = list_missing(replace(settings, prolog=(value,)))
            assert ("Prolog" not in missing) == is_met


def test_a_link_that_the_sites_program_starts_is_the_hook(tmp_path: Path) -> None:
    for path in (tmp_path / "hooks/prolog", tmp_path / "prolog.sh"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n. {tmp_path}/none\n{tmp_path}/linked\n")
        path.chmod(0o755)
    (tmp_path / "linked").symlink_to("hooks/prolog")
    settings = HookSettings(version=NEW, prolog=(f"{tmp_path}/prolog.sh",))
    assert "Prolog" not in list_missing(settings, tmp_path / "hooks")


@pytest.mark.parametrize("body", ["{folder}/*/*", "{folder}/*"])
def test_no_program_runs_twice_and_none_starts_itself(tmp_path: Path, body: str) -> None:
    """Whatever folders the site's own program runs, and be it that of ours."""
    ran, hooks = tmp_path / "ran", tmp_path / "hooks"
    hooks.mkdir()
    for path in (hooks / "epilog", tmp_path / "site.d/10-site", tmp_path / "site.sh"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {path.name} >>{ran}\n")
        path.chmod(0o755)
    loop = f'for f in {body.format(folder=tmp_path)}; do [ -d "$f" ] || "$f"; done\n'
    loop = loop.replace("; do ", f"; do case $f in {hooks}/*|*/site.sh) continue ;; esac; ")
    (tmp_path / "site.sh").write_text(f"#!/bin/sh\necho site.sh >>{ran}\n{loop}")
    settings = HookSettings(
        version=OLD, conf=f"{tmp_path}/slurm.conf", epilog=(f"{tmp_path}/site.sh",)
    )
    for line in list_missing(settings, hooks)["Epilog"].list_lines(Place.NODES):
        subprocess.run(["sh", "-ec", line], check=True)
    for script in sorted((tmp_path / "hpcverify-epilog.d").iterdir(), reverse=True):
        subprocess.run([script], check=True, env={})  # as slurmd does

    once = ["site.sh", *(["10-site"] if body.endswith("/*/*") else []), "epilog"]
    assert ran.read_text().split() == once


def test_nothing_that_is_there_is_overwritten(tmp_path: Path) -> None:
    conf, program = f"{tmp_path}/slurm.conf", "/site/program"
    own = ("hpcverify-prolog.d", "hpcverify-epilog.d", "hpcverify-healthcheck", "x.d/00-hpcverify")
    site = HookSettings(
        version=OLD, conf=conf, prolog=(program,), epilog=(program,), health_check=program
    )
    pattern = HookSettings(version=OLD, prolog=(f"{tmp_path}/x.d/*",))
    (tmp_path / "x.d").mkdir()
    missing = [
        *(list_missing(site)[x] for x in ("Prolog", "Epilog", "HealthCheckProgram")),
        list_missing(pattern)["Prolog"],
    ]
    lines = [item.list_lines(Place.NODES) for item in missing]
    for name in own:
        (tmp_path / name).write_text("of the site\n")
    for (line,) in lines:
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        assert (done.returncode != 0, "File exists" in done.stderr) == (True, True), done.stderr
    assert {(tmp_path / name).read_text() for name in own} == {"of the site\n"}

    taken = [
        *(list_missing(site)[x] for x in ("Prolog", "Epilog", "HealthCheckProgram")),
        list_missing(pattern)["Prolog"],
    ]
    for item, name in zip(taken, own, strict=True):
        assert item.instructions == ()
        assert f"{tmp_path / name} exists, but does not start {HOOKS}/" in item.fix


def test_what_was_written_on_this_host_is_printed_for_the_others(tmp_path: Path) -> None:
    site = HookSettings(
        version=OLD, conf=f"{tmp_path}/slurm.conf", prolog=("/p",), health_check="/h"
    )
    first = list_missing(site)
    for subject in ("Prolog", "HealthCheckProgram"):
        for line in first[subject].list_lines(Place.NODES):
            subprocess.run(["sh", "-ec", line], check=True)
    assert list_missing(site) == first


def test_a_script_of_ours_is_not_started_by_itself(tmp_path: Path) -> None:
    """As on a host that is no node, or once the hooks lie elsewhere."""
    ours = tmp_path / "hpcverify-healthcheck"
    settings = HookSettings(
        version=OLD, conf=f"{tmp_path}/slurm.conf", health_check=str(ours), health_seconds=60
    )
    health = list_missing(settings)["HealthCheckProgram"]
    assert health.instructions == ()
    assert f"make {ours} start {HOOKS}/healthcheck" in health.fix


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*", "00-hpcverify"),
        ("*.sh", "00-hpcverify.sh"),
        ("[0-9]*", "00-hpcverify"),
        ("site-*", "site-00-hpcverify"),
    ],
)
def test_a_folder_of_programs_gets_one_more_until_ours_is_there(
    tmp_path: Path, pattern: str, name: str
) -> None:
    settings = HookSettings(version=OLD, epilog=(f"{tmp_path}/{pattern}",))
    epilog = list_missing(settings)["Epilog"]
    (line,) = epilog.list_lines(*Place)
    assert line.endswith(f">{tmp_path}/{name}) && chmod 0755 {tmp_path}/{name}")

    (tmp_path / name).write_text(f'#!/bin/sh\nexec {HOOKS}/epilog "$@"\n')
    assert "Epilog" not in list_missing(settings)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_script_of_ours_that_starts_a_hook_elsewhere_is_named(
    tmp_path: Path, version: tuple[int, int]
) -> None:
    """It would go on to fail, and Slurm to drain the node, beside one more line."""
    (tmp_path / "00-hpcverify").write_text("#!/bin/sh\nexec /gone/prolog\n")
    settings = HookSettings(version=version, prolog=(f"{tmp_path}/*",))
    prolog = list_missing(settings)["Prolog"]
    assert prolog.instructions == ()
    assert f"{tmp_path}/00-hpcverify exists" in prolog.fix


@pytest.mark.parametrize("conf", ["/run/slurm/conf/slurm.conf", ""])
def test_what_slurm_itself_fetched_is_no_place_for_a_script(conf: str) -> None:
    settings = HookSettings(version=OLD, conf=conf, health_check="/usr/sbin/nhc")
    assert list_missing(settings)["HealthCheckProgram"].list_lines(Place.REPLACE) == [
        "HealthCheckProgram=/etc/slurm/hpcverify-healthcheck"
    ]


def test_a_copy_of_a_hook_is_replaced_by_the_hook(tmp_path: Path) -> None:
    for name in ("prolog", "epilog", "healthcheck", "hooks.sh"):
        (tmp_path / name).touch()
    copies = HookSettings(
        version=NEW,
        prolog=(f"{tmp_path}/prolog",),
        epilog=("/opt/hpcverify/lib/python3.1/epilog",),  # gone with that Python
        health_check=f"{tmp_path}/healthcheck",
        health_seconds=60,
    )
    missing = list_missing(copies)

    for name, hook in (("Prolog", "prolog"), ("Epilog", "epilog")):
        assert missing[name].list_lines(*Place) == missing[name].list_lines(Place.REPLACE)
        assert missing[name].list_lines(Place.REPLACE) == [f"{name}={HOOKS}/{hook}"]
    assert missing["HealthCheckProgram"].list_lines(*Place) == [
        f"HealthCheckProgram={HOOKS}/healthcheck"
    ]


def test_a_copy_among_several_programs_is_named_and_none_is_added(tmp_path: Path) -> None:
    for name in ("prolog", "hooks.sh"):
        (tmp_path / name).touch()
    several = HookSettings(version=NEW, prolog=("/site/prolog", f"{tmp_path}/prolog"))

    prolog = list_missing(several)["Prolog"]
    assert prolog.list_lines(*Place) == []
    assert prolog.fix == f"write {HOOKS}/prolog in place of {tmp_path}/prolog"


def test_a_program_of_the_site_that_is_elsewhere_is_never_replaced() -> None:
    gone = HookSettings(version=OLD, conf="/etc/slurm/slurm.conf", prolog=("/site/prolog",))
    assert any("exec /site/prolog" in x for x in list_missing(gone)["Prolog"].list_lines(*Place))


@pytest.mark.parametrize("pattern", ["/site/*/prolog", "/site/[a-z]*.sh", "/site/prolo?"])
def test_where_a_pattern_matches_no_name_of_ours_a_person_chooses_one(pattern: str) -> None:
    prolog = list_missing(HookSettings(version=OLD, prolog=(pattern,)))["Prolog"]
    assert prolog.list_lines(*Place) == []
    assert (str(HOOKS / "prolog") in prolog.fix, pattern in prolog.fix) == (True, True)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_program_without_an_absolute_path_is_started_by_no_script_of_ours(
    version: tuple[int, int],
) -> None:
    """The script would not find it: its failure as a prolog would drain every node."""
    settings = HookSettings(
        version=version, prolog=("prolog.sh",), epilog=("*",), health_check="nhc", health_seconds=60
    )
    missing = list_missing(settings)

    assert missing["HealthCheckProgram"].list_lines(*Place) == []
    assert "absolute path of nhc" in missing["HealthCheckProgram"].fix
    for name, hook in (("Prolog", "prolog"), ("Epilog", "epilog")):
        lines = [] if version == OLD else [f"{name}={HOOKS}/{hook}"]
        assert missing[name].list_lines(*Place) == lines
        assert bool(missing[name].fix) == (version == OLD)


def test_a_script_starts_a_program_whose_name_a_shell_would_split(tmp_path: Path) -> None:
    program = tmp_path / "the site's 100 %" / "prolog"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "started $1"\n')
    program.chmod(0o755)
    settings = HookSettings(
        version=OLD,
        conf=f"{tmp_path}/slurm.conf",
        prolog=(str(program),),
        health_check=str(program),
        health_seconds=60,
    )
    missing = list_missing(settings, tmp_path)
    for subject in ("Prolog", "HealthCheckProgram"):
        lines = missing[subject].list_lines(Place.NODES)
        subprocess.run(["sh", "-ec", "\n".join(lines)], check=True)

    for script in ("hpcverify-prolog.d/90-site", "hpcverify-healthcheck"):
        done = subprocess.run(
            [tmp_path / script, "it"], capture_output=True, text=True, check=False
        )
        assert done.stdout == "started it\n", done.stderr


def test_a_link_to_a_hook_is_the_hook(tmp_path: Path) -> None:
    (tmp_path / "prolog").touch()
    (tmp_path / "linked").symlink_to(tmp_path / "prolog")
    linked = HookSettings(version=OLD, prolog=(f"{tmp_path}/linked",))
    assert "Prolog" not in list_missing(linked, tmp_path)


def test_a_health_check_of_the_site_that_never_runs_gets_an_interval_too() -> None:
    idle = HookSettings(version=OLD, conf="/etc/slurm/slurm.conf", health_check="/usr/sbin/nhc")
    health = list_missing(idle)["HealthCheckProgram"]
    assert health.list_lines(Place.END) == ["HealthCheckInterval=300"]
    assert health.list_lines(Place.REPLACE) == [
        "HealthCheckProgram=/etc/slurm/hpcverify-healthcheck"
    ]


@pytest.mark.parametrize(("seconds", "is_met"), [(5, False), (50, False), (51, True)])
def test_a_prolog_of_ours_must_end_before_slurm_ends_it(seconds: int, *, is_met: bool) -> None:
    """At its limit Slurm drains the node."""
    missing = list_missing(HookSettings(version=OLD, prolog_timeout=seconds))
    assert ("PrologEpilogTimeout" not in missing) == is_met


def test_slurm_takes_a_parameter_of_the_scheduler_in_any_case() -> None:
    settings = HookSettings(version=OLD, scheduler=("NoHold_On_Prolog_Fail",))
    assert "SchedulerParameters" not in list_missing(settings)


def test_parameters_of_the_scheduler_are_added_to() -> None:
    settings = HookSettings(version=OLD, scheduler=("bf_interval=1", "sched_interval=2"))
    assert list_missing(settings)["SchedulerParameters"].list_lines(Place.REPLACE) == [
        "SchedulerParameters=bf_interval=1,sched_interval=2,nohold_on_prolog_fail"
    ]


def list_partition_lines(
    preemption: Preemption, *partitions: Partition, fleet: Fleet
) -> dict[Place, list[str]]:
    there = {partition.name: partition for partition in partitions}
    requirements = [*list_partition_requirements(fleet, preemption, there)]
    return {
        place: lines
        for place in Place
        if (lines := [line for item in requirements for line in item.list_lines(place)])
    }


def test_without_preemption_the_modes_of_users_partitions_are_kept_off() -> None:
    lines = list_partition_lines(OFF, BATCH, fleet=Fleet())
    assert lines[Place.ABOVE] == ["PartitionName=DEFAULT PreemptMode=OFF"]
    assert lines[Place.END][:2] == ["PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE"]
    assert lines[Place.END][2].startswith("PartitionName=verify Nodes=ALL PriorityTier=0 ")
    assert "RootOnly=YES" in lines[Place.END][2]


def test_time_slices_of_a_site_are_not_ended_by_a_line_of_ours() -> None:
    gang = Preemption(kind="preempt/none", exempt="0", mode="GANG")
    first, *_ = list_partition_requirements(Fleet(), gang, {})
    assert first.instructions == ()
    assert "GANG" in first.fix


def test_with_preemption_only_the_partition_is_added() -> None:
    preemption = Preemption(kind=PREEMPT_BY_PARTITION, exempt="0")
    lines = list_partition_lines(preemption, BATCH, fleet=Fleet(user="daemon", partition="hv"))

    (line,) = lines.pop(Place.END)
    assert line.startswith("PartitionName=hv ")
    assert "AllowGroups=daemon" in line
    assert "RootOnly" not in line
    assert lines == {}
    ours = Partition(name="hv", max_minutes=60, preempt_mode="CANCEL", tier=0, root_only=False)
    assert list_partition_lines(preemption, BATCH, ours, fleet=Fleet(partition="hv")) == {}


def test_the_partition_that_is_proposed_surprises_nobody() -> None:
    fleet = Fleet(suite="prolog")
    proposed = propose_partition(fleet, {"batch": BATCH})
    on = Preemption(kind=PREEMPT_BY_PARTITION, exempt="00:00:00")
    assert [*check_partitions(fleet, on, {"batch": BATCH, "verify": proposed})] == []


@pytest.mark.parametrize(
    ("fleet", "preemption", "enforced", "lines"),
    [
        (Fleet(), OFF, (), []),
        (Fleet(), OFF, ("associations",), []),
        (
            Fleet(user="verifier", account="ops"),
            OFF,
            ("associations", "limits"),
            ["sacctmgr -i add user verifier account=ops"],
        ),
        (Fleet(user="verifier"), OFF, ("limits",), []),
        (
            Fleet(),
            BY_QOS,
            (),
            [
                "sacctmgr -i add qos verify set priority=0 preemptmode=cancel gracetime=0",
                "sacctmgr -i modify qos high,normal set preempt+=verify",
                "sacctmgr -i modify user root set qos+=verify",
            ],
        ),
        (Fleet(qos="Normal"), BY_QOS, (), []),
    ],
)
def test_the_accounting_gets_what_the_sweeps_jobs_lack(
    fleet: Fleet, preemption: Preemption, enforced: tuple[str, ...], lines: list[str]
) -> None:
    settings = HookSettings(version=OLD, enforced=enforced)
    names = {"user": {"root"}, "qos": {"normal", "high"}}
    (accounting,) = list_account_requirements(fleet, settings, preemption, names)
    assert (accounting.list_lines(Place.ONCE), accounting.is_met) == (lines, not lines)


def test_where_there_is_no_other_qos_none_is_changed() -> None:
    names: dict[str, set[str]] = {"user": {"root"}, "qos": set()}

    (accounting,) = list_account_requirements(Fleet(), HookSettings(version=OLD), BY_QOS, names)
    assert [line.partition(" set ")[0] for line in accounting.list_lines(Place.ONCE)] == [
        "sacctmgr -i add qos verify",
        "sacctmgr -i modify user root",
    ]


@pytest.mark.parametrize(("user", "is_group"), [("daemon", True), ("verifier", False)])
def test_a_group_that_the_partition_names_is_made_where_there_is_none(
    user: str, *, is_group: bool
) -> None:
    preemption = Preemption(kind=PREEMPT_BY_PARTITION, exempt="0")
    lines = list_partition_lines(preemption, BATCH, fleet=Fleet(user=user))
    assert f"AllowGroups={user}" in lines[Place.END][0]
    made = [] if is_group else [f"groupadd --system {user}", f"gpasswd --add {user} {user}"]
    assert lines.get(Place.ONCE, []) == made
