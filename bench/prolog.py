"""
What a job waits for in the prolog.

Reading the gate file in sh, beside a shell that does nothing; `hpcverify gate` beside a
bare interpreter; and the prolog that waits for the passive suite, beside the ten checks of
LBNL NHC. The node has eight GPUs of the NVML double, eight InfiniBand ports in a sysfs of
its own (as root: an overlay in a namespace of mounts), and the host that it runs on.

NHC is the real one: a checkout that the environment variable NHC names, or else its release
is fetched. It runs as slurmd would start it, with its watchdog, but marks no node. Its ten
checks are the seven that its sample configuration turns on, and the three that
`nhc-genconf` writes for every node: processors, memory, and space on the root.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pairs import compare, summarise

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.checks.nic_trees import adapter, device  # noqa: E402 - as the double of NVML
from tests.nvml_lab.nvmllab import build  # noqa: E402 - the double belongs to the tests

# Or all would be compiled again each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
HPCVERIFY = str(Path(sys.executable).with_name("hpcverify"))
PROLOG = str(ROOT / "slurm/prolog")
PAIRS = 31
PORTS = 8
INSIDE = "--inside"
"""The argument of this program in a namespace of its own."""
NHC_URL = "https://github.com/mej/nhc"
NHC_COMMIT = "d534d41db4237b018f18a3063c4ceb86b91fbe42"
"""Release 1.4.3, the latest."""
NHC_CHECKS = (
    "check_hw_cpuinfo {sockets} {cores} {threads}",
    "check_hw_physmem 1gb 100tb",
    "check_hw_mem_free 1mb",
    "check_fs_mount_rw -f /",
    "check_fs_mount_rw -t devpts -f /dev/pts",
    "check_fs_free / 1%",
    "check_file_test -r -w -x -d -k /tmp /var/tmp",
    "check_file_test -r -s /etc/passwd /etc/group",
    "check_file_test -c -r -w /dev/null /dev/zero",
    "check_ps_service {daemon}",
)
FAR = 99_999_999_999
GATE_FILES = {
    "a held node": f"quarantined\n{FAR}\nGPU 3: lost\n\n",
    "a node in service": f"ok\n{FAR}\n\n\n",
    "a node without a gate file": "",
    "a check that may refuse": f"ok\n{FAR}\n\ninventory\n",
}

BESIDE = "no target: the passive suite is started as well"
TARGETS = dict.fromkeys(GATE_FILES, BESIDE) | {"a held node": "at most 5"}


def seconds(command: Sequence[str], environment: dict[str, str] | None = None) -> float:
    """Time one run of *command*, whatever its status."""
    start = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def cpu_seconds() -> float:
    """Say how much CPU time our children took, and theirs, that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def median(measure: Callable[[], float]) -> float:
    """Take the median of `PAIRS` measurements."""
    return statistics.median(measure() for _ in range(PAIRS))


def settings(folder: Path, hpcverify: str) -> str:
    """Write the settings of the prolog, and return where."""
    file = folder / "hooks.conf"
    file.write_text(f"HPCVERIFY={hpcverify}\nHPCVERIFY_STATE={folder}\n")
    return str(file)


def time_prologs(folder: Path) -> None:
    """Time the prolog where it reads the gate file and waits for nothing else."""
    conf = settings(folder, "/bin/true")
    environment = {"SLURM_JOB_UID": "1000"}
    for what, text in GATE_FILES.items():
        (folder / "gate").write_text(text)
        prolog = (PROLOG, conf)
        more = median(
            lambda prolog=prolog: (
                seconds(prolog, environment)  # type: ignore[misc]
                - seconds(("sh", "-c", ":"))
            )
        )
        print(f"prolog, {what}: {1000 * more:.1f} ms over sh -c : ({TARGETS[what]})")


def gate() -> None:
    """Compare `gate` with an interpreter that does nothing."""
    ratio = compare(
        lambda: seconds((HPCVERIFY, "gate")),
        lambda: seconds((sys.executable, "-I", "-c", "pass")),
        pairs=PAIRS,
    )
    print(f"hpcverify gate / python -I -c pass: {ratio} (at most 2)")


def fetch_nhc(folder: Path) -> Path | None:
    """Find NHC, or fetch it into *folder*; None if it cannot be had."""
    if given := os.environ.get("NHC"):
        return Path(given)
    for command in (
        ("git", "init", "--quiet", folder),
        ("git", "-C", folder, "fetch", "--quiet", "--depth", "1", NHC_URL, NHC_COMMIT),
        ("git", "-C", folder, "checkout", "--quiet", "FETCH_HEAD"),
    ):
        if subprocess.run(command, check=False).returncode:
            return None
    return folder


def write_nhc(folder: Path, source: Path) -> tuple[str, ...]:
    """Configure NHC in *folder* for this node; return the command that runs it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    sockets = {line for line in lines if line.startswith("physical id")}
    per_socket = next(int(line.split()[-1]) for line in lines if line.startswith("cpu cores"))
    shown = {
        "sockets": len(sockets),
        "cores": len(sockets) * per_socket,
        "threads": sum(line.startswith("processor") for line in lines),
        "daemon": Path("/proc/1/comm").read_text().strip(),
    }
    (folder / "scripts").symlink_to(source / "scripts")
    checks = (f"* || {check.format(**shown)}\n" for check in NHC_CHECKS)
    (folder / "nhc.conf").write_text("".join(checks))
    settings = ("NAME=nhc", "NHC_RM=slurm", "MARK_OFFLINE=0", f"LOGFILE={folder}/log")
    return str(source / "nhc"), "-D", str(folder), *settings


def plug_in_ports(folder: Path) -> None:
    """Show InfiniBand ports in this namespace's sysfs."""
    for index in range(PORTS):
        adapter(folder, f"mlx5_{index}", device(folder, index), index)
    for place, folders, _ in os.walk(folder):
        for path in (Path(place, name) for name in folders):
            if path.is_symlink():  # to where it will be
                end = path.readlink().relative_to(folder)
                path.unlink()
                path.symlink_to(f"/{end}")
    lower = f"lowerdir={folder}/sys:/sys"
    subprocess.run(("mount", "-t", "overlay", "-o", lower, "overlay", "/sys"), check=True)


def passive(folder: Path, nhc: Sequence[str]) -> None:
    """Time the prolog that waits for the passive suite, beside *nhc*."""
    library = build(folder)
    scenario = folder / "healthy.txt"
    scenario.write_text("gpus = 8\n")
    script = folder / "hpcverify"
    script.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={library.parent}\n"
        f'export NVML_LAB_SCENARIO={scenario}\nexec {HPCVERIFY} "$@"\n'
    )
    script.chmod(0o755)
    (folder / "gate").write_text(GATE_FILES["a check that may refuse"])
    conf = settings(folder, str(script))
    environment = {"SLURM_JOB_UID": "1000", "SLURMD_NODENAME": "n1"}
    sides = {"prolog": (PROLOG, conf), "NHC": nhc}
    walls: dict[str, list[float]] = {name: [] for name in sides}
    cpus: dict[str, list[float]] = {name: [] for name in sides}
    seconds((PROLOG, conf), environment)  # the first run of all makes the store
    for number in range(PAIRS):
        for name in sorted(sides, reverse=number % 2 == 1):
            before = cpu_seconds()
            walls[name].append(seconds(sides[name], environment))
            cpus[name].append(cpu_seconds() - before)
    kept = len(os.listdir(folder / "runs"))  # noqa: PTH208 - a count
    if kept != PAIRS + 1:
        sys.exit(f"{kept} of {PAIRS + 1} runs were kept: does another hold the node?")
    for what, spent, target in (("wall", walls, " (at most 2.5)"), ("CPU time", cpus, "")):
        ratio = summarise([a / b for a, b in zip(spent["prolog"], spent["NHC"], strict=True)])
        ours, theirs = (1000 * statistics.median(spent[name]) for name in ("prolog", "NHC"))
        print(
            f"prolog that waits for the passive suite / NHC's ten checks, {what}: {ratio}"
            f"{target}; {ours:.0f} ms / {theirs:.0f} ms (medians)"
        )


def measure(folder: Path) -> None:
    """Measure all of it, with files in *folder*."""
    time_prologs(folder)
    gate()
    source = fetch_nhc(folder / "source")
    if source is None:
        print(f"no peer: NHC cannot be fetched; clone {NHC_URL} and set NHC to where it is")
        return
    (folder / "nhc").mkdir()
    nhc = write_nhc(folder / "nhc", source)
    said = subprocess.run(nhc, check=False, capture_output=True, text=True)
    if said.returncode:
        sys.exit(f"NHC does not pass here: {said.stdout}")
    if INSIDE in sys.argv:
        plug_in_ports(folder / "tree")
    passive(folder, nhc)


if __name__ == "__main__":
    if os.geteuid() == 0 and INSIDE not in sys.argv:
        apart = ("unshare", "--net", "--mount", "--propagation", "private")
        os.execvp("unshare", (*apart, sys.executable, __file__, INSIDE))  # noqa: S606 - ours
    with tempfile.TemporaryDirectory() as made:
        measure(Path(made))
