"""
The faults of a chassis, and what hpcverify must make of each.

A fault is what a simulated BMC shows and logs (`tests.bmc`) in the run after one in which all
was well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcverify.model import Cause, Remedy, Verdict
from tests import bmc
from tests.bmc import SimulatedBmc

PASS, WARN, ERROR, FAIL = Verdict.PASS, Verdict.WARN, Verdict.ERROR, Verdict.FAIL
INSPECT, REPLACE, CONFIGURE = Remedy.INSPECT, Remedy.REPLACE, Remedy.FIX_CONFIGURATION


@dataclass(frozen=True, slots=True)
class ChassisFault:
    """One fault; *says* are words that the reason must hold, *inject* does it to a BMC."""

    name: str
    inject: Callable[[SimulatedBmc], object]
    verdict: Verdict
    remedy: Remedy
    says: str
    cause: Cause = Cause.NONE
    conclusive: bool = False


def several(*steps: Callable[[SimulatedBmc], object]) -> Callable[[SimulatedBmc], object]:
    """Do *steps* one after the other."""

    def inject(machine: SimulatedBmc) -> None:
        for step in steps:
            step(machine)

    return inject


def kill_supply(number: int) -> Callable[[SimulatedBmc], object]:
    """Have the BMC say that a supply is there, and failed."""
    return lambda bmc: bmc.set_bits(f"PS{number} Status", 0, 1)


STATES = (
    ChassisFault(
        "a power supply failed",
        lambda m: m.set_bits("PS2 Status", 0, 1, log=True),
        *(FAIL, INSPECT, "PSU 2: failed (Presence detected, Power Supply Failure detected)"),
    ),
    ChassisFault(
        "a power supply has no input: its cable is out, or its feed is off",
        lambda m: m.set_bits("PS2 Status", 0, 1, 3, log=True),
        *(FAIL, INSPECT, "PSU 2: has no input power"),
    ),
    ChassisFault(
        "two of four power supplies have no input",
        several(
            lambda m: m.set_bits("PS1 Status", 0, 3),
            lambda m: m.set_bits("PS2 Status", 0, 3),
            lambda m: m.set_bits("PS Redundancy", 5),
        ),
        *(FAIL, INSPECT, "PSU 1, PSU 2: has no input power"),
    ),
    ChassisFault(
        "a power supply expects to fail",
        lambda m: m.set_bits("PS3 Status", 0, 2),
        *(WARN, REPLACE, "PSU 3: expects to fail"),
    ),
    ChassisFault(
        "the input of a power supply is out of range",
        lambda m: m.set_bits("PS3 Status", 0, 5),
        *(WARN, INSPECT, "PSU 3: has an input out of range"),
    ),
    ChassisFault(
        "a power supply does not fit the others",
        lambda m: m.set_bits("PS3 Status", 0, 6),
        *(WARN, INSPECT, "PSU 3: does not fit the others"),
    ),
    ChassisFault(
        "a power supply that was there is gone",
        lambda m: m.set_bits("PS4 Status"),
        *(WARN, INSPECT, "PSU 4: the power supply is gone"),
    ),
    ChassisFault(
        "the BMC calls all power supplies dead, and the node runs",
        several(*map(kill_supply, (1, 2, 3, 4))),
        *(WARN, INSPECT, "node: the BMC calls every power supply dead"),
    ),
    ChassisFault(
        "redundancy of the power supplies is lost, though each looks well",
        lambda m: m.set_bits("PS Redundancy", 1),
        *(FAIL, INSPECT, "PS Redundancy: can lose no more of its parts"),
    ),
    ChassisFault(
        "redundancy of the fans is lost, though each looks well",
        lambda m: m.set_bits("Fan Redundancy", 1),
        *(FAIL, INSPECT, "Fan Redundancy: can lose no more of its parts"),
    ),
    ChassisFault(
        "redundancy is less than before",
        lambda m: m.set_bits("PS Redundancy", 2),
        *(WARN, INSPECT, "PS Redundancy: has less to spare than before"),
    ),
    ChassisFault(
        "a fan is critically slow",
        lambda m: m.set_value("FAN3", 4, log=True),
        *(FAIL, REPLACE, "FAN3: turns at 400 RPM, critical below 500"),
    ),
    ChassisFault(
        "a fan that turned stands still",
        lambda m: m.set_value("FAN3", 0, log=True),
        *(FAIL, REPLACE, "FAN3: turns at 0 RPM, critical below 500"),
    ),
    ChassisFault(
        "a fan is slower than it should be",
        lambda m: m.set_value("FAN3", 6),
        *(WARN, INSPECT, "FAN3: turns at 600 RPM, a warning below 700"),
    ),
    ChassisFault(
        "a temperature is critical",
        lambda m: m.set_value("CPU1 Temp", 96),
        *(FAIL, INSPECT, "CPU1 Temp: is at 96 °C, critical from 95"),
    ),
    ChassisFault(
        "a temperature is high",
        lambda m: m.set_value("CPU1 Temp", 91),
        *(WARN, INSPECT, "CPU1 Temp: is at 91 °C, a warning from 90"),
    ),
    ChassisFault(
        "the air of the room is too hot, and so is the node",
        several(
            lambda m: m.set_value("Inlet Temp", 43, log=True),
            lambda m: m.set_value("CPU1 Temp", 96),
        ),
        *(WARN, INSPECT, "Inlet Temp: is at 43 °C, critical from 42: this is the air of the room"),
    ),
    ChassisFault(
        "the battery of the board runs down",
        lambda m: m.set_value("VBAT", 25),
        *(WARN, REPLACE, "VBAT: runs down (2.5 V"),
    ),
    ChassisFault(
        "a voltage is critical",
        lambda m: m.set_value("12V", 105),
        *(WARN, INSPECT, "12V: 10.5 V, critical below 11.1"),
    ),
    ChassisFault(
        "a drive failed",
        lambda m: m.set_bits("Drive 1", 0, 1),
        *(FAIL, REPLACE, "Drive 1: the BMC says Drive Presence, Drive Fault"),
    ),
    ChassisFault(
        "a drive expects to fail",
        lambda m: m.set_bits("Drive 1", 0, 2),
        *(WARN, INSPECT, "Drive 1: the BMC says Drive Presence, Predictive Failure"),
    ),
    ChassisFault(
        "a leak detector detects a leak",
        lambda m: m.set_bits("Leak_Det_0", 2, log=True),
        *(FAIL, INSPECT, "Leak_Det_0: the BMC says transition to Critical from less severe"),
    ),
    ChassisFault(
        "a leak detector detects a small leak",
        lambda m: m.set_bits("Leak_Det_0", 1),
        *(WARN, INSPECT, "Leak_Det_0: the BMC says transition to Non-Critical from OK"),
    ),
    ChassisFault(
        "a power supply goes into standby",
        lambda m: m.set_bits("PS2 Status", 0, 7, log=True),
        *(PASS, Remedy.NONE, ""),
    ),
)
"""What stays as it is until it is repaired or accepted."""


def blink(name: str, times: int) -> Callable[[SimulatedBmc], object]:
    """Let a fan stand still and turn again."""

    def inject(machine: SimulatedBmc) -> None:
        for _ in range(times):
            machine.set_value(name, 2, log=True)
            machine.set_value(name, 90, log=True)

    return inject


def log(kind: int, offset: int, times: int = 1) -> Callable[[SimulatedBmc], object]:
    """Log an event of a sensor that cannot be read."""

    def add(bmc: SimulatedBmc) -> None:
        bmc.add_event(kind, offset)

    return several(*[add] * times)


EVENTS = (
    ChassisFault(
        "the log has an uncorrected error of memory",
        log(bmc.MEMORY, 1),
        *(FAIL, INSPECT, "memory lost data"),
        conclusive=True,
    ),
    ChassisFault(
        "the log has corrected errors of memory",
        log(bmc.MEMORY, 0, 3),
        *(PASS, Remedy.NONE, ""),
    ),
    ChassisFault(
        "the log has very many corrected errors of memory",
        log(bmc.MEMORY, 0, 10),
        *(WARN, INSPECT, "memory corrected errors (10 entries"),
    ),
    ChassisFault(
        "a processor stopped with an internal error (IERR)",
        log(bmc.PROCESSOR, 0),
        *(FAIL, INSPECT, "a processor stopped with an internal"),
        conclusive=True,
    ),
    ChassisFault(
        "a processor switched off because of heat (thermal trip)",
        log(bmc.PROCESSOR, 1),
        *(FAIL, INSPECT, "switched off because of heat"),
        conclusive=True,
    ),
    ChassisFault(
        "a machine check that was not corrected",
        log(bmc.PROCESSOR, 11),
        *(FAIL, INSPECT, "a machine check error"),
        conclusive=True,
    ),
    ChassisFault(
        "the processors do not fit each other or the board",
        log(bmc.PROCESSOR, 5),
        *(WARN, INSPECT, "the processors do not fit each other or the board"),
    ),
    ChassisFault(
        "a fatal error of PCIe",
        log(bmc.INTERRUPT, 10),
        *(FAIL, INSPECT, "a bus had a fatal error"),
        conclusive=True,
    ),
    ChassisFault(
        "the power unit failed",
        log(bmc.UNIT, 6),
        *(FAIL, INSPECT, "the power unit failed"),
    ),
    ChassisFault(
        "a power supply without a sensor failed",
        log(bmc.SUPPLY, 1),
        *(FAIL, INSPECT, "Power Supply #153: a power supply failed"),
    ),
    ChassisFault(
        "a fan failed and turns again",
        blink("FAN3", 1),
        *(PASS, Remedy.NONE, ""),
    ),
    ChassisFault(
        "a fan failed and turned again three times",
        blink("FAN3", 3),
        *(WARN, REPLACE, "FAN3: a fan failed"),
    ),
    ChassisFault(
        "a power supply lost its input and has it again",
        several(
            lambda m: m.set_bits("PS2 Status", 0, 3, log=True),
            lambda m: m.set_bits("PS2 Status", 0, log=True),
        ),
        *(PASS, Remedy.NONE, ""),
    ),
    ChassisFault(
        "the node was switched off, lost all power, and started again",
        several(log(bmc.UNIT, 0), log(bmc.UNIT, 4), log(0x0F, 2)),
        *(PASS, Remedy.NONE, ""),
    ),
    ChassisFault("the chassis was opened", log(0x05, 0), *(PASS, Remedy.NONE, "")),
)
"""What has been: the next run tells it no more."""

FULL = ChassisFault(
    "the event log is full",
    lambda _machine: None,
    *(WARN, CONFIGURE, "the event log is full"),
)
HUNG = ChassisFault(
    "the BMC never answers",
    lambda m: m.stop(),
    *(ERROR, INSPECT, "did not respond within", Cause.HUNG),
)
"""Their tests have a BMC of their own."""
CHASSIS_FAULTS = (*STATES, *EVENTS)
