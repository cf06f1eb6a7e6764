"""
The tools that are asked: how each is started, and what its output says.

stressapptest (Debian has it, github.com/stressapptest/stressapptest) ends with the numbers
of what it copied, of hardware incidents, and of errors of its own; its exit status is 1 for
both. It says of an incident which core read the word, which need not be at fault.

cpu_check (github.com/google/cpu-check) is built from source. It names a suspect after each
error: the core that wrote if two others refuse its data, else the one that refused them.

OpenDCDiag is not asked: no Debian package has it, and we had no build of it to learn from
what it says when a core is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

MAX_ERRORS = 20
"""A tool ends after this many: a core that always errs would fill the memory with its log."""

MIB_PER_CORE = 64
"""The memory of stressapptest: more than a core's share of the caches, and little of what a
node has."""

CAP_SYS_ADMIN = 21
"""The number in linux/capability.h."""

UNEXPLAINED = "it does not say why"


class Opinion(Struct, frozen=True):
    """What a tool says."""

    compared: str
    """How much; empty if it compared nothing, or did not come to tell."""
    errors: int
    """Errors of the hardware, as the tool counts them."""
    first: str
    """The first error that it reported, of the hardware or its own."""
    suspects: tuple[int, ...] = ()
    """Cores, one for each error for which it has a suspect."""


class Tool(Struct, frozen=True):
    """A tool, by the name of its program."""

    name: str
    source: str
    """How to get it."""
    write_command: Callable[[int, Sequence[int]], list[str]]
    """Takes the seconds and the cores that it may use."""
    read: Callable[[str], Opinion]


COPIED = re.compile(r"Completed: ([\d.]+)M in .*, with (\d+) hardware incidents")
INCIDENT = re.compile(r"Hardware Error: (.*)")
OWN_ERROR = re.compile(r"Process Error: (.*)")


def write_stressapptest_command(seconds: int, cores: Sequence[int]) -> list[str]:
    """Copy with each core, and load it while it does (-W)."""
    threads, memory = str(len(cores)), str(len(cores) * MIB_PER_CORE)
    command = ["stressapptest", "-W", "-s", str(seconds), "-M", memory, "-m", threads]
    command += ["--max_errors", str(MAX_ERRORS)]
    # Where there are huge pages it takes them as shared memory of System V, which outlives
    # it if it is killed; in a namespace of its own that goes with it.
    return ["unshare", "--ipc", *command] if may_make_namespaces() else command


def may_make_namespaces() -> bool:
    """Whether this process has the capability for that, which root in a container lacks."""
    status = Path("/proc/self/status").read_text()
    capabilities = re.search(r"^CapEff:\s*(\w+)$", status, re.MULTILINE)
    return bool(capabilities and int(capabilities[1], 16) >> CAP_SYS_ADMIN & 1)


def read_stressapptest(text: str) -> Opinion:
    """Read the line with its totals, and the first error."""
    totals = COPIED.search(text)
    copied, incidents = totals.groups() if totals else ("0", "0")
    first = INCIDENT.search(text) or OWN_ERROR.search(text)
    # One that ended before it came to its totals has still reported what it found.
    errors = max(int(incidents), len(INCIDENT.findall(text)))
    return Opinion(
        compared=f"{float(copied):.0f} MiB of copies" if float(copied) else "",
        errors=errors,
        first=first[1] if first else UNEXPLAINED,
    )


FAILURE = re.compile(r'"fail": { (.*?), "writer"')
SUSPECT = re.compile(r"Suspect LPU: (\d+)")
SUMMARY = re.compile(r"(\d+) ERRORS, (\d+) SUCCESSES")


def write_cpu_check_command(seconds: int, cores: Sequence[int]) -> list[str]:
    """Load the cores, without touching frequencies and voltages (-g)."""
    numbers = ",".join(map(str, cores))
    return ["cpu_check", "-g", f"-t{seconds}", f"-c{numbers}", f"-q{MAX_ERRORS}"]


def read_cpu_check(text: str) -> Opinion:
    """Read the line with its totals, the first error and all suspects."""
    summary = SUMMARY.search(text)
    failures = FAILURE.findall(text)
    errors, successes = map(int, summary.groups()) if summary else (len(failures), 0)
    return Opinion(
        compared=f"{successes} rounds" if successes else "",
        errors=errors,
        first=failures[0].replace('"', "") if failures else UNEXPLAINED,
        suspects=tuple(int(core) for core in SUSPECT.findall(text)),
    )


TOOLS = (
    Tool(
        "stressapptest",
        "apt-get install stressapptest",
        write_stressapptest_command,
        read_stressapptest,
    ),
    Tool(
        "cpu_check",
        "build github.com/google/cpu-check",
        write_cpu_check_command,
        read_cpu_check,
    ),
)
