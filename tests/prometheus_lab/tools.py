"""Programs of Debian's packages that lie in ``.debian/tools``: they are not installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

TOOLS = Path(__file__).parents[2] / ".debian/tools"
PACKAGES = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-node-exporter": "prometheus-node-exporter",
    "prometheus-alertmanager": "prometheus-alertmanager",
}
"""The package of each program."""


def find_tool(name: str) -> Path:
    """Say where the program *name* lies."""
    program = TOOLS / PACKAGES[name] / "usr/bin" / name
    assert program.is_file(), f"{name} is missing: .ci/unpack {PACKAGES[name]}"
    return program


def run_promtool(*words: object, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run promtool with *text* as its input."""
    command = [str(word) for word in (find_tool("promtool"), *words)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)
