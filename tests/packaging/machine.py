"""A Debian of its own, in which packages are installed for real (.ci/debian)."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.own_node import separate_node
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
"""The Python of each Debian."""
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {
    "PATH": PATH,
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}
BOOTED = ("starting\n", "running\n", "degraded\n")
"""What systemctl says once it takes orders; a unit of Debian may still start, or have failed."""


def find_package(dist: Path, suite: str, name: str, kind: str = "deb") -> Path:
    """Return the package of *name* in *dist* that fits the Debian *suite*."""
    (path,) = dist.glob(f"{name}[_-][0-9]*+py{PYTHONS[suite]}[_-]*.{kind}")
    return path


@dataclass(frozen=True)
class Machine:
    """A fresh Debian *suite*; what changes is in *layer*."""

    suite: str
    layer: Path
    dist: Path
    """Where packages lie, in the checkout."""

    def package(self, name: str, kind: str = "deb") -> str:
        """Return the path, in this machine, of the package of *name* that fits it."""
        path = find_package(self.dist, self.suite, name, kind)
        return f"/hpcverify/{path.relative_to(ROOT)}"

    def enter(self, *command: object, network: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command in it; *network* is that of this machine, else one of its own."""
        debian = [ROOT / ".ci/debian", "--layer", self.layer, self.suite]
        return subprocess.run(
            [str(word) for word in (*debian, *command)],
            preexec_fn=None if network else separate_node,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def run(self, *command: object, network: bool = False) -> str:
        """Run a command in it that succeeds, and give its output."""
        done = self.enter(*command, network=network)
        assert done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout

    def shell(self, script: str) -> str:
        """Run a script of sh in it that succeeds, and give its output."""
        return self.run("sh", "-euc", script)

    def install(self, *packages: str) -> str:
        """Install package files with what they need, as an administrator does."""
        self.run("apt-get", "update", "-qq", network=True)
        command = ["apt-get", "install", "-y", "--no-install-recommends"]
        return self.run(*command, *packages, network=True)

    def make_older(self, package: str, change: str = "") -> str:
        """
        Make of *package* the version before, 0.0.1, and return its path in this machine.

        *change* are lines of sh that change its files, which lie in the working folder.
        """
        older = f"/root/older-{Path(package).name}"
        self.shell(f"""
            mkdir /root/older
            dpkg-deb -R {package} /root/older
            cd /root/older
            sed -i 's/^Version: .*/Version: 0.0.1/; s/hpcverify (= [^)]*)/hpcverify (= 0.0.1)/' \
                DEBIAN/control
            {change}
            dpkg-deb -Zgzip -z1 -b . {older}
            cd /
            rm -r /root/older
        """)
        return older

    def list_files(self, word: str = "hpcverify") -> set[str]:
        """List the files and folders whose path has *word* in it."""
        where = "-path /hpcverify -o -path /proc -o -path /sys -o -path /dev"
        own = "-path '/var/lib/dpkg/*' -o -path '/var/log/*'"
        found = self.shell(rf"find / \( {where} -o {own} \) -prune -o -path '*{word}*' -print")
        return set(found.splitlines())

    @contextmanager
    def boot(self, name: str, binds: Mapping[Path, str]) -> Generator[Booted]:
        """Boot it with systemd as the host *name*, where *binds* show folders of this machine."""
        command = [str(ROOT / ".ci/debian"), "--layer", str(self.layer), "--boot", self.suite]
        shown = [f"--bind={source}:{target}" for source, target in binds.items()]
        etc = self.layer / "upper/etc"
        etc.mkdir(parents=True, exist_ok=True)
        (etc / "hostname").write_text(f"{name}\n")
        with (self.layer / "console").open("w") as console:
            nspawn = subprocess.Popen(
                [*command, *shown],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
            )
        try:
            booted = Booted(name, wait_until(lambda: _find_init(nspawn)))
            wait_until(lambda: booted.enter("systemctl is-system-running").stdout in BOOTED)
            yield booted
        finally:
            nspawn.kill()  # and with it, all in its namespace of processes
            nspawn.wait()


@dataclass(frozen=True)
class Booted:
    """A machine that runs."""

    name: str
    init: int
    """The process id of its systemd, seen from here."""

    def enter(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a line of shell as root, where the packages lie."""
        line = f"cd /hpcverify/dist && {command}"
        return subprocess.run(
            ["nsenter", "--target", str(self.init), "--all", "--root", "bash", "-c", line],
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def run(self, command: str) -> str:
        """Run a line of shell that succeeds, and give its output."""
        done = self.enter(command)
        assert done.returncode == 0, f"{self.name}: {command}: {done.stdout}"
        return done.stdout


def connect(machines: Sequence[Booted]) -> None:
    """Join two machines by a cable; names and addresses are in their /etc/hosts."""
    here, there = (str(machine.init) for machine in machines)
    cable = f"ip link add eth0 type veth peer name eth0 netns {there}"
    enter = ("nsenter", "--net", "--target")
    subprocess.run([*enter, here, *cable.split()], check=True)
    hosts = "".join(f"192.0.2.{n} {m.name}\\n" for n, m in enumerate(machines, start=1))
    for number, machine in enumerate(machines, start=1):
        machine.run(f"ip address add 192.0.2.{number}/24 dev eth0 && ip link set eth0 up")
        machine.run(f"printf '127.0.0.1 localhost\\n{hosts}' >/etc/hosts")


def _find_init(nspawn: subprocess.Popen[bytes]) -> int | None:
    """Find the first process of the machine that *nspawn* boots."""
    assert nspawn.poll() is None, "systemd-nspawn has ended: see the console in its layer"
    todo = [nspawn.pid]
    while todo:
        pid = todo.pop()
        with suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/comm").read_text() == "systemd\n":
                return pid
            todo += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return None
