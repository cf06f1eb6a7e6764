"""The table misses nothing that the double can inject."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest

from tests.faults.table import LOADED, PASSIVE
from tests.nvml_lab.nvmllab import HERE

TABLES = (HERE / "nvml_lab_tables.h").read_text()
SCENARIOS = " ; ".join(fault.scenario for fault in (*PASSIVE, *LOADED)) + " "

HARMLESS = {
    "what a part is, and no state of it": (
        *("name", "pci.bus_id", "pci.device_id", "pci.subsystem_id", "serial"),
        *("board_part_number", "board_id", "brand", "architecture", "cores"),
        *("compute_capability.*", "minor_number", "module_id", "numa_node", "irq"),
        *("mig.max_devices", "pcie.bus_type", "memory.bus_width", "bar1.total"),
        *("clocks.max.*", "clocks.default_applications.*", "*.version", "version"),
        *("temperature.shutdown", "temperature.slowdown", "temperature.gpu_max"),
        *("temperature.memory_max", "temperature.absolute", "temperature.margins"),
        *("power.default_limit_mw", "power.min_limit_mw", "power.max_limit_mw"),
        *("memory.reserved", "clocks.supported_event_reasons", "ecc.mode_default"),
        *("gsp.mode_default", "c2c.count", "remapped_banks.max", "remote_type"),
        *("fabric.cluster_uuid", "fabric.clique_id", "inforom.*"),
        *("remapped_rows.histogram.max", "pcie.max_speed_enum", "pcie.speed_mbps"),
        *("pcie.gen_max", "pcie.gen_gpu_max", "pcie.width_max"),
    ),
    "healthy at any value": (
        *("fan.*", "display.*", "accounting_mode", "performance_state", "bar1.used"),
        *("utilization.memory", "utilization.encoder", "utilization.decoder"),
        *("clocks.graphics", "clocks.memory", "clocks.video", "power_state"),
        *("power.instant_mw", "power.memory_mw", "power.energy_mj"),
        *("pcie.tx_*", "pcie.rx_*", "tx_*", "rx_*", "xmit_*", "rcv_packets"),
        *("rcv_bytes", "clocks.applications.*", "violation_ns.power"),
        *("remapped_rows.histogram.high", "remapped_rows.histogram.partial"),
        *("remapped_banks.active", "link_recovery_successful", "symbol_errors"),
        *("link_recovery_events", "symbol_ber", "pcie.unsupported_requests"),
        # Every change of generation makes one.
        "pcie.l0_to_recovery",
    ),
    "told by another value that is in the table": (
        *("violation_ns.thermal", "violation_ns.board_limit", "violation_ns.*"),
        *("ecc.aggregate.*_correctable", "ecc.volatile.sram_correctable"),
        *("ecc.volatile.sram_secded", "ecc.sram_sources.*", "effective_ber"),
        *("remapped_rows.*_inactive", "retired_pages.single_bit"),
        *("remapped_rows.histogram.low", "pcie.replay_rollover", "fabric.status"),
        *("pcie.naks_*", "pcie.receiver_errors", "pcie.bad_*", "pcie.lcrc_errors"),
        *("pcie.lane_errors", "crc_data_errors", "ecc_data_errors", "xmit_discards"),
        *("malformed_packet_errors", "buffer_overrun_errors", "rcv_remote_errors"),
        *("rcv_general_errors", "local_link_integrity_errors", "remapped_banks.in*"),
    ),
    "not looked at: hpcverify asks nothing about these yet": (
        *("c2c.status", "c2c.speed_mbps", "c2c.interrupts", "c2c.replays*"),
        "p2p.status",
    ),
    "of Blackwell and later, tried in the tests of their check": (
        *("rcv_errors", "link_recovery_failed", "effective_errors"),
        *("remapped_banks.pending", "remapped_banks.none"),
    ),
}
"""Values that need no row, and why."""

OUR_FAULT = (
    *("SUCCESS", "UNINITIALIZED", "ALREADY_INITIALIZED", "INSUFFICIENT_SIZE"),
    *("FREQ_NOT_SUPPORTED", "RESET_TYPE_NOT_SUPPORTED", "INVALID_STATE"),
)
"""Answers to calls that hpcverify never makes, or makes wrongly."""


def keys(table: str) -> list[str]:
    (block,) = re.findall(rf"#define {table}\(X\)(.*?)\n\n", TABLES, re.DOTALL)
    return re.findall(r'X\(\w+, "([^"]+)"', block)


@pytest.mark.parametrize("table", ["STRINGS", "NUMBERS", "LINK_NUMBERS"])
def test_every_value_of_the_double_is_in_the_table_or_harmless(table: str) -> None:
    patterns = [p for some in HARMLESS.values() for p in some]
    missing = [
        key
        for key in keys(table)
        if f".{key} " not in SCENARIOS
        and not any(fnmatchcase(key, pattern) for pattern in patterns)
    ]
    assert missing == []


def test_every_answer_of_nvml_is_in_the_table() -> None:
    (block,) = re.findall(r"#define RETURNS\(X\)(.*?)\n\n", TABLES, re.DOTALL)
    answers = re.findall(r"X\((\w+),", block)
    missing = [a for a in answers if f"return={a} " not in SCENARIOS and a not in OUR_FAULT]
    assert missing == []


@pytest.mark.parametrize("way", ["hang=forever", "lock=1", "signal=", "times=1", "field="])
def test_every_way_to_fail_is_in_the_table(way: str) -> None:
    assert way in SCENARIOS


def test_every_fault_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in (*PASSIVE, *LOADED)]
    assert len(set(names)) == len(names)
