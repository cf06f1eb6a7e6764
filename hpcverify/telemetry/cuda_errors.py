"""
What an error of CUDA says of a GPU: the table ``cuda_errors.csv``.

Its columns besides those of all tables: *platform* (``cuda`` or ``hip``); *number* and *name*
of the error; its *message*, as ``cudaGetErrorString`` gives it; other *phrases* by which torch
or a library reports it; the *cause* of an ERROR; whether the error is *sticky* (the process
cannot use the GPU any more); and whether *software* can cause it too.

What only hardware causes, or hardware as well as software, is a FAIL of the GPU; the kernels
of a check are known to be good. `hpcverify.run.gpu_errors` sees all GPUs of a node, and
knows when software is likelier.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from hpcverify.model import Cause, FindingRule, Verdict
from hpcverify.telemetry import fault_table
from hpcverify.telemetry.fault_table import KnownFault

TABLE_PATH = Path(__file__).with_name("cuda_errors.csv")
UNEXPLAINED = "cuda_other"
"""The code of an error that is not in the table."""
CONTAINED = "cuda_contained"
"""The code of an error that may be that of a peer."""
UNKNOWN = "cuda_unknown"
"""The code of an error that CUDA itself cannot explain; if all GPUs raise it, the driver failed."""
BUSY = "cuda_busy"
DRIVER_TOO_OLD = "cuda_driver_too_old"
NO_GPU_CODES = frozenset({"cuda_no_driver", "cuda_no_device"})
"""The codes of the errors that CUDA raises where there is no GPU, or none is to be seen."""
OPENING_PATTERN = (
    r"(?P<platform>CUDA|HIP) (?:driver )?error: "  # torch; the driver's: c10/cuda/driver_api.h
    r"|[Tt]riton [Ee]rror \[(?P<triton>CUDA|HIP)\]: (?:Code: \d+, Messsage: )?"
    r"|(?P<nccl>Cuda|CUDA|HIP) failure (?:\d+ )?'"
    r"|Error \d+: "  # torch, of cudaGetDeviceCount
)
"""What stands before a message of cudaGetErrorString."""
HIP_PATTERN = r"\bHIP\b|HIPBLAS_"


class CudaError(KnownFault, frozen=True, kw_only=True):
    """One row of the table."""

    platform: str
    number: int | None = None
    name: str = ""
    message: str = ""
    phrases: tuple[str, ...] = ()
    cause: Cause = Cause.NONE
    sticky: bool
    software: bool

    @property
    def rules(self) -> dict[str, FindingRule]:
        """The rule of a GPU's error: several checks that meet one on a GPU report one cause."""
        if self.verdict is not Verdict.FAIL:
            return {}
        return {code: replace(rule, shared=True) for code, rule in super().rules.items()}

    @property
    def text(self) -> str:
        """What it means, what CUDA calls it, and what to do: ends in the fix."""
        return f"{self.meaning} ({self.title}): {self.fix}"

    @property
    def title(self) -> str:
        """What its library calls it."""
        if self.number is None:
            return self.name
        return f"{self.platform.upper()} error {self.number}, {self.message}"

    @property
    def is_exact(self) -> bool:
        """Whether CUDA itself says so; a library may only know that something failed."""
        return self.number is not None


@cache
def load_rows() -> tuple[CudaError, ...]:
    """Read the table."""
    return fault_table.load_rows(TABLE_PATH, CudaError)


def find_cuda_error(text: str, platform: str = "") -> CudaError | None:
    """Find the row of an error *text*; None if not of CUDA or HIP. Some ROCm builds print CUDA."""
    platform = platform or ("hip" if re.search(HIP_PATTERN, text) else "cuda")
    rows = [row for row in load_rows() if row.platform == platform]
    opened = False
    for opening in re.finditer(OPENING_PATTERN, text):
        rest = text[opening.end() :]
        named = [row for row in rows if row.message and rest.startswith(row.message)]
        # Some builds for ROCm give the number alone (ATen/cuda/Exceptions.h).
        if number := re.match(r"\d+\b", rest):
            named = [row for row in rows if row.number == int(number[0])]
        if named:
            return max(named, key=lambda row: len(row.message))
        opened = opened or not opening[0].startswith("Error")
    for row in rows:
        if any(phrase in text for phrase in row.phrases):
            return row
    return find_unexplained(platform) if opened else None


def find_unexplained(platform: str = "cuda") -> CudaError:
    """Find the row of an error that the table does not know."""
    return next(r for r in load_rows() if (r.platform, r.code) == (platform, UNEXPLAINED))


@cache
def build_finding_rules() -> Mapping[str, FindingRule]:
    """Build the rule of each code that a GPU's error is reported under, by any check."""
    return fault_table.build_finding_rules(load_rows())


@cache
def list_software_codes() -> frozenset[str]:
    """List the codes of errors that fail a GPU and that software can cause too."""
    failing = build_finding_rules()
    return frozenset(row.code for row in load_rows() if row.software and row.code in failing)
