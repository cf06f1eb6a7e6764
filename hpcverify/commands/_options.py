"""Options and arguments of several commands: one habit for each, held by a test."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from hpcverify.errors import HpcverifyError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

DATE = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"])
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_COMPLETED_RUNS = 100
"""Runs that a shell offers, the newest."""


class FiniteRange(click.FloatRange):
    """A finite number in a range: click takes nan for one in any."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read *value*, or fail in one line."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Duration(click.ParamType[float]):
    """A duration such as 90s, 5m, 2h or 3d, in seconds."""

    name = "duration"

    def __init__(self, low: float = 0, high: float = math.inf) -> None:
        """Accept durations from *low* to *high* seconds."""
        self.shortest, self.longest = low, high

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read *value*, or fail in one line."""
        if isinstance(value, float):
            return value
        parts = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])", str(value))
        if not parts:
            self.fail(f"{value!r} is not a duration: write 90s, 5m, 2h or 3d", param, ctx)
        seconds = float(parts[1]) * UNIT_SECONDS[parts[2]]
        if not self.shortest <= seconds <= self.longest:
            limits = f"at least {self.shortest:g}s" + (
                f" and at most {self.longest:g}s" if math.isfinite(self.longest) else ""
            )
            self.fail(f"{value} is out of range: {limits}", param, ctx)
        return seconds


class Name(click.ParamType[str]):
    """A name that a shell completes."""

    def __init__(self, name: str, list_names: Callable[[], Iterable[str]]) -> None:
        """Call it *name* in help, and complete the names of *list_names*."""
        self.name = name
        self._list_names = list_names

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002 - likewise
        incomplete: str,
    ) -> list[CompletionItem]:
        """List the names that begin with *incomplete*; none if they cannot be read."""
        from click.shell_completion import CompletionItem

        try:
            return [
                CompletionItem(name) for name in self._list_names() if name.startswith(incomplete)
            ]
        except HpcverifyError:
            return []


def _list_suites() -> Iterable[str]:
    from hpcverify.plan.suite import list_suites

    return list_suites()


def _list_checks() -> Iterable[str]:
    from hpcverify.plan.catalog import list_check_names
    from hpcverify.plan.config import load_site

    return list_check_names(load_site().packages)


def _list_runs() -> Iterable[str]:
    from hpcverify.plan.config import state_dir
    from hpcverify.records.store import Store

    return (run.id for run in Store(state_dir()).list_runs(limit=MAX_COMPLETED_RUNS))


def _list_nodes() -> Iterable[str]:
    from hpcverify.fleet.ledger import LEDGER_FILE_NAME, Ledger
    from hpcverify.plan.config import state_dir
    from hpcverify.records.store import Store

    known = (state_dir() / LEDGER_FILE_NAME).exists()
    return Ledger(state_dir()).list_nodes() if known else Store(state_dir()).list_run_nodes()


SUITE = Name("suite", _list_suites)
CHECK = Name("check", _list_checks)
RUN = Name("run", _list_runs)
NODE = Name("node", _list_nodes)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
hostlist_argument = click.argument("hostlist", type=NODE, metavar="HOSTLIST")
optional_hostlist_argument = click.argument(
    "hostlist", type=NODE, metavar="[HOSTLIST]", required=False
)


def has_flag(name: str) -> bool:
    """Whether the flag *name* was given before the command, as in ``hpcverify -q run``."""
    return bool(click.get_current_context().find_root().params.get(name))


def since_option(text: str) -> Callable[..., Any]:
    """Declare ``--since DATE``; *text* is its help."""
    return click.option("--since", type=DATE, metavar="DATE", help=text)


def reason_option(text: str, default: str | None = None) -> Callable[..., Any]:
    """Declare ``--reason``, required unless it has a *default*; *text* is its help."""
    # An explicit default of None counts as a value for click 8.3 and later.
    attributes: dict[str, Any] = {"default": default, "show_default": True}
    if default is None:
        attributes = {"required": True}
    return click.option("--reason", callback=_require_text, metavar="TEXT", help=text, **attributes)


def _require_text(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("the reason is empty")
    return value.strip()


class HookOption(click.Option):
    """An option for the hooks of Slurm; help lists it apart."""


class HookCommand(click.Command):
    """A command with options for people and options for hooks."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options for people first."""
        for title, is_for_hooks in (("Options", False), ("For hooks", True)):
            options = (p for p in self.get_params(ctx) if isinstance(p, HookOption) is is_for_hooks)
            with formatter.section(title):
                formatter.write_dl([r for o in options if (r := o.get_help_record(ctx))])
