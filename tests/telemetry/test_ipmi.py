"""
What ipmitool prints of the sensors and the log of many makers, read as they mean it.

The outputs have the form of ipmitool 1.8.18 and 1.8.19, with what machines in public reports
show; each names its report.
"""

from __future__ import annotations

import random

import pytest

from hpcverify.telemetry.chassis import (
    ChassisSensor,
    Defect,
    RedundancyState,
    SensorHealth,
    SensorKind,
)
from hpcverify.telemetry.ipmi import name_sources, parse_events, parse_moment, parse_sensors

SUPPLY_STATES = """\
 Assertions Enabled    : Power Supply
                         [Presence detected]
                         [Failure detected]
                         [Predictive failure]
                         [Power Supply AC lost]
 OEM                   : 0

"""


def discrete(
    name: str, number: int, entity: str, kind: str, *states: str, enabled: str = ""
) -> str:
    """Print a sensor of states as ``ipmitool -v sdr list`` does."""
    shown = "".join(f"                         [{state}]\n" for state in states)
    asserted = f" States Asserted       : {kind}\n{shown}" if states else ""
    return (
        f"Sensor ID              : {name} (0x{number:x})\n Entity ID             : {entity}\n"
        f" Sensor Type (Discrete): {kind} (0x08)\n Sensor Reading        : 0h\n"
        f" Event Message Control : Per-threshold\n{asserted}{enabled or chr(10)}"
    )


def supply(name: str, number: int, entity: str, *states: str) -> str:
    return discrete(name, number, entity, "Power Supply", *states, enabled=SUPPLY_STATES)


def threshold(
    name: str, kind: str, reading: str, status: str, entity: str = "7.1", **bounds: float
) -> str:
    names = {
        "unr": "Upper non-recoverable",
        "ucr": "Upper critical",
        "unc": "Upper non-critical",
        "lnr": "Lower non-recoverable",
        "lcr": "Lower critical",
        "lnc": "Lower non-critical",
    }
    listed = "".join(f" {names[n]:<22}: {bound:.3f}\n" for n, bound in bounds.items())
    return (
        f"Sensor ID              : {name} (0x1)\n Entity ID             : {entity} (System Board)\n"
        f" Sensor Type (Threshold)  : {kind} (0x01)\n Sensor Reading        : {reading}\n"
        f" Status                : {status}\n{listed}\n"
    )


def read(printed: str) -> list[ChassisSensor]:
    return [sensor for sensor, _ in parse_sensors(printed)[0]]


def test_power_supplies_of_dell_are_told_apart_by_their_entity() -> None:
    """See an R740xd in the README of gengwg/ansible: both are called ``Status``."""
    one, two = read(
        supply("Status", 0x85, "10.1 (Power Supply)", "Presence detected")
        + supply("Status", 0x86, "10.2 (Power Supply)", "Presence detected")
    )
    assert (one.part, two.part) == ("PSU 1", "PSU 2")
    assert (one.name, two.name) == ("Status (entity 10.1)", "Status (entity 10.2)")
    assert one.health is two.health is SensorHealth.OK


def test_power_supplies_of_hpe_are_known_by_their_name() -> None:
    """Some firmware numbers its entities in its own way: 10.88 and 10.87."""
    sensors = read(
        supply("PS1 Status", 0xC8, "10.88 (Power Supply)", "Presence detected")
        + supply("PS2 Status", 0xC9, "10.87 (Power Supply)", "Presence detected")
    )
    assert [s.part for s in sensors] == ["PSU 1", "PSU 2"]


def test_feeds_of_a_dgx_that_are_off_are_no_failed_supplies() -> None:
    """A DGX-1 in the same place: two of four supplies without input, and no redundancy left."""
    printed = (
        discrete(
            *("PSU Redundancy", 0xE8, "21.1 (Power Management)", "Power Supply"),
            "Non-Redundant: Insufficient Resources",
        )
        + supply("PSU1 Status", 0xE0, "10.1", "Presence detected", "Power Supply AC lost")
        + supply("PSU3 Status", 0xE2, "10.3", "Presence detected")
    )
    sensors, (group,) = parse_sensors(printed)
    kinds = {sensor.name: (sensor.kind, sensor.defect) for sensor, _ in sensors}
    assert kinds["PSU1 Status"] == (SensorKind.POWER_SUPPLY, Defect.INPUT_LOST)
    assert kinds["PSU3 Status"] == (SensorKind.POWER_SUPPLY, Defect.NONE)
    assert kinds["PSU Redundancy"][0] is SensorKind.OTHER
    assert (group.kind, group.state) == (SensorKind.POWER_SUPPLY, RedundancyState.LOST)


def test_a_cable_that_is_out_reads_as_lost_input_beside_a_failure() -> None:
    """Many supplies assert both; a power cable that was pulled gave these states."""
    (sensor,) = read(
        supply(
            "PS1 Status", 1, "10.1", "Presence detected", "Failure detected", "Power Supply AC lost"
        )
    )
    assert (sensor.health, sensor.defect) == (SensorHealth.CRITICAL, Defect.INPUT_LOST)


def test_redundancy_that_ipmitool_calls_ok_is_lost() -> None:
    """Ipmitool issue 176, a board of Intel: the short form prints ``ok``."""
    printed = discrete(
        "Pwr Unit Redund", 2, "21.1 (Power Management)", "Power Unit", "Redundancy Lost"
    )
    _, (group,) = parse_sensors(printed)
    assert group.state is RedundancyState.LOST


@pytest.mark.parametrize(
    ("printed", "health"),
    [
        (supply("PS3 Status", 1, "10.3"), SensorHealth.ABSENT),
        (
            discrete("CP Left Pres", 2, "210.2", "Entity Presence", "Entity Absent"),
            SensorHealth.UNKNOWN,
        ),
        (
            discrete(
                "Low Security Jmp", 3, "7.1", "Physical Security", "Device Removed/Device Absent"
            ),
            SensorHealth.UNKNOWN,
        ),
        (discrete("PSU1_AC_OK", 4, "10.1", "Power Supply", "State Asserted"), SensorHealth.OK),
        (discrete("PS1 PG FAIL", 5, "10.1", "Voltage", "State Deasserted"), SensorHealth.UNKNOWN),
        (discrete("PSU 1 Failure", 6, "10.1", "Power Supply", "Transition to OK"), SensorHealth.OK),
        (discrete("Fan 1 Present", 7, "29.1", "Fan", "Device Absent"), SensorHealth.ABSENT),
        (discrete("ROMB Battery", 8, "11.1", "Battery", "Presence Detected"), SensorHealth.OK),
        (threshold("FAN6", "Fan", "No Reading", "Not Available"), SensorHealth.UNKNOWN),
        (threshold("FAN6", "Fan", "Disabled", "Not Available"), SensorHealth.UNKNOWN),
    ],
    ids=lambda value: value.splitlines()[0] if isinstance(value, str) else value.value,
)
def test_what_is_absent_or_says_nothing_is_no_fault(printed: str, health: SensorHealth) -> None:
    """
    Forms of healthy machines that monitoring has taken for critical.

    Dell R6715 and Lenovo (check_ipmi_sensor_v3 issues 67 and 60), Cisco (issue 22), Lenovo
    (hardware-observer-operator issue 449), Supermicro (issue 66).
    """
    (sensor,) = read(printed)
    assert sensor.health is health


@pytest.mark.parametrize(
    ("state", "health", "defect"),
    [
        ("Transition to Critical from less severe", SensorHealth.CRITICAL, Defect.NONE),
        ("Transition to Non-critical from OK", SensorHealth.WARNING, Defect.NONE),
        ("Predictive Failure Asserted", SensorHealth.WARNING, Defect.PREDICTED),
        ("Predictive Failure Deasserted", SensorHealth.OK, Defect.NONE),
        ("Config Error: Vendor Mismatch", SensorHealth.WARNING, Defect.MISMATCHED),
        ("AC out-of-range, but present", SensorHealth.WARNING, Defect.INPUT_WRONG),
        ("Power Supply Inactive", SensorHealth.OK, Defect.NONE),
    ],
)
def test_a_state_of_a_power_supply_means_what_the_standard_says(
    state: str, health: SensorHealth, defect: Defect
) -> None:
    (sensor,) = read(supply("PSU 1", 1, "10.1", "Presence detected", state))
    assert (sensor.health, sensor.defect) == (health, defect)


def test_a_fan_of_hpe_has_a_value_and_states() -> None:
    """ILO 4 calls its fans discrete and gives percent."""
    printed = discrete("Fan 1", 0x1A, "7.1 (System Board)", "Fan", "Transition to Running")
    (fan,) = read(printed.replace(": 0h", ": 5.880 percent"))
    assert (fan.kind, fan.value, fan.unit) == (SensorKind.FAN, 5.88, "%")
    assert fan.health is SensorHealth.OK


def test_a_reading_without_a_unit_of_its_own_is_no_value() -> None:
    """Ipmitool prints ``0x2A (+/- 0x00) unspecified`` for a sensor with discrete units."""
    (fan,) = read(threshold("FAN1", "Fan", "0x2A (+/- 0x00) unspecified", "Lower Critical"))
    assert (fan.value, fan.health) == (None, SensorHealth.CRITICAL)


def test_the_older_form_of_ipmitool_is_read() -> None:
    """open-power/occ issue 6, ipmitool 1.8.13: ``Sensor Type (Analog)``, a value on its bound."""
    printed = (
        "Sensor ID              : Board_Temp (0xc)\n Entity ID             : 7.0 (System Board)\n"
        " Sensor Type (Analog)  : Temperature\n Sensor Reading        : 20 (+/- 1) degrees C\n"
        " Status                : Lower Non-Critical\n Nominal Reading       : -105.000\n"
        " Upper non-recoverable : 60.000\n Upper critical        : 50.000\n"
        " Upper non-critical    : 40.000\n Lower non-recoverable : 0.000\n"
        " Lower critical        : 10.000\n Lower non-critical    : 20.000\n"
    )
    (sensor,) = read(printed)
    assert (sensor.value, sensor.unit, sensor.defect) == (20.0, "°C", Defect.LOW)
    assert sensor.health is SensorHealth.WARNING
    assert sensor.thresholds.high_critical == 50.0


@pytest.mark.parametrize(
    ("name", "entity", "is_ambient"),
    [
        ("Inlet Temp", "7.1", True),
        ("01-Inlet Ambient", "39.1", True),
        ("Ambient Temp", "12.1", True),
        ("TEMP_FRONT", "55.1", True),
        ("DIMM_Inlet_TEMP", "7.1", False),
        ("MB Ambient", "7.1", False),
        ("PSU1 Inlet Temp", "10.1", False),
        ("Exhaust Temp", "7.1", False),
        ("CPU1 Temp", "3.1", False),
    ],
)
def test_the_air_of_the_room_is_known(name: str, entity: str, *, is_ambient: bool) -> None:
    printed = threshold(name, "Temperature", "24 (+/- 0) degrees C", "ok", entity, ucr=42)
    (sensor,) = read(printed)
    assert sensor.is_ambient is is_ambient


@pytest.mark.parametrize(
    ("name", "kind", "reading", "expected"),
    [
        ("VBAT", "Voltage", "3.103 (+/- 0) Volts", SensorKind.BATTERY),
        ("CMOS Battery", "Voltage", "3.08 (+/- 0) Volts", SensorKind.BATTERY),
        ("12V", "Voltage", "12.1 (+/- 0) Volts", SensorKind.VOLTAGE),
        ("PWR_PSU0", "Power Supply", "780 (+/- 0) Watts", SensorKind.POWER),
        ("PSU1 Fan", "Power Supply", "9000 (+/- 0) RPM", SensorKind.FAN),
    ],
)
def test_a_value_says_what_a_sensor_looks_at(
    name: str, kind: str, reading: str, expected: SensorKind
) -> None:
    (sensor,) = read(threshold(name, kind, reading, "ok"))
    assert sensor.kind is expected


def test_a_sensor_that_only_logs_is_left_out() -> None:
    printed = "Sensor ID              : PSU Alert (0x34)\nEntity ID              : 208.1\n\n"
    assert read(printed + threshold("FAN1", "Fan", "9000 (+/- 0) RPM", "ok"))[0].name == "FAN1"


EVENTS = """\
1,11/22/26,11:06:06 UTC,Power Supply #0x52,Failure detected (),Asserted
2,09/08/2021,06:34:16,Power Supply #0x3b,AC out-of-range, but present,Deasserted
3, Pre-Init ,0000000093,System ACPI Power State #0xd5,S0/G0: working,Asserted
a,12/14/22,23:09:44 CET,Memory #0x88,Correctable ECC (CPU0_G1),Asserted
b,11/22/26,11:06:06 UTC,Memory,Uncorrectable ECC,Asserted,CPU 0 DIMM 3
c,11/22/26,11:06:06 UTC,OEM record c1,070605,08090a0b0c0d
d,,,OEM record e1,0102030405060708090a0b0c0d
e,,,Linux kernel panic: Fatal excep
SEL has no entries
"""


def test_the_log_is_read_in_all_its_forms() -> None:
    events = list(parse_events(EVENTS))
    assert [e.id for e in events] == ["1", "2", "3", "a", "b", "c", "d", "e"]
    first, second, third = events[:3]
    assert (first.subject, first.text, first.asserted) == ("Power Supply", "Failure detected", True)
    assert first.time == 1795345566
    assert (second.text, second.asserted) == ("AC out-of-range, but present", False)
    assert third.time is None
    assert events[4].text == "Uncorrectable ECC, CPU 0 DIMM 3"
    assert events[5].asserted is None
    assert events[7].text == "Run-time critical stop: Fatal excep"


def test_an_entry_is_named_by_its_sensor() -> None:
    sensors, _ = parse_sensors(supply("PS2 Status", 0x52, "10.2", "Presence detected"))
    named = name_sources(tuple(parse_events(EVENTS)), sensors)
    assert (named[0].sensor, named[0].part) == ("PS2 Status", "PSU 2")
    assert (named[1].sensor, named[1].part) == ("Power Supply #0x3b", "")


@pytest.mark.parametrize(
    "text", ["S+ 09:33:09", "Pre-Init", "", "13/45/26 11:06:06 UTC", "Unspecified"]
)
def test_a_clock_that_is_not_set_has_no_time(text: str) -> None:
    assert parse_moment(text) is None


@pytest.mark.parametrize("seed", range(40))
def test_no_output_of_a_bmc_however_spoilt_raises(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - characters to spoil, no secret
    sensors = supply("PSU1", 0x51, "10.1", "Presence detected")
    sensors += threshold("FAN1", "Fan", "4200 (+/- 0) RPM", "ok", ucr=9000)
    for printed, parse in ((sensors * 3, parse_sensors), (EVENTS, parse_events)):
        text = list(printed)
        for _ in range(rng.randrange(1, 40)):
            at = rng.randrange(len(text))
            text[at : at + rng.randrange(4)] = rng.choice(
                ["", "\n", ",", "(", ":", "|", "\x00", "\x1b[2J", "9" * 400, "-", "nan", "\u0661"]
            )
        list(parse("".join(text)))
