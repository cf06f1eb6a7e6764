"""
Drives a real Slurm of several nodes on this machine (slurm-lab.sh).

A cluster is up in a fraction of a second, so each test module has a fresh one. Its
daemons belong to nobody: whoever brings it up takes it down.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcverify.slurm.client import Slurm
from hpcverify.slurm.command import clean_environment, run_command
from tests.waiting import PATIENCE_S, wait_until

SCRIPT = Path(__file__).with_name("slurm-lab.sh")


@dataclass(frozen=True)
class Cluster:
    """One controller and some nodes, n1 to nN, in a folder of their own."""

    folder: Path

    @property
    def conf(self) -> Path:
        """Where slurm.conf lies; ``extra.conf`` beside it is included."""
        return self.folder / "etc" / "slurm.conf"

    @property
    def env(self) -> dict[str, str]:
        """The environment to call this cluster's commands in."""
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        return clean_environment(os.environ) | {"SLURM_CONF": str(self.conf), "PATH": path}

    @property
    def slurm(self) -> Slurm:
        run = partial(run_command, environ=self.env)
        return Slurm(run=run, user=_me())

    def up(
        self,
        nodes: int = 4,
        *,
        extra: str = "",
        gpus: int = 0,
        accounting: bool = False,
        network: str = "",
        topology: str = "",
    ) -> None:
        """
        Start afresh; all nodes are idle then.

        *extra* are lines in slurm.conf, *topology* is a topology.conf, *network* is what
        slurm-lab.sh reads from ``LAB_NETWORK``.
        """
        texts = {"LAB_EXTRA_CONF": extra, "LAB_NETWORK": network, "LAB_TOPOLOGY": topology}
        settings = {"LAB_GPUS": str(gpus), "LAB_ACCOUNTING": str(int(accounting))}
        with tempfile.TemporaryDirectory() as folder:
            for name, text in texts.items():
                if text:
                    path = Path(folder, name)
                    path.write_text(text)
                    settings[name] = str(path)
            self._lab("up", str(nodes), **settings)

    def down(self) -> None:
        self._lab("down")

    def stop(self, daemon: str) -> None:
        """End a daemon in good order; a node dies with its jobs."""
        self._lab("stop", daemon)

    def start(self, daemon: str) -> None:
        """Start what was stopped or killed; a node comes back newly booted."""
        self._lab("start", daemon)

    def signal(self, daemon: str, name: str) -> None:
        """Send a signal to a daemon alone: KILL crashes it, STOP hangs it, CONT."""
        self._lab("signal", daemon, name)

    def crash(self, daemon: str = "slurmctld") -> None:
        """Kill a daemon with -9: slurmctld forgets its last seconds."""
        self.signal(daemon, "KILL")
        self.until(lambda: not self.alive(daemon))

    def alive(self, daemon: str) -> bool:
        command = self._command("signal", daemon, "0")
        return subprocess.run(command, env=self._settings(), check=False).returncode == 0

    def run(self, *command: object, **environ: str) -> str:
        """Run a command on this cluster and give its output; it must succeed."""
        done = subprocess.run(
            [str(word) for word in command],
            env=self.env | environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
        return done.stdout

    def reconfigure(self, extra: str) -> None:
        """Replace the lines of our own in slurm.conf, and have all daemons read it."""
        (self.conf.parent / "extra.conf").write_text(f"# our own lines\n{extra}\n")
        self.run("scontrol", "reconfigure")
        self.until(self.answers)

    def answers(self) -> bool:
        ping = subprocess.run(["scontrol", "ping"], env=self.env, capture_output=True, check=False)
        return ping.returncode == 0

    def idle(self, *names: str) -> bool:
        """Say whether nodes, all if none is named, can take a job."""
        hosts = self.slurm.list_hosts(*names).values()
        return all(host.state == "IDLE" and not host.flags for host in hosts)

    def until(self, happens: Callable[[], object], seconds: float = PATIENCE_S) -> None:
        """Wait until *happens* is true; it must be within *seconds*."""
        wait_until(happens, self.look, seconds)

    def look(self) -> str:
        """Show nodes and jobs, for a test that failed."""
        command = "sinfo -N -o '%N %T %E'; squeue -t all -o '%i %j %T %r %N'"
        shell = ["sh", "-c", command]
        shown = subprocess.run(shell, env=self.env, capture_output=True, check=False)
        return (shown.stdout + shown.stderr).decode(errors="replace")

    def log(self, daemon: str) -> str:
        return (self.folder / "log" / f"{daemon}.log").read_text(errors="replace")

    def _lab(self, *words: str, **settings: str) -> None:
        env = self._settings() | settings
        done = subprocess.run(
            self._command(*words),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def _command(self, *words: str) -> list[str]:
        return ["bash", str(SCRIPT), *words]

    def _settings(self) -> dict[str, str]:
        return clean_environment(os.environ) | {"LAB_DIR": str(self.folder)}


@contextmanager
def a_cluster(
    nodes: int = 4,
    *,
    extra: str = "",
    gpus: int = 0,
    accounting: bool = False,
    network: str = "",
    topology: str = "",
) -> Generator[Cluster]:
    """Bring a cluster up (see `Cluster.up`), in a folder with a short name; take it down."""
    # Sockets lie in it: their names have 107 characters at most, and pytest's own
    # folders are too long for that and closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="hvlab-", dir="/tmp"))
    cluster = Cluster(folder)
    try:
        cluster.up(
            nodes,
            extra=extra,
            gpus=gpus,
            accounting=accounting,
            network=network,
            topology=topology,
        )
        try:
            yield cluster
        finally:
            cluster.down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _me() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name
