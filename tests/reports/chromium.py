"""A real Chromium, without a window."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.waiting import PATIENCE_S

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium(page: str, tmp_path: Path, *arguments: str) -> str:
    """Open *page* and return what Chromium prints."""
    file = tmp_path / "node.html"
    file.write_text(page, encoding="utf-8")
    return open_address(file.as_uri(), tmp_path, *arguments)


def open_address(address: str, tmp_path: Path, *arguments: str) -> str:
    """Open *address* and return what Chromium prints."""
    program = shutil.which("chromium")
    assert program, "chromium is not installed: apt-get install chromium"
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [program, *FLAGS, profile, *arguments, address],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    return done.stdout.decode()
