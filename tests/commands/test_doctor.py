"""``hpcverify doctor`` names what is missing, with the fix, and nothing else."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from hpcverify.fleet.ledger import Ledger
from hpcverify.insight.inspections import MAX_EVENT_DELAY_S, Advice, describe_start, inspect_tools
from hpcverify.limits.specs import load_specs
from hpcverify.model import Cause, Finding, FindingRule, Remedy, Verdict
from hpcverify.run.executor import Answer
from hpcverify.run.lock import SOCKET_NAME
from hpcverify.run.wire import Outcome
from hpcverify.units import format_count
from tests.cli import Cli
from tests.nvml_lab.nvmllab import Lab
from tests.nvml_lab.parts import profile, strangers
from tests.run.test_lock import another_process, bound


def advice(cli: Cli, status: int) -> dict[str, dict[str, str]]:
    done = cli("doctor", "--json")
    assert done.returncode == status, done.stderr
    return {item["subject"]: item for item in json.loads(done.stdout)}


@pytest.mark.needs("smartctl")
def test_a_complete_node_needs_no_fix(cli: Cli) -> None:
    assert all(not item["fix"] for item in advice(cli, 0).values())


@pytest.mark.system
def test_what_the_controller_cannot_do_and_events_that_wait_for_hours_are_named(cli: Cli) -> None:
    ledger = Ledger(cli.state, lambda: time.time() - 2 * MAX_EVENT_DELAY_S)
    ledger.add_reader("file")
    ledger.record_malfunction("events.jsonl", "it is not written: it is a link")
    found = advice(cli, 3)

    assert found["events.jsonl"]["state"] == "it is not written: it is a link"
    assert found["events (file)"]["state"] == "1 event not delivered yet"
    assert found["events (file)"]["fix"] == "run hpcverify fleet collect"

    ledger.record_malfunction("events.jsonl", "")
    ledger.move_cursor("file", ledger.read_chain_end().number)
    assert not advice(cli, 0)["events (file)"]["fix"]


@pytest.mark.needs("root")
def test_a_scratch_directory_in_which_others_can_rename_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir(mode=0o700)
    (tmp_path / "scratch").chmod(0o777)
    cli.site(f'scratch = "{tmp_path}/scratch"')
    assert f"chmod go-w {tmp_path}/scratch" in advice(cli, 3)["scratch"]["state"]


@pytest.mark.needs("root")
def test_a_user_who_holds_the_nodes_lock_is_named(cli: Cli) -> None:
    with another_process(4242, partial(bound, SOCKET_NAME, listens=True)) as holder:
        found = advice(cli, 3)["node lock"]
    assert found["state"] == f"held by process {holder.pid} of user 4242"
    assert "end it" in found["fix"]


def test_a_missing_tool_is_named_with_its_package(cli: Cli) -> None:
    cli.environment["PATH"] = "/nonexistent"
    assert advice(cli, 3)["fio"]["fix"] == "apt-get install fio"


def test_freeipmi_is_wanted_only_where_there_is_a_bmc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ipmi-sensors" not in {item.subject for item in inspect_tools(tmp_path)}
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/ipmi0").touch()
    fixes = {item.subject: item.fix for item in inspect_tools(tmp_path)}
    assert fixes["ipmi-sensors"] == "apt-get install freeipmi-tools"


def test_a_broken_driver_is_named_with_the_fix(cli: Cli, lab: Lab) -> None:
    cli.environment["LD_LIBRARY_PATH"] = str(lab.library.parent)
    cli.environment["NVML_LAB_SCENARIO"] = str(lab.scenario)
    lab.load("driver-mismatch")
    assert "reboot" in advice(cli, 3)["driver_mismatch"]["state"]


@pytest.mark.parametrize(
    ("fault", "code", "fix"),
    [
        ("hang=forever", "gpu_hung", "drain the node, then reboot the node"),
        ("return=RESET_REQUIRED", "gpu_reset_required", "drain the node, then reset GPU 5 ("),
    ],
)
def test_a_gpu_in_trouble_is_named_with_what_its_finding_calls_for(
    cli: Cli, lab: Lab, fault: str, code: str, fix: str
) -> None:
    cli.environment["LD_LIBRARY_PATH"] = str(lab.library.parent)
    cli.environment["NVML_LAB_SCENARIO"] = str(lab.scenario)
    cli.preload = "tests.nvml_lab.hurry"
    lab.write(f"fault = nvmlDeviceGetPowerUsage gpu=5 {fault}")

    given = advice(cli, 3)
    told = given[code]
    assert "GPUs with " in given["sensors"]["state"]
    assert told["state"].startswith("GPU 5 (")
    assert told["fix"].startswith(fix)


def on_gpus(cli: Cli, lab: Lab, *lines: str) -> None:
    cli.environment["LD_LIBRARY_PATH"] = str(lab.library.parent)
    cli.environment["NVML_LAB_SCENARIO"] = str(lab.scenario)
    lab.write(*lines)


def board_of(key: str, *, busy: bool = True) -> list[str]:
    """Describe a healthy node; a busy one has users on every GPU, and starts none."""
    return profile(next(s for s in load_specs() if s.key == key), busy=busy)


def test_a_build_of_torch_without_cuda_is_named_where_there_are_gpus(cli: Cli, lab: Lab) -> None:
    on_gpus(cli, lab, *board_of("h100-sxm5-80gb", busy=False))

    found = advice(cli, 3)["computing"]
    assert "is a build without CUDA: " in found["state"]
    assert found["state"].endswith("--index-url https://download.pytorch.org/whl/cu126")
    assert found["state"].startswith("GPU 0 (")
    assert found["fix"] == "correct that, then run hpcverify doctor again"


@pytest.mark.system
@pytest.mark.parametrize(
    ("key", "model", "bf16"),
    [
        ("h100-sxm5-80gb", "8 x NVIDIA H100 80GB HBM3", ("612 TFLOP/s", "571.6 TFLOP/s")),
        ("h200-sxm", "8 x NVIDIA H200", ("625.5 TFLOP/s", "514.8 TFLOP/s")),
        ("b200-sxm", "8 x NVIDIA B200", ("1246 TFLOP/s", "1022 TFLOP/s")),
        ("l40s", "8 x NVIDIA L40S", ("207 TFLOP/s", "163.3 TFLOP/s")),
    ],
)
def test_a_node_is_told_which_floors_it_is_held_to_and_how_sure_they_are(
    cli: Cli, lab: Lab, key: str, model: str, bf16: tuple[str, str]
) -> None:
    on_gpus(cli, lab, *board_of(key))

    found = advice(cli, 3)
    assert found["computing"]["state"] == "not started: every GPU is in use"
    assert found["GPUs in use"]["fix"]
    assert model in found["floors"]["state"]
    for least, verdict in zip(bf16, ("warn", "fail"), strict=True):
        assert f"sustained {least} else {verdict}" in found["floor bf16"]["state"]
    assert "confidence " in found["floor bf16"]["state"]
    assert "else warn (confidence C" in found["floor int8"]["state"]
    assert {"floor fp32", "floor memory"} <= found.keys()


def test_floors_are_scaled_by_a_power_limit_and_it_is_named(cli: Cli, lab: Lab) -> None:
    on_gpus(cli, lab, *board_of("h100-sxm5-80gb"), "gpu.*.power.limit_mw = 500000")
    found = advice(cli, 3)
    assert "scaled, since power is limited to 500 of 700 W" in found["floors"]["state"]
    assert "sustained 437.1 TFLOP/s else warn" in found["floor bf16"]["state"]


def test_gpus_that_are_not_set_up_alike_have_floors_of_their_own(cli: Cli, lab: Lab) -> None:
    on_gpus(cli, lab, *board_of("h100-sxm5-80gb"), "gpu.3.power.limit_mw = 500000")
    told = [
        i["state"] for i in json.loads(cli("doctor", "--json").stdout) if i["subject"] == "floors"
    ]
    assert [text.split(" x ")[0] for text in told] == ["7", "1"]


@pytest.mark.system
@pytest.mark.parametrize(("gpus", "low"), [(8, 8), (7, 8), (4, 4), (3, 4)])
def test_the_line_of_the_site_file_that_asks_for_all_gpus_is_given(
    cli: Cli, lab: Lab, gpus: int, low: int
) -> None:
    on_gpus(cli, lab, *board_of("h100-sxm5-80gb"), f"gpus = {gpus}")
    line = f"gpus = {{ low = {low} }}"

    given = advice(cli, 3)["GPUs"]
    assert (given["fix"] or given["state"]).endswith(f"{line} under [limits.inventory]")
    assert bool(given["fix"]) == (gpus < low)  # one that is missing is not "ok"
    cli.site(f"[limits.inventory]\n{line}")
    assert "GPUs" not in advice(cli, 3)


def test_a_part_that_no_table_knows_is_said_to_have_no_floors(cli: Cli, lab: Lab) -> None:
    on_gpus(cli, lab, *strangers(busy=True)["card for games"])
    found = advice(cli, 3)
    assert "RTX 4090 (PCI device id 2684) is not in the table" in found["floors"]["state"]
    assert "floor bf16" not in found


@pytest.mark.parametrize(
    ("outcome", "items", "state", "fix"),
    [
        (Outcome(), (), "starts, and computes on GPU 3", ""),
        (
            Outcome(verdict=Verdict.PASS),
            (Finding("cores_unused", "cpu", "the work of 1.4 of 2 cores"),),
            "starts, and computes on GPU 3",
            "",
        ),
        (
            Outcome(verdict=Verdict.ERROR, reason="no end after 90 s", cause=Cause.TIMEOUT),
            (),
            "GPU 3: no end after 90 s: look for its Xid in the kernel log",
            "drain the node, then reboot the node",
        ),
        (
            Outcome(verdict=Verdict.PASS),
            (Finding("ecc", "GPU-3", "its memory had an error"),),
            "GPU 3: its memory had an error",
            "drain the node, then reset GPU 3",
        ),
    ],
)
def test_how_a_gpu_started_is_told_with_the_next_step(
    outcome: Outcome, items: tuple[Finding, ...], state: str, fix: str
) -> None:
    rules = {
        "ecc": FindingRule(Verdict.FAIL, Remedy.RESET_GPU),
        "cores_unused": FindingRule(Verdict.PASS, Remedy.INSPECT),
    }
    answer = Answer(items=items, outcome=outcome)
    assert list(describe_start(answer, "GPU 3", rules)) == [Advice("computing", state, fix)]


@pytest.mark.system
def test_what_needs_a_fix_comes_last_and_floors_only_if_asked_for(cli: Cli, lab: Lab) -> None:
    on_gpus(cli, lab, *board_of("h100-sxm5-80gb"))

    *lines, count = cli("doctor").stdout.splitlines()
    marks = [line[:4] for line in lines]
    assert marks == sorted(marks, reverse=True)
    assert count == f"{format_count(marks.count('fix '), 'thing')} to fix"
    assert not any(line.startswith("ok  floor ") for line in lines)
    assert "ok  floor bf16: sustained 571.6 TFLOP/s else fail" in cli("doctor", "--floors").stdout


@pytest.mark.system
def test_a_torch_that_cannot_use_the_gpus_is_not_called_sound(cli: Cli, lab: Lab) -> None:
    sound = advice(cli, 0)["torch"]
    on_gpus(cli, lab, *board_of("h100-sxm5-80gb", busy=False))
    unsound = advice(cli, 3)
    assert "torch" not in unsound or unsound["torch"]["fix"]
    on_gpus(cli, lab, *board_of("h100-sxm5-80gb"))  # in use: nothing is started
    assert bool(advice(cli, 3)["torch"]["fix"]) is ("+cpu" in sound["state"])


@pytest.mark.parametrize("gpus", ["none", "used", "free"])
def test_a_torch_that_does_not_import_is_named_on_every_node(
    cli: Cli, lab: Lab, tmp_path: Path, gpus: str
) -> None:
    if gpus != "none":
        on_gpus(cli, lab, *board_of("h100-sxm5-80gb", busy=gpus == "used"))
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text('raise OSError("libcudnn.so.9: cannot open")')
    cli.environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(tmp_path), cli.environment.get("PYTHONPATH")))
    )

    (found,) = (i for i in json.loads(cli("doctor", "--json").stdout) if "libcudnn" in i["state"])
    assert "does not import (OSError: libcudnn.so.9: cannot open): unset " in (found["state"])
    assert found["fix"] == "correct that, then run hpcverify doctor again"


@pytest.mark.needs("smartctl")
def test_a_node_without_gpus_has_no_floors_and_starts_none(cli: Cli) -> None:
    assert not {"floors", "computing"} & advice(cli, 0).keys()


def a_fleet(cli: Cli, spool: Path, **settings: str) -> None:
    """Make the node one of a fleet, with the settings of its hooks."""
    cli.site(f'[fleet]\nspool = "{spool}"\n')
    usual = {"HPCVERIFY": sys.executable, "HPCVERIFY_SPOOL": str(spool)}
    lines = [f"{key}={value}" for key, value in {**usual, **settings}.items()]
    hooks = Path(cli.environment["HPCVERIFY_CONFIG"]).with_name("hooks.conf")
    hooks.write_text("\n".join(["# what the hooks read", *lines]))


@pytest.mark.needs("root", "smartctl")
def test_a_complete_node_of_a_cluster_needs_no_fix(cli: Cli, tmp_path: Path) -> None:
    a_fleet(cli, tmp_path, HPCVERIFY_DEADLINE="15", HPCVERIFY_USERS="0 64030")
    found = advice(cli, 0)
    assert found["spool"]["state"] == str(tmp_path)
    assert found["hooks"]["state"].endswith("hooks.conf")


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("HPCVERIFY", '"/bin/true"', "is not a program"),
        ("HPCVERIFY_SPOOL", "/elsewhere", "differs from"),
        ("HPCVERIFY_DEADLINE", "15s", "is not a number of seconds"),
        ("HPCVERIFY_USERS", "root", "must be user ids"),
        ("HPCVERIFY_STATE", "state", "is not an absolute path"),
        ("HPCVERIFY_SPOL", "/x", "is not a known setting"),
    ],
)
def test_a_setting_that_the_hooks_would_ignore_is_named(
    cli: Cli, tmp_path: Path, name: str, value: str, why: str
) -> None:
    a_fleet(cli, tmp_path, **{name: value})
    state = advice(cli, 3)["hooks"]["state"]
    assert name in state
    assert why in state


@pytest.mark.needs("root")
def test_hooks_whose_settings_others_can_change_are_named(cli: Cli, tmp_path: Path) -> None:
    a_fleet(cli, tmp_path)
    hooks = Path(cli.environment["HPCVERIFY_CONFIG"]).with_name("hooks.conf")
    hooks.chmod(0o666)
    assert "can be changed by other users" in advice(cli, 3)["hooks"]["state"]


def test_a_fleet_without_its_spool_or_hooks_is_named(cli: Cli, tmp_path: Path) -> None:
    cli.site(f'[fleet]\nspool = "{tmp_path}/none"\n')
    found = advice(cli, 3)
    assert "mount it" in found["spool"]["fix"]
    assert "hpcverify setup slurm" in found["hooks"]["fix"]
