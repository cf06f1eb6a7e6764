"""Processes: what waits or was left behind is told when two runs saw it, and only then."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from hpcverify.check import Verdict
from hpcverify.testing import find_value, judge_items, list_codes, list_findings
from hpcverify_checks.host import CHECK, HostSeams
from hpcverify_checks.host.needs import Expectation, ProcessNeed
from hpcverify_checks.host.processes import list_tasks, report_shared_memory
from tests.checks.host.nodes import a_node, a_process, look, never_run
from tests.fuse import silent_file_system
from tests.telemetry.trees import grow

AS_ROOT = pytest.mark.needs("root")
ME = pwd.getpwuid(os.geteuid()).pw_name


def test_a_process_in_the_same_wait_for_two_minutes_is_stuck(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    a_process(node.root, 77, "python (x)", "D", wchan="nfs_wait_bit_killable")
    first = look(tmp_path, node)
    grow(node.root, {"proc/uptime": "10060.0 1.0"})
    early = look(tmp_path, node, before=first)
    grow(node.root, {"proc/uptime": "10125.0 1.0"})
    late = look(tmp_path, node, before=early)

    assert list_codes(first) == list_codes(early) == []
    assert list_codes(late) == ["process_stuck"]
    assert "python (x) (pid 77, in nfs_wait_bit_killable)" in list_findings(late)[0].text
    assert judge_items(CHECK, late).verdict is Verdict.WARN


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "voluntary_ctxt_switches:\t8\nnonvoluntary_ctxt_switches:\t1"},
        {"pid": 78},
        {"state": "S"},
    ],
)
def test_a_process_that_ran_between_two_runs_is_not_stuck(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    node = a_node(tmp_path / "r")
    a_process(node.root, 77, "dd", "D")
    first = look(tmp_path, node)
    (node.root / "proc/77/stat").unlink()
    grow(node.root, {"proc/uptime": "20000.0 1.0"})
    given = {"pid": 77, "name": "dd", "state": "D"} | changes
    a_process(node.root, **given)  # type: ignore[arg-type]
    again = look(tmp_path, node, before=first)

    assert list_codes(again) == []
    assert find_value(again, "processes.stuck") == 0


def a_slurm_node(tmp_path: Path) -> HostSeams:
    node = a_node(tmp_path / "r")
    a_process(node.root, 10, "slurmd", cgroup="0::/system.slice/slurmd.service")
    a_process(
        node.root, 20, "slurmstepd", cmdline="slurmstepd: [41.0]", cgroup="0::/slurm/job_41/step_0"
    )
    a_process(node.root, 21, "train", cgroup="0::/slurm/uid_7/job_41/step_0/user/task_0")
    return node


def test_what_a_job_that_is_over_left_behind_is_told_in_the_second_run(tmp_path: Path) -> None:
    node = a_slurm_node(tmp_path)
    a_process(node.root, 31, "train", cgroup="0::/slurm/uid_7/job_40/step_0/user/task_0")
    first = look(tmp_path, node)
    again = look(tmp_path, node, before=first)

    assert list_codes(first) == []
    assert list_codes(again) == ["process_left_over"]
    assert "job 40 is over and left behind train (pid 31)" in list_findings(again)[0].text
    assert "kill -9 31" in list_findings(again)[0].text


def test_jobs_that_run_and_daemons_are_not_left_over(tmp_path: Path) -> None:
    node = a_slurm_node(tmp_path)
    again = look(tmp_path, node, before=look(tmp_path, node))

    assert list_codes(again) == []
    assert find_value(again, "processes.left_over") == 0


def test_a_paused_container_is_not_stuck(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    a_process(node.root, 77, "train", "D", wchan="__refrigerator")
    first = look(tmp_path, node)
    grow(node.root, {"proc/uptime": "20000.0 1.0"})

    assert list_codes(look(tmp_path, node, before=first)) == []


@pytest.mark.parametrize("cgroup", ["0::/slurm/job_40/step_0/slurm", "0::/system.slice"])
def test_a_step_whose_title_says_nothing_keeps_its_job_alive(tmp_path: Path, cgroup: str) -> None:
    """Else the operator would be told to kill what runs."""
    node = a_slurm_node(tmp_path)
    a_process(node.root, 30, "slurmstepd", cmdline="/usr/sbin/slurmstepd", cgroup=cgroup)
    a_process(node.root, 31, "train", cgroup="0::/slurm/uid_7/job_40/step_0/user/task_0")

    assert list_codes(look(tmp_path, node, before=look(tmp_path, node))) == []


def test_the_step_daemon_that_only_keeps_the_scope_hides_nothing(tmp_path: Path) -> None:
    node = a_slurm_node(tmp_path)
    a_process(node.root, 30, "slurmstepd", cmdline="/usr/sbin/slurmstepd\0infinity", cgroup="0::/")
    a_process(node.root, 31, "train", cgroup="0::/slurm/uid_7/job_40/step_0/user/task_0")

    assert list_codes(look(tmp_path, node, before=look(tmp_path, node))) == ["process_left_over"]


def test_a_daemon_is_known_by_its_command_line_too(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    a_process(node.root, 5, "beegfs-h/Main", cmdline="/opt/beegfs/sbin/beegfs-helperd\0cfg=x")
    a_process(node.root, 6, "python3", cmdline="/usr/bin/python3\0/usr/sbin/firewalld\0-n")
    needs = Expectation(
        processes=(ProcessNeed(name="beegfs-helperd"), ProcessNeed(name="firewalld"))
    )

    assert list_codes(look(tmp_path, node, needs)) == []


def test_real_zombies_are_counted_and_accuse_nobody() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        tasks = {task.pid: task for task in list_tasks(Path("/"))}
    finally:
        child.wait()

    assert tasks[child.pid].state == "Z"
    assert tasks[os.getpid()].parent == os.getppid()


def test_a_node_with_nearly_all_its_pids_taken_warns(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    grow(node.root, {"proc/loadavg": "1.00 2.00 3.00 1/32000 4000"})

    judged = judge_items(CHECK, look(tmp_path, node))

    assert judged.verdict is Verdict.WARN
    assert "processes.share" in judged.reason


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("need", "codes"),
    [
        (ProcessNeed(name="sshd"), []),
        (ProcessNeed(name="ssh*", user=ME), []),
        (ProcessNeed(name="sshd", user="!nobody"), []),
        (ProcessNeed(name="sshd", user="nobody"), ["process_missing"]),
        (ProcessNeed(name="crond"), ["process_missing"]),
        (ProcessNeed(name="defunct"), ["process_missing"]),
        (ProcessNeed(name="sshd", running=False), ["process_unwanted"]),
        (ProcessNeed(name="crond", running=False), []),
    ],
)
def test_processes_are_held_to_what_the_site_needs(
    tmp_path: Path, need: ProcessNeed, codes: list[str]
) -> None:
    node = a_node(tmp_path / "r")
    a_process(node.root, 5, "sshd")
    a_process(node.root, 6, "defunct", "Z")

    assert list_codes(look(tmp_path, node, Expectation(processes=(need,)))) == codes


@pytest.mark.needs("root")
def test_files_in_memory_of_a_user_who_runs_nothing_are_told(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    shared = tmp_path / "shm"
    shared.mkdir()
    (shared / "psm").write_bytes(os.urandom(2**20))
    (shared / "nccl").mkdir()
    (shared / "nccl/ring").write_bytes(os.urandom(2**20))
    for path in (shared / "psm", shared / "nccl", shared / "nccl/ring"):
        os.chown(path, 4711, 4711)
    a_process(node.root, 5, "train")
    tasks = list_tasks(node.root)

    told = list(report_shared_memory(shared, tasks, node.root, 2**19, 60))
    os.chown(node.root / "proc/5", 4711, 4711)
    there = list(report_shared_memory(shared, tasks, node.root, 2**19, 60))
    little = list(report_shared_memory(shared, [], node.root, 2**22, 60))
    deep = list(report_shared_memory(shared, tasks[:0], node.root, 2**20 + 2**19, 60))

    assert [f.code for f in told] == ["memory_left_over"]
    assert "user 4711" in told[0].text
    assert there == little == []
    assert [f.code for f in deep] == ["memory_left_over"]


def own_by_user(path: Path) -> None:
    path.write_bytes(os.urandom(2**20))
    os.chown(path, 4711, 4711)


@AS_ROOT
@pytest.mark.parametrize("deep", [False, True])
def test_what_a_user_mounts_in_the_memory_is_not_asked_and_the_rest_counts(
    tmp_path: Path, *, deep: bool
) -> None:
    shared = tmp_path / "shm"
    point = shared / "u/x" if deep else shared / "x"
    point.mkdir(parents=True)
    own_by_user(shared / "left")
    with silent_file_system(point):
        told = list(report_shared_memory(shared, [], Path("/"), 2**19, 60))
    assert [(f.code, f.part_id) for f in told] == [("memory_left_over", str(shared))]


@AS_ROOT
def test_a_mount_that_the_table_does_not_show_yet_costs_a_process_of_its_own(
    tmp_path: Path,
) -> None:
    node = a_node(tmp_path / "r")  # whose table of mounts has none
    shared = tmp_path / "shm"
    (shared / "x").mkdir(parents=True)
    with silent_file_system(shared / "x"):
        told = list(report_shared_memory(shared, [], node.root, 1, 0.5))
    assert [(f.code, f.part_id) for f in told] == [("fuse_hung", str(shared))]
    assert "reboot" not in told[0].text
    assert CHECK.finding_rules["fuse_hung"].verdict is Verdict.WARN


def test_no_program_is_started_by_default(tmp_path: Path) -> None:
    assert a_node(tmp_path / "r").tool is never_run
    assert list_codes(look(tmp_path, a_node(tmp_path / "r"))) == []
