"""The JSON of ``fleet``, ``gate``, ``history``, ``nodes``, ``reliability`` fits its schema."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NoReturn, get_args

import jsonschema
import pytest

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import DAY_S, OTHERS_STATE, Caveat, Node, State
from hpcverify.gate import JobGate, write
from hpcverify.insight.judgement import JUDGEMENT_NAME
from hpcverify.insight.overview import ShownState
from hpcverify.isolation.links import LinkPair
from hpcverify.model import Finding, FindingRule, Inventory, Part, Remedy, Verdict
from hpcverify.records.store import Store
from hpcverify.testing import judge_by
from tests.cli import Cli
from tests.commands.test_nodes import judge_night
from tests.doubles import a_result, a_run
from tests.insight.test_rollouts import keep_runs_of_64

SCHEMAS = Path(__file__).parents[2] / "docs/reference/schema"
COMMANDS = ("fleet", "gate", "history", "nodes", "reliability")
GROUPS = {"reliability": ("fleet",)}
"""The group of a command whose document has the name of the command alone."""
NOW = time.time()
RFC_3339_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
FORMATS = jsonschema.FormatChecker(formats=())
HOLD_ID = "3fa2c1"


def is_utc_time(value: object) -> bool:
    """Whether *value*, if it is text, is an RFC 3339 time in UTC, in whole seconds."""
    return not isinstance(value, str) or RFC_3339_UTC.fullmatch(value) is not None


FORMATS.checks("date-time")(is_utc_time)


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which no JSON document has."""
    raise AssertionError(name)


def read(cli: Cli, command: str, *arguments: str, status: int = 0) -> dict[str, Any]:
    """Run *command* with --json, and return its document, which fits the published schema."""
    done = cli(*GROUPS.get(command, ()), command, *arguments, "--json")
    assert done.returncode == status, done.stderr
    document: dict[str, Any] = json.loads(done.stdout, parse_constant=refuse_constant)
    schema = json.loads((SCHEMAS / f"{command}.json").read_text())
    jsonschema.validate(document, schema, format_checker=FORMATS)
    require_only(document, schema["$defs"], schema["$ref"])
    return document


def require_only(value: object, structs: dict[str, Any], ref: str) -> None:
    """Require that the object *value* has no field that its schema does not name."""
    struct = structs[ref.removeprefix("#/$defs/")]
    if not isinstance(value, dict) or "properties" not in struct:
        return
    assert value.keys() <= struct["properties"].keys()
    for name, field in struct["properties"].items():
        for choice in field.get("anyOf", [field]):
            items = value[name] if isinstance(value[name], list) else [value[name]]
            if inner := choice.get("$ref") or choice.get("items", {}).get("$ref"):
                for item in items:
                    require_only(item, structs, inner)


@pytest.fixture
def fleet(cli: Cli) -> Ledger:
    """Know of a node in each state, and of one that others hold, one gone and one forgotten."""
    ledger = Ledger(cli.state)
    for state in State:
        node = Node(
            name=f"n-{state.name.lower()}",
            state=state,
            since=NOW - 100,
            caveat=Caveat.SPARED if state is State.SUSPECT else Caveat.NONE,
            enforced=state is not State.SUSPECT,
            reason="a fan is loud",
            hold_id=HOLD_ID,
            not_before_ticket=7,
            last_pass_at=NOW - DAY_S,
            verdict="warn",
            returned_at=(NOW - DAY_S, NOW - 200),
        )
        ledger.put(node, "seen")
    ledger.put(Node(name="n-foreign", state=State.SUSPECT, foreign="memory (root)"), "seen")
    ledger.put(Node(name="n-gone", missing_since=NOW - DAY_S, first_seen_at=1.0), "seen")
    ledger.put(Node(name="n-clock", since=1e18, last_pass_at=2.6e11, last_run_at=-5.0), "seen")
    ledger.put(Node(name="n-forgotten"), "seen")
    ledger.forget("n-forgotten", "anna", "sold")
    return ledger


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_ledger_and_runs_there_is_a_document(cli: Cli, command: str) -> None:
    document = read(cli, command)
    assert document["schema"] == 1
    lists = {name: value for name, value in document.items() if isinstance(value, list)}
    assert lists or command == "reliability"
    assert not any(lists.values())


@pytest.mark.usefixtures("fleet")
def test_a_fleet_of_every_state_fits_the_schema(cli: Cli) -> None:
    nodes = {entry["node"]: entry for entry in read(cli, "nodes")["nodes"]}

    for state in State:
        entry = nodes[f"n-{state.name.lower()}"]
        assert (entry["state"], entry["own_state"]) == (state.value, state.value)
    assert "n-forgotten" not in nodes
    for name in ("n-foreign", "n-gone"):
        assert nodes[name]["state"] == OTHERS_STATE
        assert nodes[name]["held_by_others"]
    assert nodes["n-foreign"]["own_state"] == "suspect"
    assert (nodes["n-suspect"]["hold"], nodes["n-held"]["hold"]) == ("none", "drain")


def test_the_states_of_the_schema_are_those_that_people_see() -> None:
    assert set(get_args(ShownState)) == {*(state.value for state in State), OTHERS_STATE}


@pytest.mark.usefixtures("fleet")
def test_a_time_that_cannot_be_a_date_is_null(cli: Cli) -> None:
    (entry,) = read(cli, "nodes", "n-clock")["nodes"]
    assert (entry["since"], entry["last_pass_at"], entry["last_ordered_run_at"]) == (None,) * 3


@pytest.mark.usefixtures("fleet")
def test_ids_of_holds_and_tickets_stay_inside(cli: Cli) -> None:
    ledger = Ledger(cli.state)
    token = ledger.issue_ticket("n-held", "return", "idle").token

    for arguments in ((), ("n-held",)):
        printed = json.dumps(read(cli, "nodes", *arguments))
        assert token not in printed
        assert HOLD_ID not in printed
        assert not re.search("ticket|token|hold_id", printed)


def test_a_node_that_failed_has_its_parts_with_check_verdict_and_remedy(cli: Cli) -> None:
    gpu = Part("gpu", "GPU-8a", "GPU 3", {"serial": "165007"})
    finding = Finding("fell_off", gpu.id, "it fell off the bus", fix="reboot n1")
    rules = {"fell_off": FindingRule(Verdict.FAIL, Remedy.REBOOT)}
    inventory = Inventory(parts=(gpu,))
    failed = judge_by([finding], (), rules, inventory)
    Store(cli.state).save(
        a_run(node="n1", verdict=Verdict.FAIL, inventory=inventory, results=(failed,))
    )

    (entry,) = read(cli, "nodes")["nodes"]

    (diagnosis,) = entry["diagnoses"]
    assert (diagnosis["part_ids"], diagnosis["names"]) == ([gpu.id], "GPU 3, serial 165007")
    assert (diagnosis["verdict"], diagnosis["remedy"]) == ("fail", "reboot")
    assert (diagnosis["checks"], diagnosis["codes"]) == ([failed.check], ["fell_off"])
    assert diagnosis["fix"] == "reboot n1"
    assert (entry["known"], entry["verdict"], entry["last_pass_at"]) == (False, "fail", None)


@pytest.mark.usefixtures("fleet")
def test_what_hinders_the_controller_fits_the_schema(cli: Cli) -> None:
    ledger = Ledger(cli.state)
    ledger.trip("6 of 40 nodes")
    ledger.record_malfunction("history", "the disk is full")
    ledger.record_fabric({"n1": ("", "a"), "n2": ("", "b")})
    ledger.record_tried_links([LinkPair(("n1", "n2"), ("a", "b"))], NOW)
    cli.site("[fabric]\nperiod_days = 7")
    judge_night(cli)

    document = read(cli, "nodes")

    assert document["breaker"] == {"tripped": True, "reason": "6 of 40 nodes"}
    (malfunction,) = document["malfunctions"]
    assert (malfunction["name"], malfunction["why"]) == ("history", "the disk is full")
    assert (document["link_days"], document["links"]["nodes_tried"]) == (7, 2)
    assert [outlier["node"] for outlier in document["judgement"]["outliers"]] == ["n1"]


def test_a_rollout_and_nodes_that_differ_fit_the_schema(cli: Cli) -> None:
    keep_runs_of_64(Store(cli.state))
    drift = read(cli, "nodes")["drift"]
    assert is_utc_time(drift["rollouts"][0]["began"])
    assert [deviation["since"] for deviation in drift["deviations"]] == [None, None]


@pytest.mark.usefixtures("fleet")
def test_a_damaged_judgement_is_said_in_a_field(cli: Cli) -> None:
    (cli.state / JUDGEMENT_NAME).write_text("{")
    document = read(cli, "nodes")
    assert document["judgement"] is None
    assert JUDGEMENT_NAME in document["judgement_error"]


@pytest.mark.usefixtures("fleet")
def test_one_node_has_its_outages_and_its_log(cli: Cli) -> None:
    document = read(cli, "nodes", "show", "n-held")
    (outage,) = document["outlook"]["outages"]
    assert (outage["ended"], outage["cause"]) == (None, "own run")
    assert [line["what"] for line in document["audit"]] == ["seen"]


@pytest.mark.parametrize(
    "zone", [None, UTC, timezone(timedelta(hours=2))], ids=["no zone", "UTC", "another zone"]
)
def test_a_run_began_in_utc_whatever_zone_its_document_has(cli: Cli, zone: timezone | None) -> None:
    began = datetime(2026, 1, 2, 5, 6, 7, 89, tzinfo=zone)
    Store(cli.state).save(a_run(node="n1", started=began, results=(a_result(),)))
    (run,) = read(cli, "history", "n1")["runs"]
    assert run["started"] == f"2026-01-02T{'03' if zone not in (None, UTC) else '05'}:06:07Z"


@pytest.mark.parametrize(
    ("content", "status", "expected"),
    [
        (JobGate("ok", int(NOW + DAY_S)).text, 0, ("ok", True, "")),
        (JobGate("hold", int(NOW + DAY_S), "fan", ("gemm",)).text, 1, ("hold", True, "fan")),
        (JobGate("quarantined", 999_999_999_999, "GPU 3").text, 1, ("quarantined", True, "GPU 3")),
        (JobGate("quarantined", 1).text, 0, ("ok", False, "is not a valid gate file")),
        ("nonsense", 0, ("ok", False, "is not a valid gate file")),
    ],
    ids=["ok", "hold", "beyond the calendar", "stale", "corrupt"],
)
def test_a_gate_file_is_read_as_without_json(
    cli: Cli, content: str, status: int, expected: tuple[str, bool, str]
) -> None:
    cli.state.mkdir(exist_ok=True)
    (cli.state / "gate").write_text(content)

    document = read(cli, "gate", status=status)

    verdict, is_valid, reason = expected
    assert (document["verdict"], document["valid"]) == (verdict, is_valid)
    assert document["refuses_jobs"] is bool(status)
    assert document["reason"].endswith(reason)
    assert (document["until"] is not None) is is_valid
    assert cli("gate").returncode == status


def test_with_a_spool_json_is_of_the_newest_gate_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    write(tmp_path / "spool" / "gate" / cli.node, JobGate("hold", int(NOW + DAY_S), "fan"))
    assert read(cli, "gate", "--spool", f"{tmp_path}/spool", status=1)["reason"] == "fan"


@pytest.mark.parametrize("command", ["nodes", "history"])
def test_a_node_that_nobody_knows_is_an_error_and_no_document(cli: Cli, command: str) -> None:
    done = cli(command, "n9", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "n9" in done.stderr
