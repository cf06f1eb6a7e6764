"""The round over the BMCs: which nodes get a run, what it says, and where no password is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpcverify.fleet.ledger import Ledger
from hpcverify.model import CarryOver, Cause, Result, Run, Verdict
from hpcverify.records import documents
from hpcverify.records.store import Store
from hpcverify.run.orchestrator import make_run_id
from tests.cli import Cli
from tests.doubles import a_result, a_run
from tests.redfish_lab.resources import (
    CHASSIS,
    ENTRIES,
    SYSTEM,
    make_entry,
    make_new_tree,
    make_old_tree,
    set_entries,
)
from tests.redfish_lab.server import (
    PASSWORD,
    USER,
    FakeBmc,
    answer_with,
    hang,
    make_certificate,
    serve,
)
from tests.waiting import PATIENCE_S, wait_until

NODES = ("n1", "n2", "n3", "n4")
POWER, THERMAL = f"{CHASSIS}/Power", f"{CHASSIS}/Thermal"
CRITICAL = {"State": "Enabled", "Health": "Critical"}
LOST_DATA = {"message": "Uncorrectable ECC", "SensorType": "Memory", "Severity": "Critical"}
WRONG = "another"


@dataclass
class BmcFleet:
    """Nodes that the controller knows, and their BMCs."""

    cli: Cli
    folder: Path
    bmcs: dict[str, FakeBmc]

    @property
    def secret(self) -> Path:
        return self.folder / "bmc.toml"

    def configure(self, extra: str = "", **options: object) -> None:
        """Write the site file and the file of credentials."""
        values: dict[str, object] = {
            "credentials": f'"{self.secret}"',
            "ca": f'"{self.folder / "bmc.pem"}"',
            "pause": 0,
            "seconds": 30,
        }
        lines = [f"{name} = {value}" for name, value in (values | options).items()]
        there = [f'{node} = "{bmc.address}"' for node, bmc in self.bmcs.items()]
        tables = [f'[fleet]\nspool = "{self.folder / "spool"}"', "[bmc]", *lines]
        self.cli.site("\n".join([*tables, "[bmc.addresses]", *there, extra]))
        self.secret.write_text(f'user = "{USER}"\npassword = "{PASSWORD}"\n')
        self.secret.chmod(0o600)

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        for bmc in self.bmcs.values():
            bmc.write()
        done = self.cli("fleet", "bmc", *arguments)
        assert PASSWORD not in done.stdout + done.stderr
        return done

    def list_runs(self, node: str) -> list[Run]:
        found = sorted((self.folder / "spool" / node).glob("*.json"))
        return [documents.read(path) for path in found]

    def find_result(self, node: str) -> Result:
        (run,) = self.list_runs(node)
        return run.results[0]

    def collect(self) -> None:
        """Keep the runs that are in the spool as the controller does."""
        for node in self.bmcs:
            for run in self.list_runs(node):
                Store(self.cli.state).save(run)
                (self.folder / "spool" / node / f"{run.id}.json").unlink()

    def count_logins(self) -> int:
        """Count the tries of a password, on all BMCs."""
        return sum(bmc.logins for bmc in self.bmcs.values())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def fleet_of_bmcs(cli: Cli, tmp_path: Path, certificate: Path) -> Iterator[BmcFleet]:
    """Make four healthy nodes, with BMCs of both generations."""
    trees = {node: (make_old_tree, make_new_tree)[i % 2]() for i, node in enumerate(NODES)}
    bmcs = {n: FakeBmc(tmp_path / "bmcs" / n, certificate, tree) for n, tree in trees.items()}
    (tmp_path / "spool").mkdir()
    (tmp_path / "bmc.pem").write_bytes(certificate.read_bytes())
    ledger = Ledger(cli.state)
    ledger.add_nodes(NODES)
    with serve(*bmcs.values()):
        made = BmcFleet(cli, tmp_path, bmcs)
        made.configure()
        yield made


def test_each_node_gets_a_run_that_is_signed_and_has_no_ticket(
    fleet_of_bmcs: BmcFleet, cli: Cli
) -> None:
    done = fleet_of_bmcs.ask()
    ledger = Ledger(cli.state)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "4 BMCs read: 4 pass\n"
    for node in NODES:
        (run,) = fleet_of_bmcs.list_runs(node)
        assert (run.suite, run.verdict, run.passive) == ("bmc", Verdict.PASS, True)
        assert ledger.has_signed(run)
        assert ledger.find_ticket(node, run.token) is None
        assert [r.check for r in run.results] == ["chassis"]
        said = " ".join(one.text for one in run.results[0].coverage)
        assert f"the BMC at {fleet_of_bmcs.bmcs[node].address}, firmware 1.45.455b66-rev4" in said
    assert {bmc.open_sessions for bmc in fleet_of_bmcs.bmcs.values()} == {0}


@pytest.mark.parametrize(("ca", "told"), [("none.pem", "No such file"), ("bmc.toml", "no cert")])
def test_a_file_of_certificates_that_cannot_be_used_is_no_fault_of_a_bmc(
    fleet_of_bmcs: BmcFleet, ca: str, told: str
) -> None:
    fleet_of_bmcs.configure(ca=f'"{fleet_of_bmcs.folder / ca}"')

    done = fleet_of_bmcs.ask("n1")

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{ca}, the ca of [bmc], " in done.stderr
    assert told in done.stderr
    assert fleet_of_bmcs.count_logins() == 0


def test_before_the_first_collect_the_fix_is_told(cli: Cli, tmp_path: Path) -> None:
    cli.site(f'[fleet]\nspool = "{tmp_path}"\n')
    for arguments in ((), ("n1",)):
        done = cli("fleet", "bmc", *arguments)
        assert done.returncode == 2
        assert "hpcverify fleet collect asks Slurm for them" in done.stderr


def test_the_versions_and_bios_settings_are_told_as_facts(fleet_of_bmcs: BmcFleet) -> None:
    for node, bmc in fleet_of_bmcs.bmcs.items():
        for resource in bmc.tree.values():
            if "ProcTurboMode" in resource.get("Attributes", {}):
                resource["Attributes"]["AssetTag"] = f"of {node}"
    fleet_of_bmcs.ask()
    fleet_of_bmcs.collect()

    told = {one.node: one.facts for one in Store(fleet_of_bmcs.cli.state).list_facts()}
    assert set(told) == set(NODES)
    for facts in told.values():
        assert facts["BMC firmware (bmc)"] == "1.45.455b66-rev4"
        assert not any("assword" in name or "Asset" in name for name in facts)
    assert "Enabled" in {facts.get("BIOS setting ProcTurboMode (bmc)") for facts in told.values()}


def test_what_is_broken_is_named_in_both_generations(fleet_of_bmcs: BmcFleet) -> None:
    old, new, lost, hot = (fleet_of_bmcs.bmcs[node].tree for node in NODES)
    old[POWER]["PowerSupplies"][1]["Status"] = CRITICAL
    new[f"{CHASSIS}/ThermalSubsystem/Fans/Bay3"] |= {
        "SpeedPercent": {"Reading": 0, "SpeedRPM": 0},
        "Status": CRITICAL,
    }
    lost[POWER]["PowerSupplies"][0] |= {"LineInputVoltage": 0, "Status": CRITICAL}
    hot[f"{CHASSIS}/Sensors/CPU1"] |= {"Reading": 99, "Status": CRITICAL}

    done = fleet_of_bmcs.ask()

    assert (done.returncode, done.stdout) == (1, "4 BMCs read: 4 fail\n")
    found = {node: fleet_of_bmcs.find_result(node) for node in NODES}
    codes = {node: [(f.code, f.part_id) for f in r.findings] for node, r in found.items()}
    assert codes == {
        "n1": [("supply_failed", "PSU 2")],
        "n2": [("fan_failed", "Fan 3")],
        "n3": [("supply_input_lost", "PSU 1")],
        "n4": [("temperature_critical", "CPU1 Temp")],
    }
    assert "n2: fail: Fan 3: the BMC complains of it" in done.stderr


def test_redundancy_that_is_lost_fails_and_one_that_never_was_warns(
    fleet_of_bmcs: BmcFleet,
) -> None:
    first, second = (fleet_of_bmcs.bmcs[node].tree for node in ("n1", "n3"))
    second[POWER]["Redundancy"][0]["Status"] = CRITICAL
    fleet_of_bmcs.ask()
    fleet_of_bmcs.collect()
    first[POWER]["Redundancy"][0]["Status"] = CRITICAL

    fleet_of_bmcs.ask()

    assert fleet_of_bmcs.find_result("n1").verdict is Verdict.FAIL
    assert "PSU Redundancy: can lose no more" in fleet_of_bmcs.find_result("n1").reason
    assert fleet_of_bmcs.find_result("n3").verdict is Verdict.WARN


def test_a_power_supply_that_is_gone_warns_until_that_is_accepted(fleet_of_bmcs: BmcFleet) -> None:
    def ask(*options: str) -> Result:
        fleet_of_bmcs.ask("n1", *options)
        found = fleet_of_bmcs.find_result("n1")
        fleet_of_bmcs.collect()
        return found

    ask()
    fleet_of_bmcs.bmcs["n1"].tree[POWER]["PowerSupplies"][1]["Status"] = {"State": "Absent"}

    assert [f.code for f in ask().findings] == ["part_gone"]
    assert ask("--accept-parts").verdict is Verdict.PASS
    assert ask().verdict is Verdict.PASS
    assert fleet_of_bmcs.ask("--accept-parts").returncode == 2


def test_an_entry_of_the_event_log_counts_once(fleet_of_bmcs: BmcFleet) -> None:
    fleet_of_bmcs.ask("n1")
    fleet_of_bmcs.collect()
    tree = fleet_of_bmcs.bmcs["n1"].tree
    set_entries(tree, [*tree[ENTRIES]["Members"], make_entry(2, **LOST_DATA)])
    fleet_of_bmcs.ask("n1")
    found = fleet_of_bmcs.find_result("n1")
    fleet_of_bmcs.collect()

    fleet_of_bmcs.ask("n1")

    assert found.verdict is Verdict.FAIL
    assert [f.code for f in found.findings] == ["memory_uncorrectable"]
    assert fleet_of_bmcs.find_result("n1").verdict is Verdict.PASS


def test_the_log_of_a_node_that_reports_it_itself_is_left_to_it(fleet_of_bmcs: BmcFleet) -> None:
    fleet_of_bmcs.ask("n1")
    fleet_of_bmcs.collect()
    told_by_node(fleet_of_bmcs, Verdict.PASS)
    tree = fleet_of_bmcs.bmcs["n1"].tree
    set_entries(tree, [make_entry(2, **LOST_DATA)])

    fleet_of_bmcs.ask("n1")

    left = fleet_of_bmcs.find_result("n1")
    assert (left.verdict, left.findings) == (Verdict.PASS, ())
    assert "the node itself reports the event log" in [one.text for one in left.coverage]


def test_a_node_that_cannot_report_its_log_leaves_it_to_its_bmc(fleet_of_bmcs: BmcFleet) -> None:
    fleet_of_bmcs.ask("n1")
    fleet_of_bmcs.collect()
    told_by_node(fleet_of_bmcs, Verdict.SKIP)
    tree = fleet_of_bmcs.bmcs["n1"].tree
    set_entries(tree, [make_entry(2, **LOST_DATA)])

    fleet_of_bmcs.ask("n1")

    assert fleet_of_bmcs.find_result("n1").verdict is Verdict.FAIL


def test_each_source_keeps_its_own_marks(fleet_of_bmcs: BmcFleet) -> None:
    fleet_of_bmcs.ask("n1")
    fleet_of_bmcs.collect()
    told_by_node(fleet_of_bmcs, Verdict.PASS, CarryOver("log", "of the node"))

    marks = Store(fleet_of_bmcs.cli.state).load_carry_overs("n1")["chassis"]

    assert {mark.name for mark in marks} == {"log", "redfish.log", "redfish.parts"}
    assert CarryOver("log", "of the node") in marks


def told_by_node(fleet: BmcFleet, verdict: Verdict, *marks: CarryOver) -> None:
    """Let n1 have judged its chassis itself, in a run that the controller has collected."""
    now = datetime.now(UTC)
    result = a_result("chassis", verdict=verdict, marks=marks)
    run = a_run(id=make_run_id(now), suite="idle", started=now, verdict=verdict, results=(result,))
    Store(fleet.cli.state).save(run)


# -- a BMC that gives no answer


@pytest.mark.system
def test_a_bmc_that_gives_no_answer_accuses_no_node(fleet_of_bmcs: BmcFleet) -> None:
    fleet_of_bmcs.configure(seconds=60)
    fleet_of_bmcs.bmcs["n2"].faults["Chassis"] = hang

    done = fleet_of_bmcs.ask()

    assert (done.returncode, done.stdout) == (3, "4 BMCs read: 3 pass, 1 error\n")
    silent = fleet_of_bmcs.find_result("n2")
    assert (silent.verdict, silent.cause) == (Verdict.ERROR, Cause.TIMEOUT)
    assert silent.marks == ()
    assert fleet_of_bmcs.bmcs["n2"].open_sessions == 0


def test_when_most_bmcs_are_silent_it_is_told_once(fleet_of_bmcs: BmcFleet) -> None:
    for node in ("n1", "n2", "n4"):
        fleet_of_bmcs.bmcs[node].faults[""] = answer_with(500)

    done = fleet_of_bmcs.ask()

    assert done.returncode == 3
    assert done.stderr.startswith(
        "hpcverify: 3 of 4 BMCs cannot be read, so their network or [bmc] is at fault, and "
        "their nodes get no run: "
    )
    assert len(done.stderr.splitlines()) == 1
    assert [node for node in NODES if fleet_of_bmcs.list_runs(node)] == ["n3"]


def test_three_refused_passwords_end_the_round(fleet_of_bmcs: BmcFleet) -> None:
    for bmc in fleet_of_bmcs.bmcs.values():
        bmc.password = WRONG

    done = fleet_of_bmcs.ask()

    assert done.returncode == 3
    assert fleet_of_bmcs.count_logins() == 3
    last = done.stderr.splitlines()[-1]
    assert "3 BMCs in a row refuse the password, so the round ends: " in last
    assert last.endswith("; not asked: 1")


def test_one_refused_password_is_told_of_its_node_alone(fleet_of_bmcs: BmcFleet) -> None:
    fleet_of_bmcs.bmcs["n3"].password = WRONG
    done = fleet_of_bmcs.ask()
    assert (done.returncode, done.stdout) == (3, "4 BMCs read: 3 pass, 1 error\n")
    assert fleet_of_bmcs.find_result("n3").cause is Cause.DENIED
    assert fleet_of_bmcs.count_logins() == 4


def test_what_a_bmc_cannot_show_is_an_error_and_the_rest_counts(fleet_of_bmcs: BmcFleet) -> None:
    fleet_of_bmcs.ask()
    fleet_of_bmcs.collect()
    bmc = fleet_of_bmcs.bmcs["n1"]
    bmc.faults[POWER] = answer_with(500)

    fleet_of_bmcs.ask("n1")

    partial = fleet_of_bmcs.find_result("n1")
    assert (partial.verdict, partial.cause) == (Verdict.ERROR, Cause.MISCONFIGURED)
    assert f"did not return {POWER}: HTTP 500" in partial.reason
    assert partial.findings == ()  # power supplies that were not read are not gone

    bmc.tree[THERMAL]["Fans"][0] |= {"Reading": 0, "Status": CRITICAL}
    fleet_of_bmcs.collect()
    fleet_of_bmcs.ask("n1")
    assert fleet_of_bmcs.find_result("n1").verdict is Verdict.FAIL


def test_a_node_that_is_switched_off_lacks_no_fan(fleet_of_bmcs: BmcFleet) -> None:
    tree = fleet_of_bmcs.bmcs["n1"].tree
    for power in ("On", "Off", "Off", "Off"):
        tree[SYSTEM]["PowerState"] = power
        fleet_of_bmcs.ask("n1")
        result = fleet_of_bmcs.find_result("n1")
        assert (result.verdict, result.findings) == (Verdict.PASS, ())
        fleet_of_bmcs.collect()


def test_a_spool_that_is_away_asks_nobody(fleet_of_bmcs: BmcFleet) -> None:
    (fleet_of_bmcs.folder / "spool").rmdir()
    done = fleet_of_bmcs.ask()
    assert (done.returncode, fleet_of_bmcs.count_logins()) == (2, 0)
    assert "cannot be read: No such file or directory" in done.stderr


def test_a_folder_of_one_node_that_cannot_be_written_costs_only_its_run(
    fleet_of_bmcs: BmcFleet,
) -> None:
    (fleet_of_bmcs.folder / "spool" / "n1").touch()
    done = fleet_of_bmcs.ask()
    assert done.returncode == 2
    assert "spool/n1 is not a directory: remove it" in done.stderr
    assert [node for node in NODES[1:] if fleet_of_bmcs.list_runs(node)] == list(NODES[1:])


# -- secrets


def test_the_password_is_nowhere_but_in_its_file(fleet_of_bmcs: BmcFleet) -> None:
    fleet_of_bmcs.configure(seconds=60)
    bmcs = list(fleet_of_bmcs.bmcs.values())
    bmcs[1].password = WRONG
    bmcs[2].faults["Chassis"] = hang
    bmcs[3].faults["Systems"] = answer_with(200, PASSWORD.encode())
    seen: set[str] = set()
    process = fleet_of_bmcs.cli.start("fleet", "bmc")
    try:
        wait_until(lambda: bmcs[2].open_sessions > 0)
        for path in Path("/proc").glob("[0-9]*"):
            for name in ("cmdline", "environ"):
                try:
                    text = (path / name).read_bytes()
                except OSError:  # it has ended
                    continue
                seen |= {path.name} if PASSWORD.encode() in text else set()
    finally:
        for bmc in bmcs:
            bmc.released.set()
        out, err = process.communicate(timeout=PATIENCE_S)

    assert seen == set()
    assert PASSWORD not in out + err
    kept = [path for path in fleet_of_bmcs.folder.rglob("*") if path.is_file()]
    with_it = [path for path in kept if PASSWORD.encode() in path.read_bytes()]
    assert with_it == [fleet_of_bmcs.secret]
    assert len(fleet_of_bmcs.list_runs("n3")) == 1


@pytest.mark.parametrize(
    ("mode", "text", "words"),
    [
        (0o640, None, "can be read by other users"),
        (0o604, None, "can be read by other users"),
        (0o600, 'user = "x"\npassword = hunter2', "not TOML"),
        (0o600, 'user = "x"\npasswort = "hunter2"', "did you mean password?"),
        (0o600, 'password = "hunter2"', "has no user and password"),
        (0o600, 'user = 3\npassword = "hunter2"', "Expected `str`"),
        (
            0o600,
            'user = "x"\n[[login]]\nnodes = "n9"\nuser = "a"\npassword = "hunter2"',
            "has no user",
        ),
    ],
)
def test_a_file_of_passwords_that_is_wrong_is_refused_and_not_quoted(
    fleet_of_bmcs: BmcFleet, mode: int, text: str | None, words: str
) -> None:
    if text is not None:
        fleet_of_bmcs.secret.write_text(text)
    fleet_of_bmcs.secret.chmod(mode)

    done = fleet_of_bmcs.ask()

    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "hunter2" not in done.stderr
    assert fleet_of_bmcs.count_logins() == 0


def test_a_file_of_passwords_that_is_missing_is_told_with_the_fix(fleet_of_bmcs: BmcFleet) -> None:
    fleet_of_bmcs.secret.unlink()
    done = fleet_of_bmcs.ask()
    assert done.returncode == 2
    assert f"chmod 600 {fleet_of_bmcs.secret}" in done.stderr


def test_some_nodes_may_have_a_login_of_their_own(fleet_of_bmcs: BmcFleet) -> None:
    own = f'[[login]]\nnodes = "n[3-4]"\nuser = "{USER}"\npassword = "{WRONG}"\n'
    fleet_of_bmcs.secret.write_text(fleet_of_bmcs.secret.read_text() + own)
    for node in ("n3", "n4"):
        fleet_of_bmcs.bmcs[node].password = WRONG
    assert fleet_of_bmcs.ask().stdout == "4 BMCs read: 4 pass\n"


# -- who may ask, and whom


def test_only_known_nodes_are_asked(fleet_of_bmcs: BmcFleet) -> None:
    done = fleet_of_bmcs.ask("n[1-9]")
    assert (done.returncode, fleet_of_bmcs.count_logins()) == (2, 0)
    assert "no node is called 'n5'" in done.stderr


def test_without_a_table_the_command_says_what_it_needs(fleet_of_bmcs: BmcFleet) -> None:
    fleet_of_bmcs.cli.site(f'[fleet]\nspool = "{fleet_of_bmcs.folder / "spool"}"')
    done = fleet_of_bmcs.ask()
    assert done.returncode == 2
    assert '[bmc] is incomplete. Fix: set address, as "{node}-bmc"' in done.stderr


def test_without_urllib3_the_command_that_installs_it_is_told(fleet_of_bmcs: BmcFleet) -> None:
    hide = "import sys; sys.modules['urllib3'] = None; from hpcverify.entry import main; main()"
    cli = replace(fleet_of_bmcs.cli, command=(sys.executable, "-c", hide))
    done = cli("fleet", "bmc")
    assert (done.returncode, fleet_of_bmcs.count_logins()) == (2, 0)
    assert "pip install" in done.stderr
    assert "urllib3" in done.stderr


def test_one_round_goes_at_a_time(fleet_of_bmcs: BmcFleet) -> None:
    bmc = fleet_of_bmcs.bmcs["n1"]
    bmc.faults["Chassis"] = hang
    first = fleet_of_bmcs.cli.start("fleet", "bmc")
    try:
        wait_until(lambda: bmc.open_sessions > 0)

        second = fleet_of_bmcs.ask()

        assert second.returncode == 3
        assert "bmc.lock" in second.stderr
    finally:
        bmc.released.set()
        first.communicate(timeout=PATIENCE_S)


def test_a_round_that_is_interrupted_logs_out_first(fleet_of_bmcs: BmcFleet) -> None:
    bmc = fleet_of_bmcs.bmcs["n1"]
    bmc.faults["Chassis"] = hang
    round_ = fleet_of_bmcs.cli.start("fleet", "bmc")
    try:
        wait_until(lambda: bmc.open_sessions > 0)
        round_.terminate()
    finally:
        bmc.released.set()
        _, err = round_.communicate(timeout=PATIENCE_S)

    assert round_.returncode == 3
    assert "interrupted; not asked: 3" in err
    assert fleet_of_bmcs.count_logins() == 1
    assert bmc.open_sessions == 0


# -- what a run of a BMC is not


def test_a_bmc_is_no_sign_of_life_of_its_node(fleet_of_bmcs: BmcFleet) -> None:
    fleet_of_bmcs.ask()
    fleet_of_bmcs.collect()

    shown = json.loads(fleet_of_bmcs.cli("nodes", "--json").stdout)["nodes"]

    assert {(node["last_run_at"], node["last_pass_at"], node["state"]) for node in shown} == {
        (None, None, "unverified")
    }


@pytest.mark.parametrize("bmc_first", [True, False])
def test_neither_source_takes_back_what_the_other_found(
    fleet_of_bmcs: BmcFleet, *, bmc_first: bool
) -> None:
    def fail_in_band() -> None:
        told_by_node(fleet_of_bmcs, Verdict.FAIL)

    def pass_by_bmc() -> None:
        fleet_of_bmcs.ask("n1")
        fleet_of_bmcs.collect()

    for step in (pass_by_bmc, fail_in_band) if bmc_first else (fail_in_band, pass_by_bmc):
        step()

    shown = json.loads(fleet_of_bmcs.cli("nodes", "--json").stdout)["nodes"]
    outcomes = {node["node"]: node["outcome"] for node in shown}
    assert outcomes["n1"] == "fail"
