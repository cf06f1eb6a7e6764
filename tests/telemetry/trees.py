"""Writes the files of a machine that is not this one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CPU = "sys/devices/system/cpu"
EDAC = "sys/devices/system/edac/mc"


def grow(root: Path, files: Mapping[str, object]) -> Path:
    """Write *files* below *root*, each with the newline that the kernel adds."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def link(root: Path, name: str, to: str) -> None:
    """Make *name* a link to the folder *to*, which it creates."""
    path, end = root / name, root / to
    end.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(end)


def edac(root: Path, corrected: int = 0, uncorrected: int = 0) -> Path:
    """Give a machine one memory controller with two DIMMs; the second counts."""
    dimms = f"{EDAC}/mc0"
    return grow(
        root,
        {
            f"{dimms}/ce_count": corrected,
            f"{dimms}/ue_count": uncorrected,
            f"{dimms}/ce_noinfo_count": 0,
            f"{dimms}/ue_noinfo_count": 0,
            f"{dimms}/dimm0/dimm_ce_count": 0,
            f"{dimms}/dimm0/dimm_ue_count": 0,
            f"{dimms}/dimm0/dimm_label": "CPU0_DIMM_A1",
            f"{dimms}/dimm1/dimm_ce_count": corrected,
            f"{dimms}/dimm1/dimm_ue_count": uncorrected,
            f"{dimms}/dimm1/dimm_label": "CPU0_DIMM_B1",
            f"{dimms}/dimm1/size": 32768,
        },
    )
