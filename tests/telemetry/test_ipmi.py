"""
What FreeIPMI prints of the sensors and the log of many makers, read as they mean it.

The outputs have the form of ipmi-sensors and ipmi-sel 1.6.10, with what machines in public reports
show; each names its report.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from hpcverify.telemetry.chassis import (
    ChassisSensor,
    Defect,
    RedundancyState,
    SensorHealth,
    SensorKind,
)
from hpcverify.telemetry.ipmi import name_sources, parse_events, parse_moment, parse_sensors

SUPPLY_STATES = ("Presence detected", "Power Supply Failure detected", "Predictive Failure")
CRITICAL_STATES = ("Failure detected", "input lost", "to Critical")


def discrete(
    name: str, entity: str, kind: str, *states: str, enabled: tuple[str, ...] = (), **more: Any
) -> str:
    """Print a sensor of states as ``ipmi-sensors -vv`` does."""
    number, _, instance = entity.partition(".")
    bad = any(word in state for state in states for word in CRITICAL_STATES)
    fields = {
        "ID String": name,
        "Sensor Type": f"{kind} (8h)",
        "Entity ID": f"some entity ({number})",
        "Entity Instance": instance or "1",
        "Event/Reading Type Code": "6Fh",
        "Sensor State": "Critical" if bad else "Nominal",
        **more,
    }
    lines = [f"{key}: {value}" for key, value in fields.items()]
    lines += [f"Assertion Event Enabled: '{state}'" for state in enabled]
    lines += [f"Sensor Event: '{state}'" for state in states or ("OK",)]
    return "\n".join(("Record ID: 1", *lines)) + "\n\n"


def supply(name: str, entity: str, *states: str) -> str:
    return discrete(name, entity, "Power Supply", *states, enabled=SUPPLY_STATES)


def threshold(
    name: str, kind: str, reading: str, event: str = "OK", entity: str = "7.1", **bounds: float
) -> str:
    names = {
        "ucr": "Upper Critical Threshold",
        "unc": "Upper Non-Critical Threshold",
        "lcr": "Lower Critical Threshold",
        "lnc": "Lower Non-Critical Threshold",
    }
    fields: dict[str, Any] = {names[n]: f"{bound:.6f} C" for n, bound in bounds.items()}
    fields |= {"Event/Reading Type Code": "1h", "Sensor Reading": reading}
    return discrete(name, entity, kind, event, **fields)


def read(printed: str) -> list[ChassisSensor]:
    return [sensor for sensor, _ in parse_sensors(printed)[0]]


def test_power_supplies_of_dell_are_told_apart_by_their_entity() -> None:
    """See an R740xd in the README of gengwg/ansible: both are called ``Status``."""
    one, two = read(
        supply("Status", "10.1", "Presence detected")
        + supply("Status", "10.2", "Presence detected")
    )
    assert (one.part, two.part) == ("PSU 1", "PSU 2")
    assert (one.name, two.name) == ("Status (entity 10.1)", "Status (entity 10.2)")
    assert one.health is two.health is SensorHealth.OK


def test_power_supplies_of_hpe_are_known_by_their_name() -> None:
    """Some firmware numbers its entities in its own way: 10.88 and 10.87."""
    sensors = read(
        supply("PS1 Status", "10.88", "Presence detected")
        + supply("PS2 Status", "10.87", "Presence detected")
    )
    assert [s.part for s in sensors] == ["PSU 1", "PSU 2"]


def test_feeds_of_a_dgx_that_are_off_are_no_failed_supplies() -> None:
    """A DGX-1 in the same place: two of four supplies without input, and no redundancy left."""
    printed = (
        discrete(
            *("PSU Redundancy", "21.1", "Power Supply"),
            "Non-redundant:Insufficient Resources",
        )
        + supply("PSU1 Status", "10.1", "Presence detected", "Power Supply input lost (AC/DC)")
        + supply("PSU3 Status", "10.3", "Presence detected")
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
            "PS1 Status",
            "10.1",
            "Presence detected",
            "Power Supply Failure detected",
            "Power Supply input lost (AC/DC)",
        )
    )
    assert (sensor.health, sensor.defect) == (SensorHealth.CRITICAL, Defect.INPUT_LOST)


def test_redundancy_that_the_power_unit_lost_is_lost() -> None:
    """See ipmitool issue 176, a board of Intel."""
    printed = discrete("Pwr Unit Redund", "21.1", "Power Unit", "Redundancy Lost")
    _, (group,) = parse_sensors(printed)
    assert group.state is RedundancyState.LOST


@pytest.mark.parametrize(
    ("printed", "health"),
    [
        (supply("PS3 Status", "10.3"), SensorHealth.ABSENT),
        (
            discrete("CP Left Pres", "210.2", "Entity Presence", "Entity Absent"),
            SensorHealth.UNKNOWN,
        ),
        (
            discrete(
                "Low Security Jmp", "7.1", "Physical Security", "Device Removed/Device Absent"
            ),
            SensorHealth.UNKNOWN,
        ),
        (discrete("PSU1_AC_OK", "10.1", "Power Supply", "State Asserted"), SensorHealth.OK),
        (discrete("PS1 PG FAIL", "10.1", "Voltage", "State Deasserted"), SensorHealth.UNKNOWN),
        (discrete("PSU 1 Failure", "10.1", "Power Supply", "transition to OK"), SensorHealth.OK),
        (
            discrete("Fan 1 Present", "29.1", "Fan", "Device Removed/Device Absent"),
            SensorHealth.ABSENT,
        ),
        (discrete("ROMB Battery", "11.1", "Battery", "battery presence detected"), SensorHealth.OK),
        (threshold("FAN6", "Fan", "N/A", "N/A"), SensorHealth.UNKNOWN),
        (supply("PS4 Status", "10.4", "N/A"), SensorHealth.UNKNOWN),
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
        ("transition to Critical from less severe", SensorHealth.CRITICAL, Defect.NONE),
        ("transition to Non-Critical from OK", SensorHealth.WARNING, Defect.NONE),
        ("Predictive Failure asserted", SensorHealth.WARNING, Defect.PREDICTED),
        ("Predictive Failure deasserted", SensorHealth.OK, Defect.NONE),
        ("Configuration error", SensorHealth.WARNING, Defect.MISMATCHED),
        ("Power Supply input out-of-range, but present", SensorHealth.WARNING, Defect.INPUT_WRONG),
        ("Power Supply Inactive (in standby state)", SensorHealth.OK, Defect.NONE),
    ],
)
def test_a_state_of_a_power_supply_means_what_the_standard_says(
    state: str, health: SensorHealth, defect: Defect
) -> None:
    (sensor,) = read(supply("PSU 1", "10.1", "Presence detected", state))
    assert (sensor.health, sensor.defect) == (health, defect)


def test_a_fan_of_hpe_has_a_value_and_states() -> None:
    """ILO 4 calls its fans discrete and gives percent."""
    reading: dict[str, Any] = {"Sensor Reading": "5.880000 %", "Event/Reading Type Code": "Ah"}
    (fan,) = read(discrete("Fan 1", "7.1", "Fan", "transition to Running", **reading))
    assert (fan.kind, fan.value, fan.unit) == (SensorKind.FAN, 5.88, "%")
    assert fan.health is SensorHealth.OK


@pytest.mark.parametrize(
    ("type_", "state", "unit", "kind", "health"),
    [
        ("Fan", "transition to Degraded", "%", SensorKind.FAN, SensorHealth.WARNING),
        (
            *("Power Supply", "Power Supply Failure detected", "W"),
            *(SensorKind.POWER_SUPPLY, SensorHealth.CRITICAL),
        ),
    ],
)
def test_the_states_of_a_part_go_before_its_value(
    type_: str, state: str, unit: str, kind: SensorKind, health: SensorHealth
) -> None:
    """An iLO gives percent and watts beside states: netdata issues 3977 and 9981."""
    reading: dict[str, Any] = {"Sensor Reading": f"0.000000 {unit}", "Sensor State": "Warning"}
    (sensor,) = read(discrete("Part 1", "10.1", type_, state, **reading))
    assert (sensor.kind, sensor.health) == (kind, health)
    assert sensor.value is None or kind is not SensorKind.FAN


def test_a_threshold_that_is_not_critical_warns_though_freeipmi_calls_it_nominal() -> None:
    """See open-power/occ issue 6: a value on its bound."""
    event = "At or Below (<=) Lower Non-Critical Threshold"
    printed = threshold("Board_Temp", "Temperature", "20.000000 C", event, ucr=50, lnc=20)
    (sensor,) = read(printed)
    assert (sensor.value, sensor.unit, sensor.defect) == (20.0, "°C", Defect.LOW)
    assert sensor.health is SensorHealth.WARNING
    assert sensor.thresholds.high_critical == 50.0


@pytest.mark.parametrize(
    ("kind", "state", "health"),
    [
        ("Cooling Device", "transition to Critical from less severe", SensorHealth.CRITICAL),
        ("OEM Reserved", "transition to Non-Critical from OK", SensorHealth.WARNING),
        ("Cooling Device", "State Asserted", SensorHealth.WARNING),
        ("Cooling Device", "State Deasserted", SensorHealth.OK),
        ("Cooling Device", "transition to OK", SensorHealth.OK),
    ],
)
def test_a_leak_detector_is_known_by_its_name(kind: str, state: str, health: SensorHealth) -> None:
    unknown: dict[str, Any] = {"Sensor State": "N/A"}
    (sensor,) = read(discrete("Leak_Det_0", "30.1", kind, state, **unknown))
    assert (sensor.kind, sensor.health) == (SensorKind.LEAK, health)


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
    printed = threshold(name, "Temperature", "24.000000 C", "OK", entity, ucr=42)
    (sensor,) = read(printed)
    assert sensor.is_ambient is is_ambient


@pytest.mark.parametrize(
    ("name", "kind", "reading", "expected"),
    [
        ("VBAT", "Voltage", "3.103000 V", SensorKind.BATTERY),
        ("CMOS Battery", "Voltage", "3.080000 V", SensorKind.BATTERY),
        ("12V", "Voltage", "12.100000 V", SensorKind.VOLTAGE),
        ("PWR_PSU0", "Power Supply", "780.000000 W", SensorKind.POWER),
        ("PSU1 Fan", "Power Supply", "9000.000000 RPM", SensorKind.FAN),
    ],
)
def test_a_value_says_what_a_sensor_looks_at(
    name: str, kind: str, reading: str, expected: SensorKind
) -> None:
    (sensor,) = read(threshold(name, kind, reading))
    assert sensor.kind is expected


def test_a_sensor_that_only_logs_is_left_out() -> None:
    printed = "Record ID: 1\nID String: PSU Alert\nSensor Type: Power Supply (8h)\n\n"
    assert read(printed + threshold("FAN1", "Fan", "9000.000000 RPM"))[0].name == "FAN1"


EVENTS = """\
1,Nov-22-2026,11:06:06,Power Supply 2 PS2 Status,Power Supply,Critical,Assertion Event,Power Supply Failure detected
2,Sep-08-2021,06:34:16,Sensor #59 (Generator ID 20h),Power Supply,Critical,Deassertion Event,Power Supply input out-of-range, but present
3,PostInit,93,System Board ACPI,System ACPI Power State,Nominal,Assertion Event,S0/G0
10,Dec-14-2022,23:09:44,System Board A, B,Fan,Critical,Assertion Event,Lower Critical - going low ; Sensor Reading = 2.00 RPM
12,Nov-22-2026,11:06:06,N/A,N/A,N/A,N/A,OEM defined (Record Type = C1h) = 07h 06h
14,N/A,N/A,N/A,N/A,N/A,N/A,OEM defined (Record Type = F0h) = 20h 00h 46h 61h 74h 61h 6Ch 00h 00h
"""  # noqa: E501 - lines as ipmi-sel prints them


def test_the_log_is_read_in_all_its_forms() -> None:
    events = list(parse_events(EVENTS))
    assert [e.id for e in events] == ["1", "2", "3", "10", "12", "14"]
    first, second, third, fourth, oem, panic = events
    assert (first.subject, first.asserted) == ("Power Supply", True)
    assert first.text == "Power Supply Failure detected"
    assert first.time == 1795345566
    assert (second.sensor, second.asserted) == ("Power Supply #59", False)
    assert second.text == "Power Supply input out-of-range, but present"
    assert third.time is None
    assert fourth.sensor == "System Board A, B"
    assert fourth.text == "Lower Critical going low; Sensor Reading = 2.00 RPM"
    assert oem.asserted is None
    assert (panic.subject, panic.text) == ("OS Critical Stop", "Run-time critical stop: Fatal")


def test_an_entry_is_named_by_its_sensor() -> None:
    sensors, _ = parse_sensors(
        supply("PS2 Status", "10.2", "Presence detected")
        + supply("Status", "10.3", "Presence detected")
        + supply("Status", "10.4", "Presence detected")
    )
    twin = "9,Nov-22-2026,11:06:06,Power Supply 4 Status,Power Supply,Critical,N/A,x\n"
    named = name_sources(tuple(parse_events(EVENTS + twin)), sensors)
    assert (named[0].sensor, named[0].part) == ("PS2 Status", "PSU 2")
    assert (named[1].sensor, named[1].part) == ("Power Supply #59", "")
    assert (named[-1].sensor, named[-1].part) == ("Status (entity 10.4)", "PSU 4")


@pytest.mark.parametrize(
    "text",
    ["PostInit,93", "Pre-Init", "", "13/45/2026 - 11:06:06", "Nov-45-2026,11:06:06", "N/A,N/A"],
)
def test_a_clock_that_is_not_set_has_no_time(text: str) -> None:
    assert parse_moment(text) is None


@pytest.mark.parametrize("seed", range(40))
def test_no_output_of_a_bmc_however_spoilt_raises(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - characters to spoil, no secret
    sensors = supply("PSU1", "10.1", "Presence detected")
    sensors += threshold("FAN1", "Fan", "4200.000000 RPM", ucr=9000)
    for printed, parse in ((sensors * 3, parse_sensors), (EVENTS, parse_events)):
        text = list(printed)
        for _ in range(rng.randrange(1, 40)):
            at = rng.randrange(len(text))
            text[at : at + rng.randrange(4)] = rng.choice(
                ["", "\n", ",", "(", ":", "|", "\x00", "\x1b[2J", "9" * 400, "-", "nan", "\u0661"]
            )
        list(parse("".join(text)))
