"""Which reasons of drains are planned work."""

from __future__ import annotations

import pytest

from hpcverify.fleet.reasons import is_planned, read_reason_words


@pytest.mark.parametrize(
    "reason",
    [
        "maintenance: new firmware",
        "MAINT",
        "POWERED_DOWN, no reason given",
        "POWERING_DOWN",
        "FUTURE",
        "scheduled kernel upgrade",
        "rolling reboot",
        "Reboot ASAP : reboot issued",
        "moving to rack 12",
        "testing slurm 25.11 [root@2026-11-20T10:00:00]",
        "reserved for course",
        "decommissioned",
        "driver_update",
        "power_down for the weekend",
        "shut down for maintenance",
        "do not use: reserved for a demo",
    ],
)
def test_planned_work_is_planned(reason: str) -> None:
    assert is_planned(reason)


@pytest.mark.parametrize(
    "reason",
    [
        "",
        "alice",
        "Not responding",
        "Kill task failed",
        "Node unexpectedly rebooted",
        "power supply dead",
        "reboot: GPU 3 hangs",
        "firmware update to fix link flaps",
        "reserved for RMA",
        "failed test of memory",
        "maintenance: replace GPU 3",
        "NHC: check_gpu_count",
        "Xid 79",
        "kernel: NMI watchdog: soft lockup",
        "driver/library version mismatch",
        "unable to boot after update",
        "reboot_failed",
        "GPU_bad_needs_reboot",
        "kernel oops",
        "kernel BUG at mm/slub.c:312",
        "did not come back after reboot",
        "driver not loaded",
        "GPU 3 off the bus, reboot",
        "IB link down, reboot",
        "low performance in benchmark",
        "wrong bios settings",
        "file system read-only, reboot",
        "page retirement pending reboot",
        "OOM loops: reboot",
        "training jobs die here",
    ],
)
def test_a_fault_and_what_nobody_can_read_are_not(reason: str) -> None:
    assert not is_planned(reason)


def test_a_word_of_the_site_goes_before_all_others() -> None:
    assert is_planned("replace fans, Aktion 7", ("aktion",))
    assert not is_planned("reaktion", ("aktion",))
    assert is_planned("broken window week_7", ("week_7",))


def test_no_word_means_both() -> None:
    words = read_reason_words()
    assert set(words) == {"planned", "fault"}
    assert not set(words["planned"]) & set(words["fault"])
