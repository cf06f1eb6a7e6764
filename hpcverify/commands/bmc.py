"""``hpcverify fleet bmc``: ask the BMCs of the fleet for the chassis of their nodes."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname

import click

from hpcverify.bmc import BmcRound, summarize_round
from hpcverify.commands._controller import make_controller, record_command, refuse_unknown
from hpcverify.commands._options import optional_hostlist_argument
from hpcverify.console import echo, say
from hpcverify.errors import ConfigError, StoreError, write_install_command
from hpcverify.fleet.claim import check_claim, hold_controller_lock
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.states import is_gone
from hpcverify.model import Verdict
from hpcverify.plan.hostlist import expand
from hpcverify.run.local import LocalExecutor
from hpcverify.run.stop import stop_on_signals
from hpcverify.telemetry.redfish.access import list_accesses

LOCK_NAME = "bmc.lock"
LOCK_SECONDS = 1.0
NO_NODES_TEXT = "no node is known yet: hpcverify fleet collect asks Slurm for them"


@click.command("bmc")
@optional_hostlist_argument
@click.option(
    "--accept-parts",
    is_flag=True,
    help="Accept missing or non-redundant parts as intended (needs HOSTLIST).",
)
@record_command()
def command(hostlist: str | None, *, accept_parts: bool) -> None:
    """
    Read fans, power supplies and events from the BMC of each node, over the network.

    Reads the BMCs one after the other by Redfish: see [bmc] in the site file. The results go
    into the spool, for the next `hpcverify fleet collect`. A fault makes the node a suspect;
    the next sweep verifies it. Ctrl-C ends the round once the open sessions are closed.

    Exit status 1 if a chassis failed, 3 if a BMC could not be read or the round was cut
    short. After three refused passwords in a row the round ends.

    \b
    Example:
      hpcverify fleet bmc n[1-4]
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if accept_parts and hostlist is None:
        raise click.UsageError("--accept-parts needs HOSTLIST: name the nodes")
    controller = make_controller()
    if find_spec("urllib3") is None:
        fix = write_install_command("urllib3")
        raise ConfigError(f"urllib3, by which BMCs are asked, is not installed: {fix}")
    accesses = list_accesses(controller.site, choose_nodes(controller, hostlist))
    check_claim(Path(controller.site.fleet.spool), controller.ledger, gethostname())
    with (
        hold_controller_lock(controller.state / LOCK_NAME, say, LOCK_SECONDS),
        stop_on_signals() as stop,
    ):
        executor = LocalExecutor(should_stop=lambda: False)  # they log out first
        asked = BmcRound(
            site=controller.site,
            store=controller.store,
            executor=executor,
            accesses=accesses,
            say=say,
            stop=stop,
            sign=controller.ledger.sign,
            accept_parts=accept_parts,
        )
        asked.run()
    echo(summarize_round(asked.found.values()))
    if asked.end_reason:
        say(f"{asked.end_reason}; not asked: {len(accesses) - len(asked.found)}")
    sys.exit(choose_exit_status(asked))


def choose_exit_status(asked: BmcRound) -> int:
    """Choose the exit status: a FAIL counts, whatever else went wrong."""
    verdicts = {run.verdict for run in asked.found.values()}
    if Verdict.FAIL in verdicts:
        return 1
    if asked.mishaps:
        return StoreError.exit_code
    return 3 if asked.end_reason or Verdict.ERROR in verdicts else 0


def choose_nodes(controller: Controller, hostlist: str | None) -> list[str]:
    """
    Name the nodes of *hostlist*, or all that Slurm has.

    Raises:
        UnknownNameError: the controller does not know one of them.
        ConfigError: it knows none yet.

    """
    known = controller.ledger.list_nodes()
    if hostlist is not None:
        names = expand(hostlist)
        if not known:
            raise ConfigError(NO_NODES_TEXT)
        refuse_unknown(names, known)
        return names
    names = [name for name, node in known.items() if not is_gone(node, controller.clock())]
    if not names:
        raise ConfigError(NO_NODES_TEXT)
    return names
