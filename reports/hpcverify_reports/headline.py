"""What came of a run, in a sentence."""

from __future__ import annotations

from hpcverify.model import Result, Run, Verdict, effective_verdict
from hpcverify.rounds import choose_worst_rounds, explain_left_out

_VERDICT_VERBS = {
    Verdict.PASS: "passed",
    Verdict.SKIP: "skipped",
    Verdict.WARN: "warned",
    Verdict.ERROR: "could not be judged",
    Verdict.FAIL: "failed",
}


def list_decisive_results(run: Run) -> list[Result]:
    """List the checks that made the verdict what it is, by their worst round."""
    return [
        r
        for r in choose_worst_rounds(run.results)
        if effective_verdict(r) is run.verdict and run.verdict is not Verdict.PASS
    ]


def write_lede(run: Run) -> str:
    """Say in a sentence or two what came of the run."""
    if not run.results:
        return "No check had its turn, so nothing is known."
    early = "" if run.complete else " It ended early: not every check had its turn."
    early += f" {explain_left_out(run).capitalize()}." if run.left_out else ""
    verdicts = [effective_verdict(result) for result in choose_worst_rounds(run.results)]
    # An interrupted run is an ERROR of which none of its checks need be one.
    leading = run.verdict if run.verdict in verdicts else max(verdicts)
    if all(verdict is Verdict.PASS for verdict in verdicts):
        return f"All {len(verdicts)} checks that ran passed.{early}"
    milder = [
        f"{verdicts.count(verdict)} {_VERDICT_VERBS[verdict]}"
        for verdict in (Verdict.ERROR, Verdict.WARN, Verdict.SKIP)
        if verdict is not leading and verdict in verdicts
    ]
    counted = f"{verdicts.count(leading)} of {len(verdicts)} checks {_VERDICT_VERBS[leading]}"
    return f"{', '.join([counted, *milder])}.{early}"
