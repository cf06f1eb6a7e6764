"""
The health report of one node: one page that opens anywhere.

The verdict and the next step are on top, for the operator. Every number is below, with its
limit, the limit's source and the command that measures it again, for the vendor's
technician. The same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType, SimpleNamespace
from zlib import crc32

from hpcverify.insight.judgement import FleetJudgement
from hpcverify.model import Inventory, Remedy, Run, Verdict
from hpcverify.summary.part_names import name_parts
from hpcverify.summary.rounds import count_rounds
from hpcverify.summary.run_summary import RunSummary, summarize
from hpcverify.summary.verdict import REMEDY_SENTENCES
from hpcverify.summary.wording import format_duration
from hpcverify_reports.history import build_history
from hpcverify_reports.labels import ICONS, INFO_ICON, LabeledText, format_time
from hpcverify_reports.pages import render_page
from hpcverify_reports.pictures import build_pictures, draw_places, draw_throughput
from hpcverify_reports.remedies import Repetitions, lay_out_steps
from hpcverify_reports.sections import MAX_FAULTS, build_kind_tables, build_section

MAX_OPEN_PARTS = 4
"""Parts of a step that a page shows unfolded."""


def render(
    run: Run,
    *,
    history: Sequence[Run] = (),
    repetitions: Repetitions = MappingProxyType({}),
    standing: str = "",
    judgement: FleetJudgement | None = None,
    full: bool = False,
) -> str:
    """
    Render *run* as one HTML page.

    *history* has earlier runs of the same node; *repetitions* say how often the failing
    parts have failed before; *standing* says how the node is worse than its fleet, if it is;
    *judgement* has what the fleet reached. A *full* page prints all its folded details too.
    """
    summary = summarize(run)
    demanded, milder = lay_out_steps(summary, repetitions)
    opened = {check.result.check for check in summary.checks if check.adds_evidence}
    judged = [check for check in summary.checks if check.verdict is not Verdict.SKIP]
    sections = [build_section(check, check.result, summary) for check in judged]
    page = SimpleNamespace(
        icons=(*ICONS.values(), INFO_ICON),
        info_icon=INFO_ICON,
        max_faults=MAX_FAULTS,
        max_parts=MAX_OPEN_PARTS,
        inventory=summary.inventory,
        remedies={i: REMEDY_SENTENCES[part[0].remedy] for i, part in summary.parts.items()},
        node=run.node,
        verdict=run.verdict.name,
        icon=ICONS[run.verdict],
        lede=". ".join(filter(None, (summary.gpus, summary.sentence))),
        standing=standing,
        no_action_note=REMEDY_SENTENCES[Remedy.NONE]
        if run.verdict is Verdict.PASS and not standing
        else "",
        groups=demanded,
        milder=milder,
        figures=[f for c in summary.checks for f in c.figures if run.verdict < Verdict.ERROR],
        facts=list(_list_facts(summary)),
        throughput=draw_throughput(summary),
        pictures=(*build_pictures(summary), *draw_places(run, judgement)),
        open_ids={section.id for section in sections if section.result.check in opened},
        checks=sections,
        skipped=list(_group_skips(summary)),
        full=full,
        history=build_history(run, history),
        kinds=build_kind_tables(run.inventory),
        problems=[(finding, None) for finding in run.inventory.problems],
        sensors=list(_group_sensors(run.inventory)),
        command=summary.command,
        rerun_command=summary.rerun_command if opened else "",
        versions=run.versions.items(),
        id=run.id,
        mark=make_mark(run.id, standing),
    )
    return render_page("node.html.j2", page)


def make_mark(run_id: str, standing: str) -> str:
    """Make the mark by which a page is recognized that shows a run and its *standing*."""
    return f"{run_id} {crc32(standing.encode()):08x}" if standing else run_id


def _group_skips(summary: RunSummary) -> Iterator[LabeledText]:
    """Yield why checks were skipped, and which."""
    by_reason: dict[str, list[str]] = {}
    for check in summary.checks:
        if check.verdict is Verdict.SKIP:
            by_reason.setdefault(check.result.reason, []).append(check.result.check)
    for reason, names in by_reason.items():
        yield reason, ", ".join(names)


def _list_facts(summary: RunSummary) -> Iterator[LabeledText]:
    run = summary.run
    if summary.machine:
        yield "Machine", summary.machine
    yield "Suite", run.suite
    if run.rounds > 1:
        yield "Rounds", f"{count_rounds(run)} of {run.rounds}"
    yield "Started", format_time(run.started)
    yield "Took", format_duration(run.seconds)
    yield "Run", "complete" if run.complete else "interrupted"


def _group_sensors(inventory: Inventory) -> Iterator[LabeledText]:
    """Yield the parts with the same sensors, and these sensors."""
    by_part: dict[str, list[str]] = {}
    for sensor in inventory.sensors:
        part_id, _, name = sensor.rpartition("/")
        by_part.setdefault(part_id, []).append(name)
    alike: dict[tuple[str, ...], list[str]] = {}
    for part_id, names in by_part.items():
        alike.setdefault(tuple(sorted(names)), []).append(part_id)
    for some, places in alike.items():
        yield name_parts(filter(None, places), inventory), ", ".join(some)
