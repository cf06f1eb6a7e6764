"""The double of NVML says what the scenario says, through the real bindings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from hpcverify.limits.specs import load_specs
from tests.nvml_lab.nvmllab import HERE, Lab
from tests.nvml_lab.parts import profile, strangers

START = """
import pynvml as nv
from ctypes import byref
nv.nvmlInit()
h = nv.nvmlDeviceGetHandleByIndex(0)
def fields(*ids):
    kinds = {0: "dVal", 1: "uiVal", 3: "ullVal", 5: "siVal"}
    return [
        getattr(v.value, kinds[v.valueType]) if v.nvmlReturn == 0 else None
        for v in nv.nvmlDeviceGetFieldValues(h, list(ids))
    ]
def caught(call, *args):
    try:
        call(*args)
    except nv.NVMLError as err:
        return type(err).__name__.removeprefix("NVMLError_")
    return "ok"
"""


@pytest.fixture(scope="module")
def outcomes(
    tmp_path_factory: pytest.TempPathFactory, nvml_library: Path
) -> Mapping[str, Mapping[str, str]]:
    """Call everything on every node there is."""
    folder = tmp_path_factory.mktemp("calls")
    stories = {spec.key: profile(spec, busy=True) for spec in load_specs()}
    stories |= {"default": [], **strangers(busy=True)}
    (folder / "stories.json").write_bytes(msgspec.json.encode(stories))
    lab = Lab(folder, nvml_library)
    lab.write()
    code = (HERE / "calls.py").read_text()
    answers = lab.python(code, folder / "stories.json")
    return msgspec.json.decode(answers, type=dict[str, dict[str, str]])


def test_every_call_works_through_the_bindings_or_says_not_supported(
    outcomes: Mapping[str, Mapping[str, str]],
) -> None:
    said = {word for calls in outcomes.values() for word in calls.values()}
    assert said == {"ok", "NotSupported", "NotFound"}
    assert len(outcomes["default"]) > 90


def test_an_h100_answers_all_but_what_it_has_not(outcomes: Mapping[str, Mapping[str, str]]) -> None:
    calls = outcomes["default"].items()
    assert {name.removeprefix("nvmlDeviceGet") for name, w in calls if w != "ok"} == {
        *("DriverModel", "DriverModel_v2", "GpuOperationMode", "FanSpeed"),
        *("RetiredPages", "RetiredPages_v2", "RetiredPagesPendingStatus"),
        *("NvLinkUtilizationCounter", "MigDeviceHandleByIndex", "ProcessUtilization"),
    }


def test_a_virtual_gpu_answers_less_than_a_card_and_that_less_than_a_board(
    outcomes: Mapping[str, Mapping[str, str]],
) -> None:
    answered = [
        list(outcomes[name].values()).count("ok")
        for name in ("virtual GPU", "card for games", "v100-sxm2-16gb", "default")
    ]
    assert answered == sorted(answered)
    assert len(set(answered)) == len(answered)


SRAM = (
    *("aggregate.sram_parity", "aggregate.sram_secded", "aggregate.sram_correctable"),
    *("volatile.sram_parity", "volatile.sram_secded", "volatile.sram_correctable"),
    *("sram_sources.l2", "sram_sources.sm", "sram_sources.pcie"),
    *("sram_sources.microcontroller", "sram_sources.other"),
)


def test_values_arrive_in_the_members_that_they_are_meant_for(lab: Lab) -> None:
    lab.write(
        *(f"gpu.0.ecc.{name} = {value}" for value, name in enumerate(SRAM, 1)),
        "gpu.0.ecc.volatile.dram_uncorrectable = 21",
        "gpu.0.remapped_rows.correctable = 31",
        "gpu.0.remapped_rows.pending = 1",
        "gpu.0.remapped_rows.histogram.none = 5",
        "gpu.0.fabric.health_mask = 0x51aa",
        "gpu.0.fabric.health_summary = 2",
        "gpu.0.repair.tpc_pending = 1",
        "gpu.0.repair.unrepairable_memory = 1",
        "gpu.0.clocks.applications.sm = 900",
    )
    code = """
    sram = nv.c_nvmlEccSramErrorStatus_v1_t()
    nv.nvmlDeviceGetSramEccErrorStatus(h, byref(sram))
    assert [getattr(sram, f[0]) for f in sram._fields_[1:]] == [*range(1, 12), 0]
    assert nv.nvmlDeviceGetTotalEccErrors(h, 1, 0) == 4 + 5 + 21
    assert nv.nvmlDeviceGetRemappedRows(h) == (31, 0, 1, 0)
    assert nv.nvmlDeviceGetRowRemapperHistogram(h).none == 5
    fabric = nv.c_nvmlGpuFabricInfo_v3_t()
    nv.nvmlDeviceGetGpuFabricInfoV(h, byref(fabric))
    assert (fabric.state, fabric.healthMask, fabric.healthSummary) == (3, 0x51AA, 2)
    assert nv.nvmlDeviceGetRepairStatus(h) == [0, 1]
    assert nv.nvmlDeviceGetUnrepairableMemoryFlag_v1(h) == 1
    assert nv.nvmlDeviceGetApplicationsClock(h, 1) == nv.nvmlDeviceGetClock(h, 1, 1)
    assert nv.nvmlDeviceGetApplicationsClock(h, 1) == 900
    assert nv.nvmlDeviceGetDefaultApplicationsClock(h, 1) == 1980
    assert nv.nvmlDeviceGetClock(h, 1, 2) == 1980
    """
    lab.python(START + dedented(code))


def dedented(code: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in code.splitlines())


NVLINK5 = (
    *("xmit_packets", "xmit_bytes", "rcv_packets", "rcv_bytes"),
    *("malformed_packet_errors", "buffer_overrun_errors", "rcv_errors"),
    *("rcv_remote_errors", "rcv_general_errors", "local_link_integrity_errors"),
    *("xmit_discards", "link_recovery_successful", "link_recovery_failed"),
    "link_recovery_events",
)
PCIE = (
    *("correctable_errors", "naks_received", "receiver_errors", "bad_tlp"),
    *("naks_sent", "bad_dllp", "non_fatal_errors", "fatal_errors"),
    *("unsupported_requests", "lcrc_errors", "lane_errors"),
)


def test_fields_have_the_numbers_of_nvml_h(lab: Lab) -> None:
    lab.write(
        *(f"gpu.0.nvlink.17.{name} = {n}" for n, name in enumerate(NVLINK5, 1)),
        "gpu.0.nvlink.7.replay_errors = 4",
        "gpu.0.nvlink.8.replay_errors = 6",
        "gpu.0.nvlink.7.symbol_ber = 1e-12",
        *(f"gpu.0.pcie.{name} = {n}" for n, name in enumerate(PCIE, 1)),
        "gpu.0.c2c.count = 10",
        "gpu.0.c2c.replays = 3",
        "gpu.0.remapped_banks.pending = 1",
        "gpu.0.recovery_action = NODE_REBOOT",
    )
    code = """
    ids = [i for i in range(201, 216) if i != 205]
    assert fields(*((i, 17) for i in ids)) == list(range(1, 15))
    assert fields(*range(173, 184)) == list(range(1, 12))
    replay, all_links = nv.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 0xFFFFFFFF
    assert fields((replay, 7), (replay, 8), (replay, all_links)) == [4, 6, 10]
    beyond, newer = (replay, 18), (nv.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, 3)
    assert fields(beyond, newer) == [None, None]
    assert fields((nv.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, 7)) == [1e-12]
    assert fields(170, 232, 307, 230, 194, 193, 196) == [10, 3, 1, 2, -2, -8, 0]
    """
    lab.python(START + dedented(code))


def test_time_goes_on_along_steps_ramps_and_rates(lab: Lab) -> None:
    lab.write(
        "freeze_t = 5",
        "gpu.0.temperature.gpu = ramp 0:40 10:60",
        "gpu.0.clocks.sm = steps 0:1980 5:1200",
        "gpu.0.pcie.replay = rate 100:2.5",
    )
    code = """
    assert nv.nvmlDeviceGetTemperature(h, 0) == 50
    assert nv.nvmlDeviceGetClockInfo(h, nv.NVML_CLOCK_SM) == 1200
    assert nv.nvmlDeviceGetPcieReplayCounter(h) == 112
    """
    lab.python(START + dedented(code))


def test_a_fault_acts_on_its_call_gpu_field_and_turn(lab: Lab) -> None:
    lab.write(
        "fault = nvmlDeviceGetPowerUsage gpu=0 after=1 times=1 return=UNKNOWN",
        "fault = nvmlDeviceGetFieldValues gpu=0 field=82 return=NO_DATA",
        "fault = nvmlDeviceGetNvLink* gpu=1 return=GPU_IS_LOST",
    )
    code = """
    other = nv.nvmlDeviceGetHandleByIndex(1)
    power = [caught(nv.nvmlDeviceGetPowerUsage, h) for _ in range(3)]
    assert power == ["ok", "Unknown", "ok"]
    assert fields(82, 94) == [None, 0]
    state = nv.nvmlDeviceGetNvLinkState
    assert (caught(state, h, 0), caught(state, other, 0)) == ("ok", "GpuIsLost")
    """
    lab.python(START + dedented(code))


def test_a_lost_gpu_is_still_counted_and_an_absent_one_is_not(lab: Lab) -> None:
    lab.write("gpu.2.lost = 1", "gpu.6.absent = 1")
    code = """
    assert nv.nvmlDeviceGetCount() == 7
    assert caught(nv.nvmlDeviceGetHandleByIndex, 2) == "GpuIsLost"
    assert nv.nvmlDeviceGetMinorNumber(nv.nvmlDeviceGetHandleByIndex(6)) == 7
    """
    lab.python(START + dedented(code))


def test_a_gpu_that_fell_off_the_bus_goes_on_answering_some_calls(lab: Lab) -> None:
    lab.load("fallen-off-the-bus", "freeze_t = 5")
    code = """
    gone = nv.nvmlDeviceGetHandleByIndex(2)
    for call in (nv.nvmlDeviceGetUUID, nv.nvmlDeviceGetEccMode):
        assert caught(call, gone) == "ok"
    assert caught(nv.nvmlDeviceGetNvLinkState, gone, 17) == "ok"
    for call in (nv.nvmlDeviceGetPowerUsage, nv.nvmlDeviceGetRemappedRows):
        assert (caught(call, gone), caught(call, h)) == ("GpuIsLost", "ok")
    """
    lab.python(START + dedented(code))


def test_an_event_comes_once_to_who_registered_for_it(lab: Lab) -> None:
    lab.write("event = xid 63 gpu=1", "event = double_bit_ecc 0 gpu=1")
    code = """
    events = nv.nvmlEventSetCreate()
    gpu = nv.nvmlDeviceGetHandleByIndex(1)
    nv.nvmlDeviceRegisterEvents(gpu, nv.nvmlEventTypeXidCriticalError, events)
    event = nv.nvmlEventSetWait_v2(events, 1000)
    assert (nv.nvmlDeviceGetIndex(event.device), event.eventData) == (1, 63)
    assert caught(nv.nvmlEventSetWait_v2, events, 20) == "Timeout"
    """
    lab.python(START + dedented(code))


@pytest.mark.parametrize(
    "line",
    [
        "gpu.0.temperature.gpuu = 3",
        "gpu.8.temperature.gpu = 3",
        "gpu.0.temperature.gpu = warm",
        "fault = nvmlDeviceGetTemprature return=UNKNOWN",
        "fault = nvmlDeviceGetTemperature",
        "event = xid 79 gpu=9",
    ],
)
def test_a_scenario_with_a_mistake_is_refused_as_a_whole(lab: Lab, line: str) -> None:
    lab.write("gpu.0.temperature.gpu = 78", line)
    code = """
    import pynvml as nv
    try:
        nv.nvmlInit()
    except nv.NVMLError_Unknown:
        print("refused")
    """
    assert lab.python(code) == "refused\n"


def test_errors_have_the_words_of_the_real_library(lab: Lab) -> None:
    code = """
    said = [nv.nvmlErrorString(code) for code in (0, 15, 18, 999)]
    assert said == [
        "Success", "GPU is lost", "Driver/library version mismatch", "Unknown Error"
    ]
    nv.nvmlShutdown()
    assert caught(nv.nvmlDeviceGetName, h) == "Uninitialized"
    """
    lab.python(START + dedented(code))
