"""The command line; each command's module is imported only when it runs."""

from __future__ import annotations

from importlib import import_module

import click

from hpcverify.console import (
    EXIT_UNVERIFIED,
    exit_with,
    handle_output_errors,
    print_to_stderr,
    say,
)

COMMAND_GROUPS = {
    "This node": {
        "run": "Verify this node now.",
        "show": "Show one run: results, measurements and limits.",
        "history": "List the runs of a node.",
        "report": "Write a report on a node, or on all nodes.",
        "checks": "List the checks, or explain one of them.",
        "explain": "Explain a code: what it means and how to fix it.",
        "suites": "List the suites.",
        "collectives": "Measure collectives between GPUs or nodes, verify every result.",
        "gate": "Say whether jobs may run on this node, as the prolog asks.",
    },
    "Cluster": {
        "nodes": "List the nodes and their states, worst first.",
        "events": "List what changed in the fleet; verify that the log is whole.",
        "reliability": "Say how often nodes fail, and what that costs jobs.",
        "sweep": "Verify idle nodes through Slurm.",
        "isolate": "Find the node, link or switch that spoils collectives between nodes.",
        "bmc": "Ask the BMCs of the nodes for fans, power supplies and events.",
        "collect": "Collect runs from the spool, update node states and act on them.",
        "admit": "Verify new nodes before they enter service; resume those that pass.",
        "hold": "Take nodes out of service by hand.",
        "repair": "Mark nodes as repaired: verify them and return them to service.",
        "release": "Return nodes to service by hand.",
        "adopt": "Adopt nodes that hpcverify drained, after the ledger was lost.",
        "forget": "Forget nodes that are no longer in Slurm.",
        "peers": "Name the parts that are worse than their peers.",
        "breaker": "Show or reset the circuit breaker; show which checks are suspect.",
    },
    "Set-up": {
        "doctor": "Report what prevents a full verification of this node.",
        "selftest": "Inject faults into the checks and verify that they are detected.",
        "qualify": "Show what hpcverify is worth on new hardware: the first hour.",
        "setup": "Print what a site's Slurm lacks for hpcverify; put in place what is ours.",
        "config": "Check the site's configuration, or show it.",
        "import": "Turn the configuration of NHC into a site file.",
        "judge": "Judge stored runs again by today's limits.",
    },
}
"""The commands, in the order of the help, and what each does."""
COMMANDS = tuple(name for group in COMMAND_GROUPS.values() for name in group)
DECISIONS = ("admit", "hold", "repair", "release", "adopt", "forget", "breaker")
"""The commands in `hpcverify.commands.decisions`; each of the others has a module."""
STORING_COMMAND = "run"
"""The command that stores its results before it prints them."""


class LazyGroup(click.Group):
    """Imports a command's module only when it is needed, so that commands start fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import the module of *cmd_name*."""
        if cmd_name not in COMMANDS:
            return None
        module, name = ("decisions", cmd_name) if cmd_name in DECISIONS else (cmd_name, "command")
        command = getattr(import_module(f"hpcverify.commands.{module}"), name)
        assert isinstance(command, click.Command)  # noqa: S101 - narrows the type
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; this may print help."""
        for argument in args:
            try:
                argument.encode()
            except UnicodeEncodeError as exc:  # neither the ledger nor a document can hold it
                raise click.UsageError(f"the argument {argument!a} is not UTF-8", ctx) from exc
        with handle_output_errors(lambda: False):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command."""
        with handle_output_errors(lambda: ctx.invoked_subcommand == STORING_COMMAND):
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
    """Run the command line; an error prints one line and has its own exit status."""
    exit_with(_run_cli)


def _run_cli() -> object:
    """Run the command line and return its status; click's own errors print one line."""
    try:
        return cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as exc:
        print_to_stderr(exc.format_message())
        # Not 0, which is PASS: a script that lost its arguments verified nothing.
        say(f"no command was given, so nothing was done{_format_help_hint(exc)}")
        return exc.exit_code
    except click.ClickException as exc:
        say(f"{exc.format_message().rstrip('.')}{_format_help_hint(exc)}")
        return exc.exit_code
    except click.Abort:
        say("interrupted")
        return EXIT_UNVERIFIED


def _format_help_hint(exc: click.ClickException) -> str:
    if isinstance(exc, click.UsageError) and exc.ctx is not None:
        return f"; see: {exc.ctx.command_path} --help"
    return ""
