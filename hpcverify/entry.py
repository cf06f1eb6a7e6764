"""
Where the command line begins: ``gate`` is answered before anything else is loaded.

A job may wait for that answer. To import the rest of the command line takes several
times as long as Python itself takes to start.
"""

from __future__ import annotations

import sys

EXIT_UNVERIFIED = 3


def main() -> None:
    """
    Answer ``hpcverify gate``, or hand over to the rest of the command line.

    What goes wrong before that can take it ends with 3: Python's own 1 means FAIL.
    """
    try:
        _run_command()
    except Exception as exc:  # noqa: BLE001 - whatever a broken installation raises
        what = " ".join(f"{type(exc).__name__}: {exc}".split())
        sys.stderr.write(
            f"hpcverify: it cannot start ({what}): install it again, and look at "
            "PYTHONPATH and at the clock\n"
        )
        sys.exit(EXIT_UNVERIFIED)


def _run_command() -> None:
    if sys.argv[1:] == ["gate"]:
        from hpcverify import standing  # noqa: PLC0415 - not for other commands

        sys.exit(standing.print_gate(standing.find_gate_path()))
    from hpcverify.early import main as early  # noqa: PLC0415 - not for `gate`

    early()
