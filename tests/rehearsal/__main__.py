# mypy: ignore-errors
# pyright: basic
"""
Runs hpcverify on a node whose GPUs are made up: NVML by its own double, CUDA by a CPU.

    python -m tests.rehearsal [--gpus 4] [--part h100] [--faults "flip@3"] [--check gemm ...]

Prints a line for each check.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hpcverify.limits.specs import load_specs
from tests.nvml_lab.nvmllab import Lab, build
from tests.nvml_lab.parts import profile

HERE = Path(__file__).resolve().parent
KEYS = {
    "h100": "h100-sxm5-80gb",
    "h200": "h200-sxm",
    "a100": "a100-sxm4-80gb",
    "l40s": "l40s",
    "b200": "b200-sxm",
}

SUITE = """
summary = "the active checks, small"
budget = {budget}
settle = 0

[[check]]
name = "gemm"
params = {{ burst_seconds = 0.3, seconds = 0.8, core_seconds = 0 }}
[[check]]
name = "sdc"
params = {{ seconds = {sdc}, size = 256, depth = 512, fresh = true }}
timeout = 300
[[check]]
name = "training"
params = {{ seconds = 2, steps = 2, shape = {{ hidden = 64, layers = 2, heads = 4, sequence = 32, batch = 2, vocabulary = 256 }}, timeout_seconds = {patience} }}
[[check]]
name = "gpu_memory"
params = {{ seconds = 2, bandwidth_seconds = 0.2 }}
[[check]]
name = "pcie_bandwidth"
params = {{ seconds = 0.2, warm_up_seconds = 0.05, rounds = 2, size = 4194304 }}
[[check]]
name = "p2p"
params = {{ seconds = 0.02, size = 8388608, verified = 1048576 }}
[[check]]
name = "thermal"
params = {{ seconds = 10, recovery_seconds = 3 }}
[[check]]
name = "allreduce"
params = {{ seconds = 1, sizes = [65536, 1048576, 4194304], timeout_seconds = {patience} }}
"""


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--part", default="h100", choices=KEYS)
    parser.add_argument("--faults", default="")
    parser.add_argument("--check", action="append", default=[])
    parser.add_argument("--suite", help="one that ships, in place of ours")
    parser.add_argument("--budget", type=int, default=900)
    parser.add_argument("--sdc", type=float, default=6)
    parser.add_argument("--patience", type=float, default=20)
    parser.add_argument("--cpu", action="store_true", help="examine the CPU, too")
    parser.add_argument("--folder")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def prepare(options, folder):
    """Make the node: the double, its scenario, state, site, suite."""
    library = folder / "lib"
    library.mkdir()
    lab = Lab(folder, build(library))
    spec = next(s for s in load_specs() if s.key == KEYS[options.part])
    lines = [
        f"gpus = {options.gpus}" if line.startswith("gpus =") else line
        for line in profile(spec, busy=True)
    ]
    lines = [
        line
        for line in lines
        if not line.startswith("gpu.")
        or not line.split(".")[1].isdigit()
        or int(line.split(".")[1]) < options.gpus
    ]
    # Under load from the start, as ours is soon; but nobody else's.
    lab.write(*(line for line in lines if ".process =" not in line))
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "NVML_LAB_SCENARIO": str(lab.scenario),
        "HPCVERIFY_STATE": str(folder / "state"),
        "HPCVERIFY_CONFIG": str(folder / "etc" / "site.toml"),
        "SLURMD_NODENAME": "n1",
        "PYTHONPATH": str(HERE / "site"),
        "REHEARSAL_GPUS": str(options.gpus),
        "REHEARSAL_PART": options.part,
        "REHEARSAL_FAULTS": options.faults,
        "REHEARSAL_CPU": "1" if options.cpu else "0",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "160",
        **dict(item.split("=", 1) for item in options.env),
    }
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pynvml as n; n.nvmlInit(); print(*(n.nvmlDeviceGetUUID("
            "n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())))",
        ],
        env=environ_of(environment),
        capture_output=True,
        text=True,
        check=True,
    )
    # CUDA lists them the other way round than NVML: they are to be found by UUID.
    uuids = told.stdout.split()
    order = os.environ.get("REHEARSAL_ORDER", "")
    environment["REHEARSAL_UUIDS"] = " ".join(uuids[::-1] if order == "reversed" else uuids)
    suites = folder / "etc" / "suites"
    suites.mkdir(parents=True)
    (folder / "etc" / "site.toml").write_text("")
    (suites / "rehearsal.toml").write_text(
        SUITE.format(budget=options.budget, sdc=options.sdc, patience=options.patience)
    )
    return environment


def environ_of(environment):
    return {k: v for k, v in environment.items() if not k.startswith("REHEARSAL")}


def main():
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as made:
        folder = Path(options.folder or made)
        folder.mkdir(parents=True, exist_ok=True)
        environment = prepare(options, folder)
        command = [
            str(Path(sys.executable).with_name("hpcverify")),
            "run",
            "--json",
            "-",
            "--suite",
            options.suite or "rehearsal",
        ]
        for check in options.check:
            command += ["--check", check]
        began = time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if not done.stdout.strip().startswith("{"):
            sys.exit(f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        run = json.loads(done.stdout)
        print(
            f"# {options.gpus} x {options.part}, faults: {options.faults or 'none'}: "
            f"{run['verdict']}, status {done.returncode}, {time.monotonic() - began:.0f} s"
        )
        for r in run["results"]:
            print(
                f"{r['check']:15} {r['verdict']:5} {r.get('cause') or '-':13} "
                f"{r.get('remedy') or '-':18} {r['seconds']:6.1f} s  "
                f"{(r.get('reason') or '')[: 1500 if options.verbose else 420]}"
            )
            if options.verbose:
                for c in r.get("coverage", []):
                    print("      ", c["where"][:12], c.get("text", c)[:300])
                for m in r.get("measurements", []):
                    print("       =", m["where"][:12], m["name"], m.get("value"), m.get("unit"))
                for s in r.get("shortfalls", []):
                    print("       !", s)
        if options.json:
            Path("last.json").write_text(done.stdout)
        return done.returncode


if __name__ == "__main__":
    sys.exit(main())
