"""Asking one GPU, and sorting what is no answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpcverify import breadcrumb
from hpcverify.model import Coverage, Finding
from hpcverify.telemetry.nvml.binding import pynvml as nv

UNWELL_CODES: Mapping[int, str] = {
    nv.NVML_ERROR_GPU_IS_LOST: "gpu_lost",
    nv.NVML_ERROR_GPU_NOT_FOUND: "gpu_lost",
    nv.NVML_ERROR_RESET_REQUIRED: "gpu_reset_required",
    nv.NVML_ERROR_CORRUPTED_INFOROM: "gpu_inforom_corrupted",
    nv.NVML_ERROR_INSUFFICIENT_POWER: "gpu_unpowered",
}
"""Answers that say that the GPU itself is in trouble, as codes of findings."""

DRIVER_CODES: Mapping[int, str] = {
    nv.NVML_ERROR_DRIVER_NOT_LOADED: "driver_not_loaded",
    nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver_mismatch",
    nv.NVML_ERROR_UNINITIALIZED: "driver_mismatch",
}
"""Answers of all GPUs that say nothing about any: the driver was unloaded or upgraded."""

DRIVER_FIXES = {
    "driver_not_loaded": "modprobe nvidia; if that fails, see the kernel log",
    "driver_mismatch": "reload the kernel module of the upgraded driver (rmmod nvidia, modprobe "
    "nvidia), or reboot",
}

NO_ANSWER_REASONS: Mapping[int, str] = {
    nv.NVML_ERROR_NOT_SUPPORTED: "not supported",
    nv.NVML_ERROR_FUNCTION_NOT_FOUND: "not known to this driver",
    nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: "not known to this driver",
    # Ours are right by the current header; an older driver has fewer.
    nv.NVML_ERROR_INVALID_ARGUMENT: "not known to this driver",
    nv.NVML_ERROR_DEPRECATED: "given up by this driver",
    nv.NVML_ERROR_NO_PERMISSION: "needs root",
    nv.NVML_ERROR_NO_DATA: "no data yet",
    nv.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: "not supported on a vGPU",
}
"""Answers that this GPU, driver or user cannot have, in words."""

FINAL_CODES = frozenset({nv.NVML_SUCCESS, *UNWELL_CODES, *NO_ANSWER_REASONS})
"""Answers after which it is of no use to ask again; of the others, which a driver in
a hurry now and then gives, the second one counts."""

CONVENIENCES = frozenset(
    {
        *("nvmlDeviceGetName", "nvmlDeviceGetSerial", "nvmlDeviceGetBoardPartNumber"),
        *("nvmlDeviceGetVbiosVersion", "nvmlDeviceGetInforomImageVersion"),
        *("nvmlDeviceGetGspFirmwareMode", "nvmlDeviceGetCudaComputeCapability"),
        *("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMarginTemperature"),
        *("nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetTemperatureV"),
        *("nvmlDeviceGetApplicationsClock", "nvmlDeviceGetDefaultApplicationsClock"),
        *("nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetPowerManagementDefaultLimit"),
        *("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetViolationStatus"),
        *("nvmlDeviceGetRepairStatus", "nvmlDeviceGetUnrepairableMemoryFlag_v1"),
        *(
            f"nvmlDeviceGetFieldValues({field})"
            for field in (
                nv.NVML_FI_DEV_MEMORY_TEMP,
                nv.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
                nv.NVML_FI_DEV_PERF_POLICY_POWER,
                nv.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
                nv.NVML_FI_DEV_ACTIVE_BANK_REMAPPINGS,
                nv.NVML_FI_DEV_PENDING_BANK_REMAPPING,
                nv.NVML_FI_DEV_BANK_REMAPPER_HISTOGRAM_NONE,
            )
        ),
    }
)
"""Calls that describe a GPU, that have a substitute, or that few drivers know: a code without
a meaning here is a quirk of the driver, unless the GPUs next to it answer."""

NARROW_MEMBERS: Mapping[int, str] = {
    nv.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    nv.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    nv.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
"""Members of `nvmlValue_t` with fewer than 64 bits, by `nvmlValueType_t`."""
MEMORY_FIELDS_END = nv.NVML_FI_DEV_RETIRED_PENDING
"""The last of the fields, from 1 on, that may be left unset."""

_Answer = tuple[int, Any]
"""A return code, and what comes with success."""

Field = int | tuple[int, int]
"""A field's number, or that and the link that it is asked of."""


class Gpu(Struct, frozen=True):
    """A GPU that NVML lists; *index* and *handle* hold for this process only."""

    index: int
    uuid: str
    address: str
    handle: Any
    name: str
    driver: str

    @property
    def label(self) -> str:
        """What a person calls it."""
        return f"GPU {self.index} (…{self.uuid[-4:]})"


class Modes(Struct, frozen=True):
    """Modes in which a GPU answers fewer calls, as far as they are known."""

    cut_up: bool = False
    without_ecc: bool = False


def code_of(err: Any) -> int:
    """Read the return code that an `NVMLError` stands for."""
    return int(err.value)


class GpuQuery:
    """Asks one GPU, and keeps what was no answer."""

    def __init__(self, gpu: Gpu, modes: Modes) -> None:
        self.gpu = gpu
        self.modes = modes
        self.call = ""
        self.began = time.monotonic()
        """When that call began, on the clock of `time.monotonic`."""
        self.durations: list[float] = []
        self.has_answered = False
        self.no_answers: dict[str, str] = {}
        """The calls that were not answered, with the reason."""
        self._troubles: dict[tuple[str, int], list[str]] = {}

    def ask(self, call: Callable[..., Any], *args: object) -> Any:
        """Call NVML about this GPU; None if there is no answer."""
        self.call = call.__name__
        return self._ask_twice(lambda: self._call(call, args))

    def read_fields(self, wanted: Sequence[Field]) -> list[float | None]:
        """Read field values in one call; each has a return code of its own."""
        values = self.ask(nv.nvmlDeviceGetFieldValues, wanted)
        if values is None:
            return [None] * len(wanted)
        return [
            # Hundreds of links and counters: what is well is read without a call.
            _read_number(value)
            if _find_code(value) == nv.NVML_SUCCESS
            else self._retry_field(value, field)
            for value, field in zip(values, wanted, strict=True)
        ]

    def _call(self, call: Callable[..., Any], args: tuple[object, ...]) -> _Answer:
        breadcrumb.leave(f"{call.__name__} of {self.gpu.label}")
        self.began = time.monotonic()
        try:
            return nv.NVML_SUCCESS, call(self.gpu.handle, *args)
        except nv.NVMLError as err:
            return code_of(err), None
        except UnicodeDecodeError:  # garbage, as a corrupt InfoROM gives
            return nv.NVML_ERROR_UNKNOWN, None
        finally:
            self.durations.append(time.monotonic() - self.began)

    def _retry_field(self, value: Any, wanted: Field) -> float | None:
        of_link = " of a link" if isinstance(wanted, tuple) else ""
        self.call = f"nvmlDeviceGetFieldValues({value.fieldId}){of_link}"
        attempts = self._attempt_field(value, wanted)
        read: float | None = self._ask_twice(lambda: next(attempts))
        return read

    def _attempt_field(self, value: Any, wanted: Field) -> Iterator[_Answer]:
        yield _find_code(value), None
        code, values = self._call(nv.nvmlDeviceGetFieldValues, ([wanted],))
        if code == nv.NVML_SUCCESS:
            code = _find_code(values[0])
        yield code, _read_number(values[0]) if code == nv.NVML_SUCCESS else None

    def _ask_twice(self, attempt: Callable[[], _Answer]) -> Any:
        """Take an answer; one that says nothing is asked for once more."""
        code, answer = attempt()
        if code not in FINAL_CODES:
            first = code
            code, answer = attempt()
            if code == nv.NVML_SUCCESS:
                self._note_trouble("gpu_flaky", first)
        self.has_answered |= code == nv.NVML_SUCCESS
        if code in NO_ANSWER_REASONS:
            self.no_answers[self.call] = NO_ANSWER_REASONS[code]
        elif code not in {*FINAL_CODES, *DRIVER_CODES} and self.call in CONVENIENCES:
            self.no_answers[self.call] = f"returned '{nv.NVMLError(code)}'"
        elif code != nv.NVML_SUCCESS:
            self._note_trouble(UNWELL_CODES.get(code, "gpu_unreadable"), code)
        return answer

    def _note_trouble(self, trouble: str, code: int) -> None:
        self._troubles.setdefault((trouble, code), []).append(self.call)

    def list_driver_errors(self) -> frozenset[int]:
        """List the answers of `DRIVER_CODES` that this GPU gave."""
        return frozenset(code for _, code in self._troubles if code in DRIVER_CODES)

    def list_findings(self, of_node: Collection[int] = ()) -> Iterator[Finding]:
        """Say in what way the GPU is in trouble; each way once, but for the answers *of_node*."""
        for (trouble, code), calls in self._troubles.items():
            if code in of_node:
                continue
            then = ", but responds to the second call" if trouble == "gpu_flaky" else ""
            lost = "fell off the bus: " if trouble == "gpu_lost" else ""
            text = f"{lost}NVML reports '{nv.NVMLError(code)}'{then}"
            yield Finding(trouble, self.gpu.uuid, text, {"calls": " ".join(calls)})

    def list_unanswered(self) -> Iterator[Coverage]:
        """List what could not be had, by the reason."""
        reasons: dict[str, list[str]] = {}
        for call, why in self.no_answers.items():
            reasons.setdefault(why, []).append(call)
        for why, calls in reasons.items():
            yield Coverage(self.gpu.uuid, f"{why}: {', '.join(calls)}")


def _find_code(value: Any) -> int:
    """
    Find the return code of a field, also of one that the driver has not touched.

    With ECC off some drivers leave the fields of ECC and of retired pages as they are: a
    success at the time 0 (NVML bug 2009232, DcgmCacheManager.cpp of DCGM 4). Of other fields
    DCGM takes a value without time, so here their type must be unset as well.
    """
    untyped = value.valueType == nv.NVML_VALUE_TYPE_DOUBLE
    if not value.timestamp and (untyped or value.fieldId <= MEMORY_FIELDS_END):
        return int(value.nvmlReturn) or int(nv.NVML_ERROR_NOT_SUPPORTED)
    return int(value.nvmlReturn)


def _read_number(value: Any) -> float:
    """Read an integer field, whose type some drivers leave at double (NVML bug 2032468)."""
    return float(getattr(value.value, NARROW_MEMBERS.get(value.valueType, "ullVal")))
