"""
Xids as they happen, from NVML's own events.

They need no root and no kernel log, but only what happens after the registration is
told, and only the number of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from ctypes import c_void_p, cast
from typing import Any

from hpcverify import breadcrumb
from hpcverify.telemetry.nvml.binding import pynvml as nv
from hpcverify.telemetry.nvml.query import Gpu
from hpcverify.telemetry.nvml.watchdog import call_each
from hpcverify.telemetry.reading import Reading

EVENTS_TIMEOUT_SECONDS = 3.0


def _read_address(handle: Any) -> int | None:
    """Say where *handle* points to, by which like handles are known."""
    return cast(handle, c_void_p).value


class XidEvents:
    """Registers with the GPUs at the first reading, and takes what has come since."""

    def __init__(self) -> None:
        """Wait with the registration until the first reading."""
        self._set: Any = None
        self._uuids: dict[int | None, str] = {}
        self._is_stuck = False
        """Whether a wait for events has not come back: nobody asks again."""

    def read(self, gpus: Iterable[Gpu]) -> Iterator[Reading]:
        """Yield the Xids of *gpus* since the last call; none of before the first."""
        if self._is_stuck:
            return
        listed = tuple(gpus)
        begun = self._set is not None
        step = self._drain if begun else lambda: self._register(listed)
        visited = call_each([step], lambda todo: todo(), EVENTS_TIMEOUT_SECONDS)
        self._is_stuck = bool(visited.timed_out)
        for _, readings in visited.answers:
            yield from readings

    def _register(self, gpus: tuple[Gpu, ...]) -> list[Reading]:
        breadcrumb.leave("nvmlDeviceRegisterEvents")
        with suppress(nv.NVMLError):  # no events on this driver: the kernel log has it
            self._set = nv.nvmlEventSetCreate()
            for gpu in gpus:
                with suppress(nv.NVMLError):
                    nv.nvmlDeviceRegisterEvents(
                        gpu.handle, nv.nvmlEventTypeXidCriticalError, self._set
                    )
                    self._uuids[_read_address(gpu.handle)] = gpu.uuid
        return []

    def _drain(self) -> list[Reading]:
        breadcrumb.leave("nvmlEventSetWait")
        readings: list[Reading] = []
        with suppress(nv.NVMLError):  # a timeout: nothing (more) has happened
            while True:
                event = nv.nvmlEventSetWait_v2(self._set, 0)
                # By a table: a GPU that is lost tells nobody its name any more.
                uuid = self._uuids.get(_read_address(event.device), "node")
                readings.append(Reading("xid", float(event.eventData), "", uuid))
        return readings

    def close(self) -> None:
        """Free the set, unless somebody is stuck in it."""
        if self._set is not None and not self._is_stuck:
            with suppress(nv.NVMLError):
                nv.nvmlEventSetFree(self._set)
