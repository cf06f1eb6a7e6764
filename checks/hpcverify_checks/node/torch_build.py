"""Whether the installed torch imports, fits the driver and has kernels for a GPU."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import hpcverify.check as hv
from hpcverify.errors import explain_shortage, write_install_command

INDEX = "https://download.pytorch.org/whl"
ALL_BUILDS = "https://pytorch.org/get-started/locally"
MIN_DRIVERS: Mapping[int, int] = {12: 525, 13: 580}
"""The oldest release of the NVIDIA driver that runs a program, by the major version of its CUDA
(CUDA Compatibility, table 1 of "Minor Version Compatibility"). Torch needs 12 or later."""
LOADER_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")
"""What makes torch load other libraries or modules than its own."""


def require_torch() -> None:
    """Import torch, and have it keep subnormals: a library compiled for speed may flush them."""
    try:
        import torch

        torch.set_flush_denormal(False)
    except Exception as exc:
        if explain_shortage(exc):
            raise
        if isinstance(exc, ModuleNotFoundError) and exc.name == "torch":
            fix = write_install_command("torch")
            missing = "torch is not installed"
            raise hv.Unable(missing, hv.Cause.MISSING, code="torch_missing", fix=fix) from exc
        found = find_version()
        what = str(exc).strip().partition("\n")[0]
        fix = write_reinstall_command(found) if found else write_install_command("torch")
        if suspects := [name for name in LOADER_VARIABLES if os.environ.get(name)]:
            fix = f"unset {' '.join(suspects)}, or {fix}"
        raise hv.Unable(
            f"torch {found} does not import ({type(exc).__name__}: {what})".replace("  ", " "),
            hv.Cause.MISCONFIGURED,
            code="torch_broken",
            fix=fix,
        ) from exc


def find_version() -> str:
    """Find the version of torch without importing it; empty if it is missing."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def write_reinstall_command(found: str) -> str:
    """
    Write the command that installs torch again in the version *found*, as ``2.13.0+cu126``.

    Of a build that no index has, such as ``2.9.0a0+50eac811a6.nv25.09``, it names no version.
    """
    base, _, build = found.partition("+")
    torch = f"torch=={base}" if re.fullmatch(r"[\d.]+", base) else "torch"
    is_published = re.fullmatch(r"cpu|cu\d+|rocm[\d.]+", build)
    index = f" --index-url {INDEX}/{build}" if is_published else ""
    return f"{sys.executable} -m pip install --force-reinstall {torch}{index}"


def write_torch_fix(torch: Any, capability: str, driver: str) -> str:
    """
    Write which build of this version of *torch* runs on a GPU, or which driver it needs.

    That is the build with the oldest CUDA that has kernels for *capability*, as ``9.0``, and that
    *driver*, as ``550.54.15``, can run; either may be unknown. With no such build only a later
    driver helps.
    """
    releases: Mapping[str, Mapping[str, Collection[int]]] = getattr(
        torch.cuda, "PYTORCH_RELEASES_CODE_CC", {}
    )
    number = tuple(map(int, capability.split("."))) if capability else None
    oldest_drivers: dict[str, int] = {}
    for cuda, hosts in releases.items():
        built = [f"sm_{cc}" for cc in hosts.get(platform.machine(), ())]
        oldest = MIN_DRIVERS.get(int(cuda.partition(".")[0]))
        if oldest and built and (number is None or has_kernels(number, built)):
            oldest_drivers[cuda] = oldest
    if not oldest_drivers:
        return f"see {ALL_BUILDS} for a build for this GPU and driver"
    release = driver.partition(".")[0]
    fitting = [c for c, r in oldest_drivers.items() if not release.isdigit() or int(release) >= r]
    cuda = next(iter(fitting or oldest_drivers))
    if not fitting and torch.version.cuda in oldest_drivers:
        return f"install the NVIDIA driver R{oldest_drivers[torch.version.cuda]} or later"
    base = torch.__version__.partition("+")[0]
    command = write_reinstall_command(f"{base}+cu{cuda.replace('.', '')}")
    if not fitting:
        return f"install the NVIDIA driver R{oldest_drivers[cuda]} or later, then {command}"
    return command


def require_kernels(torch: Any, capability: tuple[int, int], driver: str) -> None:
    """
    Raise `Unable` if *torch* was built without kernels for a GPU of this *capability*.

    Nothing is required of a build that does not report what it was built for, or not in
    CUDA's terms.
    """
    built: Sequence[str] = torch.cuda.get_arch_list()
    if not any(map(parse_architecture, built)) or has_kernels(capability, built):
        return
    number = "{}.{}".format(*capability)
    raise hv.Unable(
        f"torch {torch.__version__} has no kernels for a GPU of compute capability {number}, only "
        f"{' '.join(built)}",
        hv.Cause.MISCONFIGURED,
        code="cuda_no_kernel_image",
        fix=write_torch_fix(torch, number, driver),
    )


def has_kernels(capability: tuple[int, ...], built: Sequence[str]) -> bool:
    """
    Whether code *built* for some architectures runs on a GPU of this *capability*.

    Machine code (``sm_80``) runs on its own major version, from its minor version on; PTX
    (``compute_80``) is compiled for every later one. What is specific to an architecture
    (``sm_90a``) or to a family (``sm_100f``) goes no further than that (CUDA C++ programming
    guide, binary and PTX compatibility; nvcc, GPU feature list).
    """
    for kind, major, minor, suffix in filter(None, map(parse_architecture, built)):
        here = (major, minor)
        if here == capability:
            return True
        if suffix == "a" or here > capability:
            continue
        if major == capability[0] or (kind == "compute" and not suffix):
            return True
    return False


def parse_architecture(name: str) -> tuple[str, int, int, str] | None:
    """Read ``sm_90a``: its kind, major and minor version and suffix; None if it is another."""
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
    return (match[1], int(match[2]), int(match[3]), match[4]) if match else None
