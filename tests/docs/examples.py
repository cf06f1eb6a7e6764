"""What a run of each check prints: ``python -m tests.docs.examples [CHECK ...]``."""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.docs.transcript import run_commands
from tests.tables import read_table

FOLDER = Path(__file__).with_name("examples")
PYTHON = sys.executable
SITUATIONS = {
    "here": "a node without GPUs",
    "double": "eight H100 that a double of NVML shows",
    "rehearsal": "four H100 that doubles of NVML and CUDA show",
}
"""Where an example was run, in words."""
LEFT_OUT = re.compile(
    r"(?ms)^(?:#|kept as|for the vendor)[^\n]*\n"
    r"|^(?:\S+: [A-Z]+ after| +check +measured) .*?(?=^next:|\Z)"
)
"""What is printed of the run as a whole, but for the next step, and the table of speeds."""


@dataclass(frozen=True, slots=True)
class Example:
    """A run of a check, where it is run, and the fault that is injected, in the double's words."""

    check: str
    how: str
    fault: str = ""


EXAMPLES = {each.check: each for each in read_table(Path(__file__).with_suffix(".csv"), Example)}


def list_example_commands(example: Example, home: Path) -> list[str]:
    """List the commands that run *example* in the folder *home*; the last one prints it."""
    run = f"{Path(PYTHON).with_name('hpcverify')} run --check {example.check}"
    if example.how == "rehearsal":
        faults = f" --faults '{example.fault}'" if example.fault else ""
        return [f"{PYTHON} -m tests.rehearsal --check {example.check}{faults}"]
    made = f'eval "$({PYTHON} -m tests.nvml_lab {home}/node)"'
    if example.how == "here":
        return [f"{made}; unset LD_LIBRARY_PATH", run]
    return [made, run, f"echo '{example.fault}' > {home}/node/scenario.txt", run]


def write_example(example: Example) -> str:
    """Run *example*, and give what it prints of the check and the next step."""
    with tempfile.TemporaryDirectory(prefix="hvexample-") as folder:
        printed = run_commands(list_example_commands(example, Path(folder)), Path(folder))[-1]
    about_check = LEFT_OUT.sub("", printed).replace(" --suite rehearsal", "")
    lines = [line.rstrip() for line in about_check.splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:] or EXAMPLES:
        (FOLDER / f"{name}.txt").write_text(write_example(EXAMPLES[name]))
