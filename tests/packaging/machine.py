"""A Debian of its own, in which packages are installed for real (.ci/debian)."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
"""The Python of each Debian."""
SERVICE = """\
[Service]
Type=oneshot
ExecStart=/bin/bash -c 'exec bash -eu /root/script >/root/output 2>&1'
ExecStopPost=/bin/sh -c 'echo "$EXIT_STATUS" >/root/status; exec systemctl --no-block poweroff'
TimeoutStartSec=540
[Install]
WantedBy=multi-user.target
"""


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
    slurm: bool = False

    def package(self, name: str, kind: str = "deb") -> str:
        """Return the path, in this machine, of the package of *name* that fits it."""
        path = find_package(self.dist, self.suite, name, kind)
        return f"/hpcverify/{path.relative_to(ROOT)}"

    def enter(self, *command: object, network: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command in it; *network* is that of this machine, else one of its own."""
        apart = [] if network else [ROOT / ".ci/apart"]
        slurm = ["--slurm"] if self.slurm else []
        debian = [ROOT / ".ci/debian", "--layer", self.layer, *slurm, self.suite]
        return subprocess.run(
            [str(word) for word in (*apart, *debian, *command)],
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

    def boot(self, script: str) -> str:
        """Boot it with systemd, run *script* of bash there and give its output."""
        for name, text in {
            "root/script": script,
            "etc/systemd/system/script.service": SERVICE,
        }.items():
            path = self.layer / "upper" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.run("systemctl", "enable", "script.service")
        command = [str(ROOT / ".ci/debian"), "--layer", str(self.layer), "--boot", self.suite]
        console = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        output = self.enter("cat", "/root/status", "/root/output").stdout
        assert output.startswith("0\n"), output + console.stdout[-2000:]
        return output.partition("\n")[2]
