"""
hpcverify as a site has it: installed, compiled, and with nothing beside it.

What developing brings along is no site's: pytest and its like make every start of
Python slower, by a fifth of what the prolog waits for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def install(folder: Path) -> Path:
    """Install it into a virtual environment at *folder*, and say where commands are."""
    # Or all would be compiled again each time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = (folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check")
    constraints = ("--constraint", ROOT / "constraints.txt")
    subprocess.run([*pip, *constraints, ROOT], check=True)
    return folder / "bin"
