"""What a site lives through, on a real Slurm with real jobs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hpcverify.fleet.outages import OutageCause
from hpcverify.fleet.states import Node, State, Ticket
from tests.fleet.cluster import Fleet

BELIEVED = 'enforce = ["*"]\ncheck_share = 1'
"""A check is never in doubt, however widely it fails."""
RUNS = ("RUNNING", "COMPLETED")


def swept(fleet: Fleet, *nodes: str) -> None:
    """Have *nodes* verified, and leave what they found for `fleet collect`."""
    waiting = len(documents(fleet)) + len(nodes)
    issued = fleet.ledger.read_last_ticket_number() + len(nodes)
    with fleet.begin("fleet", "sweep", ",".join(nodes)) as sweep:
        fleet.cluster.until(lambda: fleet.ledger.read_last_ticket_number() >= issued)
        sweep.terminate()
    fleet.cluster.until(lambda: len(documents(fleet)) >= waiting)


def verified(fleet: Fleet, *nodes: str) -> None:
    """Have *nodes* verified, and all done that follows from it."""
    swept(fleet, *nodes)
    fleet.collected()


def documents(fleet: Fleet) -> list[Path]:
    """List what lies in the spool, the nodes' alone."""
    return sorted(fleet.spool.glob("n[1-4]/[0-9]*.json"))


def user_job(fleet: Fleet, node: str) -> str:
    options = ("--parsable", "-w", node, "-o", "/dev/null", "--wrap", "exec sleep 600")
    return fleet.cluster.run("sbatch", *options).strip()


def refuse_jobs(fleet: Fleet, *nodes: str) -> None:
    """Have Slurm drain *nodes*, as if their prologs had refused a job."""
    prolog = fleet.folder / "prolog"
    prolog.write_text("#!/bin/sh\nexit 1\n")
    prolog.chmod(0o755)
    fleet.cluster.reconfigure(f"Prolog={prolog}\n")
    for node in nodes:
        user_job(fleet, node)
    fleet.cluster.until(lambda: fleet.drained() == set(nodes))
    fleet.cluster.run("scancel", "-u", "root")
    fleet.cluster.reconfigure("")


def state(fleet: Fleet, job: str) -> str:
    return fleet.cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()


def runs(fleet: Fleet, job: str) -> None:
    fleet.cluster.until(lambda: state(fleet, job) in RUNS)


def tickets(fleet: Fleet, node: str) -> list[Ticket]:
    """List the tickets of *node*, the oldest first."""
    all_of_them = fleet.ledger.find_tickets(range(1, fleet.ledger.read_last_ticket_number() + 1))
    return [ticket for ticket in all_of_them if ticket.node == node]


def acts(fleet: Fleet, node: str) -> list[str]:
    """List what was written of *node* in the audit log, the oldest first."""
    return [entry.what for entry in reversed(fleet.ledger.read_audit(node, 1000))]


def reserved(fleet: Fleet) -> set[str]:
    found = fleet.cluster.slurm.list_reservations().values()
    return {name for each in found for name in each.nodes}


def held(fleet: Fleet) -> set[str]:
    return fleet.drained() | reserved(fleet)


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


# -- what a sweep finds


def test_a_sweep_finds_the_bad_node_and_drains_it_alone_with_our_reason(fleet: Fleet) -> None:
    fleet.tell("n2", "corrupt")

    done = fleet("fleet", "sweep")

    assert done.returncode == 1
    assert "4 nodes: 3 pass, 1 fail" in done.stdout
    assert (fleet.drained(), reserved(fleet)) == ({"n2"}, set())
    reason = fleet.host("n2").reason
    assert reason.startswith("hpcverify[")
    assert "told: a wrong word" in reason
    others = dict.fromkeys(("n1", "n3", "n4"), "healthy")
    assert fleet.states() == others | {"n2": "quarantined"}


def test_a_node_is_quarantined_by_a_second_failure_and_not_by_a_flake(fleet: Fleet) -> None:
    fleet.tell("n1", "10")
    fleet.tell("n2", "10")
    swept(fleet, "n1", "n2")
    fleet.tell("n2", "100")

    fleet.collected()

    assert (fleet.states(), fleet.node("n2").flakes) == ({"n1": "quarantined", "n2": "healthy"}, 1)
    assert held(fleet) == {"n1"}
    assert "speed 10 GB/s < 50" in fleet.host("n1").reason


def test_a_users_job_takes_the_node_from_a_verification(fleet: Fleet) -> None:
    verified(fleet, "n1")
    before = fleet.node("n1")
    fleet.pause()
    with fleet.begin("fleet", "sweep", "n1") as sweep:
        fleet.cluster.until(fleet.config.with_name("paused-n1").exists)
        job = user_job(fleet, "n1")
        runs(fleet, job)
        sweep.terminate()
    fleet.collected()

    *_, ticket = tickets(fleet, "n1")
    assert ticket.ending == "preempted"
    assert json.loads(fleet("show", ticket.run, "--json").stdout)["complete"] is False
    assert (fleet.node("n1"), held(fleet)) == (before, set())


def test_a_check_that_is_broken_everywhere_quarantines_nobody(fleet: Fleet) -> None:
    for node in ("n1", "n2", "n3", "n4"):
        fleet.tell(node, "missing")

    done = fleet("fleet", "sweep")

    assert done.returncode == 3
    assert "4 nodes: 4 error" in done.stdout
    assert held(fleet) == set()
    for each in fleet.ledger.list_nodes().values():
        assert (each.state, each.verdict, each.last_pass_at) == ("unverified", "error", 0)


def test_a_site_that_observes_holds_nobody(fleet: Fleet) -> None:
    fleet.prepare("")
    fleet.tell("n1", "corrupt")
    verified(fleet, "n1")
    assert (fleet.states(), held(fleet)) == ({"n1": "quarantined"}, set())
    assert "quarantined (observed)" in acts(fleet, "n1")


def test_a_failure_that_is_suppressed_holds_nobody_and_is_no_pass(fleet: Fleet) -> None:
    known = 'check = "told"\nnodes = "n[1-2]"\nuntil = 2999-01-01'
    fleet.prepare(f'enforce = ["*"]\n[[suppress]]\n{known}\nreason = "x"\nby = "ada"')
    for node in ("n2", "n3"):
        fleet.tell(node, "corrupt")

    verified(fleet, "n2", "n3")

    assert (fleet.node("n2").verdict, fleet.node("n2").last_pass_at) == ("fail", 0)
    assert (fleet.states(), held(fleet)) == ({"n2": "unverified", "n3": "quarantined"}, {"n3"})


# -- when too much fails


def test_a_check_that_fails_nearly_everywhere_is_doubted(fleet: Fleet) -> None:
    for node in ("n1", "n2", "n3"):
        fleet.tell(node, "corrupt")

    verified(fleet, "n1", "n2", "n3")

    assert held(fleet) == set()
    assert "suspect the check" in fleet.node("n1").full_reason
    assert fleet("fleet", "breaker").stdout.startswith("not tripped\ndoubted: told fails on 3")


def test_too_many_bad_nodes_trip_the_breaker_until_a_person_resets_it(fleet: Fleet) -> None:
    fleet.prepare(BELIEVED)
    for node, word in {"n1": "corrupt", "n2": "corrupt", "n3": "10"}.items():
        fleet.tell(node, word)
    verified(fleet, "n1", "n2", "n3")
    assert held(fleet) == set()
    assert fleet("fleet", "breaker").stdout.startswith("tripped: 3 of 4 nodes")

    assert fleet("fleet", "breaker", "reset", "--reason", "image 41").returncode == 0
    fleet("fleet", "collect")
    assert held(fleet) == set()  # what was found before is left alone
    verified(fleet, "n1")
    assert held(fleet) == {"n1"}


# -- a way back


def test_a_repaired_node_is_verified_out_of_service_and_released(fleet: Fleet) -> None:
    fleet.tell("n1", "corrupt")
    verified(fleet, "n1")
    fleet.tell("n1", "100")
    fleet.pause()
    job = user_job(fleet, "n1")

    assert fleet("nodes", "repaired", "n1", "--reason", "new DIMM").returncode == 0
    fleet.cluster.until(lambda: fleet.host("n1").state == "ALLOCATED")
    assert (reserved(fleet), state(fleet, job)) == ({"n1"}, "PENDING")
    fleet.go_on()
    fleet.collected()

    assert (fleet.states(), held(fleet)) == ({"n1": "healthy"}, set())
    assert [t.purpose for t in tickets(fleet, "n1")] == ["sweep", "return"]
    runs(fleet, job)


def test_a_node_that_fails_again_was_never_let_go_and_is_a_repeat_offender_in_the_end(
    fleet: Fleet,
) -> None:
    fleet.tell("n1", "corrupt")
    verified(fleet, "n1")
    job = user_job(fleet, "n1")
    for _ in range(2):
        fleet("nodes", "repaired", "n1", "--reason", "reseated")
        fleet.collected()
        assert fleet.drained() == {"n1"}
    assert fleet.node("n1").state == "repeat offender"
    steps = [act for act in acts(fleet, "n1") if act in ACTS]
    assert steps == ["drain", *2 * ("reserve", "resume", "drain", "unreserve")]
    assert state(fleet, job) == "PENDING"

    fleet.tell("n1", "100")
    fleet("nodes", "repaired", "n1", "--reason", "another board")
    fleet.collected()
    assert (fleet.node("n1").state, fleet.drained()) == ("held", {"n1"})

    assert fleet("nodes", "release", "n1", "--reason", "it is another one").returncode == 0
    assert (fleet.node("n1").repeat_offender, held(fleet)) == (False, set())
    runs(fleet, job)


ACTS = ("drain", "resume", "reserve", "unreserve")


# -- whom to believe


def test_a_document_that_comes_again_acts_once(fleet: Fleet) -> None:
    fleet.tell("n2", "corrupt")
    swept(fleet, "n2")
    (found,) = documents(fleet)
    shutil.copy2(found, fleet.folder)
    fleet.collected()
    shutil.copy2(fleet.folder / found.name, found)
    fleet.collected()

    assert acts(fleet, "n2").count("quarantined") == 1
    fleet.tell("n2", "100")
    fleet("nodes", "repaired", "n2", "--reason", "new board")
    fleet.collected()
    shutil.copy2(fleet.folder / found.name, found)
    fleet.collected()

    assert (fleet.states(), held(fleet)) == ({"n2": "healthy"}, set())
    assert documents(fleet) == []


def test_a_node_can_act_on_no_other(fleet: Fleet) -> None:
    fleet.tell("n2", "corrupt")
    swept(fleet, "n2")
    (found,) = documents(fleet)
    for node in ("n1", "n3"):
        (fleet.spool / node).mkdir(mode=0o700)
    shutil.copy2(found, fleet.spool / "n1" / found.name)  # it speaks for n2
    other = f"{found.stem[:-6]}abcdef"
    stolen = json.loads(found.read_text()) | {"node": "n3", "id": other}
    (fleet.spool / "n3" / f"{other}.json").write_text(json.dumps(stolen))
    found.unlink()

    assert "it names node 'n2'" in fleet("fleet", "collect").stderr
    assert fleet.states() == {"n3": "suspect"}  # its own word, with n2's token
    assert (fleet.drained(), reserved(fleet)) == (set(), {"n3"})  # until it is verified, once


def test_a_run_that_nobody_ordered_raises_suspicion_and_holds_nobody(fleet: Fleet) -> None:
    fleet.tell("n1", "10")
    fleet.by_hand("n1")
    fleet.collected()
    assert (fleet.states(), held(fleet)) == ({"n1": "suspect"}, set())
    assert (
        json.loads(fleet("fleet", "sweep", "--dry-run", "--json").stdout)["chosen"][0]["node"]
        == "n1"
    )


def test_conclusive_evidence_that_nobody_ordered_costs_one_verification(fleet: Fleet) -> None:
    for node in ("n1", "n2"):
        fleet.tell(node, "corrupt")
        fleet.by_hand(node)
    fleet.tell("n1", "100")  # as if its document had been forged
    job = user_job(fleet, "n2")
    runs(fleet, job)
    fleet("fleet", "collect")
    assert reserved(fleet) == {"n1", "n2"}
    assert state(fleet, job) == "RUNNING"

    fleet.cluster.run("scancel", job)
    fleet.collected()

    assert fleet.states() == {"n1": "healthy", "n2": "quarantined"}
    assert fleet.drained() == {"n2"}


def test_slurms_own_drains_are_undone_where_a_run_explains_them_and_the_breaker_trips(
    fleet: Fleet,
) -> None:
    fleet.prepare('enforce = ["told"]\nfail_closed = ["told"]')
    for node in ("n1", "n2", "n3"):
        fleet.tell(node, "corrupt")
        fleet.by_hand(node)
    refuse_jobs(fleet, "n1", "n2", "n3", "n4")

    assert "the breaker tripped: 3 of 4 nodes" in fleet("fleet", "collect").stderr

    assert fleet.drained() == {"n4"}
    assert fleet.host("n4").reason == fleet.node("n4").foreign == "Prolog error"
    assert fleet("fleet", "breaker", "reset", "--reason", "it was the driver").returncode == 0
    fleet("fleet", "collect")
    assert held(fleet) == {"n4"}


def test_slurms_own_drain_is_taken_over_where_a_run_of_ours_explains_it(fleet: Fleet) -> None:
    fleet.prepare('enforce = ["told"]\nfail_closed = ["told"]')
    refuse_jobs(fleet, "n1", "n2")
    fleet.tell("n1", "corrupt")
    fleet.by_hand("n1")

    fleet.collected()

    assert "told: a wrong word" in fleet.host("n1").reason
    assert fleet.node("n1").state == "quarantined"
    assert fleet.host("n2").reason == fleet.node("n2").foreign == "Prolog error"


def test_the_drain_of_a_node_whose_failure_was_only_observed_is_taken_over_as_well(
    fleet: Fleet,
) -> None:
    fleet.prepare("check_share = 1")
    for node, word in {"n1": "corrupt", "n2": "10", "n3": "10"}.items():
        fleet.tell(node, word)
    for _ in range(2):
        verified(fleet, "n1", "n2", "n3")
    assert set(fleet.states().values()) == {"quarantined"}
    fleet.prepare('enforce = ["told"]\nfail_closed = ["told"]\ncheck_share = 1')
    refuse_jobs(fleet, "n1", "n2", "n3")
    fleet.tell("n2", "corrupt")
    for node in ("n1", "n2"):
        fleet.by_hand(node)

    fleet.collected()

    for node in ("n1", "n2"):
        assert "Prolog error: told: a wrong word" in fleet.host(node).reason
        assert fleet.node(node).desired_hold == "drain"
    assert fleet.host("n3").reason == fleet.node("n3").foreign == "Prolog error"


# -- by hand


def test_a_node_is_held_and_released_by_hand_with_name_and_reason(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")

    assert fleet("nodes", "hold", "n1", "--reason", "fan swap").returncode == 0
    assert fleet.drained() == {"n1"}
    assert fleet.host("n1").reason.endswith("] ada: fan swap")
    assert fleet("nodes", "release", "n1", "--reason", "fans are new").returncode == 0

    assert held(fleet) == set()
    said = {(e.actor, e.what, e.detail) for e in fleet.ledger.read_audit("n1")}
    assert ("ada", "hold", "fan swap") in said
    assert ("ada", "release", "fans are new") in said


def test_each_command_is_kept_with_its_outcome_refused_ones_too(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    hold = ("nodes", "hold", "n1", "--reason", "fan swap")
    statuses = [
        fleet(*words).returncode
        for words in (
            hold,
            hold,
            ("nodes", "release", "n9", "--reason", "x"),
            ("nodes", "forget", "n1"),
        )
    ]

    listed = fleet("fleet", "events", "--kind", "command").stdout.splitlines()
    events = [json.loads(line) for line in listed]
    assert [(e["command"]["name"], e["command"]["outcome"]) for e in events] == [
        *(("nodes hold", "done"), ("nodes hold", "refused")),
        *(("nodes release", "refused"), ("nodes forget", "refused")),
    ]
    assert [e["command"]["exit_status"] for e in events] == statuses
    assert {e["actor"]["name"] for e in events} == {"ada"}
    assert [e["node"] for e in events] == ["n1", "n1", "n9", "n1"]
    assert fleet("fleet", "events", "verify").returncode == 0
    assert (
        fleet(
            "fleet", "events", "verify", str(fleet.ledger.path.with_name("events.jsonl"))
        ).returncode
        == 0
    )


def test_a_decision_on_several_nodes_names_those_that_it_was_made_about(fleet: Fleet) -> None:
    fleet("nodes", "hold", "n2", "--reason", "fan")
    done = fleet("nodes", "hold", "n[1-3]", "--reason", "works on the rack")
    assert (done.returncode, one_line(done.stderr)) == (4, "hpcverify: n2 is held already: fan")
    assert done.stdout.startswith("n[1,3]: held; ")
    assert held(fleet) == {"n1", "n2", "n3"}


def test_a_quarantined_node_is_released_by_force_alone(fleet: Fleet) -> None:
    fleet.tell("n1", "corrupt")
    verified(fleet, "n1")

    refused = fleet("nodes", "release", "n1", "--reason", "please")
    assert refused.returncode == 4
    assert "hpcverify nodes repaired n1" in one_line(refused.stderr)
    assert fleet.drained() == {"n1"}
    done = fleet("nodes", "release", "n1", "--reason", "we need it", "--force")
    assert (done.returncode, held(fleet)) == (0, set())
    assert "release by force" in acts(fleet, "n1")


def test_new_nodes_are_in_service_only_once_they_have_passed(fleet: Fleet) -> None:
    admin = ("state=drain", 'reason="PSU swap | 17"')
    fleet.cluster.run("scontrol", "update", "nodename=n3", *admin)
    fleet.tell("n2", "10")
    fleet.pause()

    done = fleet("nodes", "admit", "n[2-4]", "--suite", "told")

    assert done.returncode == 4  # n3, which others hold
    assert "PSU swap | 17" in one_line(done.stderr)
    assert reserved(fleet) == {"n2", "n4"}
    job = user_job(fleet, "n4")
    fleet.cluster.until(lambda: fleet.host("n4").state == "ALLOCATED")
    assert state(fleet, job) == "PENDING"
    fleet.go_on()
    fleet.collected()
    assert (fleet.drained(), reserved(fleet)) == ({"n2", "n3"}, set())
    assert fleet.host("n3").reason == "PSU swap | 17"
    assert (fleet.node("n2").state, fleet.node("n4").state) == ("quarantined", "healthy")
    runs(fleet, job)


def test_a_node_that_is_admitted_while_its_job_waits_is_verified_in_its_reservation(
    fleet: Fleet,
) -> None:
    partition = ("scontrol", "update", "partitionname=verify")
    fleet.cluster.run(*partition, "state=down")
    begun = fleet.begin("fleet", "sweep", "n2")
    fleet.cluster.until(lambda: any(t.job for t in fleet.ledger.list_open_tickets()))
    begun.terminate()
    begun.communicate()
    (waiting,) = fleet.ledger.list_open_tickets()

    assert fleet("nodes", "admit", "n2", "--suite", "told", "--reason", "new").returncode == 0

    (ordered,) = fleet.ledger.list_open_tickets()
    assert ordered.number > waiting.number
    fleet.cluster.run(*partition, "state=up")
    fleet.collected()
    assert fleet.node("n2").state is State.HEALTHY
    assert fleet.cluster.run("squeue", "-h", "-t", "pending,running") == ""


def test_a_node_in_a_reservation_of_users_is_held_and_shown_as_that(fleet: Fleet) -> None:
    team = ["reservationname=team", "nodes=n[1-2]", "starttime=now", "duration=1-0"]
    fleet.cluster.run("scontrol", "create", "reservation", *team, "users=nobody")
    fleet.cluster.until(lambda: "RESERVED" in fleet.host("n1").flags)
    fleet("fleet", "collect")
    assert fleet.shown("n1")[0] == "unverified"

    done = fleet("nodes", "hold", "n1", "--reason", "smoke")

    assert done.returncode == 0, done.stderr
    assert (fleet.drained(), fleet.shown("n1")[0]) == ({"n1"}, "held")
    assert fleet("nodes", "release", "n1", "--reason", "aired").returncode == 0
    assert fleet.drained() == set()
    assert {each.cause for each in fleet.ledger.list_outages(0)} == {OutageCause.PERSON}


def test_a_node_in_a_maintenance_reservation_of_others_is_refused_with_what_ends_it(
    fleet: Fleet,
) -> None:
    fleet.cluster.slurm.reserve("works", "n1")
    fleet.cluster.until(lambda: "MAINT" in fleet.host("n1").flags)

    done = fleet("nodes", "hold", "n1", "--reason", "smoke")

    assert done.returncode == 4
    assert "scontrol delete reservationname=" in done.stderr
    assert fleet.drained() == set()


def test_a_node_that_was_never_free_is_kept_free_for_its_turn(fleet: Fleet) -> None:
    fleet.prepare(fleet="overdue_days = 0.00001")
    first = user_job(fleet, "n1")
    runs(fleet, first)
    fleet.cluster.until(lambda: not fleet("fleet", "collect").returncode and reserved(fleet))
    assert (state(fleet, first), "n1" in reserved(fleet)) == ("RUNNING", True)
    second = user_job(fleet, "n1")

    fleet.prepare()
    fleet.cluster.run("scancel", first)
    fleet.cluster.until(lambda: fleet.host("n1").state == "ALLOCATED")
    assert state(fleet, second) == "PENDING"
    fleet.collected()

    assert fleet.node("n1").last_pass_at
    assert held(fleet) == set()
    runs(fleet, second)


# -- what was asked for wrongly


@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        ("nodes hold n9 --reason x", 2, "no node is called 'n9'"),
        ("nodes admit n[1-9]", 2, "no node is called 'n5'"),
        ("nodes repaired n1 --reason x", 4, "nothing to repair"),
        ("nodes release n1 --reason x", 4, "not out of service"),
        ("fleet breaker reset --reason x", 4, "not tripped"),
        ("fleet sweep --suite tolt", 2, "did you mean told"),
        ("fleet sweep n9", 2, "n9"),
        ("fleet sweep n[", 2, "is not a list of nodes"),
        ("nodes admit n[1-", 2, "is not a list of nodes"),
        ("nodes admit n1 --suite tolt", 2, "did you mean told"),
    ],
)
def test_what_was_asked_for_wrongly_is_one_line_and_a_status(
    asked: Fleet, command: str, status: int, told: str
) -> None:
    done = asked(*command.split())
    assert (done.returncode, done.stdout) == (status, "")
    assert told in one_line(done.stderr)
    assert held(asked) == set()


def set_partition(fleet: Fleet, setting: str) -> None:
    """Change what the partition of the verification allows."""
    fleet.cluster.run("scontrol", "update", "partitionname=verify", setting)


def test_a_suite_that_its_partition_has_no_time_for_is_not_begun(asked: Fleet) -> None:
    set_partition(asked, "maxtime=3")
    try:
        done = asked("fleet", "sweep")
        assert (done.returncode, asked.ledger.list_open_tickets()) == (2, [])
        assert "partition verify allows 3" in one_line(done.stderr)
    finally:
        set_partition(asked, "maxtime=-1")


def test_a_partition_that_is_not_for_our_jobs_is_named(asked: Fleet) -> None:
    asked.prepare(fleet='user = "nobody"')
    set_partition(asked, "rootonly=yes")
    try:
        done = asked("fleet", "sweep")
        assert (done.returncode, asked.ledger.list_open_tickets()) == (2, [])
        assert "partition verify has RootOnly=YES" in one_line(done.stderr)
        asked.prepare(fleet='partition = "vrfy"')
        assert "Partition vrfy not found" in one_line(asked("fleet", "sweep").stderr)
    finally:
        set_partition(asked, "rootonly=no")
        asked.prepare()


def test_a_node_that_can_not_be_verified_as_ordered_keeps_no_other_from_its_turn(
    fleet: Fleet,
) -> None:
    mine = fleet.config.parent / "suites" / "mine.toml"
    mine.write_text((fleet.config.parent / "suites" / "told.toml").read_text())
    fleet.tell("n1", "missing")
    assert fleet("nodes", "admit", "n1", "--suite", "mine").returncode == 0
    fleet.collected()
    mine.unlink()

    done = fleet("fleet", "sweep", "n[1-4]")

    assert "n1: no suite is called 'mine'" in done.stderr
    assert (done.returncode, done.stdout) == (3, "4 nodes: 3 pass, 1 without a verdict\n")


def test_nodes_that_are_not_due_are_told_why(asked: Fleet) -> None:
    asked.prepare(fleet='partition = "batch"')
    asked.cluster.slurm.drain("n1", "fan")
    try:
        done = asked("fleet", "sweep", "n1")
        assert done.stdout == "0 nodes: no node was due (1 is held by others: fan)\n"
        assert "partition batch has PreemptMode=OFF" in done.stderr
    finally:
        asked.cluster.slurm.resume("n1")
        asked.prepare()


def test_what_slurm_takes_no_job_for_ends_the_sweep(asked: Fleet) -> None:
    set_partition(asked, "state=drain")
    try:
        done = asked("fleet", "sweep")
        assert done.returncode == 4
        last = done.stderr.splitlines()[-1]
        assert last.startswith("hpcverify: no verification could be ordered: n")
        assert "Required partition not available" in last
    finally:
        set_partition(asked, "state=up")


def test_a_node_that_slurm_has_no_more_is_shown_as_that(asked: Fleet) -> None:
    bad = Node(name="n9", state=State.QUARANTINED, enforced=True, missing_since=1.0)
    asked.ledger.put(bad, "test")

    assert asked("fleet", "collect").returncode == 0

    told = "held by others", "the scheduler no longer has this node"
    assert asked.shown("n9") == told
    assert asked.node("n9") == bad  # should it come back, it is found so


def test_without_a_spool_nothing_begins(asked: Fleet) -> None:
    asked.config.write_text("")
    try:
        for command in (
            "fleet sweep",
            "fleet collect",
            "nodes hold n1 --reason x",
            "nodes admit n1",
        ):
            done = asked(*command.split())
            assert done.returncode == 2
            assert "names no spool" in one_line(done.stderr)
    finally:
        asked.prepare()
