"""``hpcverify doctor``: what keeps this node from being verified in full."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
import msgspec

from hpcverify.config import load_site, state_dir
from hpcverify.errors import HpcverifyError
from hpcverify.executors.local import LocalExecutor
from hpcverify.model import Inventory
from hpcverify.orchestrator import probe_node
from hpcverify.store import Store
from hpcverify.suite import load_suite, plan, refuse_endless, suite_names

UNVERIFIED = 3
EXTRAS = {"torch": "gpu", "jinja2": "report", "pandas": "report"}
TOOLS = {
    "fio": ("storage is not verified without it", "apt-get install fio"),
    "smartctl": ("wear of disks is not seen", "apt-get install smartmontools"),
}


class Advice(msgspec.Struct, frozen=True):
    """One thing looked at: what it is, and what to do about it if anything."""

    subject: str
    state: str
    fix: str = ""


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool) -> None:
    """
    Say what keeps this node from being verified in full, and how to mend it.

    Exit status 0 when nothing does, else 3.

    \b
    Example:
      hpcverify doctor
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    advice = [item for look in LOOKS for item in look()]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(advice), indent=1))
    else:
        for item in advice:
            mark = "fix " if item.fix else "ok  "
            text = f"{mark}{item.subject}: {item.state}"
            click.echo(text + (f": {item.fix}" if item.fix else ""))
    sys.exit(UNVERIFIED if any(item.fix for item in advice) else 0)


def configuration() -> Iterator[Advice]:
    """Look at the site file and at the suites."""
    try:
        site = load_site()
        for name in suite_names():
            refuse_endless(plan(load_suite(name), site))
    except HpcverifyError as exc:
        yield Advice("configuration", str(exc), "mend the file")
        return
    yield Advice("configuration", site.path)
    if site.scratch and not Path(site.scratch).is_dir():
        yield Advice("scratch", f"{site.scratch} is no directory", "make it")


def state() -> Iterator[Advice]:
    """Look at what is stored."""
    try:
        store = Store(state_dir())
    except HpcverifyError as exc:
        yield Advice("state", str(exc), "see above")
        return
    yield Advice("state", f"{len(store.runs(limit=-1))} runs in {state_dir()}")
    for complaint in store.broken:
        yield Advice("run document", complaint, "move it away")


def packages() -> Iterator[Advice]:
    """Look at the Python packages that the extras bring."""
    for package, extra in EXTRAS.items():
        found = _installed(package)
        fix = "" if found else f"pip install 'hpcverify[{extra}]'"
        yield Advice(package, found or "not installed", fix)


def _installed(package: str) -> str:
    """Name the version of *package*, without importing it; empty if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def tools() -> Iterator[Advice]:
    """Look at the programs that checks call."""
    for tool, (why, fix) in TOOLS.items():
        path = shutil.which(tool)
        yield Advice(tool, path) if path else Advice(tool, why, fix)


def hardware() -> Iterator[Advice]:
    """Look at what this node is made of, and at what hides some of it."""
    executor = LocalExecutor(stopped=lambda: False)
    try:
        inventory, _ = probe_node(executor)
    finally:
        executor.close()
    devices = ", ".join(device.label for device in inventory.devices)
    yield Advice("devices", devices)
    yield Advice("sensors", _sensors(inventory))
    for problem in inventory.problems:
        yield Advice(problem.code, problem.text, "see what it says")
    if inventory.of_kind("gpu") and _installed("torch").endswith("+cpu"):
        fix = "pip install the CUDA build of the same version"
        yield Advice("torch", "a CPU build, on a node with GPUs", fix)


def _sensors(inventory: Inventory) -> str:
    """Say how much can be read of each part; like parts are told together."""
    counts = Counter(sensor.partition("/")[0] for sensor in inventory.sensors)
    alike = Counter((_kind(inventory, where), n) for where, n in counts.items())
    told = [f"{parts} {kind} with {n} each" for (kind, n), parts in alike.items()]
    return ", ".join(told) or "none on this machine (a virtual one?)"


def _kind(inventory: Inventory, where: str) -> str:
    return next((p.kind for p in inventory.parts if p.id == where), where)


LOOKS: tuple[Callable[[], Iterator[Advice]], ...] = (
    configuration,
    state,
    packages,
    tools,
    hardware,
)
