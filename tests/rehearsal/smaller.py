"""
Sizes that a CPU can do in place of a GPU: what does not follow from parameters.

Each function changes the constants of one module of the checks, right after its import.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

WORK = (8192 / 256) ** 3
"""Operations that one operation of a product of the thermal load stands for."""
COPIED = 64
"""Bytes that one byte copied between memories stands for."""
READ = 256
"""Bytes that one byte stands for where the bandwidth of memory is measured."""
PRODUCT_SIZE = 256
"""What is computed of larger products whose rate is measured."""


def shrink(name: str, module: Any) -> None:
    """Change the constants of the module *name*."""
    SMALLER[name](module)


def _shrink_thermal_load(module: Any) -> None:
    module.STEADY_SIZES["cuda"] = 256
    module.WAVE_SIZES["cuda"] = 128
    module.GPU_BYTES = 2**24
    source = module.NORMAL_NUMBERS

    def make(task: Any, pair: int, device: Any) -> tuple[Any, Any]:
        a, b = source.make(task, pair, device)
        if getattr(device, "type", "cpu") == "cuda":
            a.stands_for = WORK
            a.same = {}
        return a, b

    module.NORMAL_NUMBERS = replace(source, make=make)


def _shrink_stress(module: Any) -> None:
    module.GPU_SHAPE = module.Shape(size=256, depth=512)
    module.SLOW_SHAPE = module.Shape(size=256, depth=256)


def _shrink_sdc(module: Any) -> None:
    module.GPU_SIZE = 512
    module.GPU_MEMORY_BYTES = 100 * 2**20
    module.LARGE_GPU_BYTES = 0


def _shrink_march(module: Any) -> None:
    module.WORDS_PER_PIECE = 2**15
    module.Memory.__init__.__defaults__ = (2**15, module.HARDWARE)


def _shrink_allocation(module: Any) -> None:
    module.MAX_CHUNK_BYTES = 2**23
    module.RESERVE_BYTES = 2**22
    module.allocate_chunks.__defaults__ = (
        module.MAX_CHUNK_BYTES,
        module.MIN_CHUNK_BYTES,
        module.RESERVE_BYTES,
    )


def _shrink_gpu_memory(module: Any) -> None:
    module.BUFFER_BYTES = 2**24
    make = module.make_steps

    def make_steps(device: Any, size: int = 2**24) -> dict[str, Any]:
        steps = make(device, size)
        for step, _ in steps.values():
            tensor = getattr(step.func, "__self__", None)
            tensor = tensor if hasattr(tensor, "dim") else step.args[0]
            tensor.stands_for = READ
        return {name: (step, moved * READ) for name, (step, moved) in steps.items()}

    module.make_steps = make_steps


def _shrink_timing(module: Any) -> None:
    """Compute products of 8192 as products of 256."""
    make = module.make_product_step

    def make_product_step(dtype: str, size: int, device: Any) -> Any:
        if device.type == "cpu" or size <= PRODUCT_SIZE:
            return make(dtype, size, device)
        step = make(dtype, PRODUCT_SIZE, device)
        step.args[0].stands_for = (size / PRODUCT_SIZE) ** 3
        return step

    module.make_product_step = make_product_step


def _shrink_probe(module: Any) -> None:
    """Leave the host's CPU out of what is computed on: it takes half of the time."""
    if os.environ.get("REHEARSAL_CPU") == "1":
        return
    whole = module.probe_with_holders

    def probe_with_holders(*arguments: Any) -> Any:
        inventory, holders = whole(*arguments)
        gpus = tuple(d for d in inventory.devices if d.kind == "cuda")
        return module.replace(inventory, devices=gpus), holders

    module.probe_with_holders = probe_with_holders


def _shrink_lock(module: Any) -> None:
    """Take a lock of our own: this is another node than the one that it runs on."""
    lock = module.node_lock.__wrapped__
    lock.__defaults__ = (f"\0rehearsal.{os.getpid()}",)
    lock.__kwdefaults__["folder"] = module.Path("/nowhere")


def _set(**constants: object) -> Callable[[ModuleType], None]:
    def change(module: ModuleType) -> None:
        for name, value in constants.items():
            setattr(module, name, value)

    return change


CHECKS = "hpcverify_checks."
SMALLER: dict[str, Callable[[Any], None]] = {
    CHECKS + "thermal.load": _shrink_thermal_load,
    CHECKS + "sdc.stress": _shrink_stress,
    CHECKS + "sdc.copies": lambda module: module.ROOM_BYTES.update(cuda=2**20),
    CHECKS + "sdc": _shrink_sdc,
    CHECKS + "gpu_memory.march": _shrink_march,
    CHECKS + "gpu_memory.allocate": _shrink_allocation,
    CHECKS + "gpu_memory": _shrink_gpu_memory,
    CHECKS + "common.timing": _shrink_timing,
    CHECKS + "gemm": _set(BYTES_PER_ELEMENT=0),
    CHECKS + "p2p": _set(GIGA=1e9 / COPIED),
    CHECKS + "pcie_bandwidth": _set(GIGA=1e9 / COPIED),
    "hpcverify.telemetry.probe": _shrink_probe,
    "hpcverify.run.lock": _shrink_lock,
}
"""What is changed, by the module that has it."""
