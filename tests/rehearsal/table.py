"""
Faults of GPUs that only CUDA tells of, and what hpcverify must make of each.

A fault is one of the stand-in's (see `faults`) on a node that is healthy but for it. Each
has a node of its own, which runs all the checks that can meet the fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcverify.model import Cause, Remedy, Verdict
from tests.rehearsal.node import ACTIVE

PASS, WARN, ERROR, FAIL = Verdict.PASS, Verdict.WARN, Verdict.ERROR, Verdict.FAIL
CRASHED = Cause.CRASHED
SICK = 1
"""The number of the GPU that has the fault, where not all have it."""
SIBLINGS = 4
"""GPUs that it takes for one to stand out."""
QUICK = tuple(name for name in ACTIVE if name != "thermal")
"""The checks in modelled time."""
UNDER_LOAD = 400
"""Kernels that a GPU has done when the soak of `thermal` is under way."""
HASTE = 12.0
"""How many seconds pass in one, for what hangs: its worker is ended after minutes."""
IMPATIENT = {"training": {"timeout_seconds": 24}, "allreduce": {"timeout_seconds": 24}}
COLLECTIVE_HASTE = 5.0
"""Less, since ranks that are well must find each other meanwhile."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a check must make of a fault; *says* are words that the reason must hold."""

    check: str
    verdict: Verdict
    remedy: Remedy
    says: str
    cause: Cause = Cause.NONE
    accused: tuple[int, ...] = (SICK,)
    """The GPUs that the reason names."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A fault, on a node of its own."""

    name: str
    faults: str
    expected: tuple[Expected, ...]
    gpus: int = 2
    part: str = "h100"
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    haste: float = 1.0


SHORT_SOAK = {"thermal": {"seconds": 1.0, "recovery_seconds": 0}}
GPU_ERRORS = {
    "ecc": ("an uncorrectable ECC error", Remedy.RESET_GPU, "error 214"),
    "nvlink": ("an uncorrectable error of NVLink", Remedy.INSPECT, "error 220"),
    "stack": ("an error of the hardware's stack", Remedy.RESET_GPU, "error 714"),
    "instruction": ("an illegal instruction", Remedy.RESET_GPU, "error 715"),
    "assert": ("an assertion on the device", Remedy.RESET_GPU, "error 710"),
    "launch": ("an unspecified launch failure", Remedy.RESET_GPU, "error 719"),
    "illegal": ("an illegal memory access", Remedy.RESET_GPU, "error 700"),
    "lost": ("an unknown error, as of a GPU that is lost", Remedy.REBOOT, "error 999"),
}
"""What ends the use of a GPU in a process: in words, the remedy, and what the reason says."""


def _end_use(kind: str, name: str, remedy: Remedy, says: str) -> tuple[Rehearsed, ...]:
    """Have a GPU err while each check runs; no other GPU is accused for it."""

    def expect(*checks: str) -> tuple[Expected, ...]:
        return tuple(Expected(check, FAIL, remedy, says) for check in checks)

    return (
        Rehearsed(f"{name} ends the work", f"{kind}@1:after=20", expect(*QUICK), gpus=3),
        Rehearsed(
            f"{name} ends the soak",
            f"{kind}@1:after={UNDER_LOAD}",
            expect("thermal"),
            params=SHORT_SOAK,
        ),
    )


STARTS = {
    "init802": (
        "CUDA does not start: the Fabric Manager does not run",
        Cause.MISCONFIGURED,
        Remedy.FIX_CONFIGURATION,
        "systemctl start nvidia-fabricmanager",
    ),
    "mismatch803": (
        "CUDA does not start: driver and library differ",
        Cause.MISCONFIGURED,
        Remedy.REBOOT,
        "reload the nvidia modules",
    ),
    "old_driver": (
        "CUDA does not start: the driver is too old for torch",
        Cause.MISCONFIGURED,
        Remedy.FIX_CONFIGURATION,
        "install a driver that this torch supports",
    ),
    "no_device": (
        "CUDA sees no GPU",
        Cause.PARTIAL_VIEW,
        Remedy.FIX_CONFIGURATION,
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "busy": (
        "no GPU takes another process",
        Cause.BUSY,
        Remedy.FIX_CONFIGURATION,
        "nvidia-smi -c DEFAULT",
    ),
    "no_image": (
        "torch has no kernels for the GPUs",
        Cause.MISCONFIGURED,
        Remedy.FIX_CONFIGURATION,
        "--index-url",
    ),
}
"""What keeps every GPU of a node from being used: in words, and what is to be done."""
ONE_FOR_ALL = frozenset({"p2p"})
"""The checks with one worker for all GPUs: what concerns all is said of none."""


def _start(kind: str, name: str, cause: Cause, remedy: Remedy, says: str) -> Rehearsed:
    return Rehearsed(
        name,
        f"{kind}@*",
        tuple(
            Expected(check, ERROR, remedy, says, cause, () if check in ONE_FOR_ALL else (0, 1))
            for check in ACTIVE
        ),
        params=SHORT_SOAK,
    )


def _expect(
    says: Mapping[str, str],
    verdict: Verdict,
    remedy: Remedy,
    cause: Cause = Cause.NONE,
    accused: tuple[int, ...] = (SICK,),
) -> tuple[Expected, ...]:
    """Expect the same of several checks; *says* has the words of each."""
    return tuple(Expected(c, verdict, remedy, words, cause, accused) for c, words in says.items())


def _pass(*checks: str) -> tuple[Expected, ...]:
    return tuple(Expected(check, PASS, Remedy.NONE, "", accused=()) for check in checks)


MEMORY = (
    Rehearsed(
        "a GPU runs out of memory under way",
        "oom@1:after=2",
        _expect(
            dict.fromkeys(QUICK, "end the processes that nvidia-smi lists"),
            ERROR,
            Remedy.FIX_CONFIGURATION,
            Cause.NO_SPACE,
        ),
        gpus=3,
    ),
    Rehearsed(
        "others hold nearly all memory of a GPU",
        "short@1:share=0.97",
        _expect(
            dict.fromkeys(("gemm", "sdc", "gpu_memory", "pcie_bandwidth"), "end the processes"),
            ERROR,
            Remedy.FIX_CONFIGURATION,
            Cause.NO_SPACE,
        )
        + _expect(
            {"p2p": "of the memory of GPU 1"},
            ERROR,
            Remedy.FIX_CONFIGURATION,
            Cause.NO_SPACE,
            accused=(),
        ),
    ),
    Rehearsed(
        "others hold a third of the memory of a GPU",
        "short@1:share=0.3",
        _expect(
            {"gpu_memory": "end the processes of others"},
            ERROR,
            Remedy.FIX_CONFIGURATION,
            Cause.NO_SPACE,
        )
        + _pass("gemm", "sdc", "training", "pcie_bandwidth", "p2p", "allreduce"),
    ),
)

NUMBERS = (
    Rehearsed(
        "a bit of a product is wrong now and then",
        "flip@1:after=40,every=7",
        _expect({"sdc": "wrong", "training": "differs", "thermal": "wrong"}, FAIL, Remedy.REPLACE)
        + _pass("gemm"),  # which only looks at the speed
        gpus=SIBLINGS,
        params=SHORT_SOAK,
    ),
    Rehearsed(
        "a bit changes in copies from the host",
        "h2d@1",
        _expect({"sdc": "copy"}, FAIL, Remedy.REPLACE)
        + _expect({"pcie_bandwidth": "from the host to the GPU"}, FAIL, Remedy.INSPECT),
    ),
    Rehearsed(
        "a bit changes in copies to the host",
        "d2h@1",
        _expect({"sdc": "copied to the host"}, FAIL, Remedy.REPLACE)
        + _expect({"thermal": "run cpu_units"}, ERROR, Remedy.INSPECT, Cause.CHECKER)
        + _expect({"pcie_bandwidth": "from the GPU to the host"}, FAIL, Remedy.INSPECT),
    ),
    Rehearsed(
        "the host takes a wrong digest of what a GPU made",
        "host_sum@1:every=100000",
        _expect({"thermal": "run cpu_units"}, ERROR, Remedy.INSPECT, Cause.CHECKER),
        gpus=SIBLINGS,
        params=SHORT_SOAK,
    ),
    *(
        Rehearsed(
            f"the host adds up wrongly once in a proof, {name}",
            f"host_sum@1:after={after},every=100000",
            _expect({"sdc": "run cpu_units"}, ERROR, Remedy.INSPECT, Cause.CHECKER),
            gpus=SIBLINGS,
        )
        for name, after in (("at the start", 0), ("later", 20))
    ),
    Rehearsed(
        "all GPUs but one err alike",
        "flip@0 flip@2 flip@3",
        _expect({"sdc": "wrong"}, FAIL, Remedy.REPLACE, accused=(0, 2, 3)) + _pass("thermal"),
        gpus=SIBLINGS,
        params=SHORT_SOAK,
    ),
    *(
        Rehearsed(
            f"a word changes {place}",
            f"memory@1:after={after},every=100000",
            _expect({check: says}, FAIL, Remedy.REPLACE),
            gpus=3,
        )
        for check, place, after, says in (
            ("gpu_memory", "in a GPU's memory", 1500, "the memory holds it"),
            ("sdc", "of an operand in a GPU's memory", 900, "memory (operand"),
            ("p2p", "in a GPU's memory before it is compared", 8, "not a link fault"),
        )
    ),
    Rehearsed(
        "a bit changes in copies between all GPUs, over PCIe",
        "p2p@*-*",
        _expect(
            {"p2p": "the IOMMU or ACS misroutes"},
            ERROR,
            Remedy.FIX_CONFIGURATION,
            Cause.MISCONFIGURED,
            accused=(),
        ),
        gpus=3,
        part="l40s",
    ),
    Rehearsed(
        "a bit changes in copies from one GPU to another, over PCIe",
        "p2p@0-1",
        _expect({"p2p": "the IOMMU or ACS misroutes"}, FAIL, Remedy.INSPECT, accused=(0,)),
        gpus=3,
        part="l40s",
    ),
    Rehearsed(
        "a bit changes in copies from one GPU to another",
        "p2p@0-1",
        _expect({"p2p": "between GPU 0"}, FAIL, Remedy.INSPECT, accused=(0,)),
        gpus=3,
    ),
    Rehearsed(
        "GPUs do not reach each other",
        "no_p2p@*",
        _expect({"p2p": "no peer access"}, WARN, Remedy.FIX_CONFIGURATION, accused=(0, 1)),
    ),
    Rehearsed(
        "a GPU gets wrong sums",
        "sum@1:after=5,every=3",
        _expect({"training": "wrong sum", "allreduce": "wrong sum"}, FAIL, Remedy.INSPECT),
        gpus=3,
    ),
    Rehearsed(
        "words change in a GPU's memory before they are summed",
        "memory@1:after=40",
        _expect({"allreduce": "not a link fault"}, FAIL, Remedy.REPLACE),
        gpus=3,
    ),
)

LIBRARIES = (
    Rehearsed(
        "NCCL finds no memory when it starts",
        "nccl_start@1",
        _expect(
            {"training": "end the processes", "allreduce": "end the processes"},
            ERROR,
            Remedy.FIX_CONFIGURATION,
            Cause.NO_SPACE,
        ),
        gpus=3,
    ),
    Rehearsed(
        "a library refuses operands of one byte at some offsets",
        "picky@*",
        _pass("gemm", "sdc"),
    ),
    Rehearsed(
        "a library refuses operands of one byte",
        "refused@*",
        _expect(
            dict.fromkeys(("gemm", "sdc"), "install a torch whose CUDA"),
            WARN,
            Remedy.FIX_CONFIGURATION,
            accused=(0, 1),
        ),
    ),
)

SPEEDS = (
    Rehearsed(
        "a GPU has half of its speed, for all that it does",
        "slow@1:share=0.5",
        _expect(
            {"gemm": "sustained", "gpu_memory": "memory.", "p2p": "mesh.write"},
            FAIL,
            Remedy.INSPECT,
        )
        + _expect({"training": "compute_p50", "pcie_bandwidth": "h2d"}, WARN, Remedy.INSPECT)
        + _pass("sdc"),
        gpus=SIBLINGS,
    ),
    *(
        Rehearsed(
            f"all GPUs of a node have half of their speed ({part})",
            "slow@*:share=0.5",
            _expect(
                {"gemm": "sustained", "gpu_memory": "memory."}, FAIL, Remedy.INSPECT, accused=(0, 1)
            ),
            part=part,
        )
        for part in ("h100", "h200", "a100", "l40s", "b200")
    ),
)

HANGS = (
    *(
        Rehearsed(
            f"a GPU hangs in {name}",
            f"hang@1:after={after}",
            _expect({check: f"it hung in {says}"}, FAIL, Remedy.RESET_GPU),
            gpus=3,
            params=SHORT_SOAK,
            haste=HASTE,
        )
        for check, name, after, says in (
            ("gemm", "a product", 20, "fp64 products"),
            ("sdc", "a compared product", 120, ""),
            ("gpu_memory", "a kernel over its memory", 20, "reading, writing"),
            ("pcie_bandwidth", "a copy", 20, "copies from the host"),
            ("thermal", "the soak", UNDER_LOAD, ""),
        )
    ),
    Rehearsed(
        "a GPU hangs in a copy to another",
        "hang@1:after=20",
        _expect(
            {"p2p": "in a compared copy to GPU 0"}, ERROR, Remedy.INSPECT, Cause.TIMEOUT, accused=()
        ),
        gpus=3,
        haste=HASTE,
    ),
    Rehearsed(
        "a GPU hangs before a sum",
        "hang@1:after=20",
        _expect(
            {"training": "its own work did not end", "allreduce": "its own work did not end"},
            ERROR,
            Remedy.RESET_GPU,
            Cause.TIMEOUT,
        ),
        gpus=3,
        params=IMPATIENT,
        haste=COLLECTIVE_HASTE,
    ),
    Rehearsed(
        "a rank never comes to a sum",
        "nccl_hang@1:after=8",
        _expect(
            {"training": "no end after", "allreduce": "in the all-reduce"},
            ERROR,
            Remedy.INSPECT,
            Cause.TIMEOUT,
        ),
        gpus=3,
        params=IMPATIENT,
        haste=COLLECTIVE_HASTE,
    ),
)

DEATHS = tuple(
    Rehearsed(
        f"the process dies of {signal}",
        f"{kind}@1:after=20",
        _expect({"gemm": f"killed by {signal} in fp64 products"}, ERROR, Remedy.RERUN, CRASHED)
        + _expect(
            {"p2p": f"killed by {signal} in a compared copy"},
            ERROR,
            Remedy.RERUN,
            CRASHED,
            accused=(),
        ),
        gpus=3,
    )
    for kind, signal in (("killed", "SIGKILL"), ("segfault", "SIGSEGV"))
)
"""As the kernel's OOM killer ends one, or a bug of a driver."""

FIRST_CALLS = tuple(
    Rehearsed(
        f"CUDA does not start for {what}",
        f"{kind}@*",
        _expect(dict.fromkeys(("gemm", "sdc", "p2p"), "which GPU"), FAIL, remedy, accused=()),
        gpus=3,
    )
    for kind, what, remedy in (
        ("ecc214", "an uncorrectable ECC error of a GPU", Remedy.RESET_GPU),
        ("nvlink220", "an uncorrectable error of an NVLink", Remedy.INSPECT),
    )
)
"""What one GPU of the node does to every process; NVML may name it (`test_cuda_errors`)."""

REHEARSED = (
    *(row for kind, told in GPU_ERRORS.items() for row in _end_use(kind, *told)),
    *(_start(kind, *told) for kind, told in STARTS.items()),
    *FIRST_CALLS,
    *MEMORY,
    *NUMBERS,
    *LIBRARIES,
    *SPEEDS,
    *DEATHS,
    *HANGS,
)
"""Every fault, the cheap ones first."""
