"""What is known can be shown: runs, checks, suites, and what would change."""

from __future__ import annotations

import json

import pytest

from tests.cli import Cli


@pytest.fixture
def kept(cli: Cli) -> Cli:
    """Have one run in the store."""
    assert cli("run", "--check", "steady").returncode == 0
    return cli


def test_show_prints_every_measurement_with_its_limit(kept: Cli) -> None:
    shown = kept("show").stdout

    assert "level" in shown
    assert ">= 1 and <= 10" in shown
    assert "hpcverify default" in shown


def test_show_as_json_is_the_document(kept: Cli) -> None:
    (document,) = (kept.state / "runs").glob("*.json")

    assert json.loads(kept("show", "--json").stdout) == json.loads(document.read_text())


def test_history_lists_the_runs_of_a_node(kept: Cli) -> None:
    entries = json.loads(kept("history", kept.node, "--json").stdout)

    assert [(e["node"], e["verdict"]) for e in entries] == [(kept.node, "pass")]


def test_history_of_a_node_without_runs_says_what_to_do(cli: Cli) -> None:
    assert "hpcverify run" in cli("history").stdout


def test_checks_are_listed_the_sites_own_among_them(cli: Cli) -> None:
    listed = {c["name"]: c for c in json.loads(cli("checks", "--json").stdout)}

    assert {"gemm", "sdc", "thermal", "ecc", "allreduce", "storage", "inventory"} < (
        listed.keys()
    )
    assert listed["steady"]["metrics"] == {"level": "ms"}


def test_suites_are_listed_with_their_budget(cli: Cli) -> None:
    cli.suite("acme", '[[check]]\nname = "steady"')
    listed = {
        s["name"]: s["budget"] for s in json.loads(cli("suites", "--json").stdout)
    }

    assert listed["quick"] <= 240
    assert listed["acme"] == 120


def test_config_check_plans_every_suite(cli: Cli) -> None:
    done = cli("config", "check")

    assert done.returncode == 0
    assert "suite quick:" in done.stdout


def test_a_limit_that_changed_changes_the_verdict_of_stored_runs(kept: Cli) -> None:
    same = json.loads(kept("judge", "--json").stdout)
    kept.site('[limits.steady]\n"level" = { high = 4, unit = "ms" }')
    (change,) = json.loads(kept("judge", "--json").stdout)

    assert same == []
    assert (change["was"], change["now"]) == ("pass", "fail")
    assert "site.toml" in change["reason"]


@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("html", "<!doctype html>"),
        ("json", "{"),
        ("junit", "<testsuites"),
        ("markdown", "#"),
    ],
)
def test_a_report_has_the_form_that_was_asked_for(
    kept: Cli, form: str, start: str
) -> None:
    done = kept("report", "--format", form, "-o", "-")

    assert done.returncode == 0, done.stderr
    assert done.stdout.lower().startswith(start)


def test_every_command_has_help_with_an_example(cli: Cli) -> None:
    for command in (
        "run",
        "show",
        "history",
        "report",
        "judge",
        "checks",
        "suites",
        "doctor",
    ):
        assert "Example" in cli(command, "--help").stdout, command
    assert "Example" in cli("config", "check", "--help").stdout
    assert "Exit status" in cli("--help").stdout
