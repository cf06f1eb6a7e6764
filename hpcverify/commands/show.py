"""``hpcverify show``: one run, with its findings, measurements and limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import itemgetter

import click
from msgspec.structs import replace
from rich.text import Text

from hpcverify.check import LimitIndex, make_severity_key, severity_sort_key
from hpcverify.commands._options import CHECK, RUN, has_flag, json_option
from hpcverify.console import echo, print_json
from hpcverify.errors import ConfigError, NoRunsError, UnknownNameError
from hpcverify.insight.overview import describe_outer_result, read_outer_results
from hpcverify.model import (
    Coverage,
    Fault,
    Finding,
    Limit,
    Measurement,
    Remedy,
    Result,
    Run,
    Series,
    Shortfall,
    Verdict,
    effective_verdict,
)
from hpcverify.plan.config import state_dir
from hpcverify.plan.suite import MAX_SUITE_ROUNDS
from hpcverify.records.store import Store
from hpcverify.summary.checks import summarize_checks
from hpcverify.summary.faults import Subject, get_subject, index_faults
from hpcverify.summary.figures import format_bounds, format_scaled
from hpcverify.summary.part_names import name_parts
from hpcverify.summary.rounds import count_rounds, format_tally, group_by_check
from hpcverify.summary.run_summary import summarize
from hpcverify.summary.terminal import (
    NARROW_COLUMNS,
    Console,
    print_table,
    render_badge,
    render_headline,
    show_run,
    show_speeds,
)

Observation = Finding | Coverage | Shortfall
Item = Measurement | Observation
MEASUREMENT_HEADS = ("measurement", "part", "value", "limit", "source")
WITHIN_LIMITS = Text("ok", style="green")


@click.command("show")
@click.argument("run", type=RUN, metavar="[RUN]", default="last")
@click.option("-v", "--verbose", is_flag=True, help="Print every value with its limit.")
@click.option("--failed", is_flag=True, help="Show only results that did not pass.")
@click.option(
    "--check", "checks", type=CHECK, multiple=True, help="Show only this check; repeatable."
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    metavar="PART",
    help='Show only this part, by id or name ("GPU 3" or 3); repeatable.',
)
@click.option(
    "--round",
    "number",
    type=click.IntRange(1, MAX_SUITE_ROUNDS),
    metavar="N",
    help="Show only round N (default: the worst round of each check).",
)
@json_option
def command(
    run: str,
    checks: tuple[str, ...],
    parts: tuple[str, ...],
    number: int | None,
    *,
    verbose: bool,
    failed: bool,
    as_json: bool,
) -> None:
    """
    Show RUN: the id of a run, the first characters of an id, or "last".

    With -v, or an option that chooses values, it prints each value next to its limit; the values
    outside their limits come first.

    \b
    Examples:
      hpcverify show
      hpcverify show -v
      hpcverify show --failed
      hpcverify show last --check gemm --part "GPU 3"
      hpcverify show 20261121-034500-a1b2c3 --json
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    store = Store(state_dir())
    try:
        stored = store.load(run)
    except NoRunsError as exc:
        if as_json:  # there is no document
            raise
        echo(str(exc))
        return
    shown = stored if number is None else keep_round(stored, number)
    shown = keep_checks(shown, checks) if checks else shown
    shown = keep_parts(shown, find_parts(shown, parts)) if parts else shown
    shown = keep_failed(shown) if failed else shown
    if as_json:
        print_json(shown)
        return
    console = Console(highlight=False)
    if verbose or has_flag("verbose") or checks or parts or failed or number:
        show_values(shown, store, console)
    show_run(stored, console)
    for outer in read_outer_results(state_dir(), stored.node):
        console.print(Text(f"not found by a run: {describe_outer_result(outer)}"))


def show_values(run: Run, store: Store, console: Console) -> None:
    """Print the speeds of *run*, and the values of each check in its worst round."""
    show_speeds(summarize(run, store.make_earlier_lookup(run)), console)
    rounds = group_by_check(run.results)
    for result in (check.result for check in summarize_checks(run)):
        console.print(render_headline(replace(result, reason="")))
        if len(rounds[result.check]) > 1:
            console.print(describe_round(result, rounds[result.check]))
        show_details(result, run, console)
        console.print()


def keep_round(run: Run, number: int) -> Run:
    """
    Keep only the results of round *number*.

    Raises:
        ConfigError: there is no such round.

    """
    results = tuple(r for r in run.results if r.round == number)
    if not results:
        raise ConfigError(f"run {run.id} has no round {number}; it has {count_rounds(run)}")
    return replace(run, results=results)


def keep_checks(run: Run, names: Sequence[str]) -> Run:
    """
    Keep only the results of the checks *names*.

    Raises:
        UnknownNameError: the run has no such check.

    """
    known = {result.check for result in run.results}
    for name in names:
        if name not in known:
            raise UnknownNameError("check of this run", name, known)
    return replace(run, results=tuple(r for r in run.results if r.check in names))


def find_parts(run: Run, names: Sequence[str]) -> set[str]:
    """
    Find the ids of the parts *names*.

    Each is an id, a label, whole or up to " (", or the number of a GPU.

    Raises:
        UnknownNameError: *run* has no such part.

    """
    ids = dict.fromkeys(item.part_id for result in run.results for item in _list_items(result))
    aliases: dict[str, set[str]] = {}
    for part_id in [*(part.id for part in run.inventory.parts), *ids]:
        names_of = run.inventory.list_aliases(part_id)
        for alias in (*names_of, names_of[-1].removeprefix("GPU ")):
            aliases.setdefault(alias.casefold(), set()).add(part_id)
    for name in names:
        if name.casefold() not in aliases:
            known = {run.inventory.list_aliases(part_id)[-1] for part_id in ids}
            raise UnknownNameError("part", name, known)
    return set[str]().union(*(aliases[name.casefold()] for name in names))


def keep_parts(run: Run, ids: Collection[str]) -> Run:
    """Keep only what is about the parts *ids*."""
    narrowed = [_keep_items(result, lambda item: item.part_id in ids) for result in run.results]
    narrowed = [replace(r, faults=tuple(c for c in r.faults if c.part_id in ids)) for r in narrowed]
    return replace(run, results=tuple(r for r in narrowed if any(_list_items(r))))


def keep_failed(run: Run) -> Run:
    """Keep only the checks that did not pass, and the evidence against their parts."""
    failed = [result for result in run.results if effective_verdict(result) > Verdict.SKIP]

    def keep_bad(result: Result) -> Result:
        faults = index_faults(result)
        return _keep_items(result, lambda item: rank(item, faults)[0] > Verdict.SKIP)

    return replace(run, results=tuple(map(keep_bad, failed)))


def _list_items(result: Result) -> tuple[Item, ...]:
    return (*result.shortfalls, *result.findings, *result.coverage, *result.measurements)


def _keep_items(result: Result, keep: Callable[[Item | Series], bool]) -> Result:
    return replace(
        result,
        shortfalls=tuple(filter(keep, result.shortfalls)),
        findings=tuple(filter(keep, result.findings)),
        coverage=tuple(filter(keep, result.coverage)),
        measurements=tuple(filter(keep, result.measurements)),
        series=tuple(filter(keep, result.series)),
    )


def describe_round(result: Result, rounds: Sequence[Result]) -> Text:
    """Say which of *rounds* is shown, how all came out, and how to see another."""
    return Text(
        f"  round {result.round}, the first with the worst verdict; all {len(rounds)} rounds: "
        f"{format_tally(rounds)}; to see another: --round N"
    )


def rank(item: Item | Series, faults: Mapping[Subject, Fault]) -> tuple[Verdict, int, float]:
    """Rank *item* by the gravest of the *faults* about it."""
    if isinstance(item, Shortfall):
        return severity_sort_key(Verdict.ERROR, Remedy.NONE, math.inf)
    fault = faults.get(get_subject(item)) if isinstance(item, Measurement | Finding) else None
    return make_severity_key(fault) if fault else severity_sort_key(Verdict.PASS, Remedy.NONE)


def show_details(result: Result, run: Run, console: Console) -> None:
    """Print every fact and every measurement, once for all parts alike, the worst first."""
    faults, index = index_faults(result), LimitIndex(result.limits)
    ranked = [(rank(item, faults), item) for item in _list_items(result)]
    ranked.sort(key=itemgetter(0), reverse=True)
    alike: dict[tuple[Verdict | None, str, str, str, str], list[str]] = {}
    facts: dict[tuple[Verdict, str], list[str]] = {}
    for (verdict, *_), item in ranked:
        if isinstance(item, Measurement):
            limits = index.find(item)
            judged = verdict if verdict > Verdict.SKIP or limits else None
            alike.setdefault((judged, *format_row(item, limits)), []).append(item.part_id)
        else:
            facts.setdefault((verdict, describe(item)), []).append(item.part_id)
    for (verdict, text), places in facts.items():
        badges = [render_badge(verdict)] if verdict > Verdict.SKIP else []
        line = Text(f"{run.inventory.format_names(places)}: {text}")
        console.print(Text(" ").join([Text(" "), *badges, line]))
    rows = [
        (render_value_badge(judged), (name, name_parts(places, run.inventory), *values))
        for (judged, name, *values), places in alike.items()
    ]
    if rows and console.width < NARROW_COLUMNS:
        lines = [(badge, " ".join(filter(None, cells))) for badge, cells in rows]
        print_table(console, ("", "measured"), lines)
    elif rows:
        print_table(console, ("", *MEASUREMENT_HEADS), [(badge, *cells) for badge, cells in rows])


def describe(item: Observation) -> str:
    """Write the text of *item*, without its part: that of several may be the same."""
    if isinstance(item, Shortfall):
        return item.reason
    return f"{item.text} [{item.code}]" if isinstance(item, Finding) else item.text


def render_value_badge(judged: Verdict | None) -> Text:
    """Print whether a value is outside its limits; nothing if it has none."""
    if judged is None:
        return Text()
    return render_badge(judged) if judged > Verdict.SKIP else WITHIN_LIMITS


def format_row(item: Measurement, limits: Sequence[Limit]) -> tuple[str, str, str, str]:
    """Print the name and value of a measurement, its *limits* and their sources."""
    format_value = partial(format_scaled, unit=item.unit)
    return (
        item.name,
        format_value(item.value),
        "; ".join(format_bounds(limit, format_value) or "too noisy" for limit in limits),
        "; ".join(limit.source for limit in limits),
    )
