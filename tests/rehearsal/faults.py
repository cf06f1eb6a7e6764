"""
What may be wrong with GPUs that are not there.

A fault is written as ``kind@gpu`` or ``kind@gpu:after=N,every=N,share=X,bit=B``, with the
GPU's number as CUDA counts, or ``*`` for all; ``p2p@1-2`` is a copy from GPU 1 to 2.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

VARIABLE = "REHEARSAL_FAULTS"
TAIL = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so "
    "the stacktrace below might be incorrect.\nFor debugging consider passing "
    "CUDA_LAUNCH_BLOCKING=1\n"
)
"""What torch adds to the message of an error of CUDA."""

STICKY = {
    "ecc": "CUDA error: uncorrectable ECC error encountered",
    "nvlink": "CUDA error: uncorrectable NVLink error detected during the execution",
    "stack": "CUDA error: hardware stack error",
    "instruction": "CUDA error: an illegal instruction was encountered",
    "assert": "CUDA error: device-side assert triggered",
    "launch": "CUDA error: unspecified launch failure",
    "illegal": "CUDA error: an illegal memory access was encountered",
    "lost": "CUDA error: unknown error",
}
"""Errors of a kernel that stay until the process ends, by the kind of the fault."""
NO_IMAGE = "CUDA error: no kernel image is available for execution on the device"
MISALIGNED = "CUDA error: misaligned address"
BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
UNEXPECTED = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
    "calling NumCudaDevices() that might have already set an error? Error "
)
AT_START = {
    "init802": UNEXPECTED + "802: system not yet initialized",
    "mismatch803": UNEXPECTED + "803: system has unsupported display driver / cuda driver "
    "combination",
    "old_driver": "The NVIDIA driver on your system is too old (found version 12040). "
    "Please update your GPU driver by downloading and installing a new version from "
    "the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: "
    "https://pytorch.org to install a PyTorch version that has been compiled with your "
    "version of the CUDA driver.",
    "no_device": "No CUDA GPUs are available",
    "ecc214": UNEXPECTED + "214: uncorrectable ECC error encountered",
    "nvlink220": UNEXPECTED + "220: uncorrectable NVLink error detected during the execution",
}
"""Errors of the first call of CUDA in a process."""

OTHERS = frozenset(
    {"flip", "memory", "slow", "oom", "short", "no_image", "busy", "hang", "p2p", "h2d", "d2h"}
    | {"host_sum", "no_p2p", "sum", "nccl_hang", "nccl_start", "picky", "refused", "misaligned"}
    | {"nan", "percent", "minus_zero", "stall"}
)
DEATHS = {"killed": signal.SIGKILL, "segfault": signal.SIGSEGV}
"""What ends the process when a kernel is launched, by the kind of the fault."""
KINDS = OTHERS | STICKY.keys() | AT_START.keys() | DEATHS.keys()
"""Every kind of fault."""


@dataclass(slots=True)
class Fault:
    """One fault, and how often it could have struck in this process."""

    kind: str
    gpus: frozenset[int]
    """All, if empty."""
    pair: tuple[int, ...]
    """Of a copy between GPUs: from and to; any, if empty."""
    after: int = 0
    every: int = 1
    share: float = 0.7
    """Of the speed that is left, or of the memory that somebody else has."""
    bit: int = 20
    count: int = field(default=0, compare=False)

    @classmethod
    def parse(cls, text: str) -> Fault:
        """
        Read a fault as the module says.

        Raises:
            ValueError: there is no such kind or option.

        """
        kind, _, rest = text.partition("@")
        place, _, options = rest.partition(":")
        if kind not in KINDS:
            raise ValueError(f"no fault is called {kind!r}: take one of {sorted(KINDS)}")
        numbers = tuple(int(n) for n in place.split("-") if n not in ("", "*"))
        pair = numbers if "-" in place else ()
        fault = cls(kind, frozenset(numbers), pair)
        for name, _, value in (option.partition("=") for option in options.split(",") if option):
            if name not in ("after", "every", "share", "bit"):
                raise ValueError(f"{text}: a fault has no {name!r}")
            setattr(fault, name, float(value) if name == "share" else int(value))
        return fault

    def is_due(self) -> bool:
        """Count one occasion more, and say whether the fault strikes."""
        self.count += 1
        past = self.count - self.after
        return past > 0 and (past - 1) % self.every == 0


@cache
def list_faults() -> tuple[Fault, ...]:
    """List the faults of this node, as the environment of the process has them."""
    return tuple(map(Fault.parse, os.environ.get(VARIABLE, "").split()))


@cache
def _list_faults_of(kind: str, gpu: int) -> tuple[Fault, ...]:
    return tuple(f for f in list_faults() if f.kind == kind and (not f.gpus or gpu in f.gpus))


def find_faults(kind: str, gpu: int) -> tuple[Fault, ...]:
    """List the faults of a *kind* that the *gpu* has."""
    return _list_faults_of(kind, gpu)


def strike(kind: str, gpu: int) -> Iterator[Fault]:
    """Give the faults of a *kind* that strike the *gpu* on this occasion."""
    return (fault for fault in _list_faults_of(kind, gpu) if fault.is_due())
