"""The command line; each command's module is imported only when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hpcverify.console import (
    EXIT_UNVERIFIED,
    exit_with,
    handle_output_errors,
    print_to_stderr,
    say,
)
from hpcverify.errors import UnknownNameError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

HELP_OPTIONS = ("-h", "--help")
MISSPELT_RATIO = 0.7
"""How alike a word and a command are, by difflib, for the word to be a misspelt command."""
STORING_COMMAND = "run"
"""The command that stores its results before it prints them."""


class Entry(NamedTuple):
    """One command of a group."""

    text: str
    """What the command does, for the list of the group."""
    module: str
    """The module in `hpcverify.commands`."""
    name: str = "command"
    """The command in that module."""


class LazyGroup(click.Group):
    """Imports a command's module only when it is needed, so that commands start fast."""

    def __init__(
        self,
        *,
        sections: Mapping[str, Mapping[str, Entry | LazyGroup]],
        default: str = "",
        hidden: Mapping[str, Entry] | None = None,
        **attributes: Any,
    ) -> None:
        """List commands in *sections*; run *default* if the first word is not a command."""
        super().__init__(**attributes)
        self.sections = sections
        self.default = default
        self.entries = {name: entry for part in sections.values() for name, entry in part.items()}
        self.all_entries: dict[str, Entry | LazyGroup] = {**self.entries, **(hidden or {})}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List the commands, in the order of the help."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import the command *cmd_name*; None if the group has no such command."""
        entry = self.all_entries.get(cmd_name)
        if not isinstance(entry, Entry):
            return entry
        command = getattr(import_module(f"hpcverify.commands.{entry.module}"), entry.name)
        assert isinstance(command, click.Command)  # noqa: S101 - narrows the type
        command.short_help = entry.text
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that *args* begin with; suggest another name if there is none."""
        if args[0] not in self.all_entries and not ctx.resilient_parsing:
            unknown = UnknownNameError("command", args[0], self.entries)
            raise click.UsageError(str(unknown), ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; this may print help."""
        for argument in args:
            try:
                argument.encode()
            except UnicodeEncodeError as exc:  # neither the ledger nor a document can hold it
                raise click.UsageError(f"the argument {argument!a} is not UTF-8", ctx) from exc
        args = self.add_default(ctx, args)
        with handle_output_errors(lambda: False):
            return super().parse_args(ctx, args)

    def add_default(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command before *args*, unless they begin with a command or help."""
        if not self.default or (ctx.resilient_parsing and not args):
            return args
        if args and args[0] in (*self.all_entries, *HELP_OPTIONS):
            return args
        if args and self._is_misspelt(ctx, args):
            return args
        return [self.default, *args]

    def _is_misspelt(self, ctx: click.Context, args: list[str]) -> bool:
        """Whether *args* begin with a misspelt command, not with a word for the default."""
        default = self.get_command(ctx, self.default)
        if default and any(isinstance(each, click.Argument) for each in default.params):
            near = get_close_matches(args[0], self.entries, cutoff=MISSPELT_RATIO)
            return len(args) > 1 and bool(near)
        return not args[0].startswith("-")

    def invoke(self, ctx: click.Context) -> object:
        """Run a command."""
        with handle_output_errors(lambda: ctx.invoked_subcommand == STORING_COMMAND):
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """List the commands, and what the default command takes, without other imports."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for shells alone

        items = [
            CompletionItem(name, help=describe_entry(entry))
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]
        default = self.get_command(ctx, self.default)
        if default is None:
            return [*items, *click.Command.shell_complete(self, ctx, incomplete)]
        with default.make_context(self.default, [], parent=ctx, resilient_parsing=True) as inner:
            for parameter in default.params:
                if isinstance(parameter, click.Argument):
                    items += parameter.shell_complete(inner, incomplete)
            return [*items, *default.shell_complete(inner, incomplete)]

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        """List the commands without importing them, so that help comes at once."""
        width = max(map(len, self.entries))
        for section, entries in self.sections.items():
            with formatter.section(section):
                formatter.write_dl(
                    [(name.ljust(width), describe_entry(entry)) for name, entry in entries.items()]
                )


def describe_entry(entry: Entry | LazyGroup) -> str:
    """Return what the command or group *entry* does, in one line."""
    return entry.text if isinstance(entry, Entry) else entry.short_help or ""


def _make_group(
    name: str, text: str, *examples: str, default: str = "", **commands: Entry
) -> LazyGroup:
    heading = "\b\nExamples:" if len(examples) > 1 else "\b\nExample:"
    return LazyGroup(
        name=name,
        sections={"Commands": commands},
        default=default,
        help="\n".join([text, "", heading, *(f"  hpcverify {line}" for line in examples)]),
        short_help=text,
        subcommand_metavar="[COMMAND] ..." if default else "COMMAND ...",
    )


HISTORY = _make_group(
    "history",
    "List the runs of a node, or judge them by today's limits.",
    "history n17",
    "history rejudge --since 2026-11-01",
    default="list",
    list=Entry("List the runs of a node (default).", "history"),
    rejudge=Entry("Judge stored runs by today's limits.", "judge"),
)
NODES = _make_group(
    "nodes",
    "List nodes and their states; hold, repair and release them.",
    "nodes",
    "nodes show n17",
    'nodes hold n17 --reason "fan replacement on Monday"',
    default="list",
    list=Entry("List nodes, worst first (default).", "nodes"),
    show=Entry("Show one node: risk, outages, audit log.", "nodes", "show"),
    hold=Entry("Take nodes out of service.", "decisions", "hold"),
    release=Entry("Return nodes to service without verification.", "decisions", "release"),
    repaired=Entry("Verify repaired nodes; release those that pass.", "decisions", "repaired"),
    admit=Entry("Verify new nodes; admit those that pass.", "decisions", "admit"),
    adopt=Entry("Take over holds after the ledger was lost.", "decisions", "adopt"),
    forget=Entry("Forget nodes that Slurm no longer has.", "decisions", "forget"),
)
FLEET = _make_group(
    "fleet",
    "Show the morning overview; verify and compare all nodes.",
    "fleet",
    "fleet sweep --dry-run",
    default="morning",
    morning=Entry("Show what is new and what needs a person (default).", "morning"),
    sweep=Entry("Verify idle nodes through Slurm.", "sweep"),
    collect=Entry("Collect finished runs and update node states.", "collect"),
    bmc=Entry("Read fans, power supplies and events from BMCs.", "bmc"),
    peers=Entry("Find parts that are worse than identical parts.", "peers"),
    reliability=Entry("Show how often nodes fail, and what it costs.", "reliability"),
    events=Entry("List and verify the event log.", "events"),
    breaker=Entry("Show or reset the circuit breaker.", "decisions", "breaker"),
)
FABRIC = _make_group(
    "fabric",
    "Test collectives between nodes; find the faulty node or link.",
    "fabric bisect n[1-232] --dry-run",
    test=Entry("Measure and verify collectives between ranks.", "collectives"),
    bisect=Entry("Find the node, link or switch that slows collectives.", "isolate"),
)
SETUP = _make_group(
    "setup",
    "Show missing Slurm settings; import an NHC configuration.",
    "setup slurm --spool /shared/hpcverify/spool",
    "setup nhc /etc/nhc/nhc.conf -o from-nhc.toml",
    slurm=Entry("Show missing Slurm settings; install hpcverify's own files.", "setup", "slurm"),
    nhc=Entry("Convert an NHC configuration into a site file.", "nhc"),
)
CONFIG = _make_group(
    "config",
    "Check or show the configuration of the site.",
    "config check",
    check=Entry("Check the site file and plan every suite.", "config", "check"),
    show=Entry("Show the settings in force and their files.", "config", "show"),
)
QUALIFY = _make_group(
    "qualify",
    "Validate hpcverify on new hardware (about an hour).",
    "qualify -o h200",
    "qualify selftest sdc",
    default="node",
    node=Entry("Validate hpcverify on this kind of node (default).", "qualify"),
    selftest=Entry("Inject faults into checks; verify their detection.", "selftest"),
)
COMMAND_GROUPS: Mapping[str, Mapping[str, Entry | LazyGroup]] = {
    "This node": {
        "run": Entry("Verify this node.", "run"),
        "show": Entry("Show one run: results, measurements and limits.", "show"),
        "history": HISTORY,
        "report": Entry("Write a report on a node or on the fleet.", "report"),
        "checks": Entry("List checks or suites; describe one check.", "checks"),
        "explain": Entry("Explain a code: meaning, limit, fix.", "explain"),
        "doctor": Entry("Show what prevents a full verification.", "doctor"),
    },
    "Cluster": {"nodes": NODES, "fleet": FLEET, "fabric": FABRIC},
    "Set-up": {"setup": SETUP, "config": CONFIG, "qualify": QUALIFY},
}
"""The commands, in the order of the help."""
COMMANDS = tuple(name for part in COMMAND_GROUPS.values() for name in part)


@click.group(
    cls=LazyGroup,
    sections=COMMAND_GROUPS,
    hidden={"gate": Entry("Show whether the prolog accepts jobs.", "gate")},
    context_settings={"help_option_names": list(HELP_OPTIONS)},
    subcommand_metavar="COMMAND ...",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print progress.")
@click.option("-v", "--verbose", is_flag=True, help="Print details.")
@click.version_option(None, "-V", "--version", package_name="hpcverify")
def cli(**_options: bool) -> None:
    """
    Find bad nodes before a job does.

    Exit status: 0 pass, 1 fail, 2 usage, 3 not verified, 4 action failed.
    """


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
