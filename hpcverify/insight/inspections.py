"""What prevents a full verification of this node, and the fix for each."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, groupby
from pathlib import Path

from msgspec import Struct

from hpcverify.check import Context, Rule, find_rules
from hpcverify.errors import ConfigError, HpcverifyError, SlurmError, write_install_command
from hpcverify.fleet.ledger import LEDGER_FILE_NAME, Ledger
from hpcverify.fleet.own_files import list_own_requirements
from hpcverify.limits.floors import SPEED_SETTINGS, Floor, find_floor, list_floored
from hpcverify.limits.specs import Spec, count_missing_from_board, explain_unknown, find_spec
from hpcverify.model import (
    PLURAL_NAMES,
    Cause,
    Device,
    Finding,
    FindingRule,
    Inventory,
    Part,
    Remedy,
    Verdict,
)
from hpcverify.plan.catalog import load_check, load_checks
from hpcverify.plan.config import Site, load_site, node_name, state_dir
from hpcverify.plan.suite import Step, list_suites, load_suite, make_plan, refuse_endless
from hpcverify.records.store import Store
from hpcverify.run.executor import Answer
from hpcverify.run.folders import explain_silence
from hpcverify.run.gather import HOST_DEVICE, describe_holders, probe_node
from hpcverify.run.local import LocalExecutor
from hpcverify.run.lock import find_lock_holder
from hpcverify.run.wire import GpuHolder, Measure
from hpcverify.slurm.client import Slurm
from hpcverify.slurm.hooks import find_hooks
from hpcverify.slurm.requirements import Requirement, Stage, list_hook_requirements
from hpcverify.summary.figures import format_scaled
from hpcverify.summary.verdict import DISRUPTIVE_REMEDIES, DRAIN, REMEDY_STEPS
from hpcverify.telemetry import ipmi, pci
from hpcverify.telemetry.problems import PROBLEM_RULES
from hpcverify.trust import ROOT, refuse_folder_of_others
from hpcverify.units import format_count

SETUP = "hpcverify setup slurm prints what is missing"
START_CHECK = "gemm"
"""Imports torch, starts CUDA as all checks do, and runs a kernel: that alone shows what is
missing."""
START_SUBJECT = "computing"
START_PARAMS = {"dtypes": ["fp32"], "size": 256, "burst_seconds": 0.01, "seconds": 0.01}
START_SECONDS = 90.0
"""The time to import torch from a slow file system and to start the driver."""
INVENTORY = "inventory"
"""The check that counts GPUs."""
FLOOR_SUITE = "quick"
"""The suite whose limits are shown: it has every check."""
FLOOR_PREFIX = "floor "
"""Begins the subject of each floor, which only ``--floors`` prints."""
TORCH = "torch"
CPU_BUILD = "+cpu"
"""In the version of a torch that computes on no GPU."""
OPTIONAL_PACKAGES = ("jinja2", "ClusterShell")
TOOLS = {
    "fio": ("missing: storage cannot be verified", "apt-get install fio"),
    "smartctl": ("missing: disk wear cannot be seen", "apt-get install smartmontools"),
}
MAX_EVENT_DELAY_S = 3600.0
"""After which events that wait for a reader need a fix: several cycles have passed."""
BMC_TOOL = "ipmi-sensors"
"""Wanted only where there is a BMC to ask."""


class Advice(Struct, frozen=True):
    """One thing that was inspected, and the fix if it needs one."""

    subject: str
    state: str
    fix: str = ""


def inspect_configuration() -> Iterator[Advice]:
    """Inspect the site file, the suites and the scratch directory."""
    try:
        site = load_site()
        _, mistakes = load_checks(site.packages)
        for name in list_suites():
            refuse_endless(make_plan(load_suite(name), site))
    except HpcverifyError as exc:
        yield Advice("configuration", str(exc), "correct the file")
        return
    for mistake in mistakes:
        yield Advice("check of the site", mistake, "correct the file")
    yield Advice("configuration", ", ".join(file.path for file in site.files))
    if not site.scratch:
        return
    if silence := explain_silence(Path(site.scratch)):
        yield Advice("scratch", silence, "do that, or set scratch to another directory")
        return
    if not Path(site.scratch).is_dir():
        yield Advice("scratch", f"{site.scratch} is not a directory", "create it")
        return
    try:
        refuse_folder_of_others(Path(site.scratch), shared=True)
    except ConfigError as exc:
        yield Advice("scratch", str(exc), "do that, or set scratch to another directory")


def inspect_state() -> Iterator[Advice]:
    """Inspect the stored runs."""
    try:
        store = Store(state_dir())
    except HpcverifyError as exc:
        yield Advice("state", str(exc), "correct that, then run hpcverify doctor again")
        return
    yield Advice("state", f"{format_count(store.count_all_runs(), 'run')} in {state_dir()}")
    if store.damaged_path.exists():
        fix = "look for disk errors in the kernel log, then delete it"
        yield Advice("index", f"a damaged one was moved to {store.damaged_path}", fix)
    if warning := store.explain_future_runs(node_name()):
        yield Advice("clock", warning)
    for fault in store.warnings:
        yield Advice("run document", fault, "move it away")


def inspect_lock() -> Iterator[Advice]:
    """Inspect who holds the node: any user can block the runs of others."""
    holder = find_lock_holder()
    if holder is None:
        yield Advice("node lock", "free")
        return
    ours = holder.uid in (ROOT, os.geteuid())
    fix = "" if ours else "find that process and end it: it blocks all runs except root's"
    yield Advice("node lock", f"held by {holder.description}", fix)


def inspect_packages() -> Iterator[Advice]:
    """Inspect the Python packages that not every node needs."""
    for package in OPTIONAL_PACKAGES:
        version = _find_version(package)
        yield Advice(package, version) if version else _advise_install(package, "missing")


def _advise_install(package: str, state: str) -> Advice:
    return Advice(package, state, write_install_command(package))


def _find_version(package: str) -> str:
    """Find the version of *package* without importing it; empty if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def inspect_tools(root: Path = Path("/")) -> Iterator[Advice]:
    """Inspect the programs that checks call."""
    wanted = dict(TOOLS)
    if ipmi.find_device(root):
        why = "missing: fans, power supplies and the BMC's log cannot be seen"
        wanted[BMC_TOOL] = (why, f"apt-get install {ipmi.PACKAGE}")
    for tool, (why, fix) in wanted.items():
        path = shutil.which(tool)
        yield Advice(tool, path) if path else Advice(tool, why, fix)


def inspect_fleet() -> Iterator[Advice]:
    """Inspect what this node needs in a cluster, if its site has one."""
    try:
        site = load_site()
    except HpcverifyError:  # inspect_configuration reports it
        return
    if not site.fleet.spool:
        return
    try:
        yield from map(_advise, list_own_requirements(site, site.fleet))
    except ConfigError as exc:
        yield Advice("fleet", str(exc), "correct the file")
    if shutil.which("scontrol") is None:
        yield Advice("scontrol", "not in PATH", "install Slurm's client tools")
        return
    try:
        settings = Slurm(user=site.fleet.user).read_hook_settings()
    except SlurmError as exc:
        yield Advice("Slurm", f"its settings are not known: {exc}")
        return
    for requirement in list_hook_requirements(settings, find_hooks()):
        if requirement.stage is Stage.OBSERVE:
            yield _advise(requirement)


def inspect_controller() -> Iterator[Advice]:
    """Inspect what the controller does beside holding nodes, on the host that has its ledger."""
    try:
        if not (state_dir() / LEDGER_FILE_NAME).exists():
            return
        ledger = Ledger(state_dir())
        for malfunction in ledger.list_malfunctions():
            yield Advice(malfunction.name, malfunction.why, "correct that: each cycle tries again")
        for reader in ledger.list_readers():
            late = 0 < reader.oldest < time.time() - MAX_EVENT_DELAY_S
            state = f"{format_count(reader.pending, 'event')} not delivered yet"
            yield Advice(
                f"events ({reader.name})", state, "run hpcverify fleet collect" if late else ""
            )
    except HpcverifyError as exc:
        yield Advice("ledger", str(exc), "correct that")


def _advise(requirement: Requirement) -> Advice:
    fix = "" if requirement.is_met else requirement.fix or SETUP
    return Advice(requirement.subject, requirement.state, fix)


def inspect_hardware() -> Iterator[Advice]:
    """Inspect the parts of this node, what hides some of them, and what they are held to."""
    executor = LocalExecutor(should_stop=lambda: False)
    try:
        inventory, holders = probe_node(executor)
        devices = ", ".join(device.label for device in inventory.devices)
        yield Advice("devices", devices)
        yield Advice("sensors", _describe_sensors(inventory))
        if holders:
            waits = "checks that load the node end in ERROR until that ends"
            fix = "end it, or verify the node when it is idle"
            yield Advice("GPUs in use", f"{describe_holders(holders, inventory)}: {waits}", fix)
        for problem in inventory.problems:
            yield _describe_problem(problem, inventory)
        try:
            site = load_site()
            steps = _plan_floors(site)
        except HpcverifyError:  # inspect_configuration reports it
            return
        if "gpus" not in site.limits.get(INVENTORY, {}):
            yield from _ask_for_gpu_count(inventory)
        yield from _inspect_torch(executor, inventory, holders, site.packages)
        yield from _list_floors(inventory, steps)
    finally:
        executor.close()


def _ask_for_gpu_count(inventory: Inventory) -> Iterator[Advice]:
    """Give the line of the site file by which a node with fewer GPUs than it should have fails."""
    gpus = inventory.of_kind("gpu")
    if not gpus:
        return
    missing = count_missing_from_board(gpus, pci.count_handed_on_gpus()) or 0
    line = f"gpus = {{ low = {len(gpus) + missing} }} under [limits.{INVENTORY}]"
    ask = f"to fail a node with fewer, put in the site file: {line}"
    if missing:
        state = f"{len(gpus)}, {missing} fewer than a board of this part has"
        yield Advice("GPUs", state, f"look for what is missing: nvidia-smi -L, lspci; {ask}")
    else:
        yield Advice("GPUs", f"{len(gpus)}; {ask}")


def _inspect_torch(
    executor: LocalExecutor,
    inventory: Inventory,
    holders: Sequence[GpuHolder],
    packages: tuple[str, ...],
) -> Iterator[Advice]:
    version = _find_version(TORCH)
    if not version:
        yield _advise_install(TORCH, "missing")
        return
    gpus = [device for device in inventory.devices if device.kind == "cuda"]
    used = {holder.part for holder in holders}
    free = next((gpu for gpu in gpus if gpu.part not in used), None)
    if gpus and free is None:
        yield Advice(START_SUBJECT, "not started: every GPU is in use")
    started = list(_start(executor, free or HOST_DEVICE, inventory, packages))
    if free or any(item.fix for item in started):
        yield from started
    if any(item.fix for item in started):
        return  # which reports what is wrong with it
    if CPU_BUILD in version and gpus:
        yield Advice(TORCH, f"{version} computes on no GPU", "install a build for these GPUs")
    else:
        yield Advice(TORCH, version)


def _start(
    executor: LocalExecutor, device: Device, inventory: Inventory, packages: tuple[str, ...]
) -> Iterator[Advice]:
    """Multiply small matrices on *device*, in a worker of its own: that alone imports torch."""
    with tempfile.TemporaryDirectory() as folder:
        context = _build_context(device, inventory, Path(folder))
        task = Measure(name=START_CHECK, packages=packages, params=START_PARAMS, context=context)
        answer = executor.run({device.part: task}, START_SECONDS)[device.part]
    yield from describe_start(answer, device.label, load_check(START_CHECK, packages).finding_rules)


def describe_start(
    answer: Answer, label: str, rules: Mapping[str, FindingRule]
) -> Iterator[Advice]:
    """Report whether the device called *label* started, by what its worker answered."""
    outcome = answer.outcome
    needs_fix = {code for code, rule in rules.items() if rule.verdict is not Verdict.PASS}
    notes = [
        (item.text, rules[item.code].remedy)
        for item in answer.items
        if isinstance(item, Finding) and item.code in needs_fix
    ]
    if outcome.cause is Cause.TIMEOUT and label != HOST_DEVICE.label:
        notes.append((f"{outcome.reason}: look for its Xid in the kernel log", Remedy.REBOOT))
    elif outcome.verdict is not Verdict.PASS:
        notes.append((outcome.reason, outcome.remedy))
    for text, remedy in notes:
        yield Advice(START_SUBJECT, f"{label}: {text}", _write_step(remedy, label))
    if not notes:
        yield Advice(START_SUBJECT, f"starts, and computes on {label}")


def _build_context(device: Device, inventory: Inventory, folder: Path) -> Context:
    return Context(
        node=node_name(),
        device=device,
        peers=(device,),
        inventory=inventory,
        previous=None,
        scratch=folder,
        shared=folder,
        seed=0,
    )


def _list_floors(inventory: Inventory, steps: Sequence[Step]) -> Iterator[Advice]:
    """Say which floors the speeds of the GPUs are held to, once for each kind of them."""
    kinds: dict[tuple[str, ...], list[Part]] = {}
    for gpu in inventory.of_kind("gpu"):
        facts = ("name", "pci_device_id", *SPEED_SETTINGS)
        kinds.setdefault(tuple(gpu.facts.get(fact, "") for fact in facts), []).append(gpu)
    for alike in kinds.values():
        yield from _describe_floors(alike[0], len(alike), steps)


def _plan_floors(site: Site) -> Sequence[Step]:
    """Plan the checks that compare with the data sheet, as this site has them."""
    return [
        step
        for step in make_plan(load_suite(FLOOR_SUITE), site).steps
        if any(rule.of_spec is not None for rule in step.rules.values())
    ]


def _describe_floors(gpu: Part, count: int, steps: Sequence[Step]) -> Iterator[Advice]:
    spec = find_spec(gpu)
    if spec is None:
        unknown = explain_unknown(gpu)
        yield Advice("floors", f"{unknown}: judged against its siblings and its own past")
        return
    floors = list(_find_floors(gpu, spec, steps))
    setting = next((floor.setting for _, floor, _ in floors if floor.setting), "")
    scaled = f", scaled, since {setting}" if setting else ""
    yield Advice(
        "floors",
        f"{count} x {spec.name}{scaled}: {format_count(len(floors), 'minimum speed')} for this "
        "GPU; below one, a check warns or fails as shown by --floors",
    )
    for quantity, group in groupby(floors, key=lambda found: found[0].partition(".")[0]):
        alike: dict[str, list[str]] = {}
        for name, floor, rule in group:
            least = format_scaled(floor.compute(rule.of_spec or 0.0), floor.promise.unit)
            verdict = floor.cap_verdict(rule.verdict)
            text = f"{name.partition('.')[2]} {least} else {verdict.value}".lstrip()
            why = f"confidence {floor.confidence}, {floor.evidence}: {floor.source}"
            alike.setdefault(why, []).append(text)
        texts = (f"{', '.join(speeds)} ({why})" for why, speeds in alike.items())
        yield Advice(FLOOR_PREFIX + quantity, "; ".join(texts))


def _find_floors(gpu: Part, spec: Spec, steps: Sequence[Step]) -> Iterator[tuple[str, Floor, Rule]]:
    for name in list_floored(spec):
        hits = chain.from_iterable(
            find_rules(s.check.rules, s.overrides, name, gpu.aliases) for s in steps
        )
        listed = [
            (name, floor, rule)
            for _, rule in hits
            if rule.of_spec is not None
            and isinstance(floor := find_floor(gpu, name, rule.verdict), Floor)
        ]
        # Without a sound figure, a rule that fails has the floor of the one that warns.
        yield from {
            floor.compute(rule.of_spec or 0.0): (name, floor, rule) for name, floor, rule in listed
        }.values()


def _describe_problem(problem: Finding, inventory: Inventory) -> Advice:
    """Name the part of *problem*, and what its finding rule calls for."""
    part = "" if problem.part_id == "node" else inventory.find_label(problem.part_id)
    step = _write_step(PROBLEM_RULES[problem.code].remedy, part or "the node")
    return Advice(problem.code, ": ".join(filter(None, (part, problem.text))), step)


def _write_step(remedy: Remedy, part: str) -> str:
    if remedy in (Remedy.NONE, Remedy.FIX_CONFIGURATION):  # the text says what is wrong with it
        return "correct that, then run hpcverify doctor again"
    step = REMEDY_STEPS[remedy].format(parts=part, checks="hpcverify doctor")
    return f"{DRAIN}, then {step}" if remedy in DISRUPTIVE_REMEDIES else step


def _describe_sensors(inventory: Inventory) -> str:
    """Count the sensors of each part; like parts share one entry."""
    kinds = {part.id: part.kind for part in inventory.parts}
    counts = Counter(sensor.partition("/")[0] for sensor in inventory.sensors)
    alike = Counter((kinds.get(part_id, part_id), n) for part_id, n in counts.items())
    entries = [
        f"{format_count(parts, PLURAL_NAMES.get(kind, kind).removesuffix('s'))} with {n}"
        + (" each" if parts > 1 else "")
        for (kind, n), parts in alike.items()
    ]
    return ", ".join(entries) or "none (is this a virtual machine?)"


INSPECTIONS: tuple[Callable[[], Iterator[Advice]], ...] = (
    inspect_configuration,
    inspect_state,
    inspect_lock,
    inspect_packages,
    inspect_tools,
    inspect_fleet,
    inspect_controller,
    inspect_hardware,
)
