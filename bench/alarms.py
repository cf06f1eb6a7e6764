"""
How often does a healthy node get a bad verdict, however its libraries are set?

Run with ``python bench/alarms.py [RUNS [MINUTES]]``, on a CPU that is known to be good.
Each run is a process that takes sdc, cpu_units, host_memory, training, allreduce and
storage in a short form, under the next of `SETTINGS`, beside no, one or two busy loops for
each core and another run. The libraries are made to read their settings before a check could
take them away: what is counted is what a check makes of products that were really computed
that way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from hpcverify.check import Check, Context, Skip, Unable
from hpcverify.limits.resolve import resolve
from hpcverify.model import Device, Finding, Inventory, Measurement, Verdict
from hpcverify.plan import catalog
from hpcverify.telemetry import cpu
from hpcverify.testing import judge_by
from hpcverify_checks.node.timing import make_product_step

RUNS, MINUTES = 216, 70.0
SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    {"ATEN_CPU_CAPABILITY": "default"},
    {"ATEN_CPU_CAPABILITY": "avx2"},
    {"MKL_CBWR": "COMPATIBLE"},
    {"OMP_NUM_THREADS": "1"},
    {"OMP_NUM_THREADS": "8"},
    {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"},
    {"GOMP_CPU_AFFINITY": "0"},
    {"KMP_AFFINITY": "granularity=fine,compact"},
    {"taskset": "0"},
    {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
)
PER_CORE = ("sdc", "cpu_units")
"""Checks that measure each core by itself: each must have measured all of them."""
LOOPS = (0, 1, 2)
"""Busy loops for each core."""
RUNS_AT_ONCE = 2
"""Half of its time a run waits: for ranks that start, and for the disk."""
CHECKS: dict[str, dict[str, Any]] = {
    "sdc": {"seconds": 2},
    "cpu_units": {"seconds": 1},
    "host_memory": {"seconds": 1, "pause": 0.1},
    "training": {"seconds": 0.5},
    "allreduce": {"seconds": 0.5, "sizes": (2**16, 2**20)},
    "storage": {"size_mib": 16, "checkpoint_mib": 8, "repeats": 2, "seconds": 0.2, "files": 50},
}
PATIENCE = 900.0
"""Seconds for one run."""
LOOP = "while True: pass"
TOLD = "ALARMS_SETTINGS"
SITE = f"""
import json, os, sys
settings = json.loads(os.environ.get("{TOLD}", "{{}}"))
if "taskset" in settings and "hpcverify" not in sys.modules:
    os.sched_setaffinity(0, {{int(settings["taskset"])}})
os.environ.update(settings)
"""
"""Sets them in each process of a run: checks take them away before they start ranks. With
"taskset", the process begins on that core alone."""


class Ended(msgspec.Struct, frozen=True):
    """What one check of a run came to."""

    check: str
    verdict: str
    reason: str
    seconds: float
    cores: tuple[str, ...] = ()
    """Those that have a measurement of their own."""


@dataclass(frozen=True, slots=True)
class Case:
    """How the libraries are set, and how many loops are busy beside the checks."""

    settings: Mapping[str, str]
    loops: int
    seed: int

    def text(self) -> str:
        """Name it in a line."""
        names = " ".join(f"{k}={v}" for k, v in self.settings.items()) or "no settings"
        return f"{names}, {self.loops} busy loops"


def main() -> None:
    """Run as many cases as were asked for, and count the verdicts."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    minutes = float(sys.argv[2]) if len(sys.argv) > 2 else MINUTES
    until = monotonic() + 60 * minutes
    counts = defaultdict[str, Counter[str]](Counter)
    longest = defaultdict[str, float](float)
    done = 0
    for case, results in run_all(runs, until):
        for ended in results:
            counts[ended.check][ended.verdict] += 1
            longest[ended.check] = max(longest[ended.check], ended.seconds)
            if ended.verdict not in ("pass", "skip"):
                say(f"  {case.text()}: {ended.check} {ended.verdict}: {ended.reason}")
            if ended.check in PER_CORE and len(ended.cores) < (os.cpu_count() or 1):
                counts[ended.check]["without a core"] += 1
                say(f"  {case.text()}: {ended.check} measured only {', '.join(ended.cores)}")
        done += 1
        say(f"{done} {case.text()}: load {os.getloadavg()[0]:.1f}")
    for name, verdicts in counts.items():
        said = ", ".join(f"{count} {v}" for v, count in sorted(verdicts.items()))
        say(f"{name}: {said} in {done} runs of {longest[name]:.0f} s at most")


def run_all(runs: int, until: float) -> Generator[tuple[Case, list[Ended]]]:
    """Go through all settings with no loops, then with one for each core, and so on."""
    for first in range(0, runs, len(SETTINGS)):
        loops = LOOPS[first // len(SETTINGS) % len(LOOPS)] * (os.cpu_count() or 1)
        cases = [Case(s, loops, first + i) for i, s in enumerate(SETTINGS[: runs - first], 1)]
        with busy(loops), ThreadPoolExecutor(RUNS_AT_ONCE) as pool:
            results = pool.map(partial(run, until=until), cases)
            yield from ((c, r) for c, r in zip(cases, results, strict=True) if r)


def run(case: Case, until: float) -> list[Ended]:
    """Take all checks once, in a process of its own; nothing once it is too late."""
    if monotonic() > until:
        return []
    command = [sys.executable, __file__, "once", str(case.seed)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(SITE)
        paths = os.pathsep.join((folder, *filter(None, (os.environ.get("PYTHONPATH"),))))
        settings = msgspec.json.encode(case.settings).decode()
        env = {**os.environ, "PYTHONPATH": paths, TOLD: settings}
        try:
            told = subprocess.run(
                command, env=env, stdout=subprocess.PIPE, timeout=PATIENCE, check=True
            ).stdout
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
            return [Ended("the process", "error", str(exc), 0.0)]
    return [msgspec.json.decode(line, type=Ended) for line in told.splitlines()]


@contextmanager
def busy(loops: int) -> Generator[None]:
    """Keep so many cores busy for a while."""
    with ExitStack() as stack:
        for _ in range(loops):
            loop = subprocess.Popen([sys.executable, "-c", LOOP])
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        yield


def once(seed: int) -> None:
    """Be one run: have the libraries read their settings, then take each check."""
    multiply_first()
    for name, params in CHECKS.items():
        with tempfile.TemporaryDirectory() as folder:
            ended = taken(name, params, Path(folder), seed)
        sys.stdout.write(msgspec.json.encode(ended).decode() + "\n")
        sys.stdout.flush()


def multiply_first() -> None:
    """Multiply with each type, so that all libraries have read their settings."""
    import torch  # noqa: PLC0415 - not in the process that counts

    for dtype in ("fp64", "fp32", "bf16", "int8"):
        make_product_step(dtype, 64, torch.device("cpu"))()


def taken(name: str, params: dict[str, Any], folder: Path, seed: int) -> Ended:
    """Take one check, and judge it as a first run does."""
    check, start = catalog.load_check(name, ("hpcverify_checks",)), monotonic()
    verdict, reason, cores = judged(check, params, context(folder, seed))
    return Ended(name, verdict.name.lower(), reason, monotonic() - start, cores)


def judged(
    check: Check[Any], params: dict[str, Any], ctx: Context
) -> tuple[Verdict, str, tuple[str, ...]]:
    """Give the verdict of *check*, its reason, and the cores that it measured."""
    try:
        found = list(check.measure(ctx, msgspec.convert(params, check.params)))
    except Skip as exc:
        return Verdict.SKIP, str(exc), ()
    except Unable as exc:
        return Verdict.ERROR, str(exc), ()
    items = [f for f in found if isinstance(f, (Measurement, Finding))]
    together = list(check.reconcile(items, ctx.inventory)) if check.reconcile else items
    numbers = [f for f in together if isinstance(f, Measurement)]
    limits = resolve(check.rules, numbers, ctx.inventory, lambda _name, _where: ())
    judgement = judge_by(together, limits, check.finding_rules)
    cores = {m.part_id for m in numbers if m.part_id.startswith("cpu") and m.part_id != "cpu"}
    return judgement.verdict, judgement.reason, tuple(sorted(cores))


def context(folder: Path, seed: int) -> Context:
    """Describe a node with nothing but its CPU."""
    device = Device(kind="cpu", part="cpu", label="CPU")
    for name in ("scratch", "shared"):
        (folder / name).mkdir()
    return Context(
        node="bench",
        device=device,
        peers=(device,),
        inventory=Inventory(parts=(cpu.describe_cpu(),), devices=(device,)),
        previous=None,
        scratch=folder / "scratch",
        shared=folder / "shared",
        seed=seed,
        rotation=seed,
    )


def say(line: str) -> None:
    """Print at once: a run of hours is read while it goes on."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == ["once"]:
        once(int(sys.argv[2]))
    else:
        main()
