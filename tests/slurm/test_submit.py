"""How the job of one node is submitted, and what is said to have become of it."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcverify.slurm import Job
from hpcverify.slurm import submit as executor
from hpcverify.slurm.submit import (
    ENDING_BY_STATE,
    NICE,
    SCRIPT_PATH,
    SETTINGS_LINE,
    Ending,
    GroupJobSpec,
    JobSpec,
    JobStep,
    build_job_name,
    build_script,
    check_option,
    classify_ending,
    compute_minutes,
    describe_ending,
    list_options,
    submit,
)
from tests.cli import COMMAND, Cli
from tests.slurm_lab.lab import Cluster

ROOT = Path(__file__).parents[2]
TOKEN = "5d2e'5c1a"  # noqa: S105 - of a test; the quote is to be minded
NOW = 1_800_000_000.0
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def an_errand(**changes: Any) -> JobSpec:
    """Make the errand of n1."""
    base = JobSpec(
        node="n1",
        gpus=2,
        suite="idle",
        token=TOKEN,
        name=build_job_name(7, "n1"),
        minutes=10,
        deadline_hours=0.5,
        partition="verify",
        spool="/shared/a spool",
    )
    return msgspec.structs.replace(base, **changes)


def a_job(**changes: Any) -> Job:
    """Make a job that ended by itself some time ago."""
    base = Job(
        id=12,
        name=build_job_name(7, "n1"),
        state="COMPLETED",
        node="n1",
        start=int(NOW) - 2000,
        end=int(NOW) - 1000,
    )
    return msgspec.structs.replace(base, **changes)


# ---- what becomes of a job: every state that Slurm has


STATES = {
    Ending.PENDING: "PENDING CONFIGURING REQUEUED REQUEUE_HOLD",
    Ending.RUNNING: "RUNNING COMPLETING SUSPENDED STOPPED STAGE_OUT RESIZING A_STATE_OF_SLURM_30",
    Ending.PREEMPTED: "PREEMPTED",
    Ending.NODE_FAIL: "NODE_FAIL BOOT_FAIL",
    Ending.TIMEOUT: "TIMEOUT DEADLINE",
    Ending.CANCELLED: "CANCELLED REVOKED",
    Ending.OUT_OF_MEMORY: "OUT_OF_MEMORY",
    Ending.LAUNCH_FAILED: "LAUNCH_FAILED",
    Ending.FAILED: "COMPLETED FAILED",
}


@pytest.mark.parametrize(
    ("state", "ending"), [(state, e) for e, states in STATES.items() for state in states.split()]
)
def test_each_state_of_slurm_has_its_ending(state: str, ending: Ending) -> None:
    assert classify_ending(a_job(state=state), document=False, now=NOW) is ending


@pytest.mark.parametrize(
    ("changes", "documents", "ending"),
    [
        ({}, 1, Ending.FINISHED),
        ({"state": "FAILED", "exit_status": 1}, 1, Ending.FINISHED),
        ({"state": "FAILED", "exit_status": 3}, 0, Ending.FAILED),
        ({"state": "FAILED", "exit_status": 126}, 0, Ending.UNDEPLOYED),
        ({"state": "FAILED", "exit_status": 127}, 0, Ending.UNDEPLOYED),
        ({"preempted": True}, 1, Ending.PREEMPTED),
        ({"preempted": True, "state": "FAILED"}, 0, Ending.PREEMPTED),
        ({"state": "PREEMPTED", "preempted": True}, 1, Ending.PREEMPTED),
        ({"state": "DEADLINE", "start": 0}, 0, Ending.NEVER_STARTED),
        ({"state": "PENDING", "reason": "launch_failed_requeued_held"}, 0, Ending.LAUNCH_FAILED),
        ({"state": "FAILED", "reason": "JobLaunchFailure"}, 0, Ending.LAUNCH_FAILED),
        ({"state": "PENDING", "reason": "JobHeldAdmin"}, 0, Ending.PENDING),
    ],
)
def test_a_state_alone_does_not_tell_it_all(
    changes: dict[str, Any], documents: int, ending: Ending
) -> None:
    assert classify_ending(a_job(**changes), document=bool(documents), now=NOW) is ending


def test_a_job_that_slurm_has_forgotten_is_known_by_its_document_alone() -> None:
    assert classify_ending(None, document=True, now=NOW) is Ending.FINISHED
    assert classify_ending(None, document=False, now=NOW) is Ending.VANISHED


def test_a_document_is_waited_for_and_not_for_ever() -> None:
    job = a_job(end=int(NOW) - 10)
    assert classify_ending(job, document=False, now=NOW) is Ending.ARRIVING
    assert classify_ending(job, document=False, now=NOW, max_arrival=9) is Ending.FAILED


def test_only_what_waits_runs_or_arrives_is_not_over() -> None:
    going_on = {ending for ending in Ending if not ending.is_over}
    assert going_on == {Ending.PENDING, Ending.RUNNING, Ending.ARRIVING}
    assert Ending.RUNNING not in ENDING_BY_STATE.values()


def test_each_ending_is_told_with_its_job_and_node() -> None:
    lines = {ending: describe_ending(ending, "n1", a_job(exit_status=127)) for ending in Ending}

    assert len(set(lines.values())) == len(Ending)
    assert all(line.startswith("job 12 ") for line in lines.values())
    assert lines[Ending.UNDEPLOYED] == (
        "job 12 ended with exit status 127: hpcverify cannot run on n1. Fix: install it "
        "at the same path as here"
    )
    assert describe_ending(Ending.VANISHED, "n1", None).startswith("the job is no longer known")


# ---- what is submitted


@dataclass
class Scheduler:
    """Takes a job, and looks at what it was given as sbatch would."""

    script: str = ""
    mode: int = 0
    options: tuple[str, ...] = ()

    def submit(self, script: Path, *options: str) -> int:
        self.script, self.options = script.read_text(), options
        self.mode = stat.S_IMODE(script.parent.stat().st_mode)
        return 12


def test_the_token_is_in_the_script_alone_which_only_we_can_read() -> None:
    scheduler = Scheduler()
    assert submit(an_errand(), scheduler) == 12
    assert f"export HPCVERIFY_TOKEN={shlex.quote(TOKEN)}" in scheduler.script
    assert not any(TOKEN in option for option in scheduler.options)
    assert scheduler.mode == 0o700


def test_a_job_has_its_node_to_itself_and_gives_way() -> None:
    options = set(list_options(an_errand()))
    assert options >= {"--nodelist=n1", "--exclusive", "--mem=0", "--no-requeue"}
    assert options >= {"--gpus-per-node=2", f"--nice={NICE}", "--partition=verify"}


def test_the_deadline_leaves_a_job_that_starts_in_time_its_whole_time() -> None:
    options = list(list_options(an_errand(minutes=10, deadline_hours=0.5)))
    assert {"--time=10", "--deadline=now+2400seconds"} <= set(options)


def test_what_is_not_wanted_is_not_asked_for() -> None:
    plain = " ".join(list_options(an_errand(gpus=0)))
    full = " ".join(list_options(an_errand(reservation="hv-n1", user="verifier")))
    assert not any(o in plain for o in ("--gpus", "--reservation", "--uid"))
    assert "--reservation=hv-n1 --uid=verifier" in full


@pytest.mark.parametrize(
    "option",
    [
        *("--comment=burn-in", "--constraint=a100&ib", "--licenses=x:1", "--no-kill"),
        *("--mail-type=FAIL", "--gres=lustre:1", "--wckey=ops", "--qos-like=x"),
    ],
)
def test_an_option_of_the_sites_own_comes_before_ours(option: str) -> None:
    options = [*list_options(an_errand(options=(option,)))]
    assert check_option(option) == ""
    assert options == [option, *list_options(an_errand())]


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--wrap=true", "--wrap would break a verification"),
        ("--output=/tmp/x", "--output is set by hpcverify"),
        ("--nodelist=n2", "--nodelist is set by hpcverify"),
        ("--nodel=n2", "--nodelist is set by hpcverify"),
        ("--reservation=theirs", "--reservation is set by hpcverify"),
        ("--hold", "--hold would break a verification"),
        ("--export=NONE", "--export is set by hpcverify"),
        ("--account=ops", "set fleet.account"),
        ("--qos=low", "set fleet.qos"),
        ("-A ops", "write it as --name=value"),
        ("--comment= x; id\n", ""),
        ("--comment x", "write it as --name=value"),
        ("other.sh", "write it as --name=value"),
        ("--", "write it as --name=value"),
        ("", "write it as --name=value"),
    ],
)
def test_an_option_that_would_break_a_verification_is_refused(option: str, why: str) -> None:
    assert check_option(option) == why


def test_every_option_that_we_set_is_refused_from_others() -> None:
    errand = an_errand(reservation="hpcverify-n1", user="nobody")
    for option in list_options(errand):
        assert check_option(option), option


def test_a_job_may_take_longer_than_its_suite() -> None:
    assert compute_minutes(1200) == 25
    assert compute_minutes(1201) == 26


def test_the_script_is_plain_sh_that_tells_the_program_what_to_run() -> None:
    script = build_script(an_errand(program="/opt/x/hpcverify"))
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    assert script.startswith("#!/bin/sh\n")
    assert "\nprogram=/opt/x/hpcverify\nsuite=idle\nspool='/shared/a spool'\n" in script


def test_hpcverify_is_where_it_is_here_unless_the_site_says_otherwise() -> None:
    assert f"program={Path(sys.executable).parent}/hpcverify\n" in build_script(an_errand())


def test_the_template_that_sites_see_is_the_script_that_runs() -> None:
    assert SCRIPT_PATH.read_text() == (ROOT / "slurm/sweep.sbatch").read_text()
    assert SCRIPT_PATH.read_text().count(SETTINGS_LINE) == 1


@pytest.mark.parametrize("name", ["OPTIND", "SHELLOPTS", "BASHOPTS", "BASH_VERSION", "PPID"])
def test_no_variable_of_the_shell_itself_ends_the_job_script(name: str) -> None:
    settings = {"program": "/bin/echo", "spool": "/spool", name: "1"}
    done = subprocess.run(["sh", SCRIPT_PATH], env=settings, stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"run --suite idle --spool /spool --wait 60s\n"


# ---- on a real Slurm


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Write a program that notes how it was called, and what it was told by env."""
    path = tmp_path / "noting"
    path.write_text(
        f'#!/bin/sh\necho "$@" >"{tmp_path}/called"\nenv >"{tmp_path}/env"\n'
        f'trap ": >{tmp_path}/heard; exit 3" TERM\n: >"{tmp_path}/ready"\n'
        f'while [ ! -e "{tmp_path}/go" ]; do sleep 0.1; done\n'
    )
    path.chmod(0o755)
    return path


def on(cluster: Cluster, node: str, program: object, **changes: Any) -> int:
    name = build_job_name(int(time.time() * 1000), node)
    return submit(an_errand(node=node, name=name, program=str(program), **changes), cluster.slurm)


def a_user_wants(cluster: Cluster, node: str) -> None:
    options = ("-p", "batch", "-w", node, "-o", "/dev/null", "--wrap", "true")
    cluster.run("sbatch", *options)


def ended(cluster: Cluster, number: int) -> Ending:
    def ending() -> Ending:
        job = cluster.slurm.list_jobs(executor.JOB_NAME_PREFIX).get(number)
        return classify_ending(job, document=False, now=time.time(), max_arrival=0.0)

    cluster.until(lambda: ending().is_over)
    return ending()


def test_the_node_runs_what_it_is_told_in_an_environment_of_our_making(
    cluster: Cluster, program: Path, tmp_path: Path
) -> None:
    number = on(cluster, "n1", program, environment={"HPCVERIFY_STATE": "/var/a b"})
    cluster.until((tmp_path / "ready").exists)
    asked = cluster.run("scontrol", "show", "job", "-dd", number)
    (tmp_path / "go").touch()

    assert ended(cluster, number) is Ending.FAILED
    called = (tmp_path / "called").read_text()
    assert called == "run --suite idle --spool /shared/a spool --wait 60s\n"
    told_by_env = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert (told_by_env["HPCVERIFY_TOKEN"], told_by_env["HPCVERIFY_STATE"]) == (TOKEN, "/var/a b")
    assert told_by_env["CUDA_VISIBLE_DEVICES"] == "0,1"
    ours = {k for k in told_by_env if not k.startswith("SLURM")}
    assert ours <= {
        *("HPCVERIFY_TOKEN", "HPCVERIFY_STATE", "PATH", "PWD", "SHLVL", "_", "OLDPWD"),
        *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    }
    assert TOKEN not in asked


def test_no_other_user_can_learn_the_token(cluster: Cluster, program: Path, tmp_path: Path) -> None:
    number = on(cluster, "n1", program)
    cluster.until((tmp_path / "ready").exists)
    batch = f"scontrol write batch_script {number} - 2>&1"
    look = f"scontrol show job -dd {number}; squeue --json; {batch}; ps axeww"

    seen = cluster.run(*NOBODY, "sh", "-c", f"{look}; true")

    (tmp_path / "go").touch()
    assert f"JobId={number}" in seen
    assert TOKEN not in seen
    ended(cluster, number)


def test_a_job_gives_way_to_a_users_and_hears_of_it_itself(
    cluster: Cluster, program: Path, tmp_path: Path
) -> None:
    number = on(cluster, "n1", program)
    cluster.until((tmp_path / "ready").exists)
    a_user_wants(cluster, "n1")
    assert ended(cluster, number) is Ending.PREEMPTED
    assert (tmp_path / "heard").exists()


def test_a_preempted_run_leaves_all_that_it_had_measured_with_its_token(
    cluster: Cluster, cli: Cli, tmp_path: Path
) -> None:
    way = f'params = {{ way = "leave_child", path = "{tmp_path}/ready" }}'
    cli.suite("idle", f'[[check]]\nname = "naughty"\n{way}\n')
    (tmp_path / "spool").mkdir()
    passed = ("HPCVERIFY_STATE", "HPCVERIFY_CONFIG", "PYTHONPATH")
    environment = {name: cli.environment[name] for name in passed}

    number = on(
        cluster,
        "n1",
        a_machine_of_its_own(tmp_path),
        spool=str(tmp_path / "spool"),
        environment=environment,
    )
    cluster.until((tmp_path / "ready").exists)
    a_user_wants(cluster, "n1")

    assert ended(cluster, number) is Ending.PREEMPTED
    (document,) = (tmp_path / "spool/n1").glob("*.json")
    run = json.loads(document.read_text())
    assert (run["token"], [r["cause"] for r in run["results"]]) == (TOKEN, ["interrupted"])
    assert run["results"][0]["measurements"][0]["name"] == "before"


def a_machine_of_its_own(folder: Path) -> Path:
    """Write a program that is hpcverify on a node that shares no lock with others."""
    path = folder / "hpcverify"
    path.write_text(f'#!/bin/sh\nexec unshare -n {COMMAND[0]} "$@"\n')
    path.chmod(0o755)
    return path


def test_a_program_that_is_not_there_is_a_deployment_error(cluster: Cluster) -> None:
    assert ended(cluster, on(cluster, "n2", "/nowhere/hpcverify")) is Ending.UNDEPLOYED
    assert ended(cluster, on(cluster, "n2", "/etc/passwd")) is Ending.UNDEPLOYED


def test_a_job_whose_node_is_not_free_in_time_never_starts(cluster: Cluster) -> None:
    cluster.run("scontrol", "update", "nodename=n3", "state=drain", "reason=test")
    number = on(cluster, "n3", "/bin/true", deadline_hours=3 / 3600)
    assert ended(cluster, number) is Ending.NEVER_STARTED


def test_a_cancelled_job_is_cancelled(cluster: Cluster, program: Path, tmp_path: Path) -> None:
    number = on(cluster, "n4", program)
    cluster.until((tmp_path / "ready").exists)
    cluster.slurm.cancel(number)
    assert ended(cluster, number) is Ending.CANCELLED


def test_a_node_that_dies_takes_its_job_with_it_and_nothing_more(
    cluster: Cluster, program: Path, tmp_path: Path
) -> None:
    number = on(cluster, "n4", program)
    cluster.until((tmp_path / "ready").exists)

    cluster.stop("n4")
    cluster.run("scontrol", "update", "nodename=n4", "state=down", "reason=died")

    assert ended(cluster, number) is Ending.NODE_FAIL
    cluster.start("n4")


def a_group_job(**changes: Any) -> GroupJobSpec:
    """Make a job of collectives between two nodes, first one way and then the other."""
    ways = (("n1", "n2"), ("n2", "n1"))
    base = GroupJobSpec(
        nodes=("n1", "n2"),
        gpus=2,
        name="a-group",
        minutes=5,
        deadline_hours=0.5,
        partition="verify",
        program="/opt/hpc verify",
        steps=tuple(
            JobStep(arguments=("fabric", "test", "-o", f"/shared/a spool/{a}"), order=(a, b))
            for a, b in ways
        ),
    )
    return msgspec.structs.replace(base, **changes)


def test_a_job_of_several_nodes_has_all_of_them_and_gives_way_like_any() -> None:
    options = list(list_options(a_group_job()))

    assert {"--nodelist=n1,n2", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2"} <= {
        *options
    }
    assert {"--exclusive", "--mem=0", "--no-requeue", f"--nice={NICE}", "--time=5"} <= {*options}
    assert "--gpus-per-node=0" not in list_options(a_group_job(gpus=0))


def test_each_step_has_its_ranks_in_its_own_order_and_the_last_replaces_the_shell() -> None:
    """So a signal reaches srun, and rank 0 is on the node that is to send."""
    script = build_script(a_group_job())

    first, last = (line for line in script.splitlines() if "srun" in line.split()[:2])
    assert last.startswith("exec srun ")
    assert "--nodelist=n1,n1,n2,n2 --distribution=arbitrary --ntasks=4" in first
    assert "--nodelist=n2,n2,n1,n1 --distribution=arbitrary --ntasks=4" in last
    assert shlex.split(first)[-4:] == ["fabric", "test", "-o", "/shared/a spool/n1"]
    assert "program='/opt/hpc verify'" in script
    assert "--wait=90" in first
    assert "--wait=90" in last


def test_a_step_without_an_order_has_a_rank_for_each_gpu_of_each_node() -> None:
    script = build_script(a_group_job(steps=(JobStep(arguments=("fabric", "test")),)))
    assert "exec srun --nodes=2 --ntasks-per-node=2 --cpu-bind=none" in script
