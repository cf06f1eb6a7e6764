"""
Suites: which checks, in what order, with what parameters, in how much time.

A suite is a TOML file. Those that ship are beside the checks; a site's own are beside
its site file and come first. `make_plan` turns one into typed values and finds every
error in the file before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from hpcverify.check import (
    ANY_PART,
    Check,
    Context,
    Params,
    Placement,
    Rule,
    RuleKey,
    Setting,
    Unable,
    find_rule,
    has_bound,
    is_pattern,
    list_rule_keys,
    matches,
    may_cover,
    rank_pattern,
    refine_by_all,
)
from hpcverify.errors import BrokenCheckError, ConfigError, UnknownNameError
from hpcverify.model import FABRIC_SUITE, Cause, CheckItem, Remedy, Verdict
from hpcverify.plan import catalog
from hpcverify.plan.config import (
    MetricSettings,
    Site,
    convert_config,
    node_name,
    read_toml,
    suites_dir,
)
from hpcverify.plan.hostlist import expand
from hpcverify.trust import refuse_if_others_can_change, refuse_tree_others_can_change
from hpcverify.units import convert_unit

MAX_FRACTION = 10
MAX_RUN_SECONDS = 30 * 86400.0
"""No run takes a month."""
MAX_SUITE_ROUNDS = 1000
EVERY_OTHER_CHECK = "*"
"""The name of an entry for every check that the suite does not name."""


FABRIC_HOW = "hpcverify fabric bisect tests between nodes, and so do sweep and admit"


class SuiteEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[check]]`` of a suite."""

    name: str
    """A check, or ``*`` for every check that the suite does not name."""
    params: dict[str, Any] = {}
    """Parameters of the check; those of the site file go before them."""
    limits: MetricSettings = {}
    """Limits by measurement, as in the site file; those of the site file go before them."""
    required: bool = False
    """Whether a SKIP counts as ERROR."""
    timeout: Annotated[float, Meta(gt=0, le=MAX_RUN_SECONDS)] | None = None
    """Seconds after which it is ended; by default the check's own."""


class Suite(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A suite file."""

    summary: str
    """When to use the suite."""
    budget: Annotated[float, Meta(gt=0, le=MAX_RUN_SECONDS)]
    """Seconds for all rounds together."""
    rounds: Annotated[int, Meta(ge=1, le=MAX_SUITE_ROUNDS)] = 1
    """How often to go through all checks, with different data each time."""
    settle: Annotated[float, Meta(ge=0, le=MAX_RUN_SECONDS)] = 0
    """The most seconds to wait, before a check that loads the node, until the devices
    are cool and idle again."""
    check: Annotated[tuple[SuiteEntry, ...], Meta(min_length=1)]
    name: str = ""


class Step(Struct, frozen=True, kw_only=True):
    """One check of a plan, ready to run and judge."""

    name: str
    check: Check[Any]
    params: Params
    overrides: tuple[Rule, ...] = ()
    """What the site and the suite say about the limits on this node, strongest first."""
    required: bool = False
    timeout: float

    @property
    def is_active(self) -> bool:
        """Whether it loads the node instead of only reading."""
        return self.check.placement is not Placement.PASSIVE

    @property
    def rules(self) -> dict[RuleKey, Rule]:
        """The rules in force; a pattern of an override inherits from each rule that it meets."""
        rules: dict[RuleKey, Rule] = {}
        for metric, part in list_rule_keys(self.check.rules, self.overrides):
            own_rules, met = self.check.rules, list[str]()
            if is_pattern(metric) and not any(matches(metric, own) for own in own_rules):
                met = [own for own in own_rules if may_cover(metric, own)]
            for own in met:
                applying = [
                    o for o in self.overrides if any(o.covers(m, (part,)) for m in (metric, own))
                ]
                rules[f"{metric} as {own}", part] = refine_by_all(self.check.rules[own], applying)
            if not met and (hit := find_rule(self.check.rules, self.overrides, metric, (part,))):
                rules[hit[0]] = hit[1]
        return rules


class Plan(Struct, frozen=True, kw_only=True):
    """The steps of a run, in order and *rounds* times, within *budget* seconds."""

    suite: str
    chosen: tuple[str, ...] = ()
    """The checks that were asked for by name; none: the whole suite."""
    budget: float
    rounds: int = 1
    settle: float = 0
    steps: tuple[Step, ...]


def list_suites() -> list[str]:
    """List the names of all suites, including the site's own."""
    return sorted({path.stem for path in _list_suite_files()})


def _list_suite_files() -> Iterator[Path]:
    site = suites_dir()
    if site.is_dir():
        yield from sorted(site.glob("*.toml"))
    for folder in import_module(catalog.BUILTIN_PACKAGE).__path__:
        yield from sorted((Path(folder) / "suites").glob("*.toml"))


def load_suite(name: str) -> Suite:
    """Read the suite *name*, the site's own first."""
    if name == FABRIC_SUITE:
        raise ConfigError(f"the suite {name} does not run on a single node: {FABRIC_HOW}")
    for path in _list_suite_files():
        if path.stem == name:
            # Anyone who can change a suite that ships can change our code as well.
            if path.parent == suites_dir():
                refuse_if_others_can_change(path)
            return msgspec.structs.replace(read_toml(path, Suite), name=name)
    raise UnknownNameError("suite", name, list_suites())


def make_plan(
    suite: Suite,
    site: Site,
    only: tuple[str, ...] = (),
    *,
    packages: tuple[str, ...] = (),
    node: str = "",
) -> Plan:
    """Prepare the checks of *suite*, or *only* these, of *packages*, with the limits of *node*."""
    _refuse_untrusted_packages(site)
    packages = packages or site.packages
    known = set(catalog.list_check_names(packages))
    for name in only:
        if name not in known:
            raise UnknownNameError("check", name, known)
    for file in site.files:
        for table, named in (("limits", file.content.limits), ("params", file.content.params)):
            for name in named.keys() - known:
                unknown = UnknownNameError("check", name, known)
                raise ConfigError(f"{file.path}: {table}: {unknown}")
    entries = [
        entry
        for entry in _expand_entries(suite, known)
        if (entry.name in only if only else entry in suite.check or _runs_unnamed(entry, packages))
    ]
    entries += [SuiteEntry(name=n) for n in only if n not in {e.name for e in entries}]
    return Plan(
        suite=suite.name,
        chosen=only,
        budget=suite.budget,
        rounds=suite.rounds,
        settle=suite.settle,
        steps=tuple(
            _build_step(entry, suite, site, packages, node or node_name(), chosen=only)
            for entry in entries
        ),
    )


def refuse_endless(todo: Plan) -> None:
    """Refuse a check whose parameter `seconds` exceeds the budget or its timeout."""
    for step in todo.steps:
        seconds = getattr(step.params, "seconds", None)
        if not isinstance(seconds, int | float):
            continue
        subject = f"suite {todo.suite}: check {step.name}: seconds = {seconds:g}"
        if seconds >= todo.budget:
            raise ConfigError(
                f"{subject} does not fit into the suite's budget of {todo.budget:g} s. "
                "Fix: raise the budget, or lower seconds"
            )
        if seconds >= step.timeout:
            raise ConfigError(
                f"{subject} does not fit into the check's timeout of {step.timeout:g} "
                "s. Fix: raise the timeout, or lower seconds"
            )


def _refuse_untrusted_packages(site: Site) -> None:
    if not site.check_packages:
        return
    from importlib.util import find_spec  # noqa: PLC0415 - only for a site's own

    for package in site.check_packages:
        try:  # find it without running it: it may be anybody's
            spec = find_spec(package)
        except (ImportError, ValueError, TypeError) as exc:
            raise ConfigError(f"{_name_packages_file(site)} {package!r}: {exc}") from exc
        if spec is None or spec.submodule_search_locations is None:
            raise ConfigError(
                f"{_name_packages_file(site)} {package!r} cannot be imported. Fix: "
                "install it, or remove it from check_packages"
            )
        for folder in spec.submodule_search_locations:
            # If others can add a module, theirs may be imported instead of ours.
            refuse_if_others_can_change(Path(folder).parent)
            refuse_tree_others_can_change(Path(folder))


def _name_packages_file(site: Site) -> str:
    return f"{site.find_file('check_packages')}: check package"


def _expand_entries(suite: Suite, known: set[str]) -> Iterator[SuiteEntry]:
    named = {entry.name for entry in suite.check}
    if len(named) < len(suite.check):
        raise ConfigError(f"suite {suite.name}: a check is listed twice")
    for entry in suite.check:
        if entry.name != EVERY_OTHER_CHECK:
            yield entry
            continue
        for name in sorted(known - named):
            yield msgspec.structs.replace(entry, name=name)


def _runs_unnamed(entry: SuiteEntry, packages: tuple[str, ...]) -> bool:
    try:
        return not catalog.load_check(entry.name, packages).only_named
    except BrokenCheckError:  # or a mistake in it would hide it
        return True


def _build_broken_step(name: str, why: str) -> Step:
    """Build the step of a check that cannot be imported: it says so, and the others run."""

    def measure(_ctx: Context, _params: Params) -> Iterator[CheckItem]:
        raise Unable(why, Cause.CHECKER, Remedy.FIX_CHECKER)

    check = Check(summary=why, measure=measure, placement=Placement.NODE)
    return Step(name=name, check=check, params=Params(), timeout=check.timeout)


def _build_step(
    entry: SuiteEntry,
    suite: Suite,
    site: Site,
    packages: tuple[str, ...],
    node: str,
    *,
    chosen: tuple[str, ...],
) -> Step:
    subject = f"suite {suite.name}: check {entry.name}"
    try:
        check = catalog.load_check(entry.name, packages)
    except UnknownNameError as exc:
        raise ConfigError(f"suite {suite.name}: {exc}") from exc
    except BrokenCheckError as exc:
        if entry.name in chosen or entry in suite.check:
            raise
        return _build_broken_step(entry.name, str(exc))
    for file in site.files:  # first by itself, so that a mistake is reported as one of its file
        if own := file.content.params.get(entry.name):
            convert_config(own, check.params, f"{file.path}: params.{entry.name}")
    params = convert_config(
        entry.params | site.params.get(entry.name, {}), check.params, f"{subject}: params"
    )
    overrides: tuple[Rule, ...] = ()
    for settings, source in (
        (entry.limits, f"suite {suite.name}"),
        *((file.content.limits.get(entry.name, {}), file.path) for file in site.files),
    ):
        stronger = _build_overrides(check, entry.name, settings, source, node)
        overrides = (*stronger, *overrides)
        for override in stronger:
            _refuse_unmeetable(override, check.rules, overrides, f"{source}: limits.{entry.name}")
    return Step(
        name=entry.name,
        check=check,
        params=params,
        overrides=(*overrides, *(check.demand(params, node) if check.demand else ())),
        required=entry.required,
        timeout=check.timeout if entry.timeout is None else entry.timeout,
    )


def _build_overrides(
    check: Check[Any], name: str, settings: MetricSettings, source: str, node: str
) -> list[Rule]:
    """List what one file says about the limits on *node*, the most specific first."""
    ranked: list[tuple[tuple[Any, ...], Rule]] = []
    for metric, several in settings.items():
        taken: set[tuple[str, str]] = set()
        for setting in (several,) if isinstance(several, Setting) else several:
            override = _build_override(check, name, metric, setting, source)
            part, subject = override.key[1], f"{source}: limits.{name}.{metric!r}"
            nodes = _expand_nodes(setting, subject) if setting.nodes else [""]
            if both := taken & {(part, each) for each in nodes}:
                where = ", ".join(filter(None, min(both))).replace(ANY_PART, "any part")
                raise ConfigError(f"{subject}: two limits for {where}. Fix: keep one")
            taken.update((part, each) for each in nodes)
            rank = (bool(setting.nodes), part != ANY_PART, rank_pattern(metric), rank_pattern(part))
            if not setting.nodes or node in nodes:
                ranked.append((rank, override))
    ranked.sort(key=lambda pair: pair[0], reverse=True)
    return [override for _, override in ranked]


def _expand_nodes(setting: Setting, subject: str) -> list[str]:
    try:
        return expand(setting.nodes)
    except ConfigError as exc:
        raise ConfigError(f"{subject}: nodes: {exc}") from exc


def _build_override(
    check: Check[Any], name: str, metric: str, setting: Setting, source: str
) -> Rule:
    named = check.find_metric(metric)
    measured = [named] if named else []
    if is_pattern(metric):
        measured = [m for n, m in check.metrics.items() if may_cover(metric, n)]
    units = {m.unit for m in measured}
    if not measured:
        unknown = UnknownNameError("measurement", metric, check.metrics)
        raise ConfigError(f"{source}: limits.{name}: {unknown}")
    if len(units) > 1 and (setting.low, setting.high) != (None, None):
        several = " and ".join(sorted(repr(unit) for unit in units))
        raise ConfigError(
            f"{source}: limits.{name}.{metric!r}: covers measurements in {several}. "
            "Fix: set a limit for each unit"
        )
    try:
        low, high = (
            bound
            if bound is None or setting.unit is None
            else convert_unit(bound, setting.unit, measured[0].unit)
            for bound in (setting.low, setting.high)
        )
    except ConfigError as exc:
        raise ConfigError(f"{source}: limits.{name}.{metric!r}: {exc}") from exc
    if fault := _explain_unsound(setting):
        raise ConfigError(f"{source}: limits.{name}.{metric!r}: {fault}")
    terms = msgspec.structs.asdict(setting) | {"low": low, "high": high, "unit": None}
    return Rule(**terms, metric=metric, source=source)


def _refuse_unmeetable(
    override: Rule,
    rules: Mapping[str, Rule],
    overrides: Sequence[Rule],
    subject: str,
) -> None:
    """Refuse an override that, with what it changes, bounds nothing or admits no value."""
    covered = [metric for metric in rules if fnmatchcase(metric, override.metric)]
    hits = (find_rule(rules, overrides, m, (override.key[1],)) for m in (override.metric, *covered))
    made = [hit[1] for hit in hits if hit]
    if not any(has_bound(rule) for rule in made):
        raise ConfigError(
            f"{subject}.{override.metric!r} has no bound. Fix: set low, high or a fraction"
        )
    for rule in made:
        if rule.low is not None and rule.high is not None and rule.low > rule.high:
            raise ConfigError(
                f"{subject}.{override.metric!r}: with inherited bounds, low {rule.low:g} is "
                f"above high {rule.high:g}. Fix: set both"
            )


def _explain_unsound(setting: Setting) -> str | None:
    low, high = setting.low, setting.high
    fractions = [setting.of_spec, setting.of_siblings, setting.of_baseline]
    settings = (low, high, *fractions, setting.otherwise, setting.remedy, setting.optional)
    if all(value is None for value in settings):
        return "the limit has no bound. Fix: set low, high or a fraction"
    if low is not None and high is not None and low > high:
        return f"low {low:g} is above high {high:g}"
    if any(f is not None and not 0 < f <= MAX_FRACTION for f in fractions):
        return f"a fraction must be between 0 and {MAX_FRACTION}, as 0.85"
    if setting.otherwise in (Verdict.PASS, Verdict.SKIP):
        return "otherwise must be warn, error or fail"
    return None
