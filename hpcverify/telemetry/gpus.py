"""
What GPUs say of themselves: the questions, and the shape of the answers.

`GpuSource` is the seam between the checks and the library of a vendor, and `vendors` the
place that chooses it. A GPU that is unwell, hangs or cannot be read costs none of the
others their answers: it is a finding beside them, whichever call it was that met it, with
a code of `hpcverify.telemetry.problems`. What a GPU, its driver or this user cannot answer
is None, and said in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from hpcverify.model import Coverage, Device, Finding, Part
from hpcverify.telemetry.reading import Reader, Reading

T_co = TypeVar("T_co", covariant=True)


class GpuSurvey(Struct, frozen=True):
    """What the probe tells of the GPUs of a node."""

    parts: tuple[Part, ...] = ()
    devices: tuple[Device, ...] = ()
    problems: tuple[Finding, ...] = ()
    readings: tuple[Reading, ...] = ()
    """What can be read of them: the telemetry that there is."""
    holders: tuple[tuple[str, int], ...] = ()
    """Who computes on which GPU, as (id of the part, process id); in a container, of the host."""


class GpuAnswers(Struct, Generic[T_co], frozen=True, kw_only=True):
    """The answers of all GPUs to one question."""

    answers: Mapping[str, T_co] = {}
    """By the id of the part; of a GPU in trouble, if it said any."""
    findings: tuple[Finding, ...] = ()
    """GPUs that are lost, need a reset, hang, or gave an answer that says nothing."""
    unanswered: tuple[Coverage, ...] = ()
    """What a GPU, its driver or this user cannot have, and why."""


class NvLink(Struct, frozen=True, kw_only=True):
    """One link of a GPU."""

    number: int
    active: bool | None
    speed_gbs: float | None
    """One direction, GB/s, as signalled: 0.941 of it is in data sheets."""
    errors: Mapping[str, int]
    """Counted since the driver started, by kind: ``replay``, ``recovery``, ``crc``;
    from Blackwell on ``receive``, ``recovered``, ``recovery_failed``, ``effective``
    (left after correction) and ``symbol`` (corrected, as is normal)."""


class NvlinkFabric(Struct, frozen=True, kw_only=True):
    """How a GPU stands with the NVSwitch fabric, as its manager set it up."""

    state: str
    """``not_started``, ``in_progress`` or ``completed``."""
    status: str
    """``ok``, or the library's words for why the last step did not work."""
    trouble: tuple[str, ...]
    """Some of ``degraded_bandwidth``, ``route_recovery``, ``route_unhealthy``,
    ``access_timeout``, ``incorrect_configuration``, ``partition``, ``manager``."""
    summary: str
    """``healthy``, ``unhealthy``, ``limited``, or nothing where it is not known."""
    domain: str = ""
    """The UUID of the NVLink domain of several nodes; empty on boards with switches of their
    own."""
    clique: int = 0
    """The partition of that domain; 0 is none."""


class Linkage(Struct, frozen=True, kw_only=True):
    """The NVLinks of a GPU (None where it does not tell) and its fabric, if any."""

    links: tuple[NvLink, ...] | None = ()
    fabric: NvlinkFabric | None = None
    mig: bool = False
    """Whether it is in MIG mode, which leaves NVLink off or unused; nothing else is read then."""


class PcieLink(Struct, frozen=True, kw_only=True):
    """The PCIe link of a GPU, now; an idle GPU lowers its generation to save power."""

    address: str
    generation: int | None
    width: int | None
    max_generation: int | None
    gpu_max_generation: int | None
    max_width: int | None
    counters: Mapping[str, int]
    """Since the driver started: ``replays``, ``replay_rollovers``, ``recoveries``
    (L0 to recovery), ``correctable``, ``naks_received``, ``receiver``, ``bad_tlp``,
    ``naks_sent``, ``bad_dllp``, ``non_fatal``, ``fatal``, ``unsupported``, ``lcrc``,
    ``lane``; those that this GPU counts."""


class Process(Struct, frozen=True, kw_only=True):
    """A process that uses a GPU; *memory* in bytes, if it is known."""

    pid: int
    memory: int | None
    computes: bool = True
    """False if it only draws, or waits for clients as the server of MPS does."""


class Setup(Struct, frozen=True, kw_only=True):
    """How a GPU is set up, and what is left on it."""

    persistence: bool | None
    mig: bool | None
    mig_pending: bool | None
    compute_mode: str | None
    """``default``, ``exclusive_thread``, ``prohibited`` or ``exclusive_process``."""
    ecc: bool | None
    ecc_pending: bool | None
    power_limit_w: float | None
    power_enforced_w: float | None
    """After all that limits it: what is in force."""
    power_default_w: float | None
    clock_max_mhz: float | None
    clock_applications_mhz: float | None
    """A lower wish for the SM clock, where the driver still has such."""
    slowed_by: tuple[str, ...]
    """What holds the clock down right now: ``hw_thermal``, ``sw_thermal``,
    ``hw_power_brake``."""
    slowed_to: tuple[float | None, float | None] = (None, None)
    """SM clock in MHz and temperature in °C, read where something holds the clock
    down."""
    memory_used: int | None
    """Bytes, without what the driver keeps for itself."""
    processes: tuple[Process, ...] | None
    firmware: Mapping[str, str]
    """Versions that ought to be the same on like GPUs: ``vbios``, ``inforom``,
    ``gsp`` (on or off)."""
    slowdown_counters: str = ""
    """Where the time of slowdowns comes from, if the driver's version decides it."""


class Recovery(Struct, frozen=True, kw_only=True):
    """What the driver wants done about a GPU."""

    action: str | None
    """``none``, ``gpu_reset``, ``node_reboot``, ``drain_p2p``, ``drain_and_reset``,
    ``recover_imex``, ``bus_reset``, ``system_reboot``; None before R565."""
    channel_repair_pending: bool | None
    tpc_repair_pending: bool | None
    unrepairable_memory: bool | None


class NotStartedError(Exception):
    """The library that answers for the GPUs does not start; *code* says why."""

    def __init__(self, code: str, why: str) -> None:
        """Keep a *code* of `problems.VIEW_CAUSES`, and the reason in words."""
        super().__init__(why)
        self.code = code


class GpuSource(Protocol):
    """Queries all GPUs of a node within a bounded time, or raises `NotStartedError`."""

    def list_gpus(self) -> tuple[str, ...]:
        """List the GPUs that can be asked, by the ids of their parts."""

    def make_reader(self) -> Reader:
        """Make what samples all of them while a run loads the node."""

    def read_memory_errors(self) -> GpuAnswers[tuple[Reading, ...]]:
        """Read ``ecc.*``, ``remap.*``, ``retired.*``; see `telemetry`."""

    def read_links(self) -> GpuAnswers[Linkage]:
        """Read every NVLink and the fabric."""

    def read_pcie(self) -> GpuAnswers[PcieLink]:
        """Read the PCIe links and their counters."""

    def read_setup(self) -> GpuAnswers[Setup]:
        """Read how the GPUs are set up and who uses them."""

    def read_recovery(self) -> GpuAnswers[Recovery]:
        """Read what the driver wants done; an InfoROM that is corrupt is a finding."""
