"""
What an error of CUDA says of a GPU: the table ``cuda_errors.csv``.

Its columns: *code* of the finding; *platform* (``cuda`` or ``hip``); *number* and *name* of
the error; its *message*, as ``cudaGetErrorString`` gives it; other *phrases* by which torch
or a library tells it, with ``|`` between; our *verdict*, *remedy* and *cause*; whether it is
*sticky* (the process cannot use the GPU any more); whether *software* can cause it too;
its *meaning* and the *fix*, in words; and its *source*.

What only hardware causes, or hardware as well as software, is a FAIL of the GPU; the kernels
of a check are known to be good. `hpcverify.run.gpu_errors` sees all GPUs of a node, and
knows when software is likelier.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.model import Cause, FindingRule, Remedy, Verdict

TABLE_PATH = Path(__file__).with_name("cuda_errors.csv")
UNEXPLAINED = "cuda_other"
"""The code of an error that is not in the table."""
CONTAINED = "cuda_contained"
"""The code of an error that may be that of a peer."""
UNKNOWN = "cuda_unknown"
"""The code of what CUDA itself cannot explain: of all GPUs, the driver that has failed."""
BUSY = "cuda_busy"
HARD_CODES = frozenset({"ecc_uncorrectable", "cuda_nvlink_uncorrectable"})
"""Events that no rerun takes back: the hardware itself counted them."""
OPENING_PATTERN = (
    r"(?P<platform>CUDA|HIP) error: "  # torch
    r"|[Tt]riton [Ee]rror \[(?P<triton>CUDA|HIP)\]: (?:Code: \d+, Messsage: )?"
    r"|(?P<nccl>Cuda|CUDA|HIP) failure (?:\d+ )?'"
    r"|Error \d+: "  # torch, of cudaGetDeviceCount
)
"""What stands before a message of cudaGetErrorString."""
HIP_PATTERN = r"\bHIP\b|HIPBLAS_"


class CudaError(Struct, frozen=True, kw_only=True):
    """One row of the table."""

    code: str
    platform: str
    number: int | None
    name: str
    message: str
    phrases: tuple[str, ...]
    verdict: Verdict
    remedy: Remedy
    cause: Cause
    sticky: bool
    software: bool
    meaning: str
    fix: str
    source: str

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
    import csv  # noqa: PLC0415 - a prolog on a healthy node reads no table

    text = TABLE_PATH.read_text(encoding="utf-8")
    values = [
        {
            **line,
            "number": line["number"] or None,
            "phrases": [*filter(None, line["phrases"].split("|"))],
            "sticky": line["sticky"] == "yes",
            "software": line["software"] == "yes",
        }
        for line in csv.DictReader(text.splitlines())
    ]
    return tuple(msgspec.convert(values, list[CudaError], strict=False))


def find_cuda_error(text: str, platform: str = "") -> CudaError | None:
    """
    Find the row of the error that *text*, the message of an exception, tells of.

    None if it is no error of CUDA or HIP. A message of CUDA that is not in the table is
    `UNEXPLAINED`. By default the text says which *platform* it is of; but some builds for
    ROCm call theirs CUDA errors (torch 2.11: AMDResearch/hpcfund issue 86).
    """
    platform = platform or ("hip" if re.search(HIP_PATTERN, text) else "cuda")
    rows = [row for row in load_rows() if row.platform == platform]
    opened = False
    for opening in re.finditer(OPENING_PATTERN, text):
        rest = text[opening.end() :]
        told = [row for row in rows if row.message and rest.startswith(row.message)]
        if told:
            return max(told, key=lambda row: len(row.message))
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
    """
    Make the rule of each code that a GPU's error is reported under, the same for all checks.

    Several checks that meet one on the same GPU are told as one.
    """
    return {
        row.code: FindingRule(
            row.verdict, row.remedy, conclusive=row.code in HARD_CODES, shared=True
        )
        for row in load_rows()
        if row.verdict is Verdict.FAIL
    }


@cache
def list_software_codes() -> frozenset[str]:
    """List the codes of what fails a GPU, and software can cause too."""
    failing = build_finding_rules()
    return frozenset(row.code for row in load_rows() if row.software and row.code in failing)
