"""
Builds and drives the NVML double (libnvidia-ml.so.1 from nvml_lab.c).

A client loads NVML once per process, and a hang or a crash stays in there: so what
is under test runs in a process of its own, with the double on its library path.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import msgspec

from hpcverify.check import Sample, Watch
from tests.waiting import PATIENCE_S
from tests.warm import run_warm

HERE = Path(__file__).resolve().parent
SONAME = "libnvidia-ml.so.1"
FLAGS = (
    *("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{SONAME}", "-Wl,-z,defs"),
)
BUSES = ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")
ROOT = HERE.parents[1]
"""From where tests can be imported."""
ADDRESSES = tuple(f"0000:{bus}:00.0" for bus in BUSES)
"""Where the eight GPUs of the double sit on the PCI bus."""


def build(folder: Path) -> Path:
    """Compile the double into *folder*; takes a second, and gcc or another cc."""
    library = folder / SONAME
    source = str(HERE / "nvml_lab.c")
    libraries = ("-lpthread", "-ldl", "-lm")
    subprocess.run(["cc", *FLAGS, "-o", library, source, *libraries], check=True)
    return library


@dataclass(frozen=True)
class Lab:
    """A node with the GPUs that a scenario describes."""

    folder: Path
    library: Path

    @property
    def scenario(self) -> Path:
        """The file that the double reads, again whenever it changes."""
        return self.folder / "scenario.txt"

    def write(self, *lines: str) -> None:
        """Replace the scenario, atomically: a reader sees the old or the new one."""
        new = self.scenario.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.scenario)

    def load(self, name: str, *more: str) -> None:
        """Take the sample scenario *name*, and *more* lines after it."""
        self.write((HERE / "scenarios" / f"{name}.txt").read_text(), *more)

    def python(self, code: str, *args: object, **environ: str) -> str:
        """Run *code* on this node, its root as first argument; return its output."""
        arguments = [str(word) for word in (self.root, *args)]
        done = run_warm(arguments, self.environment | environ, code=dedent(code), cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *command: object, **environ: str) -> str:
        """Run a program on this node and return its output; it must succeed."""
        done = subprocess.run(
            [str(word) for word in command],
            env=self.environment | environ,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    @property
    def environment(self) -> dict[str, str]:
        env = {n: v for n, v in os.environ.items() if not n.endswith("_VISIBLE_DEVICES")}
        return env | {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "NVML_LAB_SCENARIO": str(self.scenario),
        }

    def watch(self, name: str, seconds: int) -> Watch:
        """Sample the scenario *name* once a second of its own time."""
        story = (HERE / "scenarios" / f"{name}.txt").read_text()
        return self.sampled([story], range(seconds + 1))

    def sampled(self, story: Sequence[str], seconds: Sequence[float]) -> Watch:
        """Sample what the lines of *story* describe, at given seconds of its time."""
        told = self.folder / "story.txt"
        told.write_text("\n".join(story))
        code = (HERE / "sampled.py").read_text()
        output = self.python(code, told, *seconds)
        samples = msgspec.json.decode(output, type=list[Sample])
        return Watch(start=0.0, end=float(seconds[-1]), samples=samples)

    @property
    def root(self) -> Path:
        """Where the node's own /sys, /proc and /dev begin."""
        return self.folder / "root"

    def plug(self, *addresses: str, driver: str = "nvidia", device: str = "2330") -> None:
        """Put NVIDIA GPUs with the PCI id *device* on the bus of this node."""
        bound = self.root / "sys/bus/pci/drivers" / driver
        bound.mkdir(parents=True, exist_ok=True)
        for address in addresses:
            here = self.root / "sys/bus/pci/devices" / address
            here.mkdir(parents=True)
            (here / "vendor").write_text("0x10de\n")
            (here / "device").write_text(f"0x{device}\n")
            (here / "class").write_text("0x030200\n")
            (here / "driver").symlink_to(bound)
