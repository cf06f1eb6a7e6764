"""
Put the loads of the storage check on a disk that goes wrong below fio and the C library.

A process of its own does it, with `faulty_disk.c` loaded before all else. Run as a program,
this is that process: it prints what was found.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcverify.model import (
    CheckItem,
    Coverage,
    Finding,
    Inventory,
    Measurement,
    Part,
    Verdict,
)
from hpcverify.testing import judge_by, list_findings
from hpcverify_checks.storage import CHECK
from hpcverify_checks.storage.explain import explain_fault
from hpcverify_checks.storage.fio_runner import FaultError, find_engine
from hpcverify_checks.storage.params import StorageParams
from hpcverify_checks.storage.phases import LOADS
from hpcverify_checks.storage.scratch import find_site, require_writable
from tests.checks.storage.disks import CountedFio

SHORT = StorageParams(size_mib=16, checkpoint_mib=8, repeats=3, seconds=0.2, streams=2, files=40)
SERIAL = "SERIAL-1"
"""Of the disk under the scratch directory, so that it has a name to be accused by."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Which accesses go wrong, and how; see `faulty_disk.c`."""

    how: str
    path: str
    size: int = 0
    overwrites: bool = False
    skip: int = 2
    count: int = 2

    def list_settings(self, folder: Path) -> dict[str, str]:
        return {
            "FAULT": self.how,
            "FAULT_PATH": self.path,
            "FAULT_SIZE": str(self.size),
            "FAULT_OVERWRITES": "1" if self.overwrites else "",
            "FAULT_SKIP": str(self.skip),
            "FAULT_COUNT": str(self.count),
            "FAULT_FOLDER": str(folder),
        }


class Taken(msgspec.Struct, frozen=True):
    """What was found."""

    verdict: Verdict
    findings: Sequence[Finding]
    coverage: Sequence[str]
    measured: dict[str, float | None]


def compile_library(folder: Path) -> Path:
    library = folder / "faulty_disk.so"
    source = Path(__file__).with_suffix(".c")
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["gcc", *flags, "-o", library, source, "-ldl"], check=True)
    return library


def take_load(
    load: str, folder: Path, *, fault: Fault | None = None, library: Path | None = None
) -> Taken:
    """Put one load on the disk of *folder* in a process of its own, with a *fault* below it."""
    settings = fault.list_settings(folder.parent) if fault else {}
    loaded = {"LD_PRELOAD": str(library)} if library else {}
    done = subprocess.run(
        [sys.executable, __file__, load, folder],
        env={**os.environ, **settings, **loaded},
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Taken)


def main(name: str, folder: Path) -> None:
    disk = find_site(folder, Inventory(), direct=True).disk
    part = Part(kind="disk", id=SERIAL, label=str(disk))
    site = find_site(folder, Inventory(parts=(part,)), direct=require_writable(folder))
    fio = CountedFio(folder=folder, engine=find_engine(), direct=site.direct)
    load = next(load for _, load in LOADS if load.__name__ == f"run_{name}")
    found: list[CheckItem] = []
    try:
        found.extend(load(site, fio, SHORT, random.Random()))  # noqa: S311 - data to write
    except FaultError as fault:
        found.append(explain_fault(fault, site))
    judgement = judge_by(list_findings(found), [], CHECK.finding_rules)
    coverage = [item.text for item in found if isinstance(item, Coverage)]
    measured = {item.name: item.value for item in found if isinstance(item, Measurement)}
    taken = Taken(judgement.verdict, list_findings(found), coverage, measured)
    sys.stdout.buffer.write(msgspec.json.encode(taken))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
