"""
``hpcverify gate``: would the prolog let a job run on this node?

`hpcverify.entry` answers it without importing this, except for the help and --spool.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hpcverify import gate
from hpcverify.plan.config import node_name, state_dir


@click.command("gate")
@click.option(
    "--spool", type=click.Path(path_type=Path), help="First fetch the newest gate file from there."
)
def command(spool: Path | None) -> None:
    """
    Say whether the prolog lets jobs run on this node.

    It reads the controller's last verdict on the node from the file "gate" in
    $HPCVERIFY_STATE (/var/lib/hpcverify). A file that is missing, stale or unreadable
    lets jobs run. Exit status: 0 jobs may run, 1 they are refused.

    \b
    Example:
      hpcverify gate || echo "no job starts here"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if spool is not None:
        gate.fetch(spool, state_dir(), node_name())
    sys.exit(gate.print_gate(gate.find_gate_path()))
