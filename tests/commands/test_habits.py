"""The habits of the command line: the same options, names and help texts in all commands."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.shell_completion import ShellComplete

from hpcverify.cli import cli
from hpcverify.commands._options import Duration
from tests.cli import Cli

MAX_HELP_LINES = 30
DURATIONS = {"--wait", "--time", "--timeout", "--period"}
FILES = {"FILE", "DIR"}
OLD_NAMES = {"--out", "--nodes", "--html", "--minutes", "--seconds", "--days"}
NO_VERBS = re.compile(r"(Only|For|How|What|Which|Where|The|An?|If|Even|Node|All|One|Not)\b")


def walk(
    command: click.Command = cli, parent: click.Context | None = None
) -> Iterator[click.Context]:
    """Yield a context for each command."""
    context = click.Context(command, parent, command.name if parent else "hpcverify")
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            inner.name = name
            yield from walk(inner, context)


CONTEXTS = [pytest.param(each, id=each.command_path) for each in walk()]


def list_options(context: click.Context) -> list[click.Option]:
    return [p for p in context.command.params if isinstance(p, click.Option)]


@pytest.mark.parametrize("context", CONTEXTS)
def test_each_help_is_a_sentence_that_begins_with_a_verb(context: click.Context) -> None:
    texts = [str(context.command.help).strip().split("\n")[0]]
    texts += [str(option.help) for option in list_options(context)]
    for text in texts:
        assert not NO_VERBS.match(text), text
        assert text[0].isupper(), text
    assert [text for text in texts[1:] if not text.endswith(".")] == []


@pytest.mark.parametrize("context", CONTEXTS)
def test_each_option_follows_the_table_of_habits(context: click.Context) -> None:
    for option in list_options(context):
        names = {*option.opts}
        assert context.command is cli or not names & OLD_NAMES
        assert option.help
        if "--json" in names:
            assert option.is_flag
        if "-o" in names:
            assert names == {"-o", "--output"}
            assert option.metavar in FILES
        assert bool(names & DURATIONS) == isinstance(option.type, Duration)
        assert "--limit" not in names or context.command_path == "hpcverify history list"
        words = option.make_metavar(context)
        assert words not in {"TEXT", "INTEGER", "FLOAT", "PATH"} or "--reason" in names, names
        assert "RANGE" not in words, names


@pytest.mark.parametrize("context", CONTEXTS)
def test_nodes_are_a_host_list_without_an_option(context: click.Context) -> None:
    for parameter in context.command.params:
        if parameter.name == "hostlist":
            assert isinstance(parameter, click.Argument)
            assert parameter.make_metavar(context).strip("[]") == "HOSTLIST"


@pytest.mark.parametrize("context", CONTEXTS)
def test_each_command_but_the_whole_has_an_example(context: click.Context) -> None:
    assert context.command is cli or "Example" in str(context.command.help)


def test_the_help_of_the_whole_fits_on_a_screen() -> None:
    lines = cli.get_help(click.Context(cli, info_name="hpcverify")).splitlines()
    assert len(lines) <= MAX_HELP_LINES


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7200), ("3d", 3 * 86400), ("0.5s", 0.5)]
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    "text", ["90", "5 m", "-5m", "nan", "infs", "1e3s", "", "5w", "9" * 99 + "d"]
)
def test_other_durations_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(click.UsageError, match="write 90s, 5m, 2h or 3d"):
        Duration().convert(text, None, None)


def test_a_duration_out_of_range_is_refused_with_the_limits() -> None:
    with pytest.raises(click.UsageError, match="at least 60s and at most 3600s"):
        Duration(60, 3600).convert("2h", None, None)


def complete(*words: str) -> set[str]:
    """Return what a shell offers for the last of *words*."""
    *before, last = words
    shell = ShellComplete(cli, {}, "hpcverify", "_HPCVERIFY_COMPLETE")
    return {item.value for item in shell.get_completions(before, last)}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("re",), {"report"}),
        (("nodes", "re"), {"release", "repaired"}),
        (("fleet", "b"), {"bmc", "breaker"}),
        (("run", "--suite", "qu"), {"quick"}),
        (("checks", "inv"), {"inventory"}),
        (("run", "--check", "allr"), {"allreduce"}),
        (("fleet", "events", "--kind", "node."), {"node.changed"}),
    ],
)
def test_a_shell_completes_commands_suites_checks_and_kinds(
    words: tuple[str, ...], offered: set[str]
) -> None:
    assert complete(*words) == offered


def test_a_shell_completes_runs_and_nodes_of_the_state(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("run", "--check", "steady").returncode == 0
    (run,) = [path.stem for path in cli.list_documents()]
    for name in ("HPCVERIFY_STATE", "HPCVERIFY_CONFIG"):
        monkeypatch.setenv(name, cli.environment[name])
    assert complete("show", run[:8]) == {run}
    assert complete("nodes", "show", "n") == {cli.node}
    assert complete("nodes", cli.node) == {cli.node}


def test_a_completion_does_not_import_torch(cli: Cli) -> None:
    asked = {
        "_HPCVERIFY_COMPLETE": "bash_complete",
        "COMP_WORDS": "hpcverify run --check g",
        "COMP_CWORD": "3",
    }
    ending = "finally: assert 'torch' not in sys.modules"
    code = f"import sys; from hpcverify.cli import cli\ntry: cli(prog_name='hpcverify')\n{ending}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=cli.environment | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "gemm" in done.stdout, done.stderr
    assert "AssertionError" not in done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("rnu",), "run"),
        (("flet",), "fleet"),
        (("nodes", "hodl", "n1"), "hold"),
        (("fleet", "colect", "--help"), "collect"),
        (("fleet", "swep"), "sweep"),
        (("config", "chekc"), "check"),
    ],
)
def test_a_misspelt_command_gets_a_suggestion(cli: Cli, words: tuple[str, ...], meant: str) -> None:
    done = cli(*words)
    assert done.returncode == 2
    assert f"did you mean {meant}?" in done.stderr


def test_a_quiet_run_prints_no_progress(cli: Cli) -> None:
    assert "PASS  steady" in cli("run", "--check", "steady").stderr
    assert cli("-q", "run", "--check", "steady").stderr == ""
