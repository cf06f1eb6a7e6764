"""The Xids that stand beside an error of a GPU: whose, when, and what nobody may read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcverify.check import Sample, Unable
from hpcverify.model import Inventory, Part
from hpcverify.telemetry import xids
from tests.telemetry import trees
from tests.telemetry.test_kernel_log import record

BOOTED = int(time.time()) - 7200
BOARD = Inventory(
    parts=tuple(
        Part("gpu", f"GPU-{i}", f"GPU {i}", {"pci_address": address})
        for i, address in enumerate(("0000:18:00.0", "0000:b3:00.0"))
    )
)
HOUR = 3600


def line(number: int, at: str = "b3") -> str:
    return f"NVRM: Xid (PCI:0000:{at}:00): {number}, pid=7, name=python3, Ch 00000008"


def ring(root: Path, *lines: tuple[int, str]) -> Path:
    """Let a file stand for the ring buffer, with *lines* and when they came: s after the boot."""
    boot = {"proc/sys/kernel/random/boot_id": "b1", "proc/stat": f"btime {BOOTED}"}
    records = (record(seconds, text) for seconds, text in lines)
    return trees.grow(root, {**boot, "dev/kmsg": "\n".join(records)})


def test_an_xid_is_of_the_gpu_at_its_address_and_says_when(tmp_path: Path) -> None:
    root = ring(tmp_path, (HOUR, line(94)), (HOUR + 1, "usb 1-1: new device"))

    (found,) = xids.list_logged(BOARD, None, BOOTED + HOUR, root)

    stamp = time.strftime("%H:%M:%S", time.gmtime(BOOTED + HOUR))
    assert (found.part_id, found.text) == ("GPU-1", f"Xid 94 at {stamp} UTC")
    assert found.line == line(94)


def test_what_came_before_the_check_is_not_of_it(tmp_path: Path) -> None:
    root = ring(tmp_path, (60, line(79)), (HOUR, line(94)))

    assert [x.xid for x in xids.list_logged(BOARD, None, BOOTED + HOUR, root)] == [94]


def test_what_came_before_the_run_is_not_of_it_however_the_clocks_differ(tmp_path: Path) -> None:
    cursor = xids.read_cursor(ring(tmp_path, (HOUR, line(79))))
    root = ring(tmp_path, (HOUR, line(79)), (HOUR + 10, line(94)))

    assert [x.xid for x in xids.list_logged(BOARD, cursor, BOOTED + HOUR, root)] == [94]


def test_a_log_that_nobody_may_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unable, match="kernel log cannot be read"):
        xids.list_logged(BOARD, None, 0.0, tmp_path)


def test_nvml_tells_the_same_xid_and_counts_once(tmp_path: Path) -> None:
    root = ring(tmp_path, (HOUR, line(94)))
    logged = xids.list_logged(BOARD, None, BOOTED + HOUR, root)
    samples = [Sample("xid", 94.0, "", "GPU-1", 7.0), Sample("xid", 31.0, "", "GPU-0", 8.0)]
    sampled = list(xids.list_sampled(samples, now=9.0))

    assert [x.xid for x in xids.merge_xids(sampled, logged, ["GPU-1"])] == [94]
    assert [x.xid for x in xids.merge_xids(sampled, logged, ["GPU-0"])] == [31]
    assert sampled[0].time == pytest.approx(time.time() - 2, abs=60)
