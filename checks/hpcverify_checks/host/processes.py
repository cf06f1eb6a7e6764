"""Processes: what waits for ever, what jobs that are over left behind, what must run."""

from __future__ import annotations

import itertools
import os
import pwd
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

import hpcverify.check as hv
from hpcverify.telemetry import sysfs
from hpcverify.telemetry.blockdev import list_mounts
from hpcverify.units import MINUTE_SECONDS
from hpcverify_checks.host.apart import ask_apart
from hpcverify_checks.host.needs import ProcessNeed, fits

COMM_LENGTH = 15
"""Characters that the kernel keeps of the name of a process."""
STUCK_SECONDS = 2 * MINUTE_SECONDS
"""In which a task must not have run once: the kernel's own hung_task_timeout_secs."""
FIRST_USER_ID = 1000
"""From here on, accounts belong to people (UID_MIN in login.defs)."""
NOBODY_ID = 65534
STUCK, LEFT_OVER = "stuck", "left_over"
"""The names of the `CarryOver`s with what was seen once, and is reported if seen again."""
MAX_NAMED = 5
FROZEN = frozenset({"__refrigerator", "do_freezer_trap"})
"""The kernel functions in which a paused container waits (cgroup v1 calls that D)."""
MAX_FILES = 10000
"""In /dev/shm that are looked at."""
SCOPE_KEEPER = "slurmstepd infinity"
"""The one without a job, which keeps the scope of the others (cgroup v2)."""
JOB_FOLDER = r"(?m)/job_(\d+)(?:/|$)"
JOB_STEP = r"slurmstepd: \[(\d+)"


class Task(Struct, frozen=True):
    """A process, as /proc/PID/stat has it."""

    pid: int
    name: str
    state: str
    parent: int
    started: int
    """In clock ticks since boot: with the pid it names one process for good."""

    @property
    def key(self) -> str:
        """What names this process, and never another."""
        return f"{self.pid}.{self.started}"


def list_tasks(root: Path) -> list[Task]:
    """List all processes, threads of the kernel among them."""
    proc = os.path.join(root, "proc")  # noqa: PTH118 - thousands, and a prolog waits
    tasks: list[Task] = []
    for pid in os.listdir(proc):  # noqa: PTH208
        if pid.isdigit():
            with suppress(OSError), open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123
                # The name may hold spaces and parentheses.
                before, _, after = file.read(1024).decode(errors="replace").rpartition(")")
                fields = after.split(maxsplit=20)
                name = before.partition(" (")[2]
                tasks.append(Task(int(pid), name, fields[0], int(fields[1]), int(fields[19])))
    return tasks


def measure_processes(
    tasks: Sequence[Task], root: Path, recall_stuck: str | None, recall_left: str | None
) -> Iterator[hv.CheckItem]:
    """Report how many there are, and those that were stuck or left over in the last run too."""
    yield hv.Measurement("processes.zombies", sum(task.state == "Z" for task in tasks))
    # loadavg counts threads, each of which takes a pid.
    words = (sysfs.read_text(root / "proc/loadavg") or "").split()
    limits = [sysfs.read_number(root / f"proc/sys/kernel/{n}") for n in ("pid_max", "threads-max")]
    known = [limit for limit in limits if limit]
    if len(words) > 3 and known:  # noqa: PLR2004 - the fourth is running/all
        for name, word in zip(("load.1m", "load.5m", "load.15m"), words, strict=False):
            yield hv.Measurement(name, float(word))
        share = int(words[3].partition("/")[2]) / min(known)
        yield hv.Measurement("processes.share", share, "ratio")
    yield from _report_stuck(tasks, root, recall_stuck)
    yield from _report_left_over(tasks, root, recall_left)


def _report_stuck(
    tasks: Iterable[Task], root: Path, recalled: str | None
) -> Iterator[hv.CheckItem]:
    uptime = float((sysfs.read_text(root / "proc/uptime") or "0").partition(" ")[0])
    # By process: how often it had run, and since when it is known to wait.
    before: dict[str, list[float]] = msgspec.json.decode(recalled) if recalled else {}
    now: dict[str, list[float]] = {}
    stuck: list[Task] = []
    for task in tasks:
        if task.state != "D" or _read_wait(root, task.pid) in FROZEN:
            continue
        status = sysfs.read_text(root / f"proc/{task.pid}/status") or ""
        switches = sum(int(n) for n in re.findall(r"voluntary_ctxt_switches:\s*(\d+)", status))
        was, since = before.get(task.key, [-1, uptime])
        if was != switches or since > uptime:
            since = uptime
        now[task.key] = [switches, since]
        if uptime - since >= STUCK_SECONDS:
            stuck.append(task)
    yield hv.CarryOver(STUCK, msgspec.json.encode(now).decode())
    yield hv.Measurement("processes.stuck", len(stuck))
    if stuck:
        names = _name_tasks(stuck, root)
        text = (
            f"in uninterruptible sleep for over {STUCK_SECONDS:.0f} s: {names}: see the kernel "
            "log for the disk, GPU or server that it waits for; reboot the node if it is none"
        )
        yield hv.Finding("process_stuck", "node", text)


def _name_tasks(tasks: Sequence[Task], root: Path) -> str:
    names = [
        f"{task.name} (pid {task.pid}"
        + (f", in {where})" if (where := _read_wait(root, task.pid)) else ")")
        for task in tasks[:MAX_NAMED]
    ]
    more = len(tasks) - MAX_NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _read_wait(root: Path, pid: int) -> str:
    where = sysfs.read_text(root / f"proc/{pid}/wchan") or ""
    return "" if where == "0" else where


def _report_left_over(
    tasks: Sequence[Task], root: Path, recalled: str | None
) -> Iterator[hv.CheckItem]:
    """
    Report processes in the cgroup of a Slurm job that has no step on this node any more.

    Each step has a slurmstepd, which outlives its processes. It is known by its title or
    by its own cgroup; if one is known by neither, nothing is reported, for what it runs is not
    to be killed. One look is not enough: a step may just be ending.
    """
    if not any(task.name.startswith("slurmd") for task in tasks):
        return
    steps = [t for t in tasks if t.name.startswith("slurmstepd")]
    alive: set[str] = set()
    for step in steps:
        command = (sysfs.read_text(root / f"proc/{step.pid}/cmdline") or "").replace("\0", " ")
        job = "".join(re.findall(JOB_STEP, command)) or _find_job(root, step.pid)
        if not job and SCOPE_KEEPER not in command:
            return
        alive.add(job)
    jobs = {t: job for t in tasks if t.parent != 2 and (job := _find_job(root, t.pid))}  # noqa: PLR2004 - kthreadd
    over = {t: job for t, job in jobs.items() if job not in alive and t not in steps}
    before = msgspec.json.decode(recalled) if recalled else []
    yield hv.CarryOver(LEFT_OVER, msgspec.json.encode([t.key for t in over]).decode())
    again = [t for t in over if t.key in before]
    yield hv.Measurement("processes.left_over", len(again))
    if again:
        listed = ", ".join(dict.fromkeys(f"job {over[t]}" for t in again))
        pids = " ".join(str(t.pid) for t in again[:MAX_NAMED])
        text = (
            f"{listed} is over and left behind {_name_tasks(again, root)}: kill -9 {pids}, and "
            "see why Slurm did not (ProctrackType, UnkillableStepTimeout)"
        )
        yield hv.Finding("process_left_over", "node", text)


def _find_job(root: Path, pid: int) -> str:
    match = re.search(JOB_FOLDER, sysfs.read_text(root / f"proc/{pid}/cgroup") or "")
    return match[1] if match else ""


def compare_processes(
    needs: Iterable[ProcessNeed], tasks: Sequence[Task], root: Path
) -> Iterator[hv.Finding]:
    """Report what must run and does not, and what runs and must not."""
    for need in needs:
        running = [t for t in tasks if t.state != "Z"]
        named = _keep_owned([t for t in running if fits(t.name, need.name)], need.user, root)
        if need.running and not named:  # by its command line: a daemon may name its threads
            others = [t for t in running if _is_called(root, t.pid, need.name)]
            named = _keep_owned(others, need.user, root)
        of = f" of {need.user}" if need.user else ""
        if need.running and not named:
            yield hv.Finding("process_missing", "node", f"no process {need.name}{of}: start it")
        elif named and not need.running:
            text = f"{_name_tasks(named, root)}{of} must not run: stop it"
            yield hv.Finding("process_unwanted", "node", text)


def _keep_owned(tasks: Sequence[Task], user: str, root: Path) -> Sequence[Task]:
    return [t for t in tasks if not user or _belongs_to(_read_owner(root, t.pid), user)]


def _is_called(root: Path, pid: int, name: str) -> bool:
    words = (sysfs.read_text(root / f"proc/{pid}/cmdline") or "").split("\0")[:2]
    programs = [word.rpartition("/")[2] for word in words]  # the second may be a script
    return any(fits(program, name) or fits(program[:COMM_LENGTH], name) for program in programs)


def _belongs_to(owner: int | None, user: str) -> bool:
    if user.startswith("!"):
        return not _belongs_to(owner, user[1:])
    if owner is None or fits(str(owner), user):
        return owner is not None
    try:
        return fits(pwd.getpwuid(owner).pw_name, user)
    except KeyError:
        return False


def _read_owner(root: Path, pid: int) -> int | None:
    try:
        return (root / f"proc/{pid}").stat().st_uid
    except OSError:
        return None


def _list_files(folder: Path, mounted: Collection[str]) -> Iterator[os.stat_result]:
    folders = [os.fspath(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.path in mounted:  # a user's FUSE may never say what it is
                    continue
                with suppress(OSError):
                    yield entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)


def _sum_sizes(folder: Path, mounted: Collection[str]) -> list[tuple[int, int]]:
    """Sum the bytes of the files in *folder* by the people who own them."""
    sizes: dict[int, int] = {}
    for about in itertools.islice(_list_files(folder, mounted), MAX_FILES):
        if FIRST_USER_ID <= about.st_uid != NOBODY_ID:
            sizes[about.st_uid] = sizes.get(about.st_uid, 0) + about.st_blocks * 512
    return list(sizes.items())


def report_shared_memory(
    folder: Path, tasks: Iterable[Task], root: Path, least: float, seconds: float
) -> Iterator[hv.Finding]:
    """
    Report files of people in *folder* who run nothing here, from *least* bytes on.

    What is mounted below it is left out, and if it does not answer within *seconds*, as when
    a user has just mounted something there, that is reported.
    """
    mounted = {f"{root}{mount.point}".replace("//", "/") for mount in list_mounts(root)}
    name = str(folder)
    replies = ask_apart({name: partial(_sum_sizes, folder, mounted)}, seconds)
    for stuck in replies.hung.values():
        text = f"what is below it has not answered in {stuck.seconds:g} s: see findmnt -R {folder}"
        yield hv.Finding("fuse_hung", name, text)
    sizes = dict(replies.answers.get(name, ()))
    if sum(sizes.values()) < least:
        return
    present = {_read_owner(root, task.pid) for task in tasks}
    for owner, size in sizes.items():
        if owner not in present and size >= least:
            text = (
                f"{size / 2**30:.3g} GiB of memory is held by files of user {owner}, who runs "
                f"nothing here: find {folder} -xdev -user {owner} -delete"
            )
            yield hv.Finding("memory_left_over", str(folder), text)
