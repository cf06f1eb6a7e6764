"""``hpcverify explain`` prints what a code means and how to fix it."""

from __future__ import annotations

import json

import pytest

from hpcverify.cli import cli as cli_command
from hpcverify.commands.explain import CodeType
from tests.cli import Cli

WITHOUT_TEXTS = {"wrong_word"}
"""The codes of a check of the site that ships no texts."""


def test_a_limit_is_explained_with_its_source_and_a_fix(cli: Cli) -> None:
    done = cli("explain", "remap.failed")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "remap.failed: row remapping failed"
    assert "verdict: FAIL (conclusive evidence)" in lines
    assert "healthy: <= 0" in lines
    assert "source: NVIDIA memory error management: a failed row remap" in lines
    assert any(line.startswith("fix: drain the node") for line in lines)


def test_a_measurement_is_explained_by_all_its_limits(cli: Cli) -> None:
    found = json.loads(cli("explain", "bf16.sustained", "--json").stdout)

    assert [(each["code"], each["verdict"]) for each in found] == [
        ("*.sustained", "fail"),
        ("*sustained", "warn"),
    ]


def test_a_code_of_several_checks_in_one_sense_is_explained_once(cli: Cli) -> None:
    (found,) = json.loads(cli("explain", "gpu_lost", "--json").stdout)

    assert {"ecc", "inventory", "recovery"} < {*found["checks"]}


def test_a_code_in_different_senses_asks_for_the_check(cli: Cli) -> None:
    asked = cli("explain", "corruption")

    assert asked.returncode == 2
    assert "sdc.corruption, storage.corruption" in asked.stderr
    assert "returned wrong data" in cli("explain", "storage.corruption").stdout


@pytest.mark.parametrize("wrong", ["remap.faled", "ecc.remap.faled"])
def test_a_misspelt_code_gets_a_hint(cli: Cli, wrong: str) -> None:
    done = cli("explain", wrong)

    assert done.returncode == 2
    assert "did you mean remap.failed?" in done.stderr


@pytest.mark.parametrize(("word", "code"), [("79", "xid_79"), ("REMAP", "remap.failed")])
def test_a_part_of_a_code_gets_the_codes_that_contain_it(cli: Cli, word: str, code: str) -> None:
    done = cli("explain", word)

    assert done.returncode == 2
    assert code in done.stderr
    assert "*" not in done.stderr


def test_the_list_has_every_code_with_its_title(cli: Cli) -> None:
    found = json.loads(cli("explain", "--list", "--json").stdout)

    assert len(found) > 900
    assert {each["code"] for each in found if not each["title"]} == WITHOUT_TEXTS
    assert "remap.failed" in cli("explain", "--list").stdout


@pytest.mark.parametrize("arguments", [(), ("remap.failed", "--list")])
def test_one_code_or_the_list_is_asked_for(cli: Cli, arguments: tuple[str, ...]) -> None:
    done = cli("explain", *arguments)

    assert done.returncode == 2
    assert "name one code, or use --list" in done.stderr


def test_a_code_of_a_site_is_explained_by_the_texts_of_its_check(cli: Cli) -> None:
    cli.site("")

    assert cli("explain", "level").stdout.startswith("level: level outside its range\n")
    assert "verdict: FAIL" in cli("explain", "wrong_word").stdout


def test_a_shell_completes_codes() -> None:
    command = cli_command.get_command(None, "explain")  # type: ignore[arg-type]
    assert command is not None

    items = CodeType().shell_complete(None, command.params[0], "remap.f")  # type: ignore[arg-type]

    assert [item.value for item in items] == ["remap.failed"]
