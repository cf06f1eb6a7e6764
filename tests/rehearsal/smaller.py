"""
What is changed in hpcverify for a rehearsal, and cannot be set by parameters.

Constants are made small enough for a CPU, each right after the import of its module. And
a rehearsal is of another node than the one that it runs on: it has a lock and devices of
its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from tests.rehearsal.clock import CLOCK

CONSTANTS: Mapping[str, Mapping[str, Any]] = {
    "gemm": {"GPU_SIZE": 256, "SLOW_FP64_SIZE": 128, "WARM_UP_SECONDS": 1e-6},
    "gpu_memory": {"BUFFER_BYTES": 2**22, "WARM_UP_SECONDS": 1e-6},
    "gpu_memory.allocate": {
        "WORDS_PER_PIECE": 2**15,
        "MIN_CHUNK_BYTES": 2**18,
        "MAX_CHUNK_BYTES": 2**22,
        "RESERVE_BYTES": 2**20,
        "CONTEXT_BYTES": 2**20,
    },
    "sdc": {"GPU_SIZE": 256, "GPU_MEMORY_BYTES": 2**24, "LARGE_GPU_BYTES": 0},
    "sdc.copies": {"ROOM_BYTES": {"cuda": 2**18, "cpu": 2**18}},
    "sdc.stress": {"PERIOD_SECONDS": (2e-6, 4e-6)},
    "thermal.load": {
        "STEADY_SIZES": {"cuda": 256, "cpu": 1024},
        "WAVE_SIZES": {"cuda": 128, "cpu": 384},
        "GPU_BYTES": 2**22,
    },
}
"""Of the modules of the checks: sizes, and times that follow from sizes."""
DEFAULTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "gpu_memory": {"make_steps": ["BUFFER_BYTES"]},
    "gpu_memory.allocate": {
        "allocate_chunks": ["MAX_CHUNK_BYTES", "MIN_CHUNK_BYTES", "RESERVE_BYTES"]
    },
}
"""The functions whose defaults are such constants, and which."""
SHAPES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "sdc.stress": {"GPU_SHAPE": (128, 256), "SLOW_SHAPE": (128, 128)}
}
"""Sizes and depths of products."""


def _shrink(name: str, module: Any) -> None:
    for constant, value in CONSTANTS.get(name, {}).items():
        assert hasattr(module, constant), f"{name} has no {constant} any more"
        setattr(module, constant, value)
    for constant, (size, depth) in SHAPES.get(name, {}).items():
        setattr(module, constant, module.Shape(size=size, depth=depth))
    for path, constants in DEFAULTS.get(name, {}).items():
        function = module
        for part in path.split("."):
            function = getattr(function, part)
        function.__defaults__ = tuple(getattr(module, constant) for constant in constants)
    if name == "thermal.load":
        module.prepare_loads = _pass_for_real(module.prepare_loads)


def _pass_for_real(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """From the soak's beginning, the telemetry looks on."""

    def prepare_for_real(*args: Any, **kwargs: Any) -> Any:
        CLOCK.pass_for_real()
        return prepare(*args, **kwargs)

    return prepare_for_real


def _leave_out_cpu(module: Any) -> None:
    """
    Leave the host's CPU out of what is computed on: it takes as long as ever.

    Where the GPUs are not those of the double of NVML, their files are below a root.
    """
    probe = module.probe_with_holders

    def probe_with_holders(*arguments: Any) -> Any:
        root = os.environ.get("REHEARSAL_ROOT")
        inventory, holders = probe(*([module.Path(root)] if root else arguments))
        gpus = tuple(d for d in inventory.devices if d.kind != "cpu")
        return module.replace(inventory, devices=gpus), holders

    module.probe_with_holders = probe_with_holders


def _lock_own_node(module: Any) -> None:
    """Take a lock that only this run has."""
    hold = module.node_lock

    def node_lock(*args: Any, **kwargs: Any) -> Any:
        name, folder = f"\0rehearsal.{os.getpid()}", module.Path("/proc/none")
        return hold(name, *args, **{"folder": folder, **kwargs})

    module.node_lock = node_lock


CHANGES: Mapping[str, Callable[[Any], None]] = {
    "hpcverify.telemetry.probe": _leave_out_cpu,
    "hpcverify.run.lock": _lock_own_node,
    **{f"hpcverify_checks.{name}": partial(_shrink, name) for name in CONSTANTS},
}
"""What to do to a module once it has been imported."""


class _Finder(importlib.abc.MetaPathFinder):
    """Lets modules be found as ever, and changes some of them right after."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        change = CHANGES.get(fullname)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if change else None
        if spec is None or spec.loader is None or change is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            change(module)

        setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - a method
        return spec


def install() -> None:
    """Change what will be imported."""
    sys.meta_path.insert(0, _Finder())
