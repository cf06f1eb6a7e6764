"""What a BMC says of the chassis: faults of a live simulator are told, and good ones are not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcverify.check import Context, Skip, Unable
from hpcverify.model import CarryOver, Cause, CheckItem, Coverage, Fact, Verdict
from hpcverify.telemetry.chassis import ChassisEvent, EventLog, SensorKind
from hpcverify.testing import INVENTORY, judge_items, list_codes, list_findings, make_context
from hpcverify_checks import chassis
from hpcverify_checks.chassis import CHECK, ChassisParams, ChassisSeams
from hpcverify_checks.chassis.events import (
    PARTS,
    ROWS,
    UNNAMED_CODE,
    find_row,
    make_mark,
    select_new,
)
from tests import bmc
from tests.bmc import HEALTHY, SimulatedBmc, a_fan, a_state, a_supply
from tests.checks.chassis_faults import CHASSIS_FAULTS, FULL, HUNG, STATES, ChassisFault
from tests.waiting import PATIENCE_S

Marks = dict[tuple[str, str], CarryOver]


class Node:
    """A node whose BMC is looked at again and again."""

    def __init__(self, folder: Path, kept: Marks | None = None) -> None:
        """Give it a /dev/ipmi0 below *folder*; *kept* is what an earlier run remembered."""
        self.folder = folder
        self.root = folder / "root"
        (self.root / "dev").mkdir(parents=True)
        (self.root / "dev/ipmi0").touch()
        self.kept = dict(kept or {})
        self.is_known = bool(kept)

    def look(self, *, accept: bool = False, patience: float = PATIENCE_S) -> list[CheckItem]:
        """Ask the BMC of the PATH, as one more run does."""
        ctx: Context = make_context(
            self.folder,
            previous=INVENTORY if self.is_known and not accept else None,
            carry_overs=tuple(self.kept.values()),
        )
        self.is_known = True
        found: list[CheckItem] = []
        try:
            seams = ChassisSeams(root=self.root)
            found.extend(chassis.inspect(ctx, ChassisParams(patience=patience), seams))
        finally:
            self.kept |= {(m.name, m.part_id): m for m in found if isinstance(m, CarryOver)}
        return found


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedBmc]:
    """Start one BMC for most tests: it takes a while."""
    machine = SimulatedBmc(tmp_path_factory.mktemp("bmc"))
    yield machine
    machine.close()


@pytest.fixture
def healthy(simulator: SimulatedBmc, monkeypatch: pytest.MonkeyPatch) -> SimulatedBmc:
    """Lead FreeIPMI to the BMC, in which all is well."""
    monkeypatch.setenv("PATH", f"{simulator.program}:{os.environ['PATH']}")
    simulator.heal()
    return simulator


@pytest.fixture(scope="module")
def well(simulator: SimulatedBmc, tmp_path_factory: pytest.TempPathFactory) -> Marks:
    """Give what a run remembers of the BMC in which all is well: it is the same each time."""
    simulator.heal()
    node = Node(tmp_path_factory.mktemp("well"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{simulator.program}:{os.environ['PATH']}")
        node.look()
    return node.kept


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SimulatedBmc]]:
    """Give a list for BMCs of a test's own; they are ended."""
    machines: list[SimulatedBmc] = []
    monkeypatch.chdir(tmp_path)
    yield machines
    for machine in machines:
        machine.go_on()
        machine.close()


def start(
    own: list[SimulatedBmc], monkeypatch: pytest.MonkeyPatch, *sensors: bmc.SimulatedSensor
) -> SimulatedBmc:
    machine = SimulatedBmc(Path.cwd() / f"bmc{len(own)}", sensors or HEALTHY, len(own))
    own.append(machine)
    path = os.environ["PATH"].split(":")
    outside = [place for place in path if "/bmc" not in place]
    monkeypatch.setenv("PATH", ":".join([str(machine.program), *outside]))
    machine.heal()
    return machine


def test_a_healthy_node_gets_no_fault(healthy: SimulatedBmc, tmp_path: Path) -> None:
    node = Node(tmp_path)
    looks = [node.look() for _ in range(3)]
    for found in looks:
        assert list_codes(found) == []
        assert judge_items(CHECK, found).verdict is Verdict.PASS
    said = [c.text for c in looks[-1] if isinstance(c, Coverage)]
    assert "19 sensors, 4 fans, 4 power supplies" in said[0]
    assert healthy.process.poll() is None


def test_the_firmware_of_the_bmc_is_told_as_a_fact(healthy: SimulatedBmc, tmp_path: Path) -> None:
    found = Node(tmp_path).look()

    (fact,) = [item for item in found if isinstance(item, Fact)]
    assert fact.name == "BMC firmware"
    assert any(f"firmware {fact.value}" in c.text for c in found if isinstance(c, Coverage))
    assert healthy.process.poll() is None


@pytest.mark.parametrize("fault", CHASSIS_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_reported_as_the_table_says_until_it_is_over(
    healthy: SimulatedBmc, tmp_path: Path, well: Marks, fault: ChassisFault
) -> None:
    node = Node(tmp_path, well)
    fault.inject(healthy)

    found = node.look()
    judgement = judge_items(CHECK, found)
    assert judgement.verdict is fault.verdict, judgement.reason
    assert fault.says in judgement.reason
    if fault.verdict > Verdict.PASS:
        assert judgement.remedy is fault.remedy
    rules = [CHECK.finding_rules[code] for code in list_codes(found)]
    assert any(rule.conclusive for rule in rules) == fault.conclusive

    if fault in STATES:
        healthy.heal()
    over = judge_items(CHECK, node.look())
    assert over.verdict is Verdict.PASS, over.reason


def test_a_fault_stands_as_long_as_its_sensor_shows_it(
    healthy: SimulatedBmc, tmp_path: Path
) -> None:
    node = Node(tmp_path)
    node.look()
    healthy.set_value("FAN3", 2, log=True)
    for _ in range(3):
        assert "fan_failed" in list_codes(node.look())


def test_one_cause_is_told_once(healthy: SimulatedBmc, tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.look()
    healthy.set_bits("PS2 Status", 0, 1, log=True)
    healthy.set_bits("PS Redundancy", 1, log=True)
    found = node.look()
    grave = [c for c in list_codes(found) if CHECK.finding_rules[c].verdict > Verdict.PASS]
    assert grave == ["supply_failed"]
    assert sorted(set(list_codes(found)) - set(grave)) == [
        "redundancy_lost_event_over",
        "supply_failed_event_over",
    ]


def test_an_event_of_last_year_does_not_fail_a_node_that_is_new_to_us(
    healthy: SimulatedBmc, tmp_path: Path
) -> None:
    healthy.add_event(bmc.MEMORY, 1)
    healthy.clock += 365 * 86400
    healthy.set_clock()
    node = Node(tmp_path)
    found = node.look()
    assert list_codes(found) == ["before_first_run"]
    assert judge_items(CHECK, found).verdict is Verdict.PASS
    assert list_codes(node.look()) == []


def test_the_first_run_takes_the_last_day(healthy: SimulatedBmc, tmp_path: Path) -> None:
    healthy.add_event(bmc.MEMORY, 1)
    healthy.clock += 3600
    healthy.set_clock()
    assert list_codes(Node(tmp_path).look()) == ["memory_uncorrectable"]


def test_a_clock_that_was_never_set_neither_loses_an_event_nor_brings_one_back(
    tmp_path: Path, own: list[SimulatedBmc], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = start(own, monkeypatch)
    machine.restart()  # its clock starts at zero
    machine.add_event(bmc.PROCESSOR, 0)
    node = Node(tmp_path)
    assert list_codes(node.look()) == ["before_first_run"]
    machine.add_event(bmc.MEMORY, 1)
    assert list_codes(node.look()) == ["memory_uncorrectable"]
    machine.set_clock()
    assert list_codes(node.look()) == []


def test_after_the_log_was_cleared_new_events_count_and_old_ones_do_not(
    healthy: SimulatedBmc, tmp_path: Path
) -> None:
    node = Node(tmp_path)
    healthy.add_event(bmc.MEMORY, 1)
    healthy.add_event(bmc.MEMORY, 0)
    node.look()
    healthy.heal()
    assert list_codes(node.look()) == []
    healthy.add_event(bmc.PROCESSOR, 0)
    healthy.heal()
    healthy.add_event(bmc.PROCESSOR, 1)
    assert list_codes(node.look()) == ["processor_thermal_trip"]
    assert list_codes(node.look()) == []


def test_the_log_of_another_board_is_read_as_for_the_first_time(
    tmp_path: Path, own: list[SimulatedBmc], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    start(own, monkeypatch)
    node.look()
    other = start(own, monkeypatch)
    other.add_event(bmc.MEMORY, 1)
    other.clock += 30 * 86400
    other.set_clock()
    other.add_event(bmc.PROCESSOR, 1)
    found = node.look()
    assert list_codes(found) == ["processor_thermal_trip", "before_first_run"]


def an_event(number: int, moment: float | None, text: str = "Uncorrectable ECC") -> ChassisEvent:
    return ChassisEvent(id=f"{number:x}", time=moment, sensor="Memory", subject="Memory", text=text)


def test_a_tool_that_words_the_log_anew_brings_no_event_back() -> None:
    old = EventLog(identity="a", events=(an_event(1, 1e9), an_event(2, 1e9 + 5)))
    worded = EventLog(
        identity="a", events=(an_event(1, 1e9, "x"), an_event(2, 1e9 + 5, "x"), an_event(3, 2e9))
    )
    part = select_new(worded, make_mark(old))
    assert [event.id for event in part.new] == ["3"]


def test_a_log_that_is_numbered_anew_brings_no_event_back() -> None:
    old = EventLog(identity="a", events=(an_event(1, 1e9), an_event(2, 1e9 + 5)))
    moved = EventLog(identity="a", events=(an_event(1, 1e9 + 5), an_event(2, 1e9 + 9)))
    assert [event.time for event in select_new(moved, make_mark(old)).new] == [1e9 + 9]


def test_entries_long_before_the_mark_are_old_even_if_the_mark_is_gone() -> None:
    old = EventLog(identity="a", events=(an_event(9, 1e9),))
    strange = EventLog(identity="a", events=(an_event(1, 9e8), an_event(2, 1e9 + 5)))
    part = select_new(strange, make_mark(old))
    assert ([e.id for e in part.new], [e.id for e in part.older]) == (["2"], ["1"])


def test_a_log_of_which_entries_are_missing_is_not_read_as_cleared(
    healthy: SimulatedBmc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    for _ in range(3):
        healthy.add_event(bmc.MEMORY, 1)
    node.look()
    short = tmp_path / "bin"
    short.mkdir()
    program = short / "ipmi-sel"
    first = "0,/,Memory,/{/,Memory,/d}"
    program.write_text(f'#!/bin/sh\n{healthy.program}/ipmi-sel "$@" | sed "{first}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{short}:{os.environ['PATH']}")
    found = node.look()
    assert list_codes(found) == ["log_unread"]
    assert judge_items(CHECK, found).verdict is Verdict.ERROR
    monkeypatch.setenv("PATH", f"{healthy.program}:{os.environ['PATH']}")
    assert list_codes(node.look()) == []


def test_the_table_of_events_is_sound() -> None:
    for row in ROWS.values():
        for pattern in (row.subject, row.pattern, row.ids, row.words):
            re.compile(pattern)
        assert row.meaning
        assert re.match("IPMI 2.0|Redfish|HPE|iLO", row.source)
        assert bool(row.pattern or row.words) is (row.code != UNNAMED_CODE)
        assert set(row.kind) <= {kind.value for kind in (*PARTS, SensorKind.OTHER)}
        assert row.kind or not row.lasting
        assert row.fix or row.verdict is Verdict.PASS
        assert not row.conclusive or row.verdict is Verdict.FAIL
        assert not (row.conclusive and row.lasting)


@pytest.mark.parametrize(
    ("subject", "text", "code"),
    [
        ("Power Supply", "Power Supply AC lost", "supply_input_event"),
        ("Power Supply / Converter", "Power supply redundancy is lost.", "redundancy_lost_event"),
        ("Power Supply", "Config Error: Vendor Mismatch", "supply_configuration_event"),
        ("Fan", "Lower Non-recoverable going low", "fan_event"),
        ("Memory", "Uncorrectable ECC (UnCorrectable ECC |  DIMMD7)", "memory_uncorrectable"),
        ("Memory", "Correctable ECC logging limit reached", "memory_error_limit"),
        ("Drive Slot / Bay", "In Failed Array", "drive_failed_event"),
        ("Critical Interrupt", "PCI SERR", "bus_fatal"),
        ("Watchdog2", "Hard reset", "watchdog_reset"),
        ("OS Critical Stop", "Run-time critical stop: Fatal excep", "system_stopped"),
        ("Power Supply", "Power Supply input lost (AC/DC)", "supply_input_event"),
        ("Power Supply", "Power Supply input lost or out-of-range", "supply_input_event"),
        (
            *("Power Supply", "Power Supply input out-of-range, but present"),
            "supply_input_range_event",
        ),
        ("Power Unit", "Power Unit Failure detected", "power_unit_failed"),
        ("Power Unit", "AC lost/Power input lost", "power_lost"),
        ("Power Unit", "Non-redundant:Insufficient Resources", "redundancy_lost_event"),
        ("Processor", "Machine Check Exception", "processor_error"),
        ("Processor", "Correctable Machine Check Error", "processor_corrected"),
        ("Memory", "Correctable memory error", "memory_correctable"),
        ("Memory", "Correctable memory error logging limit reached", "memory_error_limit"),
        ("Critical Interrupt", "Bus Fatal Error", "bus_fatal"),
        ("Battery", "Battery low", "battery_event"),
        ("Event Logging Disabled", "SEL Almost Full", "log_full_event"),
        ("Leak Detector", "transition to Non-Critical from OK", "leak_warning_event"),
        ("Leak Detector", "transition to OK", None),
        ("Cooling Device", "transition to Critical from less severe", "fan_event"),
        ("Power Supply", "Power Supply Inactive (in standby state)", None),
        ("Power Supply", "transition to OK", None),
        ("OS Critical Stop", "OS graceful shutdown", None),
        ("Fan", "Lower Critical going high", None),
        ("Drive Slot / Bay", "Drive Present", None),
        ("Event Logging Disabled", "Log area reset/cleared", None),
        ("Critical Interrupt", "NMI/Diag Interrupt", None),
        ("Memory", "Predictive Failure Deasserted", None),
        ("Power Supply", "Predictive Failure Deasserted", None),
        ("Physical Security", "General Chassis intrusion", None),
    ],
)
def test_an_event_means_what_its_row_says(subject: str, text: str, code: str | None) -> None:
    event = ChassisEvent(id="1", time=None, sensor="Part 1 Failure", subject=subject, text=text)
    row = find_row(event)
    assert (row.code if row else None) == code


def test_a_full_log_is_told_with_the_command_and_never_cleared(
    tmp_path: Path, own: list[SimulatedBmc], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = start(own, monkeypatch)
    machine.tell("sel_enable 0x20 4 0x0a")
    node = Node(tmp_path)
    node.look()
    for _ in range(4):
        machine.add_event(bmc.MEMORY, 0)
    found = node.look()
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (FULL.verdict, FULL.remedy)
    assert FULL.says in judgement.reason
    assert "ipmi-sel --clear" in judgement.reason
    assert any("of 4" in c.text for c in found if isinstance(c, Coverage))
    assert judge_items(CHECK, node.look()).verdict is Verdict.WARN


def test_a_bmc_that_hangs_is_named_and_nothing_is_lost(
    tmp_path: Path, own: list[SimulatedBmc], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = start(own, monkeypatch)
    node = Node(tmp_path)
    node.look()
    before = dict(node.kept)
    HUNG.inject(machine)
    with pytest.raises(
        Unable, match=r"the BMC at \S+/dev/ipmi0 did not respond within 1 s"
    ) as told:
        node.look(patience=1)
    assert (told.value.cause, told.value.remedy) == (HUNG.cause, HUNG.remedy)
    assert node.kept == before

    machine.go_on()
    machine.add_event(bmc.MEMORY, 1)
    assert list_codes(node.look()) == ["memory_uncorrectable"]


def test_a_bmc_that_is_dead_is_an_error_and_not_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/bin")
    # The real FreeIPMI finds no BMC behind the device, on this machine.
    with pytest.raises(Unable, match="does not respond") as told:
        Node(tmp_path).look()
    assert told.value.cause is Cause.HUNG


def test_a_node_without_a_bmc_is_skipped(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (node.root / "dev/ipmi0").unlink()
    # Without -a, modprobe(8) takes the second name for a parameter of the first module.
    with pytest.raises(Skip, match=r"no /dev/ipmi0.*modprobe -a ipmi_devintf ipmi_si") as told:
        node.look()
    assert told.value.cause is Cause.NOT_OBSERVABLE


def test_a_bmc_that_can_be_asked_no_more_is_an_error(healthy: SimulatedBmc, tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.look()
    (node.root / "dev/ipmi0").unlink()
    with pytest.raises(Unable, match="no /dev/ipmi0"):
        node.look()
    assert healthy.process.poll() is None


def test_without_freeipmi_the_check_is_skipped_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Skip, match="apt-get install freeipmi-tools"):
        Node(tmp_path).look()


@pytest.mark.system
def test_a_half_populated_chassis_is_told_until_it_is_accepted(
    tmp_path: Path, own: list[SimulatedBmc], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = start(own, monkeypatch)
    machine.set_value("FAN4", 0)
    machine.set_bits("PS Redundancy", 5)
    node = Node(tmp_path)
    for _ in range(2):
        found = node.look()
        assert sorted(list_codes(found)) == ["fan_still", "redundancy_none"]
        assert judge_items(CHECK, found).verdict is Verdict.WARN
    assert list_codes(node.look(accept=True)) == []
    assert list_codes(node.look()) == []
    machine.set_value("FAN3", 0)
    assert list_codes(node.look()) == ["fan_failed"]


@pytest.mark.parametrize(
    "sensor",
    [
        bmc.SimulatedSensor(
            "CPU1 Temp", 0x41, bmc.TEMPERATURE, (3, 1), 45, unit=1, has_zero_bounds=True
        ),
        bmc.SimulatedSensor("FAN1", 0x41, bmc.FAN, (29, 1), 90, bounds=(0, 1, 2, 0, 0, 0), unit=18),
        bmc.SimulatedSensor(
            "VRM Temp", 0x42, bmc.TEMPERATURE, (7, 1), 60, bounds=(70, 65, 50, 60, 80, 90), unit=1
        ),
    ],
    ids=["thresholds of zero", "a fan above an upper threshold", "low above high"],
)
def test_thresholds_that_cannot_be_true_accuse_nobody(
    tmp_path: Path,
    own: list[SimulatedBmc],
    monkeypatch: pytest.MonkeyPatch,
    sensor: bmc.SimulatedSensor,
) -> None:
    start(own, monkeypatch, sensor, a_supply(1, 0), a_supply(2, 0))
    found = Node(tmp_path).look()
    assert set(list_codes(found)) <= {"sensor_noted"}
    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_sensors_of_one_name_are_told_apart(
    tmp_path: Path, own: list[SimulatedBmc], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dell calls every power supply ``Status`` and every processor ``Temp``."""
    supplies = [
        bmc.SimulatedSensor("Status", 0x85 + n, bmc.SUPPLY, (10, n), None, (0,), event_type=0x6F)
        for n in (1, 2)
    ]
    start(own, monkeypatch, *supplies, a_fan(1), a_state("Intrusion", 0x73, 5, 0))
    node = Node(tmp_path)
    assert list_codes(node.look()) == []
    own[-1].tell("sensor_set_bit 0x20 0 0x87 1 1 1")
    failed = [f for f in list_findings(node.look()) if f.code == "supply_failed"]
    assert [f.part_id for f in failed] == ["PSU 2"]
