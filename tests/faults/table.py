"""
The faults, and what hpcverify must make of each: the source of docs/faults.md.

A fault is a few lines of a scenario on a board of eight H100 that is healthy but for
them. `PASSIVE` are those that the prolog suite must see, after a run in which the
board was well; `LOADED` those that only show while the GPUs work.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcverify.model import Cause, Remedy, Verdict

PASS, WARN, ERROR, FAIL = Verdict.PASS, Verdict.WARN, Verdict.ERROR, Verdict.FAIL


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; *says* are words that the reason must hold."""

    name: str
    scenario: str
    check: str
    verdict: Verdict
    remedy: Remedy
    says: str
    cause: Cause = Cause.NONE

    @property
    def lines(self) -> list[str]:
        """The lines of the scenario, which are written here between semicolons."""
        return [line.strip() for line in self.scenario.split(";")]


def _calls() -> tuple[Fault, ...]:
    """Make one fault for each answer that a call can give in place of a value."""
    meaning = {
        "GPU_IS_LOST": ("recovery", FAIL, Remedy.REBOOT, Cause.NONE),
        "GPU_NOT_FOUND": ("recovery", FAIL, Remedy.REBOOT, Cause.NONE),
        "RESET_REQUIRED": ("recovery", FAIL, Remedy.RESET_GPU, Cause.NONE),
        "CORRUPTED_INFOROM": ("recovery", FAIL, Remedy.CONTACT_VENDOR, Cause.NONE),
        "INSUFFICIENT_POWER": ("recovery", FAIL, Remedy.INSPECT, Cause.NONE),
        "NOT_SUPPORTED": ("recovery", PASS, Remedy.NONE, Cause.NONE),
        "NO_PERMISSION": ("recovery", PASS, Remedy.NONE, Cause.NONE),
        "FUNCTION_NOT_FOUND": ("recovery", PASS, Remedy.NONE, Cause.NONE),
        **dict.fromkeys(
            (
                *("DEPRECATED", "NO_DATA", "INVALID_ARGUMENT"),
                *("ARGUMENT_VERSION_MISMATCH", "VGPU_ECC_NOT_SUPPORTED"),
            ),
            ("recovery", PASS, Remedy.NONE, Cause.NONE),
        ),
        **dict.fromkeys(
            (
                *("UNKNOWN", "TIMEOUT", "IRQ_ISSUE", "MEMORY", "IN_USE", "NOT_READY"),
                *("OPERATING_SYSTEM", "INSUFFICIENT_RESOURCES", "NOT_FOUND"),
            ),
            ("recovery", ERROR, Remedy.INSPECT, Cause.MISCONFIGURED),
        ),
    }
    return tuple(
        Fault(
            f"a call is answered with {answer}" + " by all" * (verdict is PASS),
            f"fault = nvmlDeviceGetRepairStatus "
            f"gpu={'0-7' if verdict is PASS else '2'} return={answer}",
            check,
            verdict,
            remedy,
            "nvmlDeviceGetRepairStatus" if verdict is not PASS else "",
            cause,
        )
        for answer, (check, verdict, remedy, cause) in meaning.items()
    )


def _starts() -> tuple[Fault, ...]:
    """Make one fault for each way in which NVML does not start."""
    reboot, fix = Remedy.REBOOT, Remedy.FIX_CONFIGURATION
    ways = (
        ("the driver is not loaded", "DRIVER_NOT_LOADED", fix, "neither the PCI bus"),
        ("the driver was upgraded under way", "LIB_RM_VERSION_MISMATCH", reboot, "reboot"),
        ("NVML starts with an unknown error", "UNKNOWN", fix, "NVML"),
        ("nobody may open the GPUs", "NO_PERMISSION", fix, "NVML"),
        ("NVML is not there", "LIBRARY_NOT_FOUND", fix, "neither the PCI bus"),
        ("the driver finds no GPU", "GPU_NOT_FOUND", fix, "neither the PCI bus"),
    )
    return tuple(
        Fault(
            name,
            f"fault = nvmlInit return={answer}",
            "inventory",
            ERROR,
            remedy,
            says,
            Cause.MISCONFIGURED,
        )
        for name, answer, remedy, says in ways
    )


GONE = (
    Fault(
        "a GPU fell off the bus", "gpu.2.lost = 1", "inventory", FAIL, Remedy.REBOOT, "GPU is lost"
    ),
    Fault(
        "a GPU fell off the bus and answers all but one call",
        "fault = nvmlDeviceGetPowerUsage gpu=2 return=GPU_IS_LOST",
        "inventory",
        FAIL,
        Remedy.REBOOT,
        "nvmlDeviceGetPowerUsage",
    ),
    Fault(
        "a GPU fell off the bus and answers all but one field",
        "fault = nvmlDeviceGetFieldValues gpu=2 field=145 return=GPU_IS_LOST",
        "ecc",
        FAIL,
        Remedy.REBOOT,
        "nvmlDeviceGetFieldValues(145)",
    ),
    Fault(
        "a GPU was not found when the driver started",
        "gpu.6.absent = 1",
        "inventory",
        FAIL,
        Remedy.REBOOT,
        "missing since the last run",
    ),
    Fault(
        "a GPU has no handle",
        "fault = nvmlDeviceGetHandleByIndex gpu=5 return=UNKNOWN",
        "inventory",
        FAIL,
        Remedy.REBOOT,
        "index 5",
    ),
    Fault(
        "a GPU may not be opened",
        "fault = nvmlDeviceGetHandleByIndex gpu=5 return=NO_PERMISSION",
        "inventory",
        ERROR,
        Remedy.FIX_CONFIGURATION,
        "index 5",
        Cause.PARTIAL_VIEW,
    ),
    Fault(
        "a GPU was replaced",
        "gpu.4.uuid = GPU-1111; gpu.4.serial = 99",
        "inventory",
        WARN,
        Remedy.NONE,
        "was replaced by",
    ),
    Fault(
        "a GPU is cut into MIG instances",
        "gpu.1.mig.mode = 1; gpu.1.mig.mode_pending = 1",
        "inventory",
        PASS,
        Remedy.NONE,
        "",
    ),
    Fault(
        "a GPU answers no field at all, unlike the others",
        "fault = nvmlDeviceGetFieldValues gpu=3 return=INVALID_ARGUMENT",
        "ecc",
        ERROR,
        Remedy.INSPECT,
        "cannot answer questions that its siblings can: nvmlDeviceGetFieldValues",
        Cause.UNMEASURED,
    ),
    Fault(
        "a GPU lets only root read its fields, unlike the others",
        "fault = nvmlDeviceGetFieldValues gpu=3 return=NO_PERMISSION",
        "ecc",
        ERROR,
        Remedy.INSPECT,
        "needs root",
        Cause.UNMEASURED,
    ),
    Fault(
        "a GPU does not tell one counter, unlike the others",
        "fault = nvmlDeviceGetFieldValues gpu=3 field=145 return=NOT_SUPPORTED",
        "ecc",
        WARN,
        Remedy.INSPECT,
        "nvmlDeviceGetFieldValues(145)",
    ),
    Fault(
        "a GPU's memory shrank",
        "gpu.3.memory.total = 42949672960",
        "inventory",
        WARN,
        Remedy.INSPECT,
        "memory changed from 80 GiB to 40 GiB",
    ),
)

HANGS = (
    Fault(
        "a call on one GPU never returns",
        "fault = nvmlDeviceGetRepairStatus gpu=3 hang=forever",
        "recovery",
        ERROR,
        Remedy.REBOOT,
        "nvmlDeviceGetRepairStatus has not returned",
        Cause.HUNG,
    ),
    Fault(
        "a call that the survey of the node makes never returns",
        "fault = nvmlDeviceGetSerial gpu=3 hang=forever",
        "inventory",
        ERROR,
        Remedy.REBOOT,
        "nvmlDeviceGetSerial has not returned",
        Cause.HUNG,
    ),
    Fault(
        "a call hangs and holds the driver's lock",
        "fault = nvmlDeviceGetRepairStatus gpu=3 hang=forever lock=1",
        "recovery",
        ERROR,
        Remedy.REBOOT,
        "nvmlDeviceGetRepairStatus has not returned",
        Cause.HUNG,
    ),
    Fault(
        "NVML's start never returns",
        "fault = nvmlInit hang=forever",
        "inventory",
        ERROR,
        Remedy.REBOOT,
        "nvmlInit has not returned",
        Cause.HUNG,
    ),
    Fault(
        "a call ends the process",
        "fault = nvmlDeviceGetRepairStatus gpu=4 signal=11",
        "recovery",
        ERROR,
        Remedy.RERUN,
        "killed by SIGSEGV in nvmlDeviceGetRepairStatus of GPU 4",
        Cause.CRASHED,
    ),
    Fault(
        "a call is slow and answers",
        "fault = nvmlDeviceGetRepairStatus gpu=3 hang=0.2",
        "recovery",
        PASS,
        Remedy.NONE,
        "",
    ),
    Fault(
        "a call fails once and answers the second time",
        "fault = nvmlDeviceGetRepairStatus gpu=3 return=UNKNOWN times=1",
        "recovery",
        WARN,
        Remedy.RERUN,
        "answers the second time",
    ),
)

RECOVERY = (
    *(
        Fault(
            f"the driver wants: {action}",
            f"gpu.2.recovery_action = {action}",
            "recovery",
            verdict,
            remedy,
            words,
        )
        for action, verdict, remedy, words in (
            ("GPU_RESET", FAIL, Remedy.RESET_GPU, "reset it"),
            ("NODE_REBOOT", FAIL, Remedy.REBOOT, "reboot the node"),
            ("DRAIN_P2P", WARN, Remedy.INSPECT, "peer to peer"),
            ("DRAIN_AND_RESET", FAIL, Remedy.RESET_GPU, "no new work"),
            ("5", WARN, Remedy.FIX_CONFIGURATION, "IMEX"),
            ("6", FAIL, Remedy.RESET_GPU, "PCIe bus"),
            ("7", FAIL, Remedy.REBOOT, "system"),
            ("9", WARN, Remedy.INSPECT, "unknown_9"),
        )
    ),
    Fault(
        "a memory channel waits for repair",
        "gpu.2.repair.channel_pending = 1",
        "recovery",
        WARN,
        Remedy.RESET_GPU,
        "memory channel",
    ),
    Fault(
        "a TPC waits for repair",
        "gpu.2.repair.tpc_pending = 1",
        "recovery",
        WARN,
        Remedy.RESET_GPU,
        "TPC",
    ),
    Fault(
        "memory that cannot be repaired",
        "gpu.2.repair.unrepairable_memory = 1",
        "recovery",
        FAIL,
        Remedy.REPLACE,
        "",
    ),
    Fault(
        "the InfoROM is corrupt",
        "gpu.1.inforom.valid = 0",
        "recovery",
        FAIL,
        Remedy.CONTACT_VENDOR,
        "nvmlDeviceValidateInforom",
    ),
)

MEMORY = (
    Fault(
        "a remapping of rows failed",
        "gpu.3.remapped_rows.failure = 1",
        "ecc",
        FAIL,
        Remedy.REPLACE,
        "remap.failed 1 > 0",
    ),
    Fault(
        "a remapping of rows waits for a reset",
        "gpu.3.remapped_rows.pending = 1",
        "ecc",
        WARN,
        Remedy.RESET_GPU,
        "remap.pending 1",
    ),
    Fault(
        "a bank has no row left to remap to",
        "gpu.3.remapped_rows.histogram.none = 1",
        "ecc",
        WARN,
        Remedy.CONTACT_VENDOR,
        "banks.none 1",
    ),
    Fault(
        "512 rows were remapped",
        "gpu.3.remapped_rows.uncorrectable = 512",
        "ecc",
        FAIL,
        Remedy.CONTACT_VENDOR,
        "512 > 511",
    ),
    Fault(
        "a row was remapped since the last run",
        "gpu.3.remapped_rows.uncorrectable = 1",
        "ecc",
        WARN,
        Remedy.RERUN,
        "remap.uncorrectable.since",
    ),
    Fault(
        "a row was remapped since the last run, for corrected errors",
        "gpu.3.remapped_rows.correctable = 1",
        "ecc",
        WARN,
        Remedy.RERUN,
        "remap.correctable.since",
    ),
    Fault(
        "SRAM errors passed NVIDIA's limit",
        "gpu.3.ecc.sram_threshold_exceeded = 1",
        "ecc",
        FAIL,
        Remedy.CONTACT_VENDOR,
        "ecc.sram_threshold",
    ),
    Fault(
        "an uncorrected error of DRAM since the last run",
        "gpu.3.ecc.aggregate.dram_uncorrectable = 1",
        "ecc",
        FAIL,
        Remedy.RESET_GPU,
        "ecc.uncorrected.since",
    ),
    Fault(
        "an uncorrected error of SRAM since the last run, by parity",
        "gpu.3.ecc.aggregate.sram_parity = 1",
        "ecc",
        FAIL,
        Remedy.RESET_GPU,
        "uncorrected.since",
    ),
    Fault(
        "an uncorrected error of SRAM since the last run, by SEC-DED",
        "gpu.3.ecc.aggregate.sram_secded = 1",
        "ecc",
        FAIL,
        Remedy.RESET_GPU,
        "uncorrected.since",
    ),
    Fault(
        "an uncorrected error since the driver started",
        "gpu.3.ecc.volatile.dram_uncorrectable = 1",
        "ecc",
        WARN,
        Remedy.RESET_GPU,
        "ecc.uncorrected 1",
    ),
    Fault(
        "ECC is off",
        "gpu.3.ecc.mode = 0; gpu.3.ecc.mode_pending = 0",
        "ecc",
        WARN,
        Remedy.FIX_CONFIGURATION,
        "nvidia-smi -e 1",
    ),
    Fault(
        "ECC will be off after the next reset",
        "gpu.3.ecc.mode_pending = 0",
        "ecc",
        WARN,
        Remedy.FIX_CONFIGURATION,
        "next reset",
    ),
    Fault(
        "ECC cannot be read",
        "gpu.3.ecc.mode = na; gpu.3.ecc.mode_pending = na",
        "ecc",
        WARN,
        Remedy.INSPECT,
        "its data sheet lists it",
    ),
    Fault(
        "63 retired pages",
        "gpu.3.retired_pages.double_bit = 63",
        "ecc",
        FAIL,
        Remedy.REPLACE,
        "retired.pages 63",
    ),
    Fault(
        "a page waits to be retired",
        "gpu.3.retired_pages.pending = 1",
        "ecc",
        WARN,
        Remedy.RESET_GPU,
        "retired.pending",
    ),
)

LINKS = (
    Fault("an NVLink is down", "gpu.2.nvlink.7.state = 0", "nvlink", FAIL, Remedy.INSPECT, "17"),
    Fault(
        "all NVLinks are down",
        "gpu.2.nvlink.*.state = 0",
        "nvlink",
        FAIL,
        Remedy.INSPECT,
        "0 are up",
    ),
    Fault(
        "a GPU shows fewer NVLinks", "gpu.2.nvlink.count = 12", "nvlink", FAIL, Remedy.INSPECT, "12"
    ),
    Fault(
        "a GPU shows no NVLink at all",
        "gpu.3.nvlink.count = 0",
        "nvlink",
        FAIL,
        Remedy.INSPECT,
        "down, 0 are up",
    ),
    Fault(
        "the NVLinks of a GPU cannot be read",
        "gpu.3.nvlink.count = na",
        "nvlink",
        ERROR,
        Remedy.RERUN,
        "could not be read",
        Cause.UNMEASURED,
    ),
    Fault(
        "an NVLink is slow",
        "gpu.2.nvlink.7.speed_mbps = 13281",
        "nvlink",
        FAIL,
        Remedy.INSPECT,
        "13.28",
    ),
    Fault(
        "the fabric was never set up",
        "gpu.*.fabric.state = 1",
        "nvlink",
        ERROR,
        Remedy.FIX_CONFIGURATION,
        "nvidia-fabricmanager",
        Cause.MISCONFIGURED,
    ),
    Fault(
        "the fabric is still being set up",
        "gpu.2.fabric.state = IN_PROGRESS",
        "nvlink",
        ERROR,
        Remedy.FIX_CONFIGURATION,
        "nvidia-fabricmanager",
        Cause.MISCONFIGURED,
    ),
    Fault(
        "the fabric gives degraded bandwidth",
        "gpu.2.fabric.health_mask = 0x1",
        "nvlink",
        FAIL,
        Remedy.INSPECT,
        "less bandwidth",
    ),
    Fault(
        "a route of the fabric is unhealthy",
        "gpu.2.fabric.health_mask = 0x10",
        "nvlink",
        FAIL,
        Remedy.RESET_GPU,
        "route",
    ),
    Fault(
        "the fabric is unhealthy",
        "gpu.2.fabric.health_summary = 2",
        "nvlink",
        FAIL,
        Remedy.RESET_GPU,
        "unhealthy",
    ),
    Fault(
        "the fabric has limited capacity",
        "gpu.2.fabric.health_summary = 3",
        "nvlink",
        WARN,
        Remedy.INSPECT,
        "limited",
    ),
    Fault(
        "a PCIe link has half its lanes",
        "gpu.2.pcie.width = 8",
        "pcie",
        FAIL,
        Remedy.INSPECT,
        "width",
    ),
    Fault(
        "fatal errors of PCIe since the last run",
        "gpu.2.pcie.fatal_errors = 1",
        "pcie",
        FAIL,
        Remedy.INSPECT,
        "fatal",
    ),
    Fault(
        "non-fatal errors of PCIe since the last run",
        "gpu.2.pcie.non_fatal_errors = 1",
        "pcie",
        WARN,
        Remedy.INSPECT,
        "non_fatal",
    ),
    Fault(
        "an NVLink had to be recovered since the last run",
        "gpu.2.nvlink.3.recovery_errors = 1",
        "nvlink",
        FAIL,
        Remedy.INSPECT,
        "recovery",
    ),
    Fault(
        "an NVLink replayed very often since the last run",
        "gpu.2.nvlink.3.replay_errors = 100000",
        "nvlink",
        WARN,
        Remedy.INSPECT,
        "replay",
    ),
    Fault(
        "very many corrected errors of PCIe since the last run",
        "gpu.2.pcie.correctable_errors = 100000",
        "pcie",
        WARN,
        Remedy.INSPECT,
        "correctable",
    ),
    Fault(
        "many PCIe replays since the last run",
        "gpu.2.pcie.replay = 1000",
        "pcie",
        WARN,
        Remedy.INSPECT,
        "replays",
    ),
)

SETUP = (
    Fault(
        "persistence mode is off",
        "gpu.2.persistence_mode = 0",
        "gpu_setup",
        WARN,
        Remedy.FIX_CONFIGURATION,
        "nvidia-smi -pm 1",
    ),
    Fault(
        "a GPU is held down by its heat right now",
        "gpu.2.clocks.event_reasons = HwSlowdown|HwThermalSlowdown",
        "gpu_setup",
        WARN,
        Remedy.INSPECT,
        "hw_thermal",
    ),
    Fault(
        "a GPU holds memory that nobody uses",
        "gpu.2.memory.used = 42949672960",
        "gpu_setup",
        WARN,
        Remedy.RESET_GPU,
        "memory.leftover",
    ),
    Fault(
        "nothing may compute on a GPU",
        "gpu.2.compute_mode = 2",
        "gpu_setup",
        ERROR,
        Remedy.FIX_CONFIGURATION,
        "nothing can run",
        Cause.MISCONFIGURED,
    ),
    Fault(
        "the power limit of all GPUs is lowered alike",
        "gpu.*.power.limit_mw = 600000; gpu.*.power.enforced_limit_mw = 600000",
        "gpu_setup",
        PASS,
        Remedy.NONE,
        "",
    ),
    Fault(
        "the power limit of one GPU is lowered",
        "gpu.2.power.limit_mw = 500000; gpu.2.power.enforced_limit_mw = 500000",
        "gpu_setup",
        WARN,
        Remedy.FIX_CONFIGURATION,
        "500 W",
    ),
    Fault(
        "something else limits the power",
        "gpu.2.power.enforced_limit_mw = 400000",
        "gpu_setup",
        WARN,
        Remedy.INSPECT,
        "400 W",
    ),
    Fault(
        "a GPU has another VBIOS than its like",
        "gpu.2.vbios = 96.00.61.00.01",
        "gpu_setup",
        WARN,
        Remedy.FIX_CONFIGURATION,
        "7 GPUs of the same model",
    ),
    Fault(
        "a GPU runs without its GSP firmware, unlike the others",
        "gpu.2.gsp.mode = 0",
        "gpu_setup",
        WARN,
        Remedy.FIX_CONFIGURATION,
        "gsp is off",
    ),
    Fault(
        "memory is held by a process that is no more",
        "gpu.2.process = 4194303 8589934592 python3; gpu.2.memory.used = 8589934592",
        "gpu_setup",
        WARN,
        Remedy.INSPECT,
        "4194303",
    ),
)

PASSIVE = (*GONE, *_starts(), *_calls(), *HANGS, *RECOVERY, *MEMORY, *LINKS, *SETUP)
"""What the prolog suite must see."""


LOADED = (
    Fault(
        "a GPU is slowed down by its heat, by hardware",
        "gpu.3.violation_ns.hw_thermal_slowdown = rate 0:500000000",
        "thermal",
        FAIL,
        Remedy.INSPECT,
        "throttled.hw_thermal",
    ),
    Fault(
        "a GPU is slowed down by its heat, by the driver",
        "gpu.3.violation_ns.sw_thermal_slowdown = rate 0:100000000",
        "thermal",
        FAIL,
        Remedy.INSPECT,
        "throttled.sw_thermal",
    ),
    Fault(
        "a GPU is held down by the power brake",
        "gpu.3.violation_ns.hw_power_brake = rate 0:200000000",
        "thermal",
        FAIL,
        Remedy.INSPECT,
        "throttled.hw_power_brake",
    ),
    Fault(
        "a GPU shows a hardware slowdown that no counter tells",
        "gpu.3.clocks.event_reasons = HwSlowdown",
        "thermal",
        FAIL,
        Remedy.INSPECT,
        "throttled.hw_slowdown",
    ),
    Fault(
        "a GPU has hardly any room to its slowdown",
        "gpu.3.temperature.gpu = 88",
        "thermal",
        WARN,
        Remedy.INSPECT,
        "temperature.headroom.min",
    ),
    Fault(
        "a GPU's memory is too hot",
        "gpu.3.temperature.memory = 100",
        "thermal",
        WARN,
        Remedy.INSPECT,
        "temperature.memory",
    ),
    Fault(
        "a GPU runs at half the clock of the others",
        "gpu.3.clocks.sm = 900; gpu.3.clocks.graphics = 900",
        "thermal",
        WARN,
        Remedy.INSPECT,
        "clock.mean",
    ),
    Fault(
        "a GPU draws far less power than the others",
        "gpu.3.power.usage_mw = 250000",
        "thermal",
        WARN,
        Remedy.INSPECT,
        "power.mean",
    ),
    Fault(
        "a GPU idles while it should work",
        "gpu.3.utilization.gpu = 0; gpu.3.clocks.event_reasons = GpuIdle",
        "thermal",
        ERROR,
        Remedy.RERUN,
        "loaded",
        Cause.UNMEASURED,
    ),
    Fault(
        "a GPU falls off the bus under load",
        "gpu.3.lost = steps 0:0 60:1",
        "thermal",
        FAIL,
        Remedy.REBOOT,
        "lost",
    ),
    Fault(
        "a PCIe link is of a lower generation under load",
        "gpu.3.pcie.gen = 4",
        "pcie",
        FAIL,
        Remedy.INSPECT,
        "generation",
    ),
    Fault(
        "a PCIe link falls back under load now and then",
        "gpu.3.pcie.gen = steps 0:5 40:3 44:5",
        "pcie",
        FAIL,
        Remedy.INSPECT,
        "generation",
    ),
    Fault(
        "a PCIe link loses lanes under load",
        "gpu.3.pcie.width = steps 0:16 40:8",
        "pcie",
        FAIL,
        Remedy.INSPECT,
        "width",
    ),
    Fault(
        "a PCIe link replays all the time",
        "gpu.3.pcie.replay = rate 0:5",
        "pcie",
        FAIL,
        Remedy.INSPECT,
        "replays",
    ),
    Fault(
        "NVLinks make errors under load",
        "gpu.3.nvlink.4.crc_flit_errors = rate 0:500",
        "nvlink",
        FAIL,
        Remedy.INSPECT,
        "errors",
    ),
    Fault(
        "thousands of errors of memory are corrected each second",
        "gpu.3.ecc.volatile.dram_correctable = rate 0:4647",
        "ecc",
        FAIL,
        Remedy.CONTACT_VENDOR,
        "ecc.corrected.sustained",
    ),
    Fault(
        "a few errors of memory are corrected each second",
        "gpu.3.ecc.volatile.dram_correctable = rate 0:4",
        "ecc",
        WARN,
        Remedy.INSPECT,
        "ecc.corrected.rate",
    ),
    Fault(
        "an uncorrected error under load",
        "gpu.3.ecc.volatile.dram_uncorrectable = steps 0:0 60:1",
        "ecc",
        FAIL,
        Remedy.RESET_GPU,
        "ecc.uncorrected.delta",
    ),
    Fault(
        "an uncorrected error of SRAM under load",
        "gpu.3.ecc.volatile.sram_parity = steps 0:0 60:1",
        "ecc",
        FAIL,
        Remedy.RESET_GPU,
        "uncorrected.delta",
    ),
    Fault(
        "the clocks of a GPU are locked",
        "gpu.3.clocks.sm = 1200; gpu.3.clocks.graphics = 1200;"
        "gpu.3.clocks.event_reasons = 0; gpu.3.violation_ns.power = 0",
        "gpu_setup",
        WARN,
        Remedy.FIX_CONFIGURATION,
        "1200",
    ),
    Fault(
        "an Xid comes while our own load runs",
        "event = xid 79 gpu=3 at=60",
        "xid",
        FAIL,
        Remedy.REBOOT,
        "79",
    ),
)
"""What shows only while the GPUs work."""
