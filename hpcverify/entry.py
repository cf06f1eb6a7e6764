"""
Where the command line begins: ``gate`` is answered before anything else is loaded.

A job may wait for that answer. To import the rest of the command line takes several
times as long as Python itself takes to start.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Answer ``hpcverify gate``, or hand over to the rest of the command line."""
    if sys.argv[1:] == ["gate"]:
        from hpcverify import standing  # noqa: PLC0415 - not for other commands

        sys.exit(standing.gate(standing.path_of_this_node()))
    from hpcverify.early import main as early  # noqa: PLC0415 - not for `gate`

    early()
