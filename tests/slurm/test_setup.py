"""From a bare Slurm, by what `hpcverify setup slurm` prints, to hooks that observe."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpcverify.slurm import HookSettings
from hpcverify.slurm.hooks import find_hooks
from hpcverify.slurm.requirements import SEVERAL_PROGRAMS_VERSION, Place
from tests.cli import Cli
from tests.slurm.hooks import LATER, Hooks
from tests.slurm.plan import edit_conf, read_plan
from tests.slurm_lab.lab import Cluster, a_cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("root", "slurmctld", "munged")
ETC = Path("/etc")
CONFIG = ETC / "hpcverify"
"""Where the hooks look for their settings, whoever starts them."""
SOMEBODY = "nobody"
HOST_ONLY = re.compile(r"systemctl|/etc/cron\.d|ln -s")
"""Of a line that would change this machine itself; the rest is of the cluster."""
RUN_PLACES = (Place.NODES, Place.ONCE)
SCRIPT = '#!/bin/sh\necho "$0" >>{}\n'


@dataclass(frozen=True)
class Administrator:
    """Follows to the letter what is printed."""

    cluster: Cluster
    cli: Cli
    spool: Path

    def setup(self, *options: str) -> str:
        done = self.cli("setup", "slurm", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def follow(self, printed: str) -> None:
        """Add and run the lines, each where its heading says."""
        plan = [*read_plan(printed)]
        for line in plan:
            if line.place in RUN_PLACES and not HOST_ONLY.search(line.text):
                self.cluster.run("sh", "-ec", line.text)
        conf = self.cluster.conf
        conf.write_text(edit_conf(conf.read_text(), plan))
        self.cluster.run("scontrol", "reconfigure")
        self.cluster.until(self.cluster.answers)
        self.cluster.until(self.cluster.idle)

    def read_settings(self) -> HookSettings:
        return self.cluster.slurm.read_hook_settings()

    def list_fixes(self) -> list[dict[str, str]]:
        """List what doctor would have fixed; on a node that lacks tools, there is always some."""
        return [item for item in json.loads(self.cli("doctor", "--json").stdout) if item["fix"]]

    def run_job(self) -> None:
        """Run a job of an ordinary user: that starts the prolog and the epilog."""
        self.cluster.until(self.cluster.idle)
        self.cluster.run("runuser", "-u", SOMEBODY, "--", "srun", "-D/", "-w", "n1", "true")

    def preempt(self) -> None:
        """Have a user's job take a node from a job in our partition."""
        options = ("--parsable", "--exclusive", "-w", "n1", "-D/", "-o", "/dev/null")
        submit = ("sbatch", *options, "--wrap", "sleep 600", "-p")
        ours = self.cluster.run(*submit, "verify").strip()
        self.cluster.until(lambda: self.read_state(ours) == "RUNNING")
        users = self.cluster.run("runuser", "-u", SOMEBODY, "--", *submit, "batch").strip()
        self.cluster.until(lambda: self.read_state(users) == "RUNNING")
        assert self.read_state(ours) == "PREEMPTED"
        self.cluster.run("scancel", users)

    def read_state(self, job: str) -> str:
        return self.cluster.run("squeue", "-ah", "-t", "all", "-j", job, "-o", "%T").strip()

    def list_left(self) -> set[str]:
        """List the subjects of what is still missing."""
        return set(re.findall(r"^   (\w.*?): ", self.setup("--write"), re.MULTILINE))

    def list_runs(self) -> list[Path]:
        return [*self.spool.glob("n1/*.json")]

    def observe(self) -> None:
        """Run jobs until a hook has left a run: on a busy machine its deadline may end one."""

        def leave_run() -> list[Path]:
            self.run_job()
            return self.list_runs()

        wait_until(leave_run, self.cluster.look)


@pytest.fixture
def config(tmp_path: Path) -> Iterator[None]:
    """
    Have an empty /etc/hpcverify that this test's namespace of mounts alone sees.

    It is made in an /etc of its own: one that another run makes, that run removes, and with it
    what is mounted there.
    """
    layer = tmp_path / "etc-layer"
    layer.mkdir()
    mount("tmpfs", layer)
    for name in ("upper", "work"):
        (layer / name).mkdir()
    mount("overlay", ETC, f"lowerdir={ETC},upperdir={layer}/upper,workdir={layer}/work")
    CONFIG.mkdir(exist_ok=True)
    mount("tmpfs", CONFIG)
    yield
    subprocess.run(["umount", "--lazy", CONFIG, ETC, layer], check=True)


def mount(kind: str, target: Path, options: str = "mode=0755") -> None:
    subprocess.run(["mount", "-t", kind, "-o", options, "none", target], check=True)


@contextmanager
def a_bare_site(
    folder: Path, cli: Cli, *settings: str, accounting: bool = False
) -> Generator[Administrator]:
    """Have a Slurm that knows nothing of hpcverify, and a site without a configuration."""
    with a_cluster(2, accounting=accounting) as up:
        ours = ("Preempt", "PartitionName", "Include")
        lines = [x for x in up.conf.read_text().splitlines() if not x.startswith(ours)]
        batch = "PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE"
        up.conf.write_text("\n".join([*lines, *settings, batch, ""]))
        up.run("scontrol", "reconfigure")
        up.until(up.answers)
        environment = {k: v for k, v in cli.environment.items() if k != "HPCVERIFY_CONFIG"}
        yield Administrator(up, replace(cli, environment=environment | up.env), folder / "spool")


@pytest.fixture
def bare(config: None, tmp_path: Path, cli: Cli) -> Iterator[Administrator]:  # noqa: ARG001 - it is mounted
    with a_bare_site(tmp_path, cli) as site:
        yield site


def test_from_a_bare_slurm_the_printed_lines_lead_to_hooks_that_observe(
    bare: Administrator,
) -> None:
    before = bare.list_fixes()
    printed = bare.setup("--spool", str(bare.spool), "--write")
    named = {item["subject"] for item in bare.list_fixes() if item not in before}
    assert named == {"HealthCheckProgram", "Epilog"}
    bare.follow(printed)
    hooks, settings = find_hooks(), bare.read_settings()
    assert settings.health_check == str(hooks / "healthcheck")
    assert settings.prolog == (str(hooks / "prolog"),)
    assert (settings.epilog, settings.prolog_timeout) == ((str(hooks / "epilog"),), 120)
    assert "nohold_on_prolog_fail" in settings.scheduler
    partitions = bare.cluster.slurm.list_partitions()
    assert partitions["verify"].tier < partitions["batch"].tier
    assert not partitions["batch"].is_preemptible

    assert bare.list_fixes() == before
    bare.preempt()
    bare.observe()
    assert bare.cli("fleet", "collect").returncode == 0
    nodes = json.loads(bare.cli("nodes", "--json").stdout)
    assert "n1" in {node["node"] for node in nodes["nodes"] if node["last_run_at"]}

    assert "made:" not in bare.setup("--write")
    assert bare.list_left() <= {"sweeps"}
    notes = bare.cli("config", "check").stdout
    assert [line for line in notes.splitlines() if line.startswith("note:")] == []


def test_the_sites_own_programs_run_beside_ours(bare: Administrator) -> None:
    ran = bare.cluster.folder / "ran"
    scripts = {
        name: bare.cluster.folder / f"site-{name}" for name in ("health", "prolog", "epilog")
    }
    for script in scripts.values():
        script.write_text(SCRIPT.format(ran))
        script.chmod(0o755)
    with bare.cluster.conf.open("a") as conf:
        conf.write(
            f"HealthCheckProgram={scripts['health']}\nHealthCheckInterval=1\n"
            f"Prolog={scripts['prolog']}\nEpilog={scripts['epilog']}\n"
        )
    bare.cluster.run("scontrol", "reconfigure")
    bare.cluster.until(bare.cluster.answers)
    before = bare.list_fixes()

    bare.follow(bare.setup("--spool", str(bare.spool), "--write"))
    if bare.cluster.slurm.read_version() >= SEVERAL_PROGRAMS_VERSION:
        assert bare.read_settings().prolog == (str(scripts["prolog"]), f"{find_hooks()}/prolog")
    bare.observe()
    bare.cluster.until(lambda: set(ran.read_text().split()) == set(map(str, scripts.values())))
    assert bare.list_fixes() == before
    assert bare.list_left() <= {"sweeps"}


@pytest.mark.parametrize(
    "body",
    [
        'for f in "$(dirname "$0")"/prolog.d/*; do "$f" || exit 1; done',
        'run-parts --exit-on-error "$(dirname "$0")/prolog.d"',
    ],
    ids=["loop", "run-parts"],
)
def test_where_the_sites_program_runs_a_folder_each_program_runs_once(
    bare: Administrator, body: str
) -> None:
    """Its folder lies where one of ours would: beside slurm.conf."""
    ran, etc = bare.cluster.folder / "ran", bare.cluster.conf.parent
    for name in ("prolog", "epilog"):
        folder = etc / f"{name}.d"
        folder.mkdir()
        text = body.replace("prolog", name)
        for path, lines in ((folder / "10-site", ""), (etc / f"{name}.sh", f"{text}\n")):
            path.write_text(f"{SCRIPT.format(ran)}{lines}")
            path.chmod(0o755)
    with bare.cluster.conf.open("a") as conf:
        conf.write(f"Prolog={etc}/prolog.sh\nEpilog={etc}/epilog.sh\n")
    bare.cluster.run("scontrol", "reconfigure")
    bare.cluster.until(bare.cluster.answers)
    bare.follow(bare.setup("--spool", str(bare.spool), "--write"))
    assert [path.name for path in etc.glob("[ep]*log.d/*")] == ["10-site"] * 2
    bare.observe()
    assert bare.list_left() <= {"sweeps"}

    if bare.cluster.slurm.read_version() >= SEVERAL_PROGRAMS_VERSION:
        return  # there, ours is a line of its own
    for ours in etc.glob("hpcverify-*.d/00-hpcverify"):
        ours.write_text(SCRIPT.format(ran))
    ran.write_text("")
    bare.run_job()
    once = [
        f"{etc}/{place}".format(name)
        for name in ("prolog", "epilog")
        for place in ("{0}.sh", "{0}.d/10-site", "hpcverify-{0}.d/00-hpcverify")
    ]
    bare.cluster.until(lambda: len(ran.read_text().split()) >= len(once))
    bare.cluster.until(bare.cluster.idle)
    assert ran.read_text().split() == once


def test_slurm_starts_ours_after_the_other_programs_of_a_folder(bare: Administrator) -> None:
    ran, folder = bare.cluster.folder / "ran", bare.cluster.folder / "prologs"
    folder.mkdir()
    site = folder / "50-site"
    site.write_text(SCRIPT.format(ran))
    site.chmod(0o755)
    with bare.cluster.conf.open("a") as conf:
        conf.write(f"Prolog={folder}/*\n")
    bare.follow("")
    version = bare.cluster.slurm.read_version()

    bare.follow(bare.setup("--spool", str(bare.spool), "--write"))
    ours = folder / "00-hpcverify"
    if version >= SEVERAL_PROGRAMS_VERSION:  # a line of its own
        assert bare.read_settings().prolog == (f"{folder}/*", f"{find_hooks()}/prolog")
        assert not ours.exists()
        return
    ours.write_text(SCRIPT.format(ran))
    bare.run_job()
    assert ran.read_text().split() == [str(site), str(ours)]


def test_what_somebody_has_written_is_never_overwritten(bare: Administrator) -> None:
    bare.setup("--spool", str(bare.spool), "--write")
    for name in ("hooks.conf", "site.d/50-slurm.toml"):
        path = CONFIG / name
        path.write_text(path.read_text() + "# by hand\n")
    (CONFIG / "hooks.conf").write_text("HPCVERIFY_SPOOL=/elsewhere\n")
    before = {path: path.read_bytes() for path in CONFIG.rglob("*") if path.is_file()}

    printed = bare.setup("--write")
    assert {path: path.read_bytes() for path in CONFIG.rglob("*") if path.is_file()} == before
    assert "made:" not in printed
    assert "HPCVERIFY_SPOOL = '/elsewhere': differs from" in printed
    other = bare.cli("setup", "slurm", "--spool", "/other", "--write")
    assert other.returncode == 2
    assert str(CONFIG / "site.d/50-slurm.toml") in other.stderr


def test_where_it_may_not_write_it_says_so_in_one_line(bare: Administrator) -> None:
    subprocess.run(["mount", "-o", "remount,ro", CONFIG], check=True)
    done = bare.cli("setup", "slurm", "--spool", str(bare.spool), "--write")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{CONFIG}/site.d/50-slurm.toml cannot be written: Read-only" in done.stderr


@pytest.mark.parametrize(
    "drop_in", ["[fleet\n", "nonsense = 1\n", "\xff\n", "[fleet]\nspool = 7\n"]
)
def test_a_damaged_drop_in_drains_no_node_and_lifts_no_quarantine(
    config: None,  # noqa: ARG001 - it is mounted
    tmp_path: Path,
    drop_in: str,
) -> None:
    (CONFIG / "site.d").mkdir()
    (CONFIG / "site.d/10-site.toml").write_bytes(drop_in.encode("latin-1"))
    program = Path(sys.executable).with_name("hpcverify")
    done = subprocess.run([program, "run", "--suite", "prolog"], capture_output=True, check=False)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"10-site.toml" in done.stderr

    hooks = Hooks(tmp_path)
    hooks.prepare(HPCVERIFY=program, HPCVERIFY_DEADLINE=50)
    hooks.word(f"ok\n{LATER}\n\ninventory\n")  # jobs wait for this check
    names = ("prolog", "epilog", "healthcheck")
    assert {name: hooks(name).returncode for name in names} == dict.fromkeys(names, 0)
    hooks.word(f"quarantined\n{LATER}\nGPU 3\n\n")
    assert hooks("prolog").returncode == 1


def test_without_slurm_it_says_so_in_one_line_and_writes_nothing(
    config: None,  # noqa: ARG001 - it is mounted
    cli: Cli,
    tmp_path: Path,
) -> None:
    environment = {k: v for k, v in cli.environment.items() if k != "HPCVERIFY_CONFIG"}
    lost = replace(cli, environment=environment | {"SLURM_CONF": str(tmp_path / "none")})

    done = lost("setup", "slurm", "--spool", str(tmp_path / "spool"), "--write")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.count("\n") == 1
    assert os.listdir(CONFIG) == []  # noqa: PTH208 - a count
    assert not (tmp_path / "spool").exists()


def test_a_site_that_preempts_by_qos_gets_a_qos_for_verifications(
    config: None,  # noqa: ARG001 - it is mounted
    tmp_path: Path,
    cli: Cli,
) -> None:
    settings = ("PreemptType=preempt/qos", "PreemptMode=REQUEUE")
    with a_bare_site(tmp_path, cli, *settings, accounting=True) as site:
        site.follow(site.setup("--spool", str(site.spool), "--write"))

        rows = site.cluster.run("sacctmgr", "-nP", "show", "qos", "format=name,preempt,preemptmode")
        assert {"normal|verify|cluster", "verify||cancel"} <= set(rows.split())
        shown = json.loads(site.cli("config", "show", "--json").stdout)
        assert ("fleet.qos", "verify") in {(item["setting"], item["value"]) for item in shown}
        assert site.list_left() <= {"sweeps"}
        notes = site.cli("config", "check").stdout.splitlines()
        assert [line for line in notes if line.startswith("note:")] == []
