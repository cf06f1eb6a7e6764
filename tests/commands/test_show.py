"""What is known can be shown: runs, checks, suites, and what would change."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from hpcverify.cli import COMMANDS
from hpcverify.model import (
    Coverage,
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Measurement,
    Part,
    Verdict,
)
from hpcverify.records import documents
from hpcverify.records.store import Store
from tests.cli import Cli
from tests.doubles import a_result, a_run


@pytest.fixture
def kept(cli: Cli) -> Cli:
    """Have one run in the store."""
    assert cli("run", "--check", "steady").returncode == 0
    return cli


def test_show_prints_every_measurement_with_its_limit(kept: Cli) -> None:
    shown = kept("show", "-v").stdout
    assert "level" in shown
    assert "1 ms to 10 ms" in shown
    assert "hpcverify default" in shown


def test_show_as_json_is_the_document(kept: Cli) -> None:
    (document,) = (kept.state / "runs").glob("*.json")
    assert json.loads(kept("show", "--json").stdout) == json.loads(document.read_text())


def test_history_lists_the_runs_of_a_node(kept: Cli) -> None:
    document = json.loads(kept("history", kept.node, "--json").stdout)
    assert (document["node"], [run["verdict"] for run in document["runs"]]) == (kept.node, ["pass"])


def test_history_of_a_node_without_runs_says_what_to_do(cli: Cli) -> None:
    assert "hpcverify run" in cli("history").stdout


def test_checks_are_listed_the_sites_own_among_them(cli: Cli) -> None:
    listed = {c["name"]: c for c in json.loads(cli("checks", "--json").stdout)}
    assert {"gemm", "sdc", "thermal", "ecc", "allreduce", "storage", "inventory"} < (listed.keys())
    assert listed["steady"]["metrics"] == {"level": "ms"}


def test_one_check_is_explained_with_its_limits_and_their_source(cli: Cli) -> None:
    cli.site('[limits.gemm]\n"*.sustained" = { of_siblings = 0.95 }')
    text = cli("checks", "gemm").stdout

    assert "seconds of the burst per type" in text
    assert "Measure the throughput of matrix products" in text
    assert "burst_seconds" in text
    assert "median time of a product" in text
    assert ">= 0.95 x the median of like parts" in " ".join(text.split())
    assert "site.toml" in text
    assert "something else may load the node" in " ".join(text.split())


def test_the_findings_of_a_check_are_explained(cli: Cli) -> None:
    assert ["drain_p2p", "WARN", "inspect"] in words(cli("checks", "recovery").stdout)


def test_one_check_is_explained_as_json(cli: Cli) -> None:
    check = json.loads(cli("checks", "grave", "--json").stdout)
    assert (check["name"], check["description"]) == ("grave", "Find what no rerun could take back.")
    assert check["params"] == {"wrong": True}
    assert check["finding_rules"]["wrong_word"]["verdict"] == "fail"


def test_every_check_can_be_explained(cli: Cli) -> None:
    for check in json.loads(cli("checks", "--json").stdout):
        assert check["description"], check["name"]
        assert check["meanings"].keys() == check["metrics"].keys()


def test_a_check_that_is_not_there_is_not_explained(cli: Cli) -> None:
    done = cli("checks", "gem")
    assert (done.returncode, done.stderr) == (
        2,
        "hpcverify: no check is called 'gem'; did you mean gemm?\n",
    )


def test_the_commands_are_grouped_by_whom_they_concern(cli: Cli) -> None:
    lines = cli("--help").stdout.splitlines()
    places = [lines.index(head) for head in ("This node:", "Cluster:", "Set-up:")]
    assert places == sorted(places)
    assert set(COMMANDS) < {line.split()[0] for line in lines if line.startswith("  ")}


def test_suites_are_listed_with_their_budget(cli: Cli) -> None:
    cli.suite("acme", '[[check]]\nname = "steady"')
    listed = {
        s["name"]: s["budget"] for s in json.loads(cli("checks", "--suites", "--json").stdout)
    }
    assert (listed["quick"], listed["acme"]) == (480, 120)


def test_config_check_plans_every_suite(cli: Cli) -> None:
    done = cli("config", "check")
    assert done.returncode == 0
    assert "suite quick:" in done.stdout


def test_a_limit_that_changed_changes_the_verdict_of_stored_runs(kept: Cli) -> None:
    same = json.loads(kept("history", "rejudge", "--json").stdout)
    kept.site('[limits.steady]\n"level" = { high = 4, unit = "ms" }')
    (change,) = json.loads(kept("history", "rejudge", "--json").stdout)

    assert same == []
    assert (change["was"], change["now"]) == ("pass", "fail")
    assert "site.toml" in change["reason"]


@pytest.mark.parametrize(
    ("form", "start"),
    [("html", "<!doctype html>"), ("json", "{"), ("junit", "<testsuites"), ("markdown", "#")],
)
def test_a_report_has_the_form_that_was_asked_for(kept: Cli, form: str, start: str) -> None:
    done = kept("report", "--format", form, "-o", "-")
    assert done.returncode == 0, done.stderr
    assert done.stdout.lower().startswith(start)


@pytest.fixture
def burnt_in(cli: Cli) -> Cli:
    """Have one run of three rounds in the store."""
    cli.suite("acme", 'rounds = 3\n[[check]]\nname = "steady"')
    assert cli("run", "--suite", "acme").returncode == 0
    return cli


def test_of_several_rounds_the_worst_is_shown_and_each_can_be(burnt_in: Cli) -> None:
    worst, second = burnt_in("show", "-v").stdout, burnt_in("show", "--round", "2").stdout
    assert "round 1, the first with the worst verdict; all 3 rounds: 3 pass" in worst
    assert "PASS  steady" in second
    assert "s, round 2)" in second
    assert "in all" not in second


def test_a_round_that_there_is_not_is_named(burnt_in: Cli) -> None:
    done = burnt_in("show", "--round", "4")
    assert done.returncode == 2
    assert "has no round 4; it has 3" in done.stderr


def test_history_and_suites_say_how_many_rounds(burnt_in: Cli) -> None:
    (entry,) = json.loads(burnt_in("history", "--json").stdout)["runs"]
    listed = {s["name"]: s for s in json.loads(burnt_in("checks", "--suites", "--json").stdout)}
    assert entry["rounds"] == 3
    assert "acme, 3 rounds" in burnt_in("history").stdout
    assert (listed["acme"]["rounds"], listed["quick"]["rounds"]) == (3, 1)


def test_each_round_is_judged_again(burnt_in: Cli) -> None:
    burnt_in.site('[limits.steady]\n"level" = { high = 4, unit = "ms" }')
    changes = json.loads(burnt_in("history", "rejudge", "--json").stdout)
    assert [(c["round"], c["now"]) for c in changes] == [(n, "fail") for n in (1, 2, 3)]
    assert "1 run judged again, 3 verdicts would change" in burnt_in("history", "rejudge").stdout


@pytest.mark.parametrize("columns", ["80", "120"])
def test_history_names_the_worst_part_of_a_run_and_counts_the_others(
    cli: Cli, columns: str
) -> None:
    gpus = tuple(Part("gpu", f"gpu-{i}", f"GPU {i}") for i in range(24))
    rates = tuple(
        Measurement("rate", 5.0 if gpu.id == "gpu-3" else 99.0, "GB/s", gpu.id) for gpu in gpus
    )
    limit = Limit(name="rate", low=100, source="spec")
    reason = "; ".join(f"{gpu.label}: rate 99 GB/s < 100 (spec)" for gpu in gpus)
    slow = a_result(verdict=Verdict.FAIL, reason=reason, measurements=rates, limits=(limit,))
    run = a_run(
        node=cli.node, verdict=Verdict.FAIL, results=(slow,), inventory=Inventory(parts=gpus)
    )
    documents.write(run, Store(cli.state).get_document_path(run.id))
    documents.write(
        replace(run, id="20260102-000000-abcdef", verdict=Verdict.PASS, results=()),
        Store(cli.state).get_document_path("20260102-000000-abcdef"),
    )
    cli.environment["COLUMNS"] = columns
    lines = cli("history").stdout.splitlines()

    assert max(map(len, lines)) <= int(columns)
    worst = "gemm: all 24 GPUs: at worst rate 5 GB/s < 100 (spec) on GPU 3"
    assert worst in " ".join(" ".join(lines).split())


GPUS = tuple(Part("gpu", f"GPU-{i}", f"GPU {i} (…{i})") for i in range(3))


def test_what_was_done_alike_on_all_parts_is_shown_once(cli: Cli) -> None:
    done = tuple(Coverage(gpu.id, "24 products") for gpu in GPUS)
    gemm = a_result(coverage=(*done, Coverage("GPU-1", "warm")), measurements=(), findings=())
    run = a_run(node=cli.node, results=(gemm,), inventory=Inventory(parts=GPUS))
    documents.write(run, Store(cli.state).get_document_path(run.id))
    shown = cli("show", "-v").stdout

    assert shown.count("24 products") == 1
    assert "  all 3 GPUs: 24 products\n  GPU 1 (…1): warm\n" in shown


@pytest.fixture
def sick(cli: Cli) -> Cli:
    """Have one run in the store in which GPU 1 is slow and ran out of one thing."""
    rates = [Measurement("rate", v, "GB/s", gpu.id) for v, gpu in zip((9, 5, 8), GPUS, strict=True)]
    others = [Measurement("heat", 50.0, "", gpu.id) for gpu in GPUS]
    slow = a_result(
        verdict=Verdict.FAIL,
        reason="GPU 1 (…1): rate 5 GB/s < 7 (spec)",
        measurements=(*others, *rates),
        limits=(Limit(name="rate", low=7, source="spec"),),
        findings=(Finding("gone", "GPU-1", "it is gone"), Finding("seen", "GPU-0", "was seen")),
        rulings={"gone": FindingRule(Verdict.FAIL), "seen": FindingRule(Verdict.PASS)},
    )
    run = a_run(
        node=cli.node,
        verdict=Verdict.FAIL,
        results=(a_result("ecc", measurements=(), findings=()), slow),
        inventory=Inventory(parts=GPUS),
    )
    documents.write(run, Store(cli.state).get_document_path(run.id))
    return cli


def words(text: str) -> list[list[str]]:
    """Split what was printed into lines and these into words."""
    return [line.split() for line in text.splitlines() if line]


def test_show_marks_what_is_outside_its_limit_and_puts_it_first(sick: Cli) -> None:
    shown = words(sick("show", "--check", "gemm").stdout)
    assert shown[1][:2] == ["FAIL", "GPU"]
    assert "[gone]" in shown[1]
    rows = [line for line in shown if "rate" in line or "heat" in line][:4]
    assert [line[:3] for line in rows] == [
        ["FAIL", "rate", "GPU"],
        ["heat", "all", "3"],
        ["ok", "rate", "GPU"],
        ["ok", "rate", "GPU"],
    ]


def test_show_can_be_told_to_show_only_what_failed(sick: Cli) -> None:
    text = sick("show", "--failed").stdout.rpartition("\n\n")[0]
    document = json.loads(sick("show", "--failed", "--json").stdout)
    (result,) = document["results"]

    assert "ecc" not in text
    assert "heat" not in text
    assert "[seen]" not in text
    assert [(m["name"], m["part_id"]) for m in result["measurements"]] == [("rate", "GPU-1")]
    assert document["verdict"] == "fail"


@pytest.mark.parametrize("part", ["GPU-2", "GPU 2 (…2)", "GPU 2", "gpu 2", "2"])
def test_show_can_be_told_to_show_one_part(sick: Cli, part: str) -> None:
    (result,) = json.loads(sick("show", "--part", part, "--json").stdout)["results"]
    assert {m["part_id"] for m in result["measurements"]} == {"GPU-2"}
    assert "GPU 1" not in sick("show", "--part", part).stdout.rpartition("\n\n")[0]


def test_the_filters_of_show_can_be_repeated_and_combined(sick: Cli) -> None:
    arguments = ("--part", "GPU 0", "--part", "GPU 1", "--check", "gemm", "--check", "ecc")
    both = json.loads(sick("show", *arguments, "--json").stdout)["results"]
    (failed,) = json.loads(sick("show", *arguments, "--failed", "--json").stdout)["results"]
    assert {m["part_id"] for r in both for m in r["measurements"]} == {"GPU-0", "GPU-1"}
    assert {m["part_id"] for m in failed["measurements"]} == {"GPU-1"}


@pytest.mark.parametrize(
    ("option", "name", "there"),
    [("--check", "xid", "there are ecc, gemm"), ("--part", "nvme7n1", "there are GPU 0, GPU 1")],
)
def test_a_filter_that_fits_nothing_names_what_there_is(
    sick: Cli, option: str, name: str, there: str
) -> None:
    done = sick("show", option, name)
    assert (done.returncode, done.stdout) == (2, "")
    assert name in done.stderr
    assert there in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("columns", ["60", "80"])
def test_show_is_not_wider_than_the_terminal(sick: Cli, columns: str) -> None:
    sick.environment["COLUMNS"] = columns
    assert max(map(len, sick("show", "-v").stdout.splitlines())) <= int(columns)
