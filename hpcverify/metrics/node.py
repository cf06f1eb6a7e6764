"""The metrics of a run, for the text file of its suite on its node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcverify.metrics.table import VERDICT
from hpcverify.metrics.text import LabelValues, MetricFamily, make_state_set
from hpcverify.model import Run, Verdict, cap_beta_verdict, effective_verdict

LABEL_NUMBER = re.compile(r"\D* (\d+)")
"""The number that a person calls a part by, as in "GPU 3"."""
SUITE_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]")


def name_run_file(suite: str) -> str:
    """
    Name the text file of *suite*.

    Each suite has one of its own: so a run replaces what the last run of its suite said, and
    nothing else, without reading it.
    """
    return f"hpcverify_run_{SUITE_CHARACTERS.sub('_', suite)}.prom"


def list_run_families(run: Run) -> Iterator[MetricFamily]:
    """Yield the metrics of *run*."""
    suite = run.suite
    ended = run.started.timestamp() + run.seconds
    yield MetricFamily("hpcverify_run_info", {(suite, run.versions.get("hpcverify", "")): 1})
    yield MetricFamily("hpcverify_run_timestamp_seconds", {(suite,): ended})
    yield MetricFamily("hpcverify_run_duration_seconds", {(suite,): run.seconds})
    yield make_state_set("hpcverify_run_verdict", VERDICT.values, {(suite,): run.verdict.value})
    worst: dict[str, Verdict] = {}
    for result in run.results:
        worst[result.check] = max(worst.get(result.check, Verdict.PASS), effective_verdict(result))
    yield MetricFamily(
        "hpcverify_check_verdict_info",
        {(suite, check, verdict.value): 1 for check, verdict in worst.items()},
    )
    yield MetricFamily("hpcverify_finding_info", dict.fromkeys(_list_findings(run), 1))


def _list_findings(run: Run) -> Iterator[LabelValues]:
    inventory = run.inventory
    numbers = {
        part.id: number[1] if (number := LABEL_NUMBER.match(part.label)) else str(place)
        for kind in dict.fromkeys(part.kind for part in inventory.parts)
        for place, part in reversed([*enumerate(inventory.of_kind(kind))])
    }
    for result in run.results:
        for fault in result.faults:
            verdict = cap_beta_verdict(fault.verdict, result.maturity)
            if verdict >= Verdict.WARN:
                index = numbers.get(fault.part_id, "")
                kind = fault.part_kind or "node"
                yield run.suite, result.check, fault.code, verdict.value, kind, index
