"""
A fleet that is a test: a real Slurm, the real commands, and checks that do as told.

All nodes are this machine, so each run gets a network namespace (where the lock of a
node is) and a state of its own from the wrapper that jobs start.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Node, State
from hpcverify.slurm import Host
from tests.slurm_lab.lab import Cluster
from tests.warm import run_warm

HPCVERIFY = Path(sys.executable).with_name("hpcverify")
SITE = Path(__file__).parents[1] / "site"
WRAPPER = """#!/bin/sh
export HPCVERIFY_CONFIG={config} HPCVERIFY_STATE={folder}/nodes/$SLURMD_NODENAME
export PYTHONPATH={site} COLUMNS=120
exec unshare -n -- {hpcverify} "$@" >>{folder}/log.$SLURMD_NODENAME 2>&1
"""
SUITE = """
summary = "what the test says"
budget = 60

[[check]]
name = "told"
"""
PAUSE = "paused"
"""The file that the check `told` waits for to go away."""


@dataclass(frozen=True)
class Fleet:
    """A site on *cluster*, in *folder*, with the controller's own state."""

    cluster: Cluster
    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "etc" / "site.toml"

    @property
    def spool(self) -> Path:
        """Where nodes leave their runs."""
        return self.folder / "spool"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "controller")

    @property
    def env(self) -> dict[str, str]:
        """What the controller's commands are called with."""
        return self.cluster.env | {
            "HPCVERIFY_CONFIG": str(self.config),
            "HPCVERIFY_STATE": str(self.folder / "controller"),
            "PYTHONPATH": str(SITE),
            "COLUMNS": "200",
            # What a command that is killed leaves behind goes with the rest.
            "TMPDIR": str(self.folder),
        }

    def prepare(self, quarantine: str = 'enforce = ["*"]', fleet: str = "") -> None:
        """Write the site's files anew."""
        for folder in ("etc/suites", "etc/told", "spool", "nodes"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        program = self.folder / "hpcverify"
        self.config.write_text(
            'check_packages = ["fleet_checks"]\n'
            f'[fleet]\nspool = "{self.spool}"\nprogram = "{program}"\nsuite = "told"\n'
            f"share = 1\n{fleet}\n[quarantine]\n{quarantine}\n"
        )
        program.write_text(
            WRAPPER.format(config=self.config, folder=self.folder, site=SITE, hpcverify=HPCVERIFY)
        )
        program.chmod(0o755)
        (self.config.parent / "suites" / "told.toml").write_text(SUITE)

    def pause(self) -> None:
        """Let no check end before they are told to `go_on`."""
        self.config.with_name(PAUSE).touch()

    def go_on(self) -> None:
        """Let the checks end that wait, and those to come."""
        self.config.with_name(PAUSE).unlink()

    def tell(self, node: str, word: str) -> None:
        """Let *node* have that speed, or be ``corrupt`` or ``missing`` a tool."""
        (self.config.parent / "told" / node).write_text(word)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_warm(list(arguments), self.env)

    def by_hand(self, node: str) -> None:
        """Verify *node* there, as a hook does: without the controller's token."""
        program, spool = str(self.folder / "hpcverify"), str(self.spool)
        command = [program, "run", "--suite", "told", "--spool", spool]
        env = self.env | {"SLURMD_NODENAME": node}
        assert subprocess.run(command, env=env, check=False).returncode in (0, 1)

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [HPCVERIFY, *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def node(self, name: str) -> Node:
        return self.ledger.read_node(name)

    def host(self, name: str) -> Host:
        return self.cluster.slurm.list_hosts(name)[name]

    def states(self) -> dict[str, str]:
        """Say the state of each node that more is known of than its name."""
        known = self.ledger.list_nodes().items()
        return {
            name: str(node.state)
            for name, node in known
            if node.last_run_at or node.state is not State.UNVERIFIED
        }

    def drained(self) -> set[str]:
        """Name the nodes that are drained, by whomever."""
        hosts = self.cluster.slurm.list_hosts().values()
        return {host.name for host in hosts if "DRAIN" in host.flags}

    def collected(self) -> subprocess.CompletedProcess[str]:
        """Collect until nothing is under way."""
        while True:
            done = self("fleet", "collect")
            if not self.ledger.list_open_tickets():
                return done

    def shown(self, name: str) -> tuple[str, str]:
        """Give the state of a node that ``hpcverify nodes`` shows, and why."""
        (row,) = json.loads(self("nodes", name, "--json").stdout)["nodes"]
        return row["state"], row["why"]
