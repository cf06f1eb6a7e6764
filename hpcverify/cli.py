"""The command line; each command's module is imported only when it runs."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import TextIO

import click

from hpcverify.errors import HpcverifyError, OutputError, explain_shortage
from hpcverify.summary.printable import make_printable

COMMAND_GROUPS = {
    "This node": {
        "run": "Verify this node now.",
        "show": "Show one run: results, measurements and limits.",
        "history": "List the runs of a node.",
        "report": "Write a report on a node, or on all nodes.",
        "checks": "List the checks, or explain one of them.",
        "suites": "List the suites.",
        "gate": "Say whether jobs may run on this node, as the prolog asks.",
    },
    "Cluster": {
        "nodes": "List the nodes and their states, worst first.",
        "sweep": "Verify idle nodes through Slurm.",
        "collect": "Collect runs from the spool, update node states and act on them.",
        "admit": "Verify new nodes before they enter service; resume those that pass.",
        "hold": "Take nodes out of service by hand.",
        "repair": "Mark nodes as repaired: verify them and return them to service.",
        "release": "Return nodes to service by hand.",
        "adopt": "Adopt nodes that hpcverify drained, after the ledger was lost.",
        "forget": "Forget nodes that are no longer in Slurm.",
        "breaker": "Show or reset the circuit breaker; show which checks are suspect.",
    },
    "Set-up": {
        "doctor": "Report what prevents a full verification of this node.",
        "selftest": "Inject faults into the checks and verify that they are detected.",
        "qualify": "Show what hpcverify is worth on new hardware: the first hour.",
        "config": "Check the site's configuration.",
        "import": "Turn the configuration of NHC into a site file.",
        "judge": "Judge stored runs again by today's limits.",
    },
}
"""The commands, in the order of the help, and what each does."""
COMMANDS = tuple(name for group in COMMAND_GROUPS.values() for name in group)
EXIT_UNVERIFIED = 3
EXIT_UNREAD = 141
"""The status when the reader of our output is gone, as with ``| head``: 128 + SIGPIPE (13),
which is neither a verdict nor an error of ours."""
OUTPUT_FAILURES = {
    errno.ENOSPC: "cannot be written: no space is left",
    errno.EDQUOT: "cannot be written: the quota is used up",
    errno.EFBIG: "cannot be written: the file has become too large",
}
"""Errors of standard output; unlike files that we open, it has no file name."""
STORING_COMMAND = "run"
"""The command that stores its results before it prints them."""


@contextmanager
def handle_output_errors(ctx: click.Context) -> Generator[None]:
    """
    Name what keeps us from printing; click would exit with 1, which means FAIL.

    A closed pipe ends the command silently.

    Raises:
        OutputError: standard output is full.

    """
    try:
        yield
    except BrokenPipeError:
        unread = [stream for stream in (sys.stdout, sys.stderr) if is_reader_gone(stream)]
        if not unread:  # it was another pipe, and a bug
            raise
        for stream in unread:
            _discard_output(stream)
        ctx.exit(EXIT_UNREAD)
    except OSError as exc:
        why = OUTPUT_FAILURES.get(exc.errno or 0)
        if why is None or exc.filename is not None:
            raise
        _discard_output(sys.stdout)
        raise OutputError(why, kept=ctx.invoked_subcommand == STORING_COMMAND) from None


@contextmanager
def ignore_closed_pipe(stream: TextIO) -> Generator[None]:
    """Print to *stream*; if nobody reads it any more, go on without."""
    try:
        yield
    except BrokenPipeError:
        if not is_reader_gone(stream):
            raise
        _discard_output(stream)


def is_reader_gone(stream: TextIO) -> bool:
    """Whether *stream* is a pipe whose reader is gone."""
    poll = select.poll()
    poll.register(stream.fileno(), 0)  # with no events requested, poll reports errors only
    return bool(poll.poll(0))


class LazyGroup(click.Group):
    """Imports a command's module only when it is needed, so that commands start fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import the module of *cmd_name*."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"hpcverify.commands.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101 - narrows the type
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; this may print help."""
        with handle_output_errors(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command."""
        with handle_output_errors(ctx):
            return super().invoke(ctx)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        """List the commands without importing them, so that help comes at once."""
        width = max(map(len, COMMANDS))
        for group, commands in COMMAND_GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hpcverify")
def cli() -> None:
    """
    Find bad nodes before a job does.

    \b
    Exit status: 0 pass or warn, 1 fail, 2 usage or configuration,
    3 node could not be verified, 4 a scheduler or quarantine action failed,
    141 the output was cut off, as by head (run keeps the status of its verdict).

    \b
    Example:
      hpcverify run --suite quick --html report.html
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped


def main() -> None:
    """Run the command line; an error of ours prints one line and has its own exit status."""
    try:
        status = cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as exc:
        _print_to_stderr(exc.format_message())
        # Not 0, which is PASS: a script that lost its arguments verified nothing.
        say(f"no command was given, so nothing was done{_format_help_hint(exc)}")
        status = exc.exit_code
    except click.ClickException as exc:
        say(f"{exc.format_message().rstrip('.')}{_format_help_hint(exc)}")
        status = exc.exit_code
    except click.Abort:
        say("interrupted")
        status = EXIT_UNVERIFIED
    except HpcverifyError as exc:
        say(str(exc))
        status = exc.exit_code
    except Exception as exc:  # noqa: BLE001 - a bug in hpcverify ends here, with a log
        status = EXIT_UNVERIFIED
        if short := explain_shortage(exc):
            say(f"hpcverify cannot go on: {short}")
            sys.exit(status)
        from hpcverify.records.bug_log import keep_log  # noqa: PLC0415 - rarely needed

        say(
            f"this is a bug in hpcverify ({type(exc).__name__}: {exc}); "
            f"please report it with {keep_log(exc)}"
        )
    sys.exit(status)


def _format_help_hint(exc: click.ClickException) -> str:
    """Name the help of the command that was misused."""
    if isinstance(exc, click.UsageError) and exc.ctx is not None:
        return f"; see: {exc.ctx.command_path} --help"
    return ""


def say(text: str) -> None:
    """Print one line to standard error."""
    one_line = " ".join(text.split())
    _print_to_stderr(make_printable(f"hpcverify: {one_line}"))


def _print_to_stderr(text: str) -> None:
    try:
        click.echo(text, err=True)
    except OSError:  # the exit status remains
        _discard_output(sys.stderr)


def _discard_output(stream: TextIO) -> None:
    """Discard what *stream* holds: Python would fail to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
