"""What is known of a part besides what it reports: data sheet, siblings, wiring."""

from __future__ import annotations

from collections.abc import Sequence

import hpcverify.check as hv
from hpcverify.limits.specs import Spec, find_spec

LINKS_PER_BRIDGE = {
    "a100-pcie-40gb": 4,
    "a100-pcie-80gb": 4,
    "a800-pcie-80gb": 4,
    "a30": 4,
    "a40": 4,
    "h100-pcie-80gb": 4,
    "h800-pcie-80gb": 4,
    "h100-nvl-94gb": 4,
    "h200-nvl": 6,
}
"""Parts (by `Spec.key`) that have NVLink only through a plugged bridge, and the links of
one bridge: they take three for all their links, an A800 and an H800 two, an A30 and an A40 one."""
SUPERCHIP_KEY_PREFIXES = ("gh200", "gb200", "gb300")
"""Keys of parts on NVLink-C2C to their CPU: their data does not come over PCIe, and their
boards wire few lanes of it."""
COHERENT_NAME_PREFIXES = ("NVIDIA GH", "NVIDIA GB")
"""Names of parts whose memory is a NUMA node of the kernel: memory in use there may be page
cache and belong to no process."""
TRAY_KEY_PREFIXES = ("gb200", "gb300")
"""Keys of parts whose NVLinks end in the switches of a rack, however few GPUs a node has."""
MAX_MESH_GPUS = 4
"""GPUs on boards without switches (HGX A100 and H100 with 4 GPUs)."""
SINGLE_GPU_KEY_PREFIX = "gh200"
"""Keys of parts that may be alone in their node, with no NVLink."""
MIN_LINKS_ALL_PAIRS = 8
"""A GPU with this many NVLinks has some to every other GPU of its node; with fewer, some pairs
have none (V100)."""


def look_up_spec(ctx: hv.Context, part_id: str) -> Spec | None:
    """Find the data sheet of the part *part_id*; None if it is not known."""
    part = ctx.inventory.find_part(part_id)
    return find_spec(part) if part else None


def find_model(ctx: hv.Context, part_id: str) -> str:
    """Find the model name of *part_id*: parts with the same one may be compared."""
    part = ctx.inventory.find_part(part_id)
    return part.facts.get("name", "") if part else ""


def has_optional_links(sheet: Spec | None) -> bool:
    """Whether a healthy part may have no active NVLink, even if it supports some."""
    if sheet is None or not sheet.nvlink_links:
        return True
    return sheet.key in LINKS_PER_BRIDGE or sheet.key.startswith(SINGLE_GPU_KEY_PREFIX)


def classify_wiring(gpus: Sequence[hv.Device], ctx: hv.Context) -> str:
    """
    Name how *gpus* are wired to each other.

    That is ``p2p`` (each has all its NVLinks to the switches of the node), ``tray`` (to
    those of the rack), ``mesh`` (up to four divide their NVLinks among each other) or
    ``peer`` (some pairs have no NVLink).
    """
    sheets = [look_up_spec(ctx, gpu.part) for gpu in gpus]
    for sheet in sheets:
        if sheet is None or has_optional_links(sheet) or sheet.nvlink_links < MIN_LINKS_ALL_PAIRS:
            return "peer"
    if all(sheet and sheet.key.startswith(TRAY_KEY_PREFIXES) for sheet in sheets):
        return "tray"
    return "p2p" if len(gpus) > MAX_MESH_GPUS else "mesh"
