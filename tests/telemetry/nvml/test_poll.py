"""What GPUs answer, what is no answer, and what never comes back."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from hpcverify.model import Coverage, Finding
from tests.nvml_lab.nvmllab import Lab
from tests.waiting import PATIENCE_S

HEAR = """
import json, sys
import msgspec
from hpcverify.telemetry.nvml.poll import NvmlSource
source = NvmlSource(*map(float, sys.argv[3:]))
for name in sys.argv[2].split():
    heard = getattr(source, name)()
    told = [heard.answers, heard.findings, heard.unanswered]
    print(msgspec.json.encode(told).decode())
"""

IMPATIENT = (2.4, 1.2)
"""Seconds until a call hangs, and those for another GPU meanwhile."""
PATIENT = (PATIENCE_S, PATIENCE_S)

Heard = tuple[dict[str, Any], list[Finding], list[Coverage]]


def hear(lab: Lab, *questions: str, patience: tuple[float, float] = PATIENT) -> list[Heard]:
    output = lab.python(HEAR, " ".join(questions), *patience)
    return [msgspec.json.decode(line, type=Heard) for line in output.splitlines()]


QUESTIONS = ("read_memory_errors", "read_links", "read_pcie", "read_setup", "read_recovery")


def first(heard: Heard) -> Any:
    return next(iter(heard[0].values()))


def test_healthy_gpus_answer_every_question_and_nothing_is_amiss(lab: Lab) -> None:
    lab.load("healthy-8xh100")
    for answers, findings, _ in hear(lab, *QUESTIONS):
        assert len(answers) == 8
        assert findings == []


def test_links_are_read_with_their_speed_and_errors(lab: Lab) -> None:
    lab.write(
        "gpu.0.nvlink.5.state = 0",
        "gpu.0.nvlink.5.replay_errors = 7",
        "gpu.0.nvlink.*.speed_mbps = 26562",
    )
    (heard,) = hear(lab, "read_links")
    links = first(heard)["links"]
    assert [link["number"] for link in links if not link["active"]] == [5]
    assert {link["speed_gbs"] for link in links} == {26.562}
    assert links[5]["errors"]["replay"] == 7
    assert len(links) == 18


def test_links_of_older_drivers_are_read_by_the_older_calls(lab: Lab) -> None:
    faults = [
        f"fault = nvmlDeviceGetFieldValues field={field} return=NOT_SUPPORTED"
        for field in (161, 162, 163, 165, 208, 213, 214, 219, 221)
    ]
    lab.write("gpu.*.nvlink.2.state = 0", "gpu.*.nvlink.3.recovery_errors = 4", *faults)
    (heard,) = hear(lab, "read_links")
    links = first(heard)["links"]
    assert [link["number"] for link in links if not link["active"]] == [2]
    assert links[3]["errors"] == {"replay": 0, "recovery": 4, "crc": 0}


def test_the_fabric_is_told_by_its_flags(lab: Lab) -> None:
    lab.write(
        "gpu.*.fabric.health_mask = 0x1",
        "gpu.*.fabric.health_summary = 2",
        "gpu.*.fabric.state = IN_PROGRESS",
    )
    (heard,) = hear(lab, "read_links")
    assert first(heard)["fabric"] == {
        "state": "in_progress",
        "status": "ok",
        "trouble": ["degraded_bandwidth"],
        "summary": "unhealthy",
        "domain": "",
        "clique": 0,
    }


DOMAIN = "00000001-0000-0000-0000-000000000001"
"""As a healthy GB200 has it (nvidia-smi of NVIDIA/k8s-test-infra, with clique 2)."""


@pytest.mark.parametrize(
    ("missing", "summary"),
    [
        ([], "healthy"),
        (["nvmlDeviceGetGpuFabricInfoV"], ""),  # a driver before R550
    ],
)
def test_the_place_in_the_fabric_is_read_from_drivers_of_any_age(
    lab: Lab, missing: list[str], summary: str
) -> None:
    faults = [f"fault = {call} return=FUNCTION_NOT_FOUND" for call in missing]
    place = (f"gpu.*.fabric.cluster_uuid = {DOMAIN}", "gpu.*.fabric.clique_id = 2")
    lab.write(*place, "gpu.*.fabric.health_summary = 1", *faults)
    (heard,) = hear(lab, "read_links")
    fabric = first(heard)["fabric"]
    assert (fabric["domain"], fabric["clique"], fabric["state"]) == (DOMAIN, 2, "completed")
    assert fabric["summary"] == summary


def test_nothing_but_its_mode_is_read_of_the_links_of_a_gpu_in_mig_mode(lab: Lab) -> None:
    lab.write("gpu.0.mig.mode = 1", "gpu.0.nvlink.*.state = 0")
    (heard,) = hear(lab, "read_links")
    assert first(heard) == {"links": [], "fabric": None, "mig": True}


def test_a_part_without_links_or_fabric_has_none(lab: Lab) -> None:
    lab.write("gpu.*.nvlink.count = na", "gpu.*.fabric.state = 0")
    (heard,) = hear(lab, "read_links")
    assert first(heard) == {"links": None, "fabric": None, "mig": False}
    assert heard[1] == []


def test_the_pcie_link_is_read_with_its_limits_and_counters(lab: Lab) -> None:
    lab.write("gpu.*.pcie.gen = 4", "gpu.*.pcie.width = 8", "gpu.*.pcie.replay = 3")
    (heard,) = hear(lab, "read_pcie")
    link = first(heard)
    assert (link["generation"], link["width"]) == (4, 8)
    assert (link["max_generation"], link["max_width"]) == (5, 16)
    assert link["counters"]["replays"] == 3


def test_the_setup_names_limits_in_watts_and_processes(lab: Lab) -> None:
    lab.write(
        "gpu.*.persistence_mode = 0",
        "gpu.*.power.limit_mw = 500000",
        "gpu.*.compute_mode = 2",
        "gpu.*.process = 4242 1073741824 python3 train.py",
    )
    (heard,) = hear(lab, "read_setup")
    setup = first(heard)
    assert (setup["persistence"], setup["compute_mode"]) == (False, "prohibited")
    assert (setup["power_limit_w"], setup["power_default_w"]) == (500, 700)
    assert setup["processes"] == [{"pid": 4242, "memory": 1073741824, "computes": True}]


def test_a_compute_mode_that_only_a_later_driver_knows_is_named_by_its_number(lab: Lab) -> None:
    lab.write("gpu.*.compute_mode = 7")
    (heard,) = hear(lab, "read_setup")
    assert first(heard)["compute_mode"] == "unknown_7"


def test_what_the_driver_wants_done_is_named(lab: Lab) -> None:
    lab.write("gpu.*.recovery_action = NODE_REBOOT", "gpu.*.repair.tpc_pending = 1")
    (heard,) = hear(lab, "read_recovery")
    assert first(heard)["action"] == "node_reboot"
    assert first(heard)["tpc_repair_pending"] is True


@pytest.mark.parametrize("answer", ["GPU_IS_LOST", "RESET_REQUIRED"])
@pytest.mark.parametrize(
    ("call", "question"),
    [
        ("nvmlDeviceGetFieldValues", "read_memory_errors"),
        ("nvmlDeviceGetRowRemapperHistogram", "read_memory_errors"),
        ("nvmlDeviceGetGpuFabricInfoV", "read_links"),
        ("nvmlDeviceGetMaxPcieLinkWidth", "read_pcie"),
        ("nvmlDeviceGetVbiosVersion", "read_setup"),
        ("nvmlDeviceGetRepairStatus", "read_recovery"),
    ],
)
def test_whichever_call_it_is_that_an_unwell_gpu_answers_no_more_it_is_found(
    lab: Lab, answer: str, call: str, question: str
) -> None:
    lab.write(f"fault = {call} gpu=2 return={answer}")
    ((answers, findings, _),) = hear(lab, question)
    codes = {"GPU_IS_LOST": "gpu_lost", "RESET_REQUIRED": "gpu_reset_required"}
    assert [(f.code, f.part_id) for f in findings] == [(codes[answer], list(answers)[2])]
    assert call in findings[0].evidence["calls"]


def test_what_cannot_be_had_is_listed_with_its_reason_and_is_no_finding(lab: Lab) -> None:
    lab.write(
        "fault = nvmlDeviceGetSramEccErrorStatus return=NO_PERMISSION",
        "fault = nvmlDeviceGetRowRemapperHistogram return=NOT_SUPPORTED",
    )
    ((_, findings, unanswered),) = hear(lab, "read_memory_errors")
    assert findings == []
    told = " ".join(item.text for item in unanswered if item.part_id == "node")
    assert "all GPUs: needs root: nvmlDeviceGetSramEccErrorStatus" in told
    assert "nvmlDeviceGetRowRemapperHistogram" in told


@pytest.mark.parametrize("answer", ["UNKNOWN", "TIMEOUT", "IRQ_ISSUE", "MEMORY"])
def test_an_answer_that_says_nothing_is_never_taken_for_health(lab: Lab, answer: str) -> None:
    lab.write(f"fault = nvmlDeviceGetComputeMode gpu=5 return={answer}")
    ((_, findings, _),) = hear(lab, "read_setup")
    assert [f.code for f in findings] == ["gpu_unreadable"]


@pytest.mark.parametrize(
    "fault",
    [
        "fault = nvmlDeviceGetComputeMode gpu=5 return=UNKNOWN times=1",
        "fault = nvmlDeviceGetFieldValues gpu=5 field=145 return=UNKNOWN times=1",
    ],
)
def test_an_answer_that_comes_the_second_time_is_told_and_no_more(lab: Lab, fault: str) -> None:
    lab.write(fault)
    heard = hear(lab, "read_setup", "read_memory_errors")
    assert [f.code for _, findings, _ in heard for f in findings] == ["gpu_flaky"]


@pytest.mark.parametrize(
    ("call", "question"),
    [
        ("nvmlDeviceGetRepairStatus", "read_recovery"),
        ("nvmlDeviceGetGspFirmwareMode", "read_setup"),
        ("nvmlDeviceGetFieldValues field=303", "read_memory_errors"),
    ],
)
def test_a_code_without_meaning_to_a_convenience_is_listed_and_is_no_finding(
    lab: Lab, call: str, question: str
) -> None:
    # 57 is in no table; UNKNOWN is what drivers say that lack something.
    for code in ("UNKNOWN", 57):
        lab.write(f"fault = {call} return={code}")
        ((answers, findings, unanswered),) = hear(lab, question)
        assert (len(answers), findings) == (8, [])
        assert any("returned" in item.text for item in unanswered)


def test_a_gpu_that_alone_gives_a_code_without_meaning_is_named(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetRepairStatus gpu=2 return=57")
    ((answers, findings, _),) = hear(lab, "read_recovery")
    assert [(f.code, f.part_id) for f in findings] == [("gpu_silent", list(answers)[2])]


@pytest.mark.parametrize(
    ("driver", "source"),
    [
        ("570.148.08", "samples of event reasons"),
        ("580.65.06", "NVML fields 251 to 253"),
        ("580.105.08", "NVML fields 269 to 271"),
    ],
)
def test_the_setup_names_where_slowdown_times_come_from(lab: Lab, driver: str, source: str) -> None:
    lab.write(f"driver.version = {driver}")
    (heard,) = hear(lab, "read_setup")
    assert first(heard)["slowdown_counters"] == source


ECC_FIELDS = (3, 4, 5, 6, 11, 12, 29, 30, 31)
"""NVML_FI_DEV_ECC_* and NVML_FI_DEV_RETIRED_* that are read."""


def read_ecc(heard: Heard) -> dict[str, float]:
    return {reading["name"]: reading["value"] for reading in first(heard)}


def test_ecc_counters_are_integers_whatever_type_the_driver_gives_them(lab: Lab) -> None:
    # NVML bug 2032468 in DcgmCacheManager.cpp of DCGM 4: the type is unset, which is a double.
    types = (f"fault = nvmlDeviceGetFieldValues field={f} type=0" for f in ECC_FIELDS)
    lab.write("gpu.*.ecc.volatile.dram_uncorrectable = 17", *types)
    (heard,) = hear(lab, "read_memory_errors")
    assert read_ecc(heard)["ecc.uncorrected"] == 17
    assert read_ecc(heard)["ecc.dram.uncorrected"] == 17


def test_ecc_counters_that_the_driver_left_unset_are_no_answer(lab: Lab) -> None:
    # NVML bug 2009232, as above: with ECC off the fields are a success at the time 0.
    unset = (f"fault = nvmlDeviceGetFieldValues field={f} unset=1" for f in (1, 2, *ECC_FIELDS))
    lab.write("gpu.*.ecc.mode = 0", "gpu.*.ecc.mode_pending = 0", *unset)
    (heard,) = hear(lab, "read_memory_errors")
    assert read_ecc(heard)["ecc.mode"] == 0
    assert not {"ecc.uncorrected", "ecc.corrected", "retired.pending"} & set(read_ecc(heard))
    assert heard[1] == []


def test_the_ecc_mode_is_that_of_its_own_call(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetFieldValues field=1 unset=1")
    (heard,) = hear(lab, "read_setup")
    assert (first(heard)["ecc"], first(heard)["ecc_pending"]) == (True, True)


def test_only_of_a_gpu_that_is_slowed_down_clock_and_heat_are_read(lab: Lab) -> None:
    lab.load("thermal-throttle", "freeze_t = 60")
    ((answers, _, _),) = hear(lab, "read_setup")
    slowed = [tuple(answer["slowed_to"]) for answer in answers.values()]

    assert slowed.count((690.0, 90.0)) == 1
    assert slowed.count((None, None)) == 7


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("UNKNOWN", "NVML reports 'Unknown Error'"),
        ("GPU_IS_LOST", "fell off the bus: NVML reports 'GPU is lost'"),
    ],
)
def test_calls_that_fail_alike_are_one_finding_with_the_calls_as_evidence(
    lab: Lab, answer: str, text: str
) -> None:
    calls = [f"nvmlDeviceGet{name}" for name in ("ComputeMode", "MigMode", "PersistenceMode")]
    lab.write(*(f"fault = {call} gpu=5 return={answer}" for call in calls))
    ((_, findings, _),) = hear(lab, "read_setup")

    assert [(f.text, {*f.evidence["calls"].split()}) for f in findings] == [(text, {*calls})]


def test_a_gpu_that_hangs_is_named_with_its_call_and_the_others_answer(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetRepairStatus gpu=3 hang=forever")
    later, earlier = hear(lab, "read_recovery", "read_pcie", patience=IMPATIENT)
    for answers, findings, _ in (later, earlier):
        (hung,) = findings
        assert (hung.code, len(answers)) == ("gpu_hung", 7)
        assert hung.evidence == {"call": "nvmlDeviceGetRepairStatus"}


def list_places(findings: list[Finding], code: str) -> list[str]:
    return [finding.part_id for finding in findings if finding.code == code]


def test_a_call_that_keeps_the_driver_to_itself_is_what_all_others_wait_for(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetRepairStatus gpu=6 hang=forever lock=1")
    first, second, third = hear(lab, "read_recovery", "read_pcie", "read_setup", patience=IMPATIENT)
    assert (len(first[0]), len(second[0]), len(third[0])) == (6, 0, 0)
    hung, waiting = first[1]
    for _, findings, _ in (first, second, third):
        assert list_places(findings, "gpu_hung") == [hung.part_id]
        assert findings[0].evidence == {"call": "nvmlDeviceGetRepairStatus"}
        texts = {f.text for f in findings[1:]}
        assert len(texts) == 1
        assert "the driver hangs in nvmlDeviceGetRepairStatus of GPU 6" in texts.pop()
    assert list_places(first[1], "gpu_blocked") == [waiting.part_id]
    for _, findings, _ in (second, third):
        assert set(list_places(findings, "gpu_blocked")) == {waiting.part_id, *first[0]}


def test_the_second_gpu_that_hangs_by_itself_is_hung_only_when_its_call_is_as_old(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetRepairStatus gpu=2,4 hang=forever")
    ((answers, findings, _),) = hear(lab, "read_recovery", patience=IMPATIENT)
    assert len(answers) == 6
    assert [f.code for f in findings] == ["gpu_hung", "gpu_blocked"]
    assert findings[1].evidence == {"call": "nvmlDeviceGetRepairStatus"}


def test_neighbours_that_hang_by_themselves_are_told_apart_once_another_gpu_answers(
    lab: Lab,
) -> None:
    lab.write("fault = nvmlDeviceGetRepairStatus gpu=2-3 hang=forever")
    first, second = hear(lab, "read_recovery", "read_pcie", patience=IMPATIENT)
    assert [f.code for f in first[1]] == ["gpu_hung"] + ["gpu_blocked"] * 5
    assert len(second[0]) == 6
    assert [f.evidence for f in second[1]] == [{"call": "nvmlDeviceGetRepairStatus"}] * 2


@pytest.mark.parametrize(
    "fault",
    [
        "nvmlDeviceGetFieldValues gpu=2 hang=0.2 times=1",
        "nvmlDeviceGetRepairStatus gpu=* hang=0.2",
        "nvmlDeviceGet* gpu=6 hang=0.2 times=1",
        "nvmlDeviceGetRepairStatus gpu=3 hang=0.2 lock=1 times=1",
    ],
)
def test_calls_that_take_far_less_than_a_hang_are_no_finding(lab: Lab, fault: str) -> None:
    lab.write(f"fault = {fault}")
    for answers, findings, _ in hear(lab, "read_recovery", patience=PATIENT):
        assert (len(answers), findings) == (8, [])


def test_a_gpu_is_asked_again_when_its_call_has_returned(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetRepairStatus gpu=3 hang=1 lock=1 times=1")
    # GPU 4 answers when the driver is free again.
    _, second = hear(lab, "read_recovery", "read_pcie", patience=(0.5, PATIENCE_S))
    assert (len(second[0]), second[1]) == (8, [])


SAMPLE_AND_HEAR = """
import sys
import msgspec
from hpcverify.telemetry.nvml.poll import NvmlSource
from hpcverify.telemetry.nvml.questions import read_recovery
source = NvmlSource(*map(float, sys.argv[2:]))
for patience in (0.1, None):
    heard = source.ask_all(read_recovery, patience)
    told = [heard.answers, heard.findings, heard.unanswered]
    print(msgspec.json.encode(told).decode())
"""


def sample_and_hear(lab: Lab, *patience: float) -> list[Heard]:
    output = lab.python(SAMPLE_AND_HEAR, *patience)
    return [msgspec.json.decode(line, type=Heard) for line in output.splitlines()]


def test_a_sample_that_was_given_up_costs_the_next_question_nothing(lab: Lab) -> None:
    # NVIDIA/DCGM#313: calls that block for 45 s on a GPU that corrects errors under load.
    lab.write("fault = nvmlDeviceGetRepairStatus gpu=3 hang=0.5 times=1")
    sampled, heard = sample_and_hear(lab, *PATIENT)
    assert [f.code for f in sampled[1]] in (["gpu_blocked"], [])
    assert (len(heard[0]), heard[1]) == (8, [])


def test_who_asks_while_a_sample_hangs_blames_the_gpu_of_that_sample(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetRepairStatus gpu=6 hang=forever")
    _, (answers, findings, _) = sample_and_hear(lab, *IMPATIENT)
    assert len(answers) == 7
    assert [f.code for f in findings] == ["gpu_hung"]
    assert findings[0].part_id not in answers


START = """
import sys
import msgspec
from hpcverify.telemetry.nvml.poll import NvmlSource
source = NvmlSource(*map(float, sys.argv[2:4]))
for _ in range(2):
    listed = source.list_devices()
    print(msgspec.json.encode([[g.index for g in listed.gpus], listed.unlisted_findings]).decode())
    while len(sys.argv) > 4 and len(source.list_devices().gpus) < 8:
        pass
"""
Listed = tuple[list[int], list[Finding]]


def start(lab: Lab, *arguments: float) -> list[Listed]:
    output = lab.python(START, *arguments)
    return [msgspec.json.decode(line, type=Listed) for line in output.splitlines()]


@pytest.mark.parametrize("lock", ["", " lock=1"])
def test_gpus_that_each_take_seconds_to_initialise_are_all_listed_in_order(
    lab: Lab, lock: str
) -> None:
    lab.write(f"fault = nvmlDeviceGetHandleByIndex gpu=*{lock} hang=0.2 times=8")
    for indexes, findings in start(lab, PATIENCE_S):
        assert (indexes, findings) == (list(range(8)), [])


def test_nvml_itself_may_take_seconds(lab: Lab) -> None:
    lab.write("fault = nvmlInit hang=0.5")
    assert start(lab, PATIENCE_S)[0] == (list(range(8)), [])


@pytest.mark.parametrize("late", [0, 3])
def test_a_gpu_that_never_initialises_is_named_with_persistence_mode_and_costs_no_other(
    lab: Lab, late: int
) -> None:
    lab.write(f"fault = nvmlDeviceGetHandleByIndex gpu={late} hang=forever")
    for indexes, findings in start(lab, 2):
        assert indexes == [i for i in range(8) if i != late]
        (finding,) = findings
        assert (finding.code, finding.evidence) == ("gpu_hung", {"nvml_index": str(late)})
        assert f"GPU with NVML index {late} did not initialise within" in finding.text
        assert "nvidia-smi -pm 1" in finding.text


def test_gpus_that_wait_for_one_that_never_initialises_are_not_blamed(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetHandleByIndex gpu=5 lock=1 hang=forever")
    for indexes, findings in start(lab, 2):
        assert indexes == [0, 1, 2, 3, 4]
        assert [f.code for f in findings] == ["gpu_hung", "gpu_blocked", "gpu_blocked"]
        assert [f.evidence["nvml_index"] for f in findings] == ["5", "6", "7"]


def test_gpus_that_wait_for_one_that_initialises_are_not_blamed_when_they_are_asked(
    lab: Lab,
) -> None:
    lab.write("fault = nvmlDeviceGetHandleByIndex gpu=7 lock=1 hang=forever")
    for answers, findings, _ in hear(lab, "read_recovery", "read_pcie", patience=IMPATIENT):
        assert answers == {}
        assert [f.code for f in findings] == ["gpu_hung"] + ["gpu_blocked"] * 7
        assert findings[0].evidence == {"nvml_index": "7"}
        assert {f.evidence["hung"] for f in findings[1:]} == {"the GPU with NVML index 7"}


def test_a_gpu_that_initialises_late_joins_the_list_in_the_order_of_indexes(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetHandleByIndex gpu=0 hang=4 times=1")
    first, second = start(lab, 1, 1, 1)
    assert first[0] == [1, 2, 3, 4, 5, 6, 7]
    assert second == (list(range(8)), [])


def test_a_gpu_that_is_lost_while_it_initialises_is_lost_and_not_hung(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetHandleByIndex gpu=6 hang=0.2 return=GPU_IS_LOST")
    for indexes, findings in start(lab, PATIENCE_S):
        assert indexes == [0, 1, 2, 3, 4, 5, 7]
        assert [f.code for f in findings] == ["gpu_lost"]


def test_a_driver_that_hangs_with_the_first_gpu_is_asked_of_no_more_than_two(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetRepairStatus gpu=0 hang=forever lock=1")
    ((answers, findings, _),) = hear(lab, "read_recovery", patience=IMPATIENT)
    assert (len(answers), len(findings)) == (0, 8)
    assert [f.code for f in findings] == ["gpu_hung"] + ["gpu_blocked"] * 7
    assert "not read: the driver hangs in nvmlDeviceGetRepairStatus" in findings[7].text


def test_a_gpu_that_is_slow_and_comes_back_is_not_hung(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetRepairStatus gpu=3 hang=0.3 times=1")
    ((answers, findings, _),) = hear(lab, "read_recovery")
    assert (len(answers), findings) == (8, [])


@pytest.mark.parametrize(("slow", "unread"), [("1", 0), ("0-7", 5)])
def test_a_gpu_that_takes_long_for_each_call_is_slow_and_not_hung(
    lab: Lab, slow: str, unread: int
) -> None:
    calls = ("ValidateInforom", "GetFieldValues", "GetRepairStatus", "GetUnrepairableMemoryFlag_v1")
    lab.write(*(f"fault = nvmlDevice{call} gpu={slow} hang=0.3" for call in calls))
    ((answers, findings, _),) = hear(lab, "read_recovery")
    late = [f.part_id for f in findings if f.code == "gpu_unread"]
    assert (len(answers), len(late), set(late) & answers.keys()) == (8 - unread, unread, set())
    assert {f.code for f in findings if f.part_id in answers} == {"gpu_slow"}
    assert re.match(
        r"4 calls of NVML took \d+\.\d s \(median \d\.\d\d s\)\. Fix: ", findings[0].text
    )


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("NOT_SUPPORTED", "gpu_unlike"),
        ("NO_PERMISSION", "gpu_silent"),
        ("INVALID_ARGUMENT", "gpu_silent"),
    ],
)
def test_a_gpu_that_cannot_be_asked_what_its_like_can_is_named(
    lab: Lab, answer: str, code: str
) -> None:
    lab.write(f"fault = nvmlDeviceGetRowRemapperHistogram gpu=3 return={answer}")
    ((answers, findings, _),) = hear(lab, "read_memory_errors")
    assert [(f.code, f.part_id) for f in findings] == [(code, list(answers)[3])]


LISTING = ("HandleByIndex", "UUID", "PciInfo", "Name")


def test_a_gpu_that_answers_no_call_is_named_for_that(lab: Lab) -> None:
    lab.write(
        *(f"fault = nvmlDeviceGet{what} return=SUCCESS" for what in LISTING),
        "fault = nvmlDevice* gpu=3 return=INVALID_ARGUMENT",
    )
    ((answers, findings, _),) = hear(lab, "read_recovery")
    assert [(f.code, f.part_id) for f in findings] == [("gpu_mute", list(answers)[3])]
    assert "as after a reset" in findings[0].text


@pytest.mark.parametrize("mode", ["mig.mode = 1", "ecc.mode = 0"])
def test_a_gpu_in_a_mode_of_its_own_is_not_compared_by_a_later_question(
    lab: Lab, mode: str
) -> None:
    lab.write(f"gpu.3.{mode}", "fault = nvmlDeviceGetRepairStatus gpu=3 return=NOT_SUPPORTED")
    _, (answers, findings, _) = hear(lab, "read_setup", "read_recovery")
    assert (len(answers), findings) == (8, [])


def test_what_half_of_the_like_cannot_say_is_no_oddity(lab: Lab) -> None:
    lab.write("fault = nvmlDeviceGetRowRemapperHistogram gpu=0-3 return=NOT_SUPPORTED")
    ((_, findings, _),) = hear(lab, "read_memory_errors")
    assert findings == []
