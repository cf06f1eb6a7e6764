"""
The hooks that Slurm starts: where they lie, and their settings in ``hooks.conf``.

slurm.conf names them where they were installed: a copy would not change with an upgrade.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PACKAGED_HOOKS = Path("/usr/libexec/hpcverify")
"""Where the packages of a distribution have them."""
PACKAGED_FILES = Path("/usr/share/hpcverify")
"""Where the packages have the template of their settings, and the cron job."""
HOOK_LIBRARY = "hooks.sh"
"""Each hook reads it from its own folder."""
SETTINGS_TEMPLATE = "hooks.conf"
MAX_HOOK_S = 50
"""slurmd kills a health check after 60 s."""


def find_hooks(packaged: Path = PACKAGED_HOOKS) -> Path:
    """Return the folder of the hooks: of the package, of this checkout, or of the wheel."""
    if (packaged / HOOK_LIBRARY).exists():
        return packaged
    return _find_own_files()


def find_slurm_files(packaged: Path = PACKAGED_FILES) -> Path:
    """Return the folder of what is copied or linked: settings of the hooks, cron job, units."""
    return packaged if (packaged / SETTINGS_TEMPLATE).exists() else _find_own_files()


def _find_own_files() -> Path:
    package = Path(__file__).parents[1]
    checkout = package.parent / "slurm"
    return checkout if (checkout / HOOK_LIBRARY).exists() else package / "share" / "slurm"


def parse_hook_settings(text: str) -> dict[str, str]:
    """Read the lines of hooks.conf as the hooks do: KEY=value, with no quotes."""
    lines = (line.partition("=") for line in text.splitlines())
    return {key: value for key, equals, value in lines if equals and "#" not in key}


def write_hook_settings(values: Mapping[str, str]) -> str:
    """Write a hooks.conf with *values* in place of those of the file that ships."""
    template = (find_slurm_files() / SETTINGS_TEMPLATE).read_text(encoding="utf-8")
    return "".join(
        f"{key}={values[key]}\n" if (key := line.partition("=")[0]) in values else f"{line}\n"
        for line in template.splitlines()
    )


def explain_wrong_setting(name: str, value: str, spool: str) -> str:
    """Say why the hooks would ignore a setting, or do something else by it; empty if not."""
    match name:
        case "HPCVERIFY":
            return "" if os.access(value, os.X_OK) else "is not a program"
        case "HPCVERIFY_STATE":
            return "" if Path(value).is_absolute() else "is not an absolute path"
        case "HPCVERIFY_SPOOL":
            return "" if value == spool else f"differs from {spool} in the site file"
        case "HPCVERIFY_DEADLINE":
            whole = value.isdecimal() and 1 <= int(value) <= MAX_HOOK_S
            return "" if whole else f"is not a number of seconds from 1 to {MAX_HOOK_S}"
        case "HPCVERIFY_USERS":
            ids = all(word.isdecimal() for word in value.split())
            return "" if ids else "must be user ids separated by spaces"
        case _:
            return "is not a known setting"
