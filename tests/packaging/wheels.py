"""Wheelhouses, as a site without a package index has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.packaging.machine import PYTHONS


def download_wheels(folder: Path, *requirements: str) -> Path:
    """Put what these need into a new folder, for the Python of Debian 12, and return it."""
    pip = (sys.executable, "-m", "pip", "--quiet", "download", "--dest", folder)
    wanted = ("--only-binary", ":all:", "--python-version", PYTHONS["bookworm"], *requirements)
    subprocess.run([*pip, *wanted], check=True, capture_output=True)
    return folder
