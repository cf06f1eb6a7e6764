"""The wheel has all that a node needs; nothing is copied from a checkout by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcverify.slurm import hooks as hook_files
from tests.slurm.hooks import Hooks

ROOT = Path(__file__).parents[1]
SITE_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
OFFLINE = ("--no-index", "--no-deps")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and install it into an empty environment."""
    folder = tmp_path_factory.mktemp("wheel")
    build = (*PIP, "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", folder, ROOT)
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    venv = folder / "venv"
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", venv), check=True)
    install = (*PIP, "--python", venv / "bin/python", "install", *OFFLINE, wheel)
    subprocess.run(install, check=True)
    # Libraries are those of the tests; hpcverify is that of the wheel, which comes first.
    (libraries,) = (path for path in sys.path if path.endswith(SITE_PACKAGES))
    (venv / SITE_PACKAGES / "libraries.pth").write_text(f"{libraries}\n")
    return venv


def run(venv: Path, *command: str) -> str:
    done = subprocess.run(
        [venv / "bin" / command[0], *command[1:]],
        cwd="/",
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def find_installed(venv: Path, *where: str) -> Path:
    code = (
        "from pathlib import Path; from hpcverify.slurm.hooks import find_hooks; "
        f"print(find_hooks(Path({where!r}[0])))"
    )
    return Path(run(venv, "python", "-c", code).strip())


@pytest.mark.parametrize("folder", ["slurm", "monitoring"])
def test_the_wheel_has_the_hooks_units_and_alerts_of_the_checkout(
    installed: Path, folder: str
) -> None:
    share = find_installed(installed, "/nonexistent").parent
    assert share.is_relative_to(installed)
    shipped = {path.name: path for path in (share / folder).iterdir()}
    own = {path.name: path for path in (ROOT / folder).iterdir()}

    assert shipped.keys() == own.keys()
    for name, path in own.items():
        assert shipped[name].read_bytes() == path.read_bytes()
        assert os.access(shipped[name], os.X_OK) == os.access(path, os.X_OK), name


def test_the_wheel_has_the_schemas(installed: Path) -> None:
    found = find_installed(installed, "/nonexistent")
    schemas = {path.name for path in (found.parent / "schema").iterdir()}
    assert schemas == {path.name for path in (ROOT / "docs/reference/schema").iterdir()}


def test_the_commands_of_the_wheel_run_without_a_checkout(installed: Path) -> None:
    assert "Usage: hpcverify setup slurm" in run(installed, "hpcverify", "setup", "slurm", "--help")


@pytest.mark.needs("root")  # as slurmd starts it
def test_a_hook_of_the_wheel_runs_where_it_lies(installed: Path, tmp_path: Path) -> None:
    hooks = Hooks(tmp_path)
    hooks.prepare()
    hooks.command()
    hooks.word("quarantined\n99999999999\nGPU 3: lost\n\n")
    prolog = find_installed(installed, "/nonexistent") / "prolog"

    done = subprocess.run(
        [prolog, hooks.settings],
        env={"SLURMD_NODENAME": "n1", "SLURM_JOB_UID": "4242"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.count("GPU 3: lost")) == (1, 1)


def test_the_hooks_of_a_package_go_before_those_of_python(tmp_path: Path) -> None:
    assert hook_files.find_hooks(tmp_path) == ROOT / "slurm"
    (tmp_path / "hooks.sh").touch()

    assert hook_files.find_hooks(tmp_path) == tmp_path


def test_the_settings_of_a_package_go_before_those_of_python(tmp_path: Path) -> None:
    assert hook_files.find_slurm_files(tmp_path) == ROOT / "slurm"
    (tmp_path / "hooks.conf").touch()

    assert hook_files.find_slurm_files(tmp_path) == tmp_path
