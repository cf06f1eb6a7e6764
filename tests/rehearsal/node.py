"""A node whose GPUs are not there: NVML by its double, CUDA by a CPU."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from hpcverify.limits.specs import load_specs
from hpcverify.model import Run
from tests.cli import Cli, make_cli
from tests.nvml_lab.nvmllab import ROOT, Lab
from tests.nvml_lab.parts import profile
from tests.rehearsal.faults import VARIABLE
from tests.rehearsal.parts import PARTS
from tests.telemetry.trees import amd_gpu
from tests.warm import run_warm

QUICK = ROOT / "checks" / "hpcverify_checks" / "suites" / "quick.toml"
PRELOAD = "tests.rehearsal.preload"
MEMORY_MIB = 48
"""Of each GPU."""
TINY_MODEL = {"hidden": 64, "layers": 2, "heads": 4, "sequence": 32, "batch": 2, "vocabulary": 256}
PARAMS: Mapping[str, Mapping[str, Any]] = {
    "gemm": {"burst_seconds": 5e-6, "seconds": 1e-5, "core_seconds": 0},
    "sdc": {"seconds": 1e-4, "size": 128, "depth": 256, "fresh": True},
    "training": {"seconds": 1e-3, "steps": 2, "shape": TINY_MODEL},
    "host_memory": {"seconds": 0.1, "pause": 0},
    "gpu_memory": {"seconds": 1e-6, "pause": 0, "bandwidth_seconds": 1e-5},
    "pcie_bandwidth": {"seconds": 1e-3, "warm_up_seconds": 1e-4, "rounds": 2, "size": 2**20},
    "p2p": {"seconds": 1e-5, "size": 2**20, "verified": 2**18},
    "thermal": {"seconds": 8, "recovery_seconds": 2},
    "allreduce": {"seconds": 1e-3, "sizes": [2**16, 2**20]},
    "collectives": {"seconds": 1e-4, "sizes": [2**14, 2**18]},
    "storage": {
        "size_mib": 8,
        "checkpoint_mib": 4,
        "repeats": 2,
        "seconds": 0.1,
        "streams": 1,
        "files": 20,
    },
}
"""Sizes that a CPU can do, and times of the model: microseconds are many products."""
ACTIVE = tuple(name for name in PARAMS if name not in {"host_memory", "storage"})
"""The checks that load GPUs, in their order."""


@dataclass(frozen=True)
class Node:
    """A node with GPUs of one part; each run has a process of its own."""

    cli: Cli

    def run(self, *arguments: str, faults: str = "", **environment: str) -> Run:
        """Run ``hpcverify run`` with *arguments* on it, and with *faults*."""
        done = run_warm(
            ["run", "--suite", "rehearsal", "--json", *arguments],
            {**self.cli.environment, VARIABLE: faults, **environment},
            preload=PRELOAD,
        )
        assert done.stdout.startswith("{"), (done.returncode, done.stdout, done.stderr)
        return msgspec.json.decode(done.stdout, type=Run)


def make_node(
    folder: Path,
    library: Path,
    *,
    part: str = "h100",
    gpus: int = 2,
    params: Mapping[str, Mapping[str, Any]] = {},
    timeout: float = 0.0,
    is_reversed: bool = False,
) -> Node:
    """
    Make a node in *folder*, with the double of NVML in *library*.

    Its suite is ``quick`` with the parameters of a rehearsal, and *params* over them; a
    *timeout*, if any, is that of each check. CUDA can count the GPUs *is_reversed*.
    """
    cli = make_cli(folder)
    cli.config.write_text("")
    if PARTS[part].architecture:
        uuids = _plug_in_amd_gpus(folder / "files", gpus)
        cli.environment["REHEARSAL_ROOT"] = str(folder / "files")
    else:
        lab = Lab(folder, library)
        uuids = _plug_in_nvidia_gpus(lab, part, gpus)
        cli.environment |= lab.environment
    cli.environment |= {
        "REHEARSAL_PART": part,
        "REHEARSAL_MEMORY_MIB": str(MEMORY_MIB),
        "REHEARSAL_UUIDS": " ".join(reversed(uuids) if is_reversed else uuids),
    }
    suites = cli.config.parent / "suites"
    suites.mkdir()
    (suites / "rehearsal.toml").write_text(format_suite(params, timeout))
    return Node(cli)


def _plug_in_nvidia_gpus(lab: Lab, part: str, gpus: int) -> Sequence[str]:
    """Give the double of NVML so many GPUs, and list their UUIDs."""
    spec = next(spec for spec in load_specs() if spec.key == PARTS[part].key)
    # Under load from the start, as ours is soon; but nobody else's.
    others = (".process =", ".memory.used =")
    busy = (line for line in profile(spec, busy=True) if not any(o in line for o in others))
    lab.write(*_keep_gpus(busy, gpus))
    return _list_uuids(lab)


def _plug_in_amd_gpus(root: Path, gpus: int) -> Sequence[str]:
    """Write the files of so many GPUs below *root*, and list their UUIDs as HIP has them."""
    addresses = [amd_gpu(root, number) for number in range(gpus)]
    folders = [root / "sys/bus/pci/devices" / address for address in addresses]
    ids = [(folder / "unique_id").read_text().strip() for folder in folders]
    return [str(UUID(bytes=unique_id.encode())) for unique_id in ids]


def _keep_gpus(lines: Any, count: int) -> list[str]:
    """Leave out the GPUs past the first *count* of a scenario."""
    kept: list[str] = []
    for line in lines:
        number = line.split(".")[1] if line.startswith("gpu.") else ""
        if not number.isdigit() or int(number) < count:
            kept.append(f"gpus = {count}" if line.startswith("gpus =") else line)
    return kept


def _list_uuids(lab: Lab) -> Sequence[str]:
    code = """
        import json
        import pynvml

        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        print(json.dumps([pynvml.nvmlDeviceGetUUID(handle) for handle in handles]))
    """
    uuids: list[str] = json.loads(lab.python(code))
    return uuids


def format_suite(params: Mapping[str, Mapping[str, Any]], timeout: float) -> str:
    """Write the suite ``quick`` as a rehearsal has it."""
    suite = tomllib.loads(QUICK.read_text())
    lines = ['summary = "quick, as rehearsed"', f"budget = {suite['budget']}", "settle = 0"]
    checks: list[dict[str, Any]] = [*suite["check"], {"name": "collectives"}]  # not in `quick`
    for check in checks:
        name = check["name"]
        mine = {**PARAMS.get(name, check.get("params", {})), **params.get(name, {})}
        lines += ["[[check]]", f'name = "{name}"']
        if check.get("required"):
            lines.append("required = true")
        if mine:
            lines.append(f"params = {_format_toml(mine)}")
        if timeout and name in PARAMS:
            lines.append(f"timeout = {timeout}")
    return "\n".join(lines) + "\n"


def _format_toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_format_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0") + "0"
    return json.dumps(value)
