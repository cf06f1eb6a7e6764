"""Temperatures, power and voltages of sensor chips."""

from __future__ import annotations

from pathlib import Path

from hpcverify.model import Part
from hpcverify.telemetry.hwmon import HwmonReader
from tests.telemetry.trees import grow, link

HWMON = "sys/class/hwmon"


def values(root: Path, *disks: Part) -> dict[tuple[str, str], float]:
    readings = HwmonReader(root, disks).read()
    return {(r.part_id, r.name): round(r.value, 6) for r in readings}


def coretemp(root: Path, **changes: object) -> Path:
    files: dict[str, object] = {
        "name": "coretemp",
        "temp1_input": 71000,
        "temp1_max": 80000,
        "temp1_crit": 100000,
        "temp2_input": 88000,
        "temp2_crit": 95000,
    }
    chip = {f"{HWMON}/hwmon3/{name}": v for name, v in (files | changes).items()}
    return grow(root, chip)


def test_the_hottest_sensor_of_a_part_and_the_least_headroom_count(tmp_path: Path) -> None:
    assert values(coretemp(tmp_path)) == {
        ("cpu", "temperature"): 88,
        ("cpu", "temperature.headroom"): 7,
    }


def test_a_threshold_that_nobody_set_is_no_threshold(tmp_path: Path) -> None:
    root = coretemp(tmp_path, temp1_crit=65261850, temp1_max=0, temp2_crit=255000)
    assert ("cpu", "temperature.headroom") not in values(root)


def test_a_drive_goes_by_its_own_id(tmp_path: Path) -> None:
    disk = Part("disk", "eui.0025", "nvme1n1")
    chip = {"name": "nvme", "temp1_input": 41850, "temp1_crit": 84850}
    grow(tmp_path, {f"{HWMON}/hwmon0/{name}": v for name, v in chip.items()})
    link(tmp_path, f"{HWMON}/hwmon0/device", "sys/devices/pci0000:00/nvme1")
    assert values(tmp_path, disk) == {
        ("eui.0025", "temperature"): 41.85,
        ("eui.0025", "temperature.headroom"): 43,
    }


def test_power_is_added_up_and_voltages_keep_their_labels(tmp_path: Path) -> None:
    chip = {
        "name": "power_meter",
        "power1_average": 250_000_000,
        "power2_average": 50_000_000,
        "in0_input": 1200,
        "in0_label": "Vcore",
    }
    grow(tmp_path, {f"{HWMON}/hwmon1/{name}": v for name, v in chip.items()})
    assert values(tmp_path) == {
        ("power_meter", "power"): 300,
        ("power_meter", "voltage.Vcore"): 1.2,
    }


def test_thermal_zones_stand_in_where_no_chip_measures_the_cpu(tmp_path: Path) -> None:
    zone = "sys/class/thermal/thermal_zone0"
    tree = {
        f"{zone}/type": "x86_pkg_temp",
        f"{zone}/temp": 60000,
        f"{zone}/trip_point_0_type": "passive",
        f"{zone}/trip_point_0_temp": 1000,
        f"{zone}/trip_point_1_type": "critical",
        f"{zone}/trip_point_1_temp": 105000,
        "sys/class/thermal/thermal_zone1/type": "acpitz",
        "sys/class/thermal/thermal_zone1/temp": 27800,
    }
    assert values(grow(tmp_path, tree)) == {
        ("cpu", "temperature"): 60,
        ("cpu", "temperature.headroom"): 45,
    }
    assert values(coretemp(tmp_path))["cpu", "temperature"] == 88


def test_a_sensor_that_does_not_answer_is_left_out(tmp_path: Path) -> None:
    assert values(coretemp(tmp_path, temp2_input="")) == {
        ("cpu", "temperature"): 71,
        ("cpu", "temperature.headroom"): 29,
    }
