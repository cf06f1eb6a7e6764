"""What Slurm says of its nodes, in each dialect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcverify.errors import SlurmError
from hpcverify.slurm import Host
from hpcverify.slurm.hosts import count_gpus, from_json, from_text, read_state

RECORDED = Path(__file__).with_name("recorded")
DIALECTS = {
    "node-22.05.txt": from_text,
    "node-24.11.txt": from_text,
    "nodes-24.11.json": from_json,
    "nodes-plain.json": from_json,
}
REASON = "disk | bad=1 [x@5]\n Comment=x State=IDLE\n\nNodeName=n9 Arch=foo"


@pytest.fixture(params=DIALECTS)
def hosts(request: pytest.FixtureRequest) -> dict[str, Host]:
    """Read the same four nodes out of each recorded answer."""
    return DIALECTS[request.param]((RECORDED / request.param).read_text())


def test_each_dialect_gives_the_same_nodes(hosts: dict[str, Host]) -> None:
    assert (list(hosts), {host.gpus for host in hosts.values()}) == (["n1", "n2", "n3", "n4"], {2})
    assert {host.partitions for host in hosts.values()} == {("batch", "verify")}
    assert hosts["n2"].boot_time > 1_700_000_000
    assert hosts["n4"].boot_time == 0


def test_each_dialect_gives_the_same_states(hosts: dict[str, Host]) -> None:
    said = {name: (host.state, set(host.flags)) for name, host in hosts.items()}

    assert said == {
        "n1": ("IDLE", {"DRAIN"}),
        "n2": ("IDLE", set()),
        "n3": ("IDLE", {"MAINT", "RESERVED"}),
        "n4": ("DOWN", {"NOT_RESPONDING"}),
    }


def test_a_reason_is_told_from_the_record_that_it_looks_like(hosts: dict[str, Host]) -> None:
    host = hosts["n1"]
    # As text, Slurm itself leaves out a reason's empty lines.
    assert host.reason in {REASON, REASON.replace("\n\n", "\n")}
    assert host.reason_user == "root"
    assert host.reason_time > 1_700_000_000


def test_a_comment_that_looks_like_a_reason_is_none(hosts: dict[str, Host]) -> None:
    assert (hosts["n2"].reason, hosts["n2"].reason_time) == ("", 0)


@pytest.mark.parametrize("name", ["nodes-24.11.json", "nodes-plain.json"])
def test_json_gives_a_reason_word_for_word(name: str) -> None:
    assert from_json((RECORDED / name).read_text())["n1"].reason == REASON


@pytest.mark.parametrize("name", DIALECTS)
def test_an_answer_that_breaks_off_is_none(name: str) -> None:
    whole = (RECORDED / name).read_text().rstrip()
    for end in range(whole.rindex("n4"), len(whole), 41):
        with pytest.raises(SlurmError):
            DIALECTS[name](whole[:end])


@pytest.mark.parametrize("printed", ["", "\n", "No nodes in the system\n"])
def test_no_node_at_all_is_no_answer(printed: str) -> None:
    with pytest.raises(SlurmError):
        from_text(printed)


def test_a_controller_that_is_away_is_no_empty_cluster() -> None:
    away = {"errors": [{"error": "Unspecified error", "errno": -1}], "nodes": []}
    with pytest.raises(SlurmError, match="Unspecified error"):
        from_json(json.dumps(away))


def test_json_without_nodes_is_no_answer() -> None:
    with pytest.raises(SlurmError, match="did not list any node"):
        from_json('{"nodes": [], "errors": []}')
    with pytest.raises(SlurmError, match="nodes"):
        from_json('{"sinfo": [], "errors": []}')


def test_a_node_that_is_there_twice_is_refused() -> None:
    whole = (RECORDED / "node-22.05.txt").read_text()
    with pytest.raises(SlurmError, match="twice"):
        from_text(whole + whole)


@pytest.mark.parametrize(
    ("words", "state", "flags"),
    [
        (["IDLE"], "IDLE", set[str]()),
        (["idle"], "IDLE", set[str]()),
        (["IDLE*", "DRAIN"], "IDLE", {"NOT_RESPONDING", "DRAIN"}),
        (["IDLE", "DRAIN*"], "IDLE", {"NOT_RESPONDING", "DRAIN"}),
        (["MIXED-"], "MIXED", {"PLANNED"}),
        (["IDLE~"], "IDLE", {"POWERED_DOWN"}),
        (["DOWN$*"], "DOWN", {"MAINT", "NOT_RESPONDING"}),
        (["DRAIN", "ALLOCATED"], "ALLOCATED", {"DRAIN"}),
        (["IDLE", "CLOUD", "MAINTENANCE"], "IDLE", {"CLOUD", "MAINT"}),
    ],
)
def test_a_state_is_told_from_its_flags(words: list[str], state: str, flags: set[str]) -> None:
    assert read_state(words) == (state, frozenset(flags))


def test_a_state_that_nobody_knows_is_no_answer() -> None:
    with pytest.raises(SlurmError, match="FINE"):
        read_state(["FINE"])


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("", 0),
        ("(null)", 0),
        ("gpu", 1),
        ("gpu:8", 8),
        ("gpu:fake:4(S:0)", 4),
        ("gpu:a100:4(S:0-1),gpu:h100:4(S:2,3)", 8),
        ("shard:80,gpu:a100:2,mps:400", 2),
        ("gpu_mem:80", 0),
    ],
)
def test_gpus_are_counted_of_all_types(gres: str, count: int) -> None:
    assert count_gpus(gres) == count
