"""
The faults of a real LLM cluster, by class, with the checks that see each of them.

The trace has 584 faults of 400 GPU servers in 348 days (stepfun-ai/InfiniteHBD-Trace, commit
7aacdc8, Apache-2.0): each with a level, a class and a text, as its operators wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass

PASSIVE = "tests/faults/test_passive.py::test_a_fault_is_seen_for_what_it_is"
LOADED = "tests/faults/test_loaded.py::test_a_fault_under_load_is_seen_for_what_it_is"
REHEARSED = "tests/rehearsal/test_faults.py::test_a_fault_is_seen_for_what_it_is"
PORT = "tests/checks/test_nic.py::test_a_fault_is_told_as_in_the_table"
KERNEL_LOG = "tests/checks/test_kernel_log.py"
LINE = f"{KERNEL_LOG}::test_a_line_of_a_fault_is_told_as_its_row_says"
DUMP = f"{KERNEL_LOG}::test_the_last_words_of_a_kernel_that_panicked_are_read_once"
HOST = "tests/checks/host"
MCE = f"{LINE}[mce_uncorrected-[Hardware Error]: System Fatal error.]"
CHASSIS = "tests/checks/test_chassis.py::test_a_fault_is_told_as_the_table_says_until_it_is_over"
NIC_GONE = "tests/checks/test_inventory.py::test_an_adapter_that_left_the_bus_is_missed"
AER_CORRECTED = (
    f"{LINE}[aer_corrected-pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0]"
)
CORES_GONE = (
    f"{HOST}/test_resources.py::test_cores_that_are_gone_are_told_until_they_are_back_or_accepted"
)
TURNED_READ_ONLY = (
    f"{HOST}/test_mounts.py::"
    "test_a_disk_that_the_kernel_turned_read_only_fails_until_it_is_writable"
)
PORT_DOWN = f"{PORT}[an InfiniBand port is down]"
NOT_NAMED = "the trace does not say what failed, so nothing can be shown to find it"

FAULT_COUNT = 584


@dataclass(frozen=True, slots=True)
class FaultClass:
    """
    A class of faults: in the words of the trace, and how often it is there.

    Each of *tests* injects the fault below the check; *missing* is what remains unseen.
    """

    component: str
    what: str
    count: int
    checks: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    missing: str = ""


TRACE = (
    FaultClass(
        "Stress Test Failure",
        "Unknown Error",
        97,
        ("gemm", "sdc", "training", "gpu_memory", "thermal"),
        (
            f"{REHEARSED}[a GPU has half of its speed, for all that it does, gemm]",
            f"{REHEARSED}[a bit of a product is wrong now and then, training]",
            f"{REHEARSED}[a GPU hangs in the soak, thermal]",
        ),
        "which stress test it was is not told: slow, wrong and hanging GPUs stand for it",
    ),
    FaultClass(
        "GPU",
        "GPU DBE(Double Bit ECC) > Threshold",
        60,
        ("ecc", "xid"),
        (f"{PASSIVE}[an uncorrected error of DRAM since the last run]",),
    ),
    FaultClass("Parameter Plane Cable", "Link Down", 40, ("nic",), (PORT_DOWN,)),
    FaultClass(
        "GPU",
        "GPU device unknow error",
        40,
        ("inventory", "recovery"),
        (
            f"{PASSIVE}[a GPU has no handle]",
            f"{PASSIVE}[a call is answered with UNKNOWN]",
        ),
    ),
    FaultClass(
        "Fan",
        "Speed Critical (Sensor)",
        31,
        ("chassis",),
        (
            f"{CHASSIS}[a fan is critically slow]",
            f"{CHASSIS}[a fan that turned stands still]",
        ),
    ),
    FaultClass(
        "GPU",
        "GPU PCI link width low",
        25,
        ("pcie",),
        (
            f"{PASSIVE}[a PCIe link has half its lanes]",
            f"{LOADED}[a PCIe link loses lanes under load]",
        ),
    ),
    FaultClass(
        "Power Supply",
        "Power Supply Failure detected",
        25,
        ("chassis",),
        (
            f"{CHASSIS}[a power supply failed]",
            f"{CHASSIS}[a power supply that was there is gone]",
        ),
    ),
    FaultClass(
        "GPU", "GPU xid Error", 11, ("xid",), (f"{LOADED}[an Xid comes while our own load runs]",)
    ),
    FaultClass(
        "NIC",
        "Rnic Gid Error",
        11,
        ("nic",),
        (f"{PORT}[a RoCE port lost a GID]",),
    ),
    FaultClass(
        "NIC",
        "NIC Link Speed low",
        10,
        ("nic",),
        (
            f"{PORT}[an InfiniBand port has half its lanes]",
            f"{PORT}[an Ethernet port is slower than before]",
        ),
    ),
    FaultClass(
        "GPU",
        "nvidia-smi Timeout",
        9,
        ("inventory",),
        (
            f"{PASSIVE}[NVML's start never returns]",
            f"{PASSIVE}[a call hangs and holds the driver's lock]",
        ),
        "an ERROR: a hang alone does not say whether driver or GPU is at fault",
    ),
    FaultClass("NIC", "NIC Lost", 8, ("inventory",), (NIC_GONE,)),
    FaultClass(
        "Software Tool",
        "Kubelet Date Absent",
        7,
        ("host",),
        (f"{HOST}/test_services.py::test_others_are_asked_for_in_one_call[failed-codes1]",),
        "if the site lists the daemon under `services`",
    ),
    FaultClass(
        "GPU",
        "GPU Lost",
        5,
        ("inventory", "xid"),
        (
            f"{PASSIVE}[a GPU fell off the bus]",
            f"{LOADED}[a GPU falls off the bus under load]",
        ),
    ),
    FaultClass(
        "Motherboard",
        "Motherboard Failed",
        4,
        ("kernel_log", "chassis"),
        (MCE, f"{CHASSIS}[a voltage is critical]"),
        "a board that does not start is DOWN in Slurm",
    ),
    FaultClass(
        "GPU",
        "GPU P2P Bandwidth Low",
        3,
        ("p2p",),
        (
            "tests/checks/test_p2p.py::test_one_slow_pair_fails_the_node",
            f"{REHEARSED}[a GPU has half of its speed, for all that it does, p2p]",
        ),
    ),
    FaultClass("Change", "Y-cables Taken offline", 3, ("nic",), (PORT_DOWN,), "people did it"),
    FaultClass(
        "CPU", "Machine Check Exception ( Uncorrectable )", 2, ("kernel_log", "ecc"), (MCE,)
    ),
    FaultClass(
        "Fan",
        "Redundancy Lost",
        2,
        ("chassis",),
        (f"{CHASSIS}[redundancy of the fans is lost, though each looks well]",),
    ),
    FaultClass(
        "GPU",
        "GPU Temperature High",
        2,
        ("thermal", "gpu_setup"),
        (
            f"{LOADED}[a GPU has hardly any room to its slowdown]",
            f"{LOADED}[a GPU is slowed down by its heat, by hardware]",
            f"{PASSIVE}[a GPU is held down by its heat right now]",
        ),
    ),
    FaultClass(
        "File System",
        "FS: Multiple Disk FS Error",
        2,
        ("kernel_log", "host"),
        (
            f"{LINE}[fs_error-EXT4-fs (sda1): error count since last fsck: 2]",
            f"{LINE}[raid_disk_failed-md/raid1:md0: Disk failure on sdb1, disabling device.]",
        ),
    ),
    FaultClass(
        "CPU",
        "Configuration Error",
        1,
        ("host", "chassis"),
        (CORES_GONE, f"{CHASSIS}[the processors do not fit each other or the board]"),
    ),
    FaultClass(
        "GPU",
        "GPU SBE(Single Bit ECC) > Threshold",
        1,
        ("ecc",),
        (
            f"{LOADED}[thousands of errors of memory are corrected each second]",
            f"{LOADED}[a few errors of memory are corrected each second]",
        ),
    ),
    FaultClass(
        "GPU",
        "GPU device not found",
        1,
        ("inventory",),
        (f"{PASSIVE}[a GPU was not found when the driver started]",),
    ),
    FaultClass(
        "GPU",
        "Silent Data Corruption",
        1,
        ("sdc",),
        (
            f"{REHEARSED}[a bit of a product is wrong now and then, sdc]",
            "tests/checks/sdc/test_detection.py::test_a_stuck_bit_fails_the_part_and_asks_for_another",
        ),
    ),
    FaultClass(
        "Motherboard Battery",
        "Low",
        1,
        ("chassis",),
        (f"{CHASSIS}[the battery of the board runs down]",),
    ),
    FaultClass(
        "NIC",
        "NIC PCI link Width low",
        1,
        ("nic",),
        (f"{PORT}[an adapter lost half of its PCIe lanes]",),
    ),
    FaultClass(
        "Power Supply",
        "Redundancy Lost",
        1,
        ("chassis",),
        (f"{CHASSIS}[redundancy of the power supplies is lost, though each looks well]",),
    ),
    FaultClass(
        "RAID Card",
        "Bus Correctable error",
        1,
        ("kernel_log",),
        (AER_CORRECTED,),
        "listed, and a WARN from ten in one look: a corrected error harms nobody",
    ),
    FaultClass(
        "Riser Card",
        "RiserCard Fault",
        1,
        ("inventory", "pcie"),
        (NIC_GONE,),
        "by what is plugged into it: gone, or with fewer lanes",
    ),
    FaultClass("Change", "Remote Optical Module Failure", 1, ("nic",), (PORT_DOWN,)),
    FaultClass(
        "File System",
        "FS Readonly",
        1,
        ("host", "kernel_log"),
        (
            TURNED_READ_ONLY,
            f"{LINE}[fs_read_only-EXT4-fs (sda1): Remounting filesystem read-only]",
        ),
    ),
    FaultClass(
        "Firmware",
        "Firmware mismatch",
        1,
        ("gpu_setup", "nic"),
        (
            f"{PASSIVE}[a GPU has another VBIOS than its like]",
            f"{PORT}[like adapters have different firmware]",
        ),
        "against the like in the node; `hpcverify nodes` compares like nodes",
    ),
    FaultClass(
        "Operating System",
        "Kernel Panic",
        1,
        ("kernel_log",),
        (f"{DUMP}[sys/fs/pstore]",),
    ),
    FaultClass(
        "System Crash",
        "Server down",
        1,
        ("kernel_log",),
        (f"{KERNEL_LOG}::test_a_panic_that_no_hardware_caused_warns",),
        "once it is up again; while it is down, Slurm says so",
    ),
    FaultClass("Unknown Error", "Unknown Error", 144, missing=NOT_NAMED),
    FaultClass(
        "Training Task Troubleshooting",
        "Suspect Machine Offline",
        14,
        missing="a person's decision: `hpcverify hold` and `admit` are for that",
    ),
    FaultClass("Other Failures", "Unknown Error", 13, missing=NOT_NAMED),
    FaultClass("Test", "Temporarily Offline", 2, missing="a person's decision, no fault"),
)
"""Every class of the trace; those that no check can be shown to find come last."""
