"""
Rehearse by hand: ``python -m tests.rehearsal --gpus 4 --check gemm --faults "flip@3"``.

Prints what ``hpcverify run`` does; with ``--verbose``, what ``hpcverify show`` does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from hpcverify.commands.show import show_details
from hpcverify.summary.terminal import Console, render_headline, show_run
from tests.nvml_lab.nvmllab import build
from tests.rehearsal.node import make_node
from tests.rehearsal.parts import PARTS


def main() -> None:
    """Make a node, run the checks, and print what they came to."""
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--part", default="h100", choices=PARTS)
    parser.add_argument("--faults", default="", help="see tests/rehearsal/faults.py")
    parser.add_argument("--check", action="append", default=[], help="all of quick, if none")
    parser.add_argument("--timeout", type=float, default=0.0, help="of each check, seconds")
    parser.add_argument("--reversed", action="store_true", help="as CUDA counts the GPUs")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--verbose", action="store_true", help="all measurements, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as made:
        folder = Path(made)
        library = folder / "lib"
        library.mkdir()
        node = make_node(
            folder,
            build(library),
            part=options.part,
            gpus=options.gpus,
            timeout=options.timeout,
            is_reversed=options.reversed,
        )
        began = time.monotonic()
        run = node.run(
            *(word for name in options.check for word in ("--check", name)),
            faults=options.faults,
            **dict(item.split("=", 1) for item in options.env),
        )
    console = Console(highlight=False)
    console.print(
        f"# {options.gpus} x {options.part}, faults: {options.faults or 'none'}: "
        f"{time.monotonic() - began:.1f} s"
    )
    show_run(run, console)
    for result in run.results if options.verbose else ():
        console.print()
        console.print(render_headline(result))
        show_details(result, run, console)


if __name__ == "__main__":
    main()
