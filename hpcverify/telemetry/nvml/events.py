"""
Xids as they happen, from NVML's own events.

They need no root and no kernel log, but only what happens after the registration is
told, and only the number of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from ctypes import c_void_p, cast
from functools import partial
from typing import Any

from hpcverify import breadcrumb
from hpcverify.telemetry.nvml.binding import pynvml as nv
from hpcverify.telemetry.nvml.query import Gpu
from hpcverify.telemetry.reading import Reading
from hpcverify.telemetry.visit import Visit

EVENTS_SECONDS = 3.0
"""Seconds to wait for the events; what comes later is taken at the next reading."""


def _read_address(handle: Any) -> int | None:
    """Say where *handle* points to, by which like handles are known."""
    return cast(handle, c_void_p).value


class XidEvents:
    """Registers with each GPU at its first reading, and takes what has come since."""

    def __init__(self) -> None:
        """Wait with the registration until the first reading."""
        self._set: Any = None
        self._uuids: dict[int | None, str] = {}
        self._visit: Visit[list[Reading]] | None = None

    def read(self, gpus: Iterable[Gpu]) -> Iterator[Reading]:
        """Yield the Xids of *gpus* since the last call; none of before the first."""
        if self._visit is None:
            self._visit = Visit(partial(self._take_events, tuple(gpus)))
            self._visit.ends_within(EVENTS_SECONDS)
        if self._visit.ends_within(0):
            visit, self._visit = self._visit, None
            yield from visit.take()

    def _take_events(self, gpus: tuple[Gpu, ...]) -> list[Reading]:
        readings: list[Reading] = []
        breadcrumb.leave("nvmlEventSetWait")
        with suppress(nv.NVMLError):  # a timeout: there is no further event
            while self._set is not None:
                event = nv.nvmlEventSetWait_v2(self._set, 0)
                # By a table: a lost GPU does not return its UUID.
                uuid = self._uuids.get(_read_address(event.device), "node")
                readings.append(Reading("xid", float(event.eventData), "", uuid))
        self._register(gpus)
        return readings

    def _register(self, gpus: tuple[Gpu, ...]) -> None:
        breadcrumb.leave("nvmlDeviceRegisterEvents")
        with suppress(nv.NVMLError):  # no events on this driver: the kernel log has it
            self._set = self._set if self._set is not None else nv.nvmlEventSetCreate()
            for gpu in gpus:
                address = _read_address(gpu.handle)
                if address in self._uuids:
                    continue
                self._uuids[address] = gpu.uuid
                with suppress(nv.NVMLError):
                    nv.nvmlDeviceRegisterEvents(
                        gpu.handle, nv.nvmlEventTypeXidCriticalError, self._set
                    )

    def close(self) -> None:
        """Free the set, unless a call on it is still under way."""
        if self._set is not None and self._visit is None:
            with suppress(nv.NVMLError):
                nv.nvmlEventSetFree(self._set)
