"""
The verdict in words: what every output says about a run.

Terminal, log, HTML, Markdown and JUnit take from here the order of the checks, the counts and
the next step; what is wrong with which part is a `diagnosis`. A check always counts by its
`effective_verdict`: in beta it never fails, and if it is required, its skip is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcverify.check import make_severity_key
from hpcverify.model import Inventory, Remedy, Result, Run, Verdict, effective_verdict
from hpcverify.summary.actions import (
    INTERRUPTED_REASON,
    Action,
    is_all_skipped,
    list_actions,
    list_deciding,
    list_part_names,
    recall_gone_parts,
)
from hpcverify.summary.diagnosis import MAX_NAMED, diagnose, name_checks
from hpcverify.summary.rounds import choose_worst_rounds, explain_left_out

VERDICT_VERBS = {
    Verdict.FAIL: "failed",
    Verdict.ERROR: "could not be judged",
    Verdict.WARN: "warned",
    Verdict.PASS: "passed",
    Verdict.SKIP: "skipped",
}
"""The verbs for counts, as in "2 of 8 checks failed"."""
DRAIN = "drain the node"
"""What comes first after a FAIL, whatever its remedy."""
REMEDY_SENTENCES = {
    Remedy.NONE: "Nothing to do.",
    Remedy.RERUN: "Run the check again before acting on it.",
    Remedy.FIX_CHECKER: "Fix the check: this is not evidence against the hardware.",
    Remedy.FIX_CONFIGURATION: "Correct the node's configuration, then run again.",
    Remedy.INSPECT: "Inspect the part: seating, cabling, cooling, logs.",
    Remedy.RESET_GPU: "Drain the node and reset the GPU.",
    Remedy.REBOOT: "Drain the node and reboot it.",
    Remedy.REPLACE: "Take the part out of service and replace it.",
    Remedy.CONTACT_VENDOR: "Send this report to the vendor.",
}
"""What to do, for outputs that list the parts beside it."""
REMEDY_STEPS = {
    Remedy.NONE: "",
    Remedy.RERUN: "run {checks} again",
    Remedy.FIX_CHECKER: "fix the check {checks}",
    Remedy.FIX_CONFIGURATION: "correct the configuration of {parts}",
    Remedy.INSPECT: "inspect {parts}",
    Remedy.RESET_GPU: f"{DRAIN} and reset {{parts}}",
    Remedy.REBOOT: f"{DRAIN} and reboot it",
    Remedy.REPLACE: "replace {parts}",
    Remedy.CONTACT_VENDOR: "send the vendor the report on {parts}",
}
"""The same as a line that names the parts; after a FAIL it begins with `DRAIN`."""
VENDOR_REMEDIES = frozenset({Remedy.REPLACE, Remedy.CONTACT_VENDOR})
"""Those for which a vendor asks for evidence."""
MAX_LINE_CHARACTERS = 240
"""Characters of a line of progress."""
MAX_REASON_CHARACTERS = 900
"""Characters of the reason of a run or of a node, which may be several diagnoses."""


def rank_results(results: Iterable[Result]) -> list[Result]:
    """Order *results* by what they count as, then by severity; skips come last."""
    return sorted(results, key=_rank, reverse=True)


def _rank(result: Result) -> tuple[bool, tuple[Verdict, int, float]]:
    verdict = effective_verdict(result)
    keys = map(make_severity_key, list_deciding(result))
    return verdict is not Verdict.SKIP, max(keys, default=(verdict, 0, 0.0))


def rank_checks(run: Run) -> list[Result]:
    """Order the checks of *run* by their worst rounds."""
    return rank_results(choose_worst_rounds(run.results))


def summarize_run(run: Run) -> str:
    """Summarize the results of *run* in a sentence or two."""
    verdicts = [effective_verdict(result) for result in choose_worst_rounds(run.results)]
    if not verdicts:
        return "No check was run: nothing is known about this node."
    # An interrupted run is an ERROR, though none of its checks need be one.
    leading = run.verdict if run.verdict in verdicts else max(verdicts)
    count, total = verdicts.count(leading), len(verdicts)
    checks = "check" if total == 1 else "checks"
    counted = f"{count} {checks}" if count == total else f"{count} of {total} {checks}"
    others = [
        f"{verdicts.count(verdict)} {VERDICT_VERBS[verdict]}"
        for verdict in (Verdict.ERROR, Verdict.WARN, Verdict.SKIP)
        if verdict is not leading and verdict in verdicts
    ]
    nothing = ": nothing was verified" if leading is Verdict.SKIP else ""
    sentences = (
        f"{', '.join([f'{counted} {VERDICT_VERBS[leading]}', *others])}{nothing}",
        "" if run.complete else INTERRUPTED_REASON,
        explain_left_out(run),
    )
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences if text)


def list_deciding_actions(run: Run) -> list[Action]:
    """List the actions that the verdict of *run* calls for, the gravest first."""
    return [action for action in list_actions(run) if action.verdict is run.verdict]


def needs_vendor(run: Run) -> bool:
    """Whether *run* fails a part so that its vendor wants the evidence."""
    remedies = {action.remedy for action in list_deciding_actions(run)}
    return run.verdict is Verdict.FAIL and not remedies.isdisjoint(VENDOR_REMEDIES)


def format_next_steps(run: Run) -> str:
    """Say what to do about which parts, and how to verify it; empty after a PASS."""
    actions = list_deciding_actions(run)
    if not actions:
        return ""
    if is_all_skipped(run):
        chosen = "choose checks of what this node has (hpcverify checks)"
        return f"{chosen}, then: {write_rerun_command(run)}"
    # The command at the end runs the checks again; it is a step only by itself.
    others = [action for action in actions if action.remedy is not Remedy.RERUN]
    steps = ", ".join(_format_step(action, run) for action in others or actions)
    if run.verdict is Verdict.FAIL and not steps.startswith(DRAIN):
        steps = f"{DRAIN}, {steps}"
    return f"{steps}{', then:' if others else ':'} {write_rerun_command(run)}"


def write_sentence(action: Action) -> str:
    """Say what *action* is, for an output that lists its parts beside it."""
    sentence = REMEDY_SENTENCES[action.remedy]
    stays = action.verdict is not Verdict.FAIL or sentence.lower().startswith(DRAIN)
    return sentence if stays else f"{DRAIN.capitalize()}. {sentence}"


def _format_step(action: Action, run: Run) -> str:
    ids = [part.part_id for part in action.parts]
    fixes = tuple(dict.fromkeys(part.fix for part in action.parts))
    is_known = all(fixes) and len(fixes) <= MAX_NAMED
    if action.remedy is Remedy.FIX_CONFIGURATION:
        if is_known:
            return ", ".join(fixes)
        if "node" in ids:
            ids = ["node"]  # that of its parts is part of it
    parts = _name_parts(ids, recall_gone_parts(run))
    checks = dict.fromkeys(name for part in action.parts for name in part.checks)
    step = REMEDY_STEPS[action.remedy].format(
        parts=parts,
        checks=name_checks(tuple(checks)) or "the suite",
    )
    return f"{step} ({', '.join(fixes)})" if is_known else step


def _name_parts(ids: Sequence[str], inventory: Inventory) -> str:
    names = list_part_names(ids, inventory)
    if len(names) <= MAX_NAMED:
        return ", ".join(names)
    some = ", ".join(
        name for part_id in ids[:MAX_NAMED] for name in list_part_names([part_id], inventory)
    )
    return f"{some} (+{len(ids) - MAX_NAMED} more)"


def write_rerun_command(run: Run) -> str:
    """Write the command that reruns what did not pass; all that ran, if that was most."""
    results = choose_worst_rounds(run.results)
    bad = [r.check for r in results if effective_verdict(r) >= Verdict.WARN]
    few = run.complete and len(bad) <= len(results) / 2
    return write_command(run.suite, bad if few else run.chosen)


def write_command(suite: str, checks: Sequence[str] = ()) -> str:
    """Write the command that runs *suite*, or only *checks* of it."""
    import shlex  # noqa: PLC0415 - a healthy node is told nothing

    chosen = [word for name in checks for word in ("--check", name)]
    return shlex.join(["hpcverify", "run", "--suite", suite, *chosen])


def explain_verdict(run: Run) -> str:
    """Explain the verdict of *run* in a line: its diagnoses, the gravest first."""
    return join_lines(d.line for d in diagnose(run) if d.verdict is run.verdict)


def join_lines(lines: Iterable[str]) -> str:
    """Join *lines* into a reason of at most `MAX_REASON_CHARACTERS`, each line once."""
    return shorten("; ".join(dict.fromkeys(filter(None, lines))), MAX_REASON_CHARACTERS)


def explain_weight(result: Result) -> str:
    """Explain why *result* does not count as its verdict; empty if it does."""
    if effective_verdict(result) is result.verdict:
        return ""
    if result.verdict is Verdict.SKIP:
        return "skipped, but required: counts as an error"
    return "failed, but in beta: counts as a warning"


def summarize_skips(run: Run) -> str:
    """
    List in one line what was skipped; empty if nothing was.

    It gives the most common reason; the others are in ``hpcverify show``.
    """
    reasons: dict[str, list[str]] = {}
    for result in choose_worst_rounds(run.results):
        if effective_verdict(result) is Verdict.SKIP:
            reasons.setdefault(result.reason, []).append(result.check)
    if not reasons:
        return ""
    reason, checks = max(reasons.items(), key=lambda pair: len(pair[1]))
    others = [name for why, names in reasons.items() if why != reason for name in names]
    line = f"{len(checks) + len(others)} skipped: {reason} ({', '.join(checks)})"
    return "; for other reasons: ".join(filter(None, (line, ", ".join(others))))


def shorten(text: str, characters: int = MAX_LINE_CHARACTERS) -> str:
    """Shorten *text* to fit in a line: at the end of a word, unless that leaves too little."""
    if len(text) <= characters:
        return text
    words = text[:characters].rpartition(" ")[0]
    kept = words if len(words) > characters // 3 else text[: characters - 1]
    return f"{kept.rstrip(' (,;:')}…"
