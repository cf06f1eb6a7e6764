"""Parts and events as the BMCs of HPE, Dell and NVIDIA show them, judged over Redfish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcverify.model import CarryOver, CheckItem, Finding, Remedy, Verdict
from hpcverify.telemetry.redfish.client import Unreadable
from hpcverify.telemetry.redfish.walk import read_service
from hpcverify.testing import INVENTORY, judge_items, list_codes, list_findings, make_context
from hpcverify_checks.chassis import CHECK, ChassisParams, interpret
from tests.redfish_lab.resources import OK, make_collection, make_link
from tests.redfish_lab.vendors import CRITICAL, OFFLINE, VENDORS, VendorBmc

EACH_VENDOR = pytest.mark.parametrize("vendor", VENDORS)
WARNING = {"State": "Enabled", "Health": "Warning"}


class Watch:
    """Runs of the check on one BMC, one after the other."""

    def __init__(self, bmc: VendorBmc, folder: Path) -> None:
        self.bmc, self.folder = bmc, folder
        self.kept: dict[tuple[str, str], CarryOver] = {}
        self.look()

    def look(self) -> list[CheckItem]:
        reading = read_service(self.bmc, "bmc")
        assert reading.unreadable == ()
        ctx = make_context(
            self.folder,
            previous=INVENTORY if self.kept else None,
            carry_overs=tuple(self.kept.values()),
        )
        found = list(interpret(reading.chassis, ctx, ChassisParams()))
        self.kept |= {(m.name, m.part_id): m for m in found if isinstance(m, CarryOver)}
        return found


def find_faults(found: list[CheckItem], verdict: Verdict = Verdict.WARN) -> list[Finding]:
    return [f for f in list_findings(found) if CHECK.finding_rules[f.code].verdict >= verdict]


@pytest.fixture
def watch(vendor: str, tmp_path: Path) -> Watch:
    return Watch(VENDORS[vendor](), tmp_path)


@EACH_VENDOR
def test_a_healthy_tree_passes_in_all_runs(watch: Watch) -> None:
    for _ in range(3):
        assert find_faults(watch.look()) == []


FAULTS: Mapping[str, tuple[str, Mapping[str, Any], str, Remedy]] = {
    "a failed supply": ("supply", {"Status": CRITICAL}, "supply_failed", Remedy.INSPECT),
    "an offline supply": ("supply", {"Status": OFFLINE}, "supply_input_lost", Remedy.INSPECT),
    "a supply without volts": (
        *("supply", {"Status": CRITICAL, "LineInputVoltage": 0}),
        *("supply_input_lost", Remedy.INSPECT),
    ),
    "a supply that reports a lost input": (
        *("supply", {"Status": OK, "LineInputStatus": "LossOfInput"}),
        *("supply_input_lost", Remedy.INSPECT),
    ),
    "a failed fan": (
        *("fan", {"Status": CRITICAL, "Reading": 0, "SpeedPercent": {"SpeedRPM": 0}}),
        *("fan_failed", Remedy.REPLACE),
    ),
    "a failed drive": ("drive", {"Status": CRITICAL}, "drive_failed", Remedy.REPLACE),
    "an offline drive": ("drive", {"Status": OFFLINE}, "drive_failed", Remedy.REPLACE),
    "a failed DIMM": ("dimm", {"Status": CRITICAL}, "memory_failed", Remedy.INSPECT),
    "a failed CPU": ("cpu", {"Status": CRITICAL}, "processor_failed", Remedy.INSPECT),
    "a failed GPU": ("gpu", {"Status": CRITICAL}, "gpu_failed", Remedy.INSPECT),
    "a leak": ("leak", {"DetectorState": "Critical"}, "leak_detected", Remedy.INSPECT),
}


@pytest.mark.parametrize(
    ("vendor", "fault"),
    [(v, f) for v, make in VENDORS.items() for f in FAULTS if FAULTS[f][0] in make().parts],
)
def test_a_part_that_the_bmc_calls_critical_fails_by_its_name(watch: Watch, fault: str) -> None:
    kind, changes, code, remedy = FAULTS[fault]
    resource, name = watch.bmc.parts[kind]
    resource |= changes

    found = watch.look()

    (finding,) = find_faults(found, Verdict.FAIL)
    assert (finding.code, finding.part_id) == (code, name)
    assert judge_items(CHECK, found).remedy is remedy
    resource["Status"] = dict(OK)
    resource |= {"DetectorState": "OK", "LineInputStatus": "Normal", "Reading": 9000}
    assert find_faults(watch.look()) == []


@pytest.mark.parametrize(
    ("vendor", "kind"),
    [(v, kind) for v, make in VENDORS.items() for kind in make().parts if kind != "fan"],
)
def test_a_part_of_which_the_bmc_warns_warns(watch: Watch, kind: str) -> None:
    resource, name = watch.bmc.parts[kind]
    resource["Status"] = dict(WARNING)

    found = watch.look()

    assert [f.part_id for f in find_faults(found)] == [name]
    assert judge_items(CHECK, found).verdict is Verdict.WARN


@pytest.mark.parametrize("kind", ["drive", "dimm", "cpu", "gpu"])
@pytest.mark.parametrize("state", ["Absent", "Disabled", "Deferring"])
@EACH_VENDOR
def test_a_part_that_is_absent_or_taken_out_of_use_is_not_a_fault(
    watch: Watch, kind: str, state: str
) -> None:
    watch.bmc.parts[kind][0]["Status"] = {"State": state, "Health": "Critical"}

    assert find_faults(watch.look()) == []


@pytest.mark.parametrize(
    "status",
    [
        *({"State": s, "Health": "OK"} for s in ("Sleep", "Quiesced", "StandbySpare", "Qualified")),
        *({"State": s, "Health": None} for s in ("StandbyOffline", "Starting", "Enabled")),
    ],
    ids=lambda status: status["State"],
)
@EACH_VENDOR
def test_a_supply_with_any_state_but_absent_is_there(
    watch: Watch, status: Mapping[str, Any]
) -> None:
    watch.bmc.parts["supply"][0]["Status"] = status

    for _ in range(3):
        assert find_faults(watch.look()) == []


OTHER_FIELDS: list[tuple[str, str, Mapping[str, Any], str]] = [
    # An iLO 5 gives a DIMM that it took out of use no Status: MauveSoftware/ilo_exporter issue
    # 18, HewlettPackard/python-ilorest-library issue 97.
    *(
        ("HPE iLO 5", "dimm", {"Status": None, "Oem": {"Hpe": {"DIMMStatus": s}}}, "memory_warning")
        for s in ("MapOutConfiguration", "DegradedInUse")
    ),
    # HealthRollup and StatusIndicator are of DSP0268.
    (
        *("OpenBMC", "gpu", {"Status": {"State": "Enabled", "HealthRollup": "Critical"}}),
        "gpu_warning",
    ),
    ("Dell iDRAC 9", "drive", {"StatusIndicator": "Fail"}, "drive_predicted"),
    # A detector that does not work: NVIDIA/infra-controller issue 4821 and pull request 4822.
    ("OpenBMC", "leak", {"DetectorState": "Critical", "Status": OFFLINE}, "leak_warning"),
    ("OpenBMC", "leak", {"DetectorState": "OK", "Status": CRITICAL}, "leak_warning"),
]


@pytest.mark.parametrize(("vendor", "kind", "changes", "code"), OTHER_FIELDS)
def test_a_part_whose_health_is_in_another_field_warns(
    watch: Watch, kind: str, changes: Mapping[str, Any], code: str
) -> None:
    resource, name = watch.bmc.parts[kind]
    resource |= changes

    found = watch.look()

    assert [(f.code, f.part_id) for f in find_faults(found)] == [(code, name)]
    assert judge_items(CHECK, found).verdict is Verdict.WARN


@pytest.mark.parametrize("write", [str.upper, str.lower])
@pytest.mark.parametrize("kind", ["supply", "drive", "dimm", "cpu", "gpu"])
@EACH_VENDOR
def test_the_case_of_health_and_state_does_not_matter(
    watch: Watch, kind: str, write: Callable[[str], str]
) -> None:
    resource, name = watch.bmc.parts[kind]
    resource["Status"] = {key: write(word) for key, word in CRITICAL.items()}
    assert [f.part_id for f in find_faults(watch.look(), Verdict.FAIL)] == [name]

    resource["Status"] = {"State": write("Disabled"), "Health": write("Critical")}
    assert find_faults(watch.look()) == []


@pytest.mark.parametrize("vendor", ["Dell iDRAC 9"])
def test_a_temperature_without_a_reading_is_listed_and_explains_nothing(watch: Watch) -> None:
    tree, system = watch.bmc.tree, "System.Embedded.1"
    one = {"Name": "CPU1 Temp", "ReadingCelsius": None, "Status": dict(CRITICAL)}
    tree[f"Chassis/{system}/Thermal"]["Temperatures"] = [one]
    found = watch.look()
    assert [f.part_id for f in list_findings(found) if f.code == "sensor_noted"] == ["CPU1 Temp"]
    assert find_faults(found) == []

    tree[f"Systems/{system}"]["Status"] = dict(CRITICAL)
    assert [f.code for f in find_faults(watch.look())] == ["health_unexplained"]


HOT = {"ReadingCelsius": 99, "Status": CRITICAL}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        # Gigabyte calls all its temperatures Intake, Dell's inlet is on the SystemBoard, and HPE
        # has one inside.
        (
            {"Name": "CPU0_TEMP", "PhysicalContext": "Intake", "UpperThresholdCritical": 97},
            "temperature_critical",
        ),
        (
            {"Name": "VR_P0_TEMP", "PhysicalContext": "Intake", "UpperThresholdCritical": 97},
            "temperature_critical",
        ),
        (
            {"Name": "11-Board Inlet", "PhysicalContext": None, "UpperThresholdCritical": 70},
            "temperature_critical",
        ),
        *(
            ({"Name": name, "PhysicalContext": context, "UpperThresholdCritical": 47}, "room_hot")
            for name, context in (
                ("System Board Inlet Temp", "SystemBoard"),
                ("01-Inlet Ambient", "Intake"),
                ("Inlet Temp", None),
                ("TEMP1", "Intake"),
            )
        ),
        # The BMC's verdict counts where it shows only its last threshold, or none, as an iLO 5
        # for "108-CPU 1 PkgTmp".
        ({"Name": "CPU1", "UpperThresholdFatal": 95}, "temperature_critical"),
        ({"Name": "108-CPU 1 PkgTmp", "UpperThresholdCritical": None}, "temperature_high"),
    ],
)
@pytest.mark.parametrize("vendor", ["Dell iDRAC 9"])
def test_a_temperature_is_judged_by_where_it_is_and_by_what_the_bmc_shows(
    watch: Watch, changes: Mapping[str, Any], code: str
) -> None:
    thermal = watch.bmc.tree["Chassis/System.Embedded.1/Thermal"]
    thermal["Temperatures"] = [{**HOT, **changes}]

    assert [(f.code, f.part_id) for f in find_faults(watch.look())] == [(code, changes["Name"])]


@pytest.mark.parametrize(
    "changes",
    [
        # A degraded array of a Dell BOSS card: sapcc/redfish-exporter pull request 5.
        {"Status": {**OK, "HealthRollup": "Warning"}},
        # A RAID controller of Lenovo without its battery: mrlhansen/idrac_exporter issue 194.
        {"StorageControllers": [{"Status": OK, "CacheSummary": {"Status": WARNING}}]},
    ],
)
@pytest.mark.parametrize("vendor", ["Dell iDRAC 9", "OpenBMC"])
def test_a_storage_whose_drives_are_healthy_warns_of_its_array_and_its_cache(
    watch: Watch, changes: Mapping[str, Any]
) -> None:
    (storage,) = [part for path, part in watch.bmc.tree.items() if path.endswith("/Storage/1")]
    storage |= changes

    assert [f.code for f in find_faults(watch.look())] == ["controller_warning"]

    watch.bmc.parts["drive"][0]["Status"] = dict(CRITICAL)
    codes = {f.code for f in find_faults(watch.look())}
    assert codes - {"controller_warning"} == {"drive_failed"}


def test_the_drives_behind_a_smart_array_are_read_beside_those_of_storage(tmp_path: Path) -> None:
    """
    An iLO 5 has its NVMe in Storage alone, and may show a drive in both.

    See bb-Ricardo/check_redfish issues 113 and 128.
    """
    bmc = VENDORS["HPE iLO 5"]()
    smart, nvme = "Systems/1/SmartStorage", bmc.parts["drive"][0]
    array = f"{smart}/ArrayControllers/0"
    drives = {name: {"Id": name, "Name": f"HDD {name}", "Status": dict(OK)} for name in "01"}
    nvme["SerialNumber"] = drives["1"]["SerialNumber"] = "S6CKNT0W700842"
    bmc.tree["Systems/1"]["Oem"] = {"Hpe": {"Links": {"SmartStorage": make_link(smart)}}}
    bmc.tree[smart] = {"Links": {"ArrayControllers": make_link(f"{smart}/ArrayControllers")}}
    bmc.tree |= make_collection(f"{smart}/ArrayControllers", ["0"])
    bmc.tree[array] = {"Id": "0", "Name": "P408i", "Status": dict(OK)}
    bmc.tree[array]["Links"] = {"PhysicalDrives": make_link(f"{array}/DiskDrives")}
    bmc.tree |= make_collection(f"{array}/DiskDrives", drives)
    bmc.tree |= {f"{array}/DiskDrives/{name}": drive for name, drive in drives.items()}
    watch = Watch(bmc, tmp_path)
    assert find_faults(watch.look()) == []

    drives["0"]["Status"] = dict(CRITICAL)
    assert [(f.code, f.part_id) for f in find_faults(watch.look())] == [("drive_failed", "HDD 0")]

    drives["0"]["Status"] = dict(OK)
    bmc.tree[array]["Status"] = dict(WARNING)
    assert [f.part_id for f in find_faults(watch.look())] == ["P408i"]

    bmc.tree[array]["Status"] = dict(OK)
    nvme["Status"] = drives["1"]["Status"] = dict(CRITICAL)
    assert [f.code for f in find_faults(watch.look())] == ["drive_failed"]


@pytest.mark.parametrize(("kind", "place"), [("drive", "/Drives/"), ("cpu", "/Processors/")])
@pytest.mark.parametrize("vendor", ["Dell iDRAC 9"])
def test_a_bmc_that_calls_all_parts_failed_that_the_node_needs_accuses_none(
    watch: Watch, kind: str, place: str
) -> None:
    """See lenovo/powershell-redfish-lenovo issue 47, and check_redfish issue 72 (Inspur)."""
    for path, part in watch.bmc.tree.items():
        if place in path and part.get("ProcessorType") != "GPU":
            part["Status"] = dict(CRITICAL)

    (finding,) = find_faults(watch.look())
    assert (finding.code, finding.part_id) == ("parts_doubtful", "node")

    watch.bmc.parts[kind][0]["Status"] = dict(OK)
    (finding,) = find_faults(watch.look())
    assert finding.code == {"drive": "drive_failed", "cpu": "processor_failed"}[kind]


@pytest.mark.parametrize("owner", ["Systems", "Chassis"])
@EACH_VENDOR
def test_an_overall_health_without_a_part_that_explains_it_warns_once(
    watch: Watch, owner: str
) -> None:
    """Several BMCs report wrong ones: gofish issue 303, check_redfish issues 127 and 200."""
    place = watch.bmc.tree[owner]["Members"][0]["@odata.id"].removeprefix("/redfish/v1/")
    watch.bmc.tree[place]["Status"] = {**OK, "Health": "Critical"}

    (finding,) = find_faults(watch.look())
    assert (finding.code, finding.part_id) == ("health_unexplained", "node")
    assert "and no part that it shows explains why" in finding.text

    watch.bmc.parts["dimm"][0]["Status"] = dict(CRITICAL)
    assert [f.code for f in find_faults(watch.look())] == ["memory_failed"]


@pytest.mark.parametrize("vendor", ["OpenBMC"])
def test_a_triggered_leak_alarm_of_a_cray_fails(watch: Watch) -> None:
    """An HPE Cray EX235n has an Alarm for each stage of a leak below ``Oem`` of its enclosure."""
    alarms = "Chassis/Chassis_0/Oem/Alarms"
    alarm = {"Id": "LeakIndicatorSustained", "AlarmState": "Armed", "Severity": "Critical"}
    watch.bmc.tree["Chassis/Chassis_0"]["Oem"] = {"Alarms": make_link(alarms)}
    watch.bmc.tree |= make_collection(alarms, [alarm["Id"]])
    watch.bmc.tree[f"{alarms}/{alarm['Id']}"] = alarm
    assert find_faults(watch.look()) == []

    alarm["AlarmState"] = "Triggered"

    found = [(f.code, f.part_id) for f in find_faults(watch.look())]
    assert found == [("leak_detected", "LeakIndicatorSustained")]


@pytest.mark.parametrize("vendor", ["OpenBMC"])
def test_leak_detectors_that_a_bmc_cannot_show_are_noted_and_not_an_error(watch: Watch) -> None:
    """NVIDIA's BlueField 2 answers HTTP 500: infra-controller issue 2066."""

    class Broken(VendorBmc):
        def get(self, path: str) -> Mapping[str, Any] | None:
            if "LeakDetection" in path:
                raise Unreadable("LeakDetection: HTTP 500")
            return super().get(path)

    bmc = watch.bmc
    reading = read_service(Broken(bmc.tree, bmc.log, bmc.parts), "bmc")

    assert reading.unreadable == ()
    assert reading.notes == ("the leak detectors cannot be read (LeakDetection: HTTP 500)",)


# -- the event log, in vendors' own words

SEL = {"EntryCode": "Assert"}
MEMBERS = {"EntryCode": [{"Member": "Assert"}]}
"""As iDRAC 8 writes it."""
ENTRIES: list[tuple[str, str, Verdict, dict[str, Any]]] = [
    # Dell: PowerEdge event and error messages.
    ("supply_input_event", "power supply", Verdict.FAIL, {"MessageId": "IDRAC.2.8.PSU0003"}),
    (
        *("supply_input_event", "PSU 2", Verdict.FAIL),
        {"Message": "The power input for power supply 2 is lost.", "MessageId": "PSU0003"},
    ),
    ("supply_failed_event", "PSU 2", Verdict.FAIL, {"Message": "Power supply 2 failed."}),
    (
        *("supply_predicted_event", "PSU 1", Verdict.WARN),
        {"Message": "A predictive failure detected on power supply 1.", "Severity": "Warning"},
    ),
    (
        *("memory_uncorrectable", "DIMM_B2", Verdict.FAIL),
        {**SEL, "SensorType": "Memory"}
        | {"Message": "Multi-bit memory errors detected on a memory device at location DIMM_B2."},
    ),
    (
        *("memory_error_limit", "DIMM_B8", Verdict.WARN),
        {"Message": "Correctable memory error rate exceeded for DIMM_B8.", "Severity": "Warning"},
    ),
    (
        *("processor_error", "CPU 1", Verdict.FAIL),
        {**SEL, "SensorType": "Processor", "Message": "CPU 1 machine check error detected."},
    ),
    ("processor_error", "CPU 1", Verdict.FAIL, {"Message": "CPU 1 has an internal error (IERR)."}),
    (
        *("fan_event", "Fan 3", Verdict.FAIL),
        {"Message": "Fan 3 RPM is less than the lower critical threshold."},
    ),
    (
        *("drive_failed_event", "drive 1", Verdict.FAIL),
        {"Message": "Fault detected on drive 1 in disk drive bay 1."},
    ),
    (
        *("battery_event", "Battery", Verdict.WARN),
        {"SensorType": [{"Member": "Battery"}], **MEMBERS, "Severity": "Warning"}
        | {"Message": "The system board battery is low."},
    ),
    (
        *("bus_fatal", "node", Verdict.FAIL),
        {"Message": "A fatal error was detected on a component at bus 3 device 0 function 0."},
    ),
    (
        *("memory_error_limit", "DIMM_A1", Verdict.WARN),
        {**SEL, "SensorType": "Memory", "Message": "CE rate exceeded at DIMM_A1"}
        | {"Severity": "Warning"},
    ),
    # DMTF: the registries Power and Environmental, by the id alone.
    (
        "supply_failed_event",
        "power supply",
        Verdict.FAIL,
        {"MessageId": "Power.1.0.PowerSupplyFailed"},
    ),
    ("fan_event", "fan", Verdict.FAIL, {"MessageId": "Environmental.1.0.FanFailed"}),
    (
        *("temperature_event", "node", Verdict.FAIL),
        {"MessageId": "Environmental.1.0.TemperatureAboveUpperCriticalThreshold"},
    ),
    # HPE: iLO's Integrated Management Log, and its registry iLOEvents.
    (
        *("supply_input_event", "PSU 2", Verdict.FAIL),
        {"Severity": "Warning", "Oem": {"Hpe": {"ClassDescription": "Power", "Repaired": False}}}
        | {
            "Message": "System Power Supply: Input Power Loss or Unplugged Power Cord, Verify "
            "Power Supply Input (Power Supply 2)"
        },
    ),
    (
        *("supply_input_event", "power supply", Verdict.FAIL),
        {"MessageId": "iLOEvents.2.1.PowerSupplyACPowerLoss"},
    ),
    ("fan_event", "fan", Verdict.FAIL, {"MessageId": "iLOEvents.2.1.FanFailed"}),
    (
        *("processor_error", "Processor 1", Verdict.FAIL),
        {"Message": "Uncorrectable Machine Check Exception (Processor 1, APIC ID 0x00000000)"},
    ),
    (
        *("memory_uncorrectable", "Processor 1, Memory Module 12", Verdict.FAIL),
        {"Message": "Uncorrectable Memory Error (Processor 1, Memory Module 12)"},
    ),
    (
        *("redundancy_lost_event", "node", Verdict.FAIL),
        {"Message": "System Power Supplies Not Redundant", "Severity": "Warning"},
    ),
    (
        *("drive_failed_event", "box:3, bay: 1", Verdict.FAIL),
        {"Severity": "Warning"}
        | {"Message": "1784-Slot 25 Drive Array - Drive Failure. Port: 1I, box:3, bay: 1"},
    ),
    (
        *("drive_failed_event", "Bay 1", Verdict.FAIL),
        {"Message": "Internal Storage Enclosure Device Failure (Bay 1, Box 1, Port 1I, Slot 0)"},
    ),
    # Lenovo XCC, Supermicro, AMI.
    ("supply_input_event", "PSU 1", Verdict.FAIL, {"Message": "Power supply 1 has lost input."}),
    (
        *("memory_uncorrectable", "DIMM 3", Verdict.FAIL),
        {"Message": "An uncorrectable error has occurred on DIMM 3."},
    ),
    (
        *("supply_failed_event", "PSU 2", Verdict.FAIL),
        {"Message": "Power Supply PS2 Failure Detected - Asserted", "SensorType": "Power Supply"},
    ),
    # OpenBMC and NVIDIA: ids of its registry, with or without their text.
    (
        *("supply_failed_event", "PSU 2", Verdict.FAIL),
        {"MessageId": "OpenBMC.0.1.PowerSupplyFailed", "Message": "Power supply PSU2 failed."},
    ),
    (
        *("supply_input_event", "PSU 1", Verdict.FAIL),
        {"MessageId": "OpenBMC.0.1.PowerSupplyPowerLost", "MessageArgs": ["PSU 1"]},
    ),
    (
        *("memory_uncorrectable", "node", Verdict.FAIL),
        {"MessageId": "OpenBMC.0.1.MemoryECCUncorrectable"},
    ),
    (
        *("temperature_event", "node", Verdict.FAIL),
        {"MessageId": "OpenBMC.0.4.SensorThresholdCriticalHighGoingHigh"}
        | {"Message": "GPU_1_TEMP sensor crossed a critical high threshold going high."},
    ),
    (
        *("leak_event", "LeakDetector_1_ColdPlate", Verdict.FAIL),
        {"Message": "LeakDetector_1_ColdPlate: leak detected"},
    ),
    (
        *("leak_warning_event", "LeakDetector_1_ColdPlate", Verdict.WARN),
        {"Message": "LeakDetector_1_ColdPlate: small leak detected", "Severity": "Warning"},
    ),
    ("gpu_event", "GPU_SXM_5", Verdict.FAIL, {"Message": "GPU_SXM_5 has failed."}),
    # DMTF's registry StorageDevice.
    (
        *("drive_predicted_event", "drive", Verdict.WARN),
        {"Message": "Volume 'v0' is degraded.", "MessageId": "StorageDevice.1.1.VolumeDegraded"}
        | {"Severity": "Warning"},
    ),
    # What a GPU needs and is not the GPU.
    *(
        ("event_critical", "node", Verdict.WARN, {"Message": message})
        for message in (
            "GPU_SXM_3 NVLink_5 has detected errors of type 'LinkDown failure'.",
            "The configuration of GPU.Slot.21-1 failed: a license is missing.",
        )
    ),
    # A task of the BMC, which names a part: DMTF's registry Update, and vendors' own words.
    *(
        ("task_failed", "node", Verdict.WARN, {"Message": message, "MessageId": message_id})
        for message, message_id in (
            ("Installation of image 'PSU_FW' to 'PSU 1' failed.", "Update.1.0.ApplyFailed"),
            ("Verification of image 'a' at 'GPU_SXM_1' failed.", "Update.1.0.VerificationFailed"),
            ("", "Update.1.0.TransferFailed"),
            ("Firmware update failed for power supply 2.", ""),
            ("Failed to update the firmware of Fan 1.", ""),
            ("Secure erase of drive 3 failed.", ""),
            ("Drive 3 authentication failure.", ""),
            ("Unable to communicate with GPU 3: the request failed.", ""),
        )
    ),
    # The air of the room, and what no row knows.
    (
        *("inlet_event", "node", Verdict.WARN),
        {"Message": "The system inlet temperature is greater than the upper critical threshold."},
    ),
    ("event_critical", "node", Verdict.WARN, {"Message": "FPGA image is not as expected"}),
]


@pytest.mark.parametrize(("code", "part", "verdict", "entry"), ENTRIES)
@pytest.mark.parametrize("vendor", ["Dell iDRAC 9"])
def test_an_entry_in_a_vendors_words_is_judged_like_the_one_in_band(
    watch: Watch, code: str, part: str, verdict: Verdict, entry: dict[str, Any]
) -> None:
    watch.bmc.log_entry(**entry)

    found = watch.look()

    assert [(f.code, f.part_id) for f in find_faults(found)] == [(code, part)]
    assert judge_items(CHECK, found).verdict is verdict
    assert find_faults(watch.look()) == []


@pytest.mark.parametrize(
    "entry",
    [
        {"Message": "Power supply 2 is operating normally.", "Severity": "OK"},
        {"Message": "The chassis is open while the power is on."},
        {"MessageId": "iLOEvents.2.1.ServerResetDetected"},
        {"SensorType": "Physical Security", "EntryCode": "Assert"}
        | {"Message": "General Chassis intrusion", "Severity": "Warning"},
        {**SEL, "Message": "PSU 1 Failure : transition to OK", "Severity": "OK"},
        {"Message": "BMC: memory leak detected in a service", "Severity": "Warning"},
        {"Message": "Server powered off", "Severity": "Warning"},
        {"MessageId": "Base.1.4.AccessDenied", "Message": "the service was denied access."},
        {"Message": "NIC Connectivity status changed to Link Failure for adapter in slot 10"},
        {"Message": "Corrected Machine Check Exception (Processor 1)", "Severity": "Warning"},
        {"Message": "Power Supply PS2 Failure Detected - Deasserted", "Severity": "OK"},
        {"Message": "Fan 3 sensor crossed a critical low threshold going high.", "Severity": "OK"},
        {"Message": "Uncorrectable Memory Error", "Oem": {"Hpe": {"Repaired": True}}},
        {"Message": "GPU_SXM_3 row remapping failure was cleared."},
        # DMTF's registry SensorEvent: what is no longer as bad.
        *(
            {"Message": f"Sensor {name} {clause} threshold but remains outside of normal range."}
            | {"Severity": "Warning"}
            for name, clause in (
                ("'FAN_1' reading of 800 (RPM)", "is now above the 500 lower critical"),
                ("'CPU1_TEMP' reading of 85 (Cel)", "is now below the 90 upper critical"),
            )
        ),
        {"Message": "The resource property gpu0 Power has detected errors of type SensorReadError."}
        | {"MessageId": "ResourceEvent.1.0.ResourceErrorsDetected", "Severity": "Warning"},
    ],
)
@pytest.mark.parametrize("vendor", ["Dell iDRAC 9"])
def test_an_entry_about_no_fault_passes(watch: Watch, entry: dict[str, Any]) -> None:
    watch.bmc.log_entry(**entry)

    assert find_faults(watch.look()) == []


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (
            {"Message": "The power input for power supply 2 is lost."},
            {"Message": "Power supply 2 is operating normally."},
        ),
        (
            {"Message": "Power supply redundancy is lost."},
            {"Message": "The power supplies are redundant."},
        ),
        (
            {"SensorType": "PowerUnit", "EntryCode": "Redundancy Lost"},
            {"SensorType": "PowerUnit", "EntryCode": "Fully Redundant"},
        ),
        (
            {"SensorType": "Fan", "EntryCode": "Lower Critical - going low", "Message": "Fan 3"},
            {"SensorType": "Fan", "EntryCode": "Lower Critical - going high", "Message": "Fan 3"},
        ),
        (
            {"Message": "FAN_3 sensor crossed a critical low threshold going low."},
            {"Message": "FAN_3 sensor crossed a critical low threshold going high."},
        ),
    ],
)
@pytest.mark.parametrize("vendor", ["Dell iDRAC 9"])
def test_a_fault_that_a_later_entry_ends_in_other_words_is_over(
    watch: Watch, begin: dict[str, Any], end: dict[str, Any]
) -> None:
    watch.bmc.log_entry(**begin)
    watch.bmc.log_entry(**end, Severity="OK")

    found = watch.look()

    assert find_faults(found) == []
    assert [code.endswith("_over") for code in list_codes(found)] == [True]


@pytest.mark.parametrize(
    ("first", "host", "is_on"),
    [
        ({"SystemType": "DPU", "PowerState": "Off"}, "On", True),
        ({"SystemType": "DPU", "PowerState": "On"}, "Off", False),
        ({"PowerState": "Off"}, "On", True),
        ({}, "Off", False),
        ({}, "ON", True),
    ],
)
@EACH_VENDOR
def test_a_node_is_on_if_one_of_its_systems_is_that_is_no_dpu(
    watch: Watch, first: Mapping[str, Any], host: str, *, is_on: bool
) -> None:
    """An NVIDIA node has HGX_Baseboard_0 before System_0, and cards may be systems too."""
    tree = watch.bmc.tree
    (link,) = tree["Systems"]["Members"]
    tree[link["@odata.id"].removeprefix("/redfish/v1/")]["PowerState"] = host
    tree["Systems"]["Members"] = [make_link("Systems/0"), link]
    tree["Systems/0"] = {"Id": "0", **first}
    watch.bmc.parts["fan"][0].update({"Status": CRITICAL, "Reading": 0, "SpeedPercent": {}})

    assert [f.code for f in find_faults(watch.look())] == ["fan_failed"] * is_on


@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize("zone", ["Z", "+08:00", ""])
@pytest.mark.parametrize("vendor", ["Dell iDRAC 9"])
def test_a_log_with_the_newest_entry_first_is_read_in_order(
    watch: Watch, zone: str, *, is_linked: bool
) -> None:
    """An iDRAC lists its newest entry first, and gives seconds; some BMCs give no zone."""
    bmc = watch.bmc

    def look(*texts: str) -> list[str]:
        for text in texts:
            number, minute = len(bmc.members) + 1, len(bmc.members) // 2
            when = f"2026-11-22T01:{minute:02}:00{zone}"
            bmc.log_entry(Message=text, Severity="Critical", Created=when)
            bmc.members[-1] |= make_link(f"{bmc.log}/{number}")
            bmc.tree[f"{bmc.log}/{number}"] = bmc.members[-1]
        links = [{"@odata.id": entry["@odata.id"]} for entry in bmc.members]
        bmc.tree[bmc.log] = {"Members": (links if is_linked else bmc.members)[::-1]}
        return [code for code in list_codes(watch.look()) if code.startswith("supply")]

    look("Log cleared", "Log cleared")
    assert look("Power supply 2 failed.", "Log cleared") == ["supply_failed_event"]
    both = ("The power input for power supply 1 is lost.", "Power supply 1 deasserted: input lost.")
    assert look(*both) == ["supply_input_event_over"]


def test_an_event_without_an_origin_goes_to_no_part_that_has_no_path(tmp_path: Path) -> None:
    """An iLO 4 gives its members no path: the last voltage once took all such events."""
    watch = Watch(VENDORS["HPE iLO 5"](), tmp_path)
    power = watch.bmc.tree["Chassis/1/Power"]
    power["Voltages"] = [{"Name": "VRM1 Voltage", "ReadingVolts": 12.0, "Status": dict(OK)}]
    for supply in power["PowerSupplies"]:
        supply.pop("@odata.id", None)
    watch.bmc.log_entry(
        SensorType="Power Supply / Converter", EntryCode="Power Supply Failure detected"
    )

    (finding,) = find_faults(watch.look())
    assert (finding.code, finding.part_id) == ("supply_failed_event", "Power Supply / Converter")
    assert "Power Supply / Converter: Power Supply Failure detected" in finding.text


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("Chassis/1/Power#PowerSupplies/1", "PSU 2"),
        ("Chassis/1/Power/#PowerSupplies/1/", "PSU 2"),
        ("Chassis/1/Power", "power supply"),
    ],
)
def test_an_event_belongs_to_the_part_at_the_path_of_its_origin(
    tmp_path: Path, path: str, part: str
) -> None:
    watch = Watch(VENDORS["HPE iLO 5"](), tmp_path)
    watch.bmc.parts["supply"][0]["Status"] = dict(CRITICAL)
    watch.look()
    watch.bmc.log_entry(Message="Power supply failed", Links={"OriginOfCondition": make_link(path)})

    codes = {f.code: f.part_id for f in list_findings(watch.look())}

    assert codes.get("supply_failed_event_over", codes.get("supply_failed_event")) == part


def test_a_path_of_two_parts_belongs_to_neither(tmp_path: Path) -> None:
    watch = Watch(VENDORS["HPE iLO 5"](), tmp_path)
    for supply in watch.bmc.tree["Chassis/1/Power"]["PowerSupplies"]:
        supply.update(make_link("Chassis/1/Power"))
    origin = {"OriginOfCondition": make_link("Chassis/1/Power")}
    watch.bmc.log_entry(Message="A power supply failed", Links=origin)

    assert [f.part_id for f in find_faults(watch.look())] == ["power supply"]


def test_only_a_sensor_of_its_own_kind_ends_an_event(tmp_path: Path) -> None:
    watch = Watch(VENDORS["HPE iLO 5"](), tmp_path)
    fan = make_link("Chassis/1/Thermal#Fans/1")
    watch.bmc.log_entry(Message="Power supply failed", Links={"OriginOfCondition": fan})
    watch.bmc.log_entry(Message="Fan failed", Links={"OriginOfCondition": fan})

    assert sorted(list_codes(watch.look())) == ["fan_event_over", "supply_failed_event"]
