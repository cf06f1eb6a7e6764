"""GPUs of a vendor that does not exist, and what answers for them: a second `GpuSource`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from hpcverify.check import Context
from hpcverify.model import Coverage, Device, Finding, Inventory, Part
from hpcverify.telemetry.gpus import (
    GpuAnswers,
    Linkage,
    NotStartedError,
    NvLink,
    PcieLink,
    Recovery,
    Setup,
)
from hpcverify.telemetry.reading import Reader, Reading
from hpcverify.testing import CPU, make_context
from tests.doubles import UNTOLD

T = TypeVar("T")
VENDOR = "Hypnos"
IDS = tuple(f"HPN:7f{number}/0042-c" for number in range(4))
PARTS = tuple(
    Part(
        "gpu",
        part_id,
        f"GPU {number}",
        {
            "vendor": VENDOR,
            "name": "Hypnos Somnus 4",
            "driver": "9.1-lethe",
            "pci_address": f"0007:{0x21 + number:02x}:00.0",
            "pci_device_id": "1f5e:0042",
            "memory": "128 GiB",
        },
    )
    for number, part_id in enumerate(IDS)
)
INVENTORY = Inventory(
    parts=(Part("cpu", "cpu", "CPU", {"model": "test"}), *PARTS),
    devices=(CPU, *(Device("cuda", part.id, part.label) for part in PARTS)),
)
"""A node with four of them."""
HEALTHY_SETUP = replace(
    UNTOLD,
    ecc=True,
    power_limit_w=600.0,
    clock_max_mhz=1900.0,
    memory_used=0,
    processes=(),
    firmware={"dream": "3.2"},
)
HEALTHY_RECOVERY = Recovery(
    action=None,
    channel_repair_pending=None,
    tpc_repair_pending=None,
    unrepairable_memory=False,
)


def make_links(down: int | None = None) -> Linkage:
    """Make three links, of which one may be *down*."""
    return Linkage(
        links=tuple(
            NvLink(number=n, active=n != down, speed_gbs=40.0, errors={"replay": 0})
            for n in range(3)
        )
    )


class InventedReader:
    """Samples two things that this vendor shows, always the same."""

    def read(self) -> Iterator[Reading]:
        for part_id in IDS:
            yield Reading("temperature", 51.0, "°C", part_id)
            yield Reading("clock", 1900.0, "MHz", part_id)

    def close(self) -> None:
        """Hold nothing."""


@dataclass(frozen=True, slots=True)
class InventedSource:
    """Answers that all GPUs are well, but for what a test gives one of them."""

    errors: Mapping[str, float] = field(default_factory=dict[str, float])
    """Counters of memory errors of the third GPU."""
    links: Linkage = field(default_factory=make_links)
    """Of the third GPU, as all below."""
    setup: Setup = HEALTHY_SETUP
    recovery: Recovery = HEALTHY_RECOVERY
    trouble: str = ""
    """The code of what is wrong with the third GPU, which then answers nothing."""
    absent: str = ""
    """Why there is nobody to ask, if so."""

    def list_gpus(self) -> tuple[str, ...]:
        if self.absent:
            raise NotStartedError(self.absent, "the dream daemon is asleep: wake it (hypnosd)")
        return IDS

    def make_reader(self) -> Reader:
        return InventedReader()

    def read_memory_errors(self) -> GpuAnswers[tuple[Reading, ...]]:
        """Answer with three counters."""
        well = {"ecc.mode": 1.0, "ecc.corrected": 0.0, "ecc.uncorrected.lifetime": 0.0}

        def answer(values: Mapping[str, float], part_id: str) -> tuple[Reading, ...]:
            return tuple(Reading(name, value, "", part_id) for name, value in values.items())

        return self._answer(
            lambda part_id: answer(well, part_id), answer({**well, **self.errors}, IDS[2])
        )

    def read_links(self) -> GpuAnswers[Linkage]:
        """Answer with links of its own kind, and no fabric."""
        return self._answer(lambda _: make_links(), self.links)

    def read_pcie(self) -> GpuAnswers[PcieLink]:
        """Answer with the width of the links, and with nothing else."""

        def answer(part_id: str) -> PcieLink:
            return PcieLink(
                address=PARTS[IDS.index(part_id)].facts["pci_address"],
                generation=None,
                width=16,
                max_generation=None,
                gpu_max_generation=None,
                max_width=16,
                counters={},
            )

        return self._answer(answer, answer(IDS[2]))

    def read_setup(self) -> GpuAnswers[Setup]:
        """Answer with the little that can be set up."""
        return self._answer(lambda _: HEALTHY_SETUP, self.setup)

    def read_recovery(self) -> GpuAnswers[Recovery]:
        """Answer that the driver wants nothing, or what a test wants of it."""
        return self._answer(lambda _: HEALTHY_RECOVERY, self.recovery)

    def _answer(self, usual: Callable[[str], T], third: T) -> GpuAnswers[T]:
        answers = {part_id: usual(part_id) for part_id in IDS} | {IDS[2]: third}
        troubles: tuple[Finding, ...] = ()
        if self.trouble:
            del answers[IDS[2]]
            text = f"the driver says {self.trouble.replace('_', ' ')}"
            troubles = (Finding(self.trouble, IDS[2], text),)
        unanswered = (Coverage("node", "all GPUs: not told: age of the dreams"),)
        return GpuAnswers(answers=answers, findings=troubles, unanswered=unanswered)


def make_node(folder: Path, **changes: Any) -> Context:
    return replace(make_context(folder, **changes), inventory=INVENTORY)
