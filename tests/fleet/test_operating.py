"""What the operator of a controller lives through, on a real Slurm with real jobs."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hpcverify.fleet.claim import build_claim_path
from hpcverify.fleet.states import Node, State
from hpcverify.history.columns import find_night
from hpcverify.insight.judgement import FleetJudgement, read_judgement, write_judgement
from tests.doubles import a_run
from tests.fleet.cluster import Fleet
from tests.fleet.test_scenarios import BELIEVED, held, one_line, reserved, swept, verified
from tests.history.fleets import make_history

HOOK = '#!/bin/sh\ncat >>"$(dirname "$0")/told.json"\n'
ADMIN = "disk 3: don't touch"


@dataclass(frozen=True)
class SecondFleet(Fleet):
    """The same site, by a controller with a state directory of its own."""

    @property
    def env(self) -> dict[str, str]:
        """What its commands are called with."""
        return super().env | {"HPCVERIFY_STATE": str(self.folder / "second")}


def words(fleet: Fleet) -> dict[str, bytes]:
    """Read what the controller left in its folder of the spool."""
    return {path.name: path.read_bytes() for path in (fleet.spool / "gate").iterdir()}


def told(fleet: Fleet) -> list[dict[str, Any]]:
    """List what the site's program was told, the oldest first."""
    return [json.loads(line) for line in (fleet.folder / "told.json").read_text().splitlines()]


def with_a_hook(fleet: Fleet, text: str = HOOK, quarantine: str = BELIEVED) -> None:
    hook = fleet.folder / "hook"
    hook.write_text(text)
    hook.chmod(0o755)
    fleet.prepare(f'{quarantine}\non_transition = "{hook}"')


# -- two controllers


def test_a_second_controller_is_told_in_one_line_and_does_nothing(fleet: Fleet) -> None:
    fleet("fleet", "collect")
    second = SecondFleet(fleet.cluster, fleet.folder)
    fleet.tell("n1", "corrupt")
    fleet.by_hand("n1")
    before = words(fleet)

    for command in (
        "fleet collect",
        "fleet sweep",
        "nodes hold n1 --reason x",
        "nodes adopt",
        "nodes admit n2",
    ):
        done = second(*command.split())
        assert (done.returncode, done.stdout) == (4, "")
        assert f"another controller has the spool {fleet.spool}" in one_line(done.stderr)

    assert held(fleet) == set()
    assert [*fleet.spool.glob("n1/*.json")]
    assert words(fleet) == before
    noted = second("config", "check").stdout
    assert f"note: another controller has the spool {fleet.spool}" in noted
    assert fleet("fleet", "collect").returncode == 0
    assert fleet.states()["n1"] == "suspect"


def test_a_controller_that_moved_goes_on_with_all_that_it_knew(fleet: Fleet) -> None:
    fleet.tell("n1", "corrupt")
    verified(fleet, "n1")
    shutil.copytree(fleet.folder / "controller", fleet.folder / "second")
    second = SecondFleet(fleet.cluster, fleet.folder)

    assert second("nodes", "repaired", "n1", "--reason", "new board").returncode == 0

    assert (fleet.drained(), reserved(fleet)) == (set(), {"n1"})


# -- a ledger that is lost


def test_what_a_lost_ledger_held_is_adopted_and_comes_back_by_a_pass(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    fleet.tell("n1", "corrupt")
    verified(fleet, "n1")
    fleet.cluster.slurm.drain("n2", ADMIN)
    reason = fleet.host("n1").reason
    fleet.cluster.slurm.reserve("hpcverify-n3", "n3")
    shutil.rmtree(fleet.folder / "controller")  # and with it the claim, as the docs say
    build_claim_path(fleet.spool).unlink()

    assert fleet("fleet", "collect").returncode == 0
    assert fleet.shown("n1") == ("held by others", reason)
    done = fleet("nodes", "adopt", "--reason", "the disk of ctl1 died")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("n1: quarantined; ")
    assert "n3: under verification; " in done.stdout
    assert (fleet.drained(), reserved(fleet)) == ({"n1", "n2"}, {"n3"})
    assert fleet.host("n1").reason == reason
    assert (fleet.node("n1").state, fleet.node("n2").foreign) == ("quarantined", ADMIN)
    said = {(e.node, e.actor, e.what) for e in fleet.ledger.read_audit(limit=1000)}
    assert {("n1", "ada", "adopt"), ("n3", "ada", "adopt")} <= said
    fleet.tell("n1", "100")
    assert fleet("nodes", "repaired", "n1", "--reason", "new board").returncode == 0
    fleet.collected()
    assert fleet.node("n1").state == fleet.node("n3").state == "healthy"
    assert held(fleet) == {"n2"}
    assert fleet("nodes", "adopt").stdout == "the ledger knows every hold of hpcverify\n"


# -- nodes that are gone


def test_a_node_without_our_mark_is_not_adopted_though_it_is_asked_for(asked: Fleet) -> None:
    asked.cluster.slurm.drain("n2", ADMIN)
    try:
        done = asked("nodes", "adopt", "n[1-2]")
        reason = asked.host("n2").reason
    finally:
        asked.cluster.slurm.resume("n2")

    assert (done.returncode, done.stdout, reason) == (4, "", ADMIN)
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == [" n1", " n2"]


def test_a_node_that_is_gone_is_forgotten_and_one_that_is_there_is_not(asked: Fleet) -> None:
    gone = Node(name="n9", state=State.QUARANTINED, enforced=True)
    asked.ledger.put(gone, "quarantined")
    (asked.spool / "n9").mkdir(mode=0o700)
    (asked.spool / "n9" / ".refused.x").touch()
    run = json.loads(_document("n9"))
    (asked.spool / "n9" / f"{run['id']}.json").write_text(json.dumps(run))

    done = asked("nodes", "forget", "n1,n9", "--reason", "rack 4 was sold")

    assert (done.returncode, done.stdout.partition(":")[0]) == (4, "n9")
    assert "n1: Slurm still has it" in one_line(done.stderr)
    assert not (asked.spool / "n9").exists()
    assert "n9" not in {row["node"] for row in json.loads(asked("nodes", "--json").stdout)["nodes"]}
    assert run["id"] in asked("history", "n9").stdout
    assert asked("nodes", "forget", "n8").returncode == 2


def _document(node: str) -> str:
    now = datetime.now(tz=UTC)
    made = a_run(id=f"{now:%Y%m%d-%H%M%S}-abcdef", node=node, started=now)
    return msgspec.json.encode(made).decode()


# -- who learns of it


def test_a_quarantine_and_a_release_are_told_to_the_sites_program(fleet: Fleet) -> None:
    with_a_hook(fleet)
    fleet.tell("n1", "corrupt")

    verified(fleet, "n1")

    (first,) = [each for each in told(fleet) if each["node"] == "n1"]
    assert (first["event"], first["before"], first["after"]) == (
        *("node", "unverified"),
        "quarantined",
    )
    assert (first["enforced"], first["checks"]) == (True, ["told"])
    assert first["part"] == "node"
    assert "a wrong word" in first["reason"]
    assert "a wrong word (corruption)" in fleet("show", first["run"]).stdout
    fleet("nodes", "release", "n1", "--reason", "we need it", "--force")
    assert told(fleet)[-1]["after"] == "unverified"


def test_a_program_that_fails_stops_no_cycle(fleet: Fleet) -> None:
    with_a_hook(fleet, "#!/bin/sh\necho no mail server >&2; exit 1\n")
    fleet.tell("n1", "corrupt")

    verified(fleet, "n1")
    done = fleet("fleet", "collect")

    assert fleet.drained() == {"n1"}
    assert done.returncode == 0
    assert "no mail server; the next cycle tries again" in one_line(done.stderr)


def test_a_tripped_breaker_shows_in_the_output_and_status_of_each_cycle(fleet: Fleet) -> None:
    with_a_hook(fleet)
    for node in ("n1", "n2", "n3"):
        fleet.tell(node, "corrupt")
    swept(fleet, "n1", "n2", "n3")
    assert "hpcverify: the breaker tripped: 3 of 4" in fleet("fleet", "collect").stderr

    for command in ("collect", "sweep"):
        done = fleet("fleet", command)
        assert done.returncode == 4, done.stderr
        assert "THE BREAKER IS TRIPPED, nodes are not held for failures: 3 of 4" in done.stderr
    (tripped,) = [each for each in told(fleet) if each["event"] == "breaker"]
    assert tripped["after"] == "tripped"

    assert fleet("fleet", "breaker", "reset", "--reason", "image 41").returncode == 0
    assert fleet("fleet", "collect").returncode == 0
    assert told(fleet)[-1]["after"] == "closed"


def test_a_doubted_check_shows_in_the_output_and_status_of_each_cycle(fleet: Fleet) -> None:
    with_a_hook(fleet, quarantine='enforce = ["*"]')
    for node in ("n1", "n2", "n3"):
        fleet.tell(node, "corrupt")
    swept(fleet, "n1", "n2", "n3")
    assert "a check is doubted: told fails on 3 of the 3" in fleet("fleet", "collect").stderr

    for command in ("collect", "sweep"):
        done = fleet("fleet", command)
        assert done.returncode == 4, done.stderr
        assert "A CHECK IS DOUBTED: told fails on 3 of the " in done.stderr
    assert "doubted: told fails on 3 of the 4 nodes" in fleet("fleet", "breaker").stdout
    (doubted,) = [each for each in told(fleet) if each["event"] == "check"]
    assert (doubted["after"], doubted["checks"]) == ("doubted", ["told"])


# -- what Slurm has


def test_config_check_names_the_partition_whose_jobs_users_would_preempt(asked: Fleet) -> None:
    asked.cluster.reconfigure("PartitionName=debug Nodes=ALL PriorityTier=20\n")
    asked.cluster.run("scontrol", "update", "partitionname=batch", "preemptmode=requeue")
    try:
        noted = asked("config", "check").stdout
    finally:
        asked.cluster.reconfigure("")

    assert "note: users' jobs in debug preempt users' jobs in batch" in noted
    assert "note: partition verify is open to all users" in noted
    assert "preempt users' jobs" not in asked("config", "check").stdout


def test_config_check_goes_on_when_slurm_does_not_answer(asked: Fleet) -> None:
    asked.cluster.stop("slurmctld")
    try:
        done = asked("config", "check")
    finally:
        asked.cluster.start("slurmctld")
        asked.cluster.until(asked.cluster.answers)
        asked.cluster.until(asked.cluster.idle)

    assert done.returncode == 0
    assert "note: reading the settings of Slurm failed: scontrol show" in done.stdout


def test_jobs_have_the_account_and_the_options_of_the_site(fleet: Fleet) -> None:
    options = 'account = "ops"\nsbatch_options = ["--comment=burn-in, nightly"]'
    fleet.prepare(fleet=options)

    verified(fleet, "n1")

    shown = fleet.cluster.run("scontrol", "show", "jobs", "-o")
    assert "Account=ops" in shown
    assert "Comment=burn-in, nightly" in shown


# -- the nights


def make_nights(fleet: Fleet) -> date:
    """Have GPU 3 of n2 slow since two nights, on a site that fails it; give the last night."""
    with fleet.config.open("a") as file:
        file.write('\n[[peers]]\nfloor = 0.02\notherwise = "fail"\n')
    night = find_night(datetime.now(UTC)) - timedelta(days=1)
    (fleet.folder / "controller").mkdir()
    make_history(
        fleet.folder / "controller",
        nights=2,
        first=night - timedelta(days=1),
        nodes=4,
        gpus=8,
        name="printf('n%d', n + 1)",
        level="if(n = 1 and g = 3, 0.9, 1)",
    )
    return night


def read_night(fleet: Fleet) -> FleetJudgement:
    judged = read_judgement(fleet.folder / "controller")
    assert judged is not None
    return judged


def date_one_night_back(fleet: Fleet) -> None:
    """Make the last judgement one of the night before."""
    judged, day = read_night(fleet), timedelta(days=1)
    ago = [replace(one, since=one.since - day, last=one.last - day) for one in judged.unconfirmed]
    before = replace(judged, night=judged.night - day, unconfirmed=tuple(ago))
    write_judgement(fleet.folder / "controller", before)


@pytest.mark.parametrize("command", ["collect", "sweep"])
def test_the_first_command_after_a_night_judges_it_and_what_two_show_makes_a_suspect(
    fleet: Fleet, command: str
) -> None:
    night = make_nights(fleet)

    assert fleet("fleet", command).returncode == 0
    judged = read_night(fleet)
    assert (judged.night, judged.outliers) == (night, ())
    assert {one.name for one in judged.unconfirmed} == {"n2 GPU 3"}
    assert fleet("fleet", command).returncode == 0
    assert read_night(fleet) == judged

    date_one_night_back(fleet)
    fleet("fleet", command)

    assert {one.name for one in read_night(fleet).outliers} == {"n2 GPU 3"}
    assert "peers: FAIL n2 GPU 3: gemm bf16.sustained" in fleet("nodes").stdout
    fleet("fleet", "collect")
    assert fleet.states()["n2"] == "suspect"
    assert (fleet.drained(), reserved(fleet)) == (set(), set())
    verified(fleet, "n2")
    assert fleet.states()["n2"] == "healthy"
