"""The GPUs of a node, those that can be computed on, and what is amiss with them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpcverify import breadcrumb
from hpcverify.model import Device, Finding, Part
from hpcverify.telemetry import pci, sysfs
from hpcverify.telemetry.gpus import GpuSurvey, NotStartedError
from hpcverify.telemetry.nvml import get_source, questions
from hpcverify.telemetry.nvml.binding import pynvml as nv
from hpcverify.telemetry.nvml.gauges import read_gauges
from hpcverify.telemetry.nvml.query import GpuQuery, code_of
from hpcverify.telemetry.nvml.session import GPU_START_SECONDS, UNLISTED_CODES
from hpcverify.telemetry.reading import Reading
from hpcverify.telemetry.visit import Visit

UNUSABLE_CODES = frozenset(
    {
        "gpu_lost",
        "gpu_reset_required",
        "gpu_inforom_corrupted",
        "gpu_unpowered",
        "gpu_hung",
        "gpu_blocked",
        "gpu_mig",
    }
)
"""Problems with which a GPU is not worked on."""

LATE_CODES = ("gpu_hung", "gpu_blocked")
LATE_SECONDS = 1.0
"""Seconds to ask again for a GPU that has not initialised in its own time."""

ECC_NAMES = {None: None, True: "on", False: "off"}

CUDA_DEVICE_PATTERN = r"\s*(\d+|GPU-|MIG-)"
"""How a valid entry of CUDA_VISIBLE_DEVICES begins."""


class _GpuFacts(Struct, frozen=True):
    """What one GPU says of itself."""

    facts: dict[str, str]
    mig: bool
    readings: tuple[Reading, ...]
    holders: tuple[tuple[str, int], ...]


def survey_gpus(
    addresses: Sequence[str], root: Path, environ: Mapping[str, str] = os.environ
) -> GpuSurvey:
    """List the GPUs that NVML knows of, or the PCI bus below *root*, at *addresses*."""
    try:
        return _survey_with_nvml(addresses, root, environ)
    except NotStartedError as exc:
        if not addresses and exc.code == "driver_not_loaded":
            return GpuSurvey()
        text = f"{exc}; the PCI bus has {len(addresses)} NVIDIA GPUs"
        return GpuSurvey(
            parts=tuple(_describe_bare_gpu(address, root) for address in addresses),
            problems=(Finding(exc.code, "node", text),),
        )


def _describe_bare_gpu(address: str, root: Path) -> Part:
    facts = sysfs.drop_unknown(pci_address=address, pci_device_id=pci.read_device_id(address, root))
    return Part("gpu", address, f"GPU at {address}", facts)


def _survey_with_nvml(
    addresses: Sequence[str], root: Path, environ: Mapping[str, str]
) -> GpuSurvey:
    listing = get_source().list_devices()
    heard = get_source().ask_all(_read_gpu_facts)
    unlisted = sorted(set(addresses) - {gpu.address for gpu in listing.gpus})
    named = [f for f in heard.findings if f not in listing.unlisted_findings]
    text = "the GPU is divided into MIG instances. Fix: nvidia-smi -mig 0"
    cut_up = [Finding("gpu_mig", uuid, text) for uuid, p in heard.answers.items() if p.mig]
    unusable = {f.part_id for f in (*named, *cut_up) if f.code in UNUSABLE_CODES}
    return GpuSurvey(
        parts=(
            *(_describe_bare_gpu(address, root) for address in unlisted),
            *(
                Part(
                    *("gpu", gpu.uuid, gpu.label),
                    {"pci_address": gpu.address, "driver": listing.driver}
                    | (p.facts if (p := heard.answers.get(gpu.uuid)) else {}),
                )
                for gpu in listing.gpus
            ),
        ),
        devices=tuple(
            Device("cuda", gpu.uuid, gpu.label) for gpu in listing.gpus if gpu.uuid not in unusable
        ),
        problems=(
            # The PCI bus knows them by their address, which is more than an index.
            *(
                _explain_unlisted(unlisted, root, environ, listing.unlisted_findings)
                or listing.unlisted_findings
            ),
            *_find_hidden_from_cuda(len(listing.gpus), environ),
            *named,
            *cut_up,
        ),
        readings=tuple(r for p in heard.answers.values() for r in p.readings),
        holders=tuple(h for p in heard.answers.values() for h in p.holders),
    )


def _explain_unlisted(
    addresses: Sequence[str], root: Path, environ: Mapping[str, str], late: Sequence[Finding]
) -> list[Finding]:
    """Query the GPUs at *addresses* that NVML does not list; *late* ones still initialise."""
    explained: list[Finding] = []
    waiting = [finding for finding in late if finding.code in LATE_CODES]
    patience = LATE_SECONDS if waiting else GPU_START_SECONDS
    for address in addresses:
        visit = Visit(partial(_explain_missing_gpu, address, root, environ))
        if visit.ends_within(patience):
            explained.append(visit.take())
            continue
        patience = LATE_SECONDS
        if waiting:
            explained.append(replace(waiting.pop(0), part_id=address))
        else:
            text = f"NVML did not return the GPU at {address} within {patience:g} s"
            explained.append(Finding("gpu_hung", address, text))
    return explained


def _explain_missing_gpu(address: str, root: Path, environ: Mapping[str, str]) -> Finding:
    breadcrumb.leave(f"nvmlDeviceGetHandleByPciBusId({address})")
    try:
        nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetHandleByPciBusId(address))
    except nv.NVMLError as err:
        code, why = UNLISTED_CODES.get(code_of(err), "gpu_unreadable"), str(err)
    else:
        code, why = "gpu_unreadable", "NVML lists this GPU by address, but not by index"
    hidden = _explain_hidden(address, root, environ) if code == "gpu_missing" else ""
    if hidden:
        code, why = "partial_view", hidden
    text = f"the PCI bus has a GPU at {address} that NVML does not list: {why}"
    return Finding(code, address, text)


def _explain_hidden(address: str, root: Path, environ: Mapping[str, str]) -> str:
    """Say what hides the GPU at *address* from this process, if anything does."""
    visible = environ.get("NVIDIA_VISIBLE_DEVICES", "all")
    if visible != "all":
        return f"NVIDIA_VISIBLE_DEVICES is {visible!r}"
    card = root / "proc/driver/nvidia/gpus" / address / "information"
    lines = (sysfs.read_text(card) or "").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    minor = fields.get("Device Minor", "").strip()
    if minor:
        return _explain_device_file(minor, root)
    device = root / pci.PCI_DEVICES_FOLDER / address
    if not device.exists() or pci.read_driver(device):  # the driver has it and never started it
        return ""
    return (
        f"no driver is bound to it. Fix: echo {address} > /sys/bus/pci/drivers/nvidia/bind; if it "
        "was not unbound on purpose, see the kernel log"
    )


def _explain_device_file(minor: str, root: Path) -> str:
    try:
        os.close(os.open(root / f"dev/nvidia{minor}", os.O_RDONLY | os.O_NONBLOCK))
    except FileNotFoundError:
        return f"/dev/nvidia{minor} is missing, as in a container without this device"
    except PermissionError:
        return f"/dev/nvidia{minor} cannot be opened (device cgroup)"
    except OSError:  # the driver tried and failed: that is the GPU's fault
        return ""
    return ""


def _find_hidden_from_cuda(listed: int, environ: Mapping[str, str]) -> list[Finding]:
    """CUDA, unlike NVML, takes the first valid entries of a variable and no more."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return []
    names = takewhile(partial(re.match, CUDA_DEVICE_PATTERN), map(str.strip, value.split(",")))
    there = takewhile(lambda n: not n.isdigit() or int(n) < listed, names)
    visible = len(list(there))
    if visible >= listed:
        return []
    text = f"CUDA_VISIBLE_DEVICES={value} shows {visible} of {listed} GPUs. Fix: unset it"
    return [Finding("partial_view", "node", text)]


def _read_gpu_facts(gpu: GpuQuery) -> _GpuFacts:
    questions.read_mig_modes(gpu)
    held = questions.list_processes(gpu) or ()
    readings = tuple(read_gauges(gpu))
    ecc = next((bool(r.value) for r in readings if r.name == "ecc.mode"), None)
    return _GpuFacts(
        facts=_read_facts(gpu) | sysfs.drop_unknown(ecc=ECC_NAMES[ecc]),
        mig=gpu.modes.cut_up,
        readings=readings,
        holders=tuple((gpu.gpu.uuid, process.pid) for process in held if process.computes),
    )


def _read_facts(gpu: GpuQuery) -> dict[str, str]:
    memory = gpu.ask(nv.nvmlDeviceGetMemoryInfo)
    capability = gpu.ask(nv.nvmlDeviceGetCudaComputeCapability)
    ids = gpu.ask(nv.nvmlDeviceGetPciInfo)
    return sysfs.drop_unknown(
        name=gpu.ask(nv.nvmlDeviceGetName),
        serial=gpu.ask(nv.nvmlDeviceGetSerial),
        board=gpu.ask(nv.nvmlDeviceGetBoardPartNumber),
        pci_device_id=f"{ids.pciDeviceId >> 16:04x}" if ids else None,
        pcie_generation=_to_text(gpu.ask(nv.nvmlDeviceGetMaxPcieLinkGeneration)),
        pcie_width=_to_text(gpu.ask(nv.nvmlDeviceGetMaxPcieLinkWidth)),
        vbios=gpu.ask(nv.nvmlDeviceGetVbiosVersion),
        memory=f"{memory.total / 2**30:.0f} GiB" if memory else None,
        compute_capability=".".join(map(str, capability)) if capability else None,
        power_limit=_read_power_limit(gpu),
        clock_limit=_read_clock_limit(gpu),
        compute_mode=None
        if (mode := questions.read_compute_mode(gpu)) == questions.DEFAULT_MODE
        else mode,
    )


def _read_power_limit(gpu: GpuQuery) -> str | None:
    """Read the enforced limit, which a BMC may set, and the default: ``500 of 700 W``."""
    limit = gpu.ask(nv.nvmlDeviceGetPowerManagementLimit)
    enforced = gpu.ask(nv.nvmlDeviceGetEnforcedPowerLimit)
    default = gpu.ask(nv.nvmlDeviceGetPowerManagementDefaultLimit)
    return (
        limit and default and f"{min(limit, enforced or limit) / 1e3:.0f} of {default / 1e3:.0f} W"
    )


def _read_clock_limit(gpu: GpuQuery) -> str | None:
    """Read the clock that was set below the default, and the highest: ``900 of 1410 MHz``."""
    wish = gpu.ask(nv.nvmlDeviceGetApplicationsClock, nv.NVML_CLOCK_SM)
    usual = gpu.ask(nv.nvmlDeviceGetDefaultApplicationsClock, nv.NVML_CLOCK_SM)
    highest = gpu.ask(nv.nvmlDeviceGetMaxClockInfo, nv.NVML_CLOCK_SM)
    if not (wish and usual and highest) or wish >= usual:
        return None
    return f"{wish} of {highest} MHz"


def _to_text(number: int | None) -> str | None:
    return None if number is None else str(number)
