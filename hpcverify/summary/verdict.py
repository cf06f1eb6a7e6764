"""
The verdict in words, for every output of a run.

Terminal, log, HTML, Markdown and JUnit take from here the order of the checks, the counts and
the next step; what is wrong with which part is a `diagnosis`. A check always counts by its
`effective_verdict`: in beta it never fails, and if it is required, its skip is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpcverify.model import MIN_PARTS_FOR_ALL, Inventory, Remedy, Run, Verdict
from hpcverify.summary.checks import CheckSummary
from hpcverify.summary.diagnosis import MAX_NAMED, Diagnosis, diagnose_run, name_checks
from hpcverify.summary.faults import (
    INTERRUPTED_REASON,
    PartFaults,
    Step,
    choose_deciding,
    is_all_skipped,
    list_checks,
    list_part_names,
    list_run_faults,
)
from hpcverify.summary.rounds import explain_left_out

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
"""What to do, for outputs that list the parts next to it."""
REMEDY_STEPS = {
    Remedy.NONE: "",
    Remedy.RERUN: "run {checks} again",
    Remedy.FIX_CHECKER: "fix the check {checks}",
    Remedy.FIX_CONFIGURATION: "correct the configuration of {parts}",
    Remedy.INSPECT: "inspect {parts}",
    Remedy.RESET_GPU: "reset {parts}",
    Remedy.REBOOT: "reboot the node",
    Remedy.REPLACE: "replace {parts}",
    Remedy.CONTACT_VENDOR: "send the vendor the report on {parts}",
}
"""The same as a step that names the parts."""
DISRUPTIVE_REMEDIES = frozenset({Remedy.RESET_GPU, Remedy.REBOOT})
"""Those for which the node is drained whatever the verdict."""
VENDOR_REMEDIES = frozenset({Remedy.REPLACE, Remedy.CONTACT_VENDOR})
"""Those for which a vendor asks for evidence."""
MAX_LINE_CHARACTERS = 240
"""Characters of a line of progress."""
MAX_REASON_CHARACTERS = 900
"""Characters of the reason of a run or of a node, which may be several diagnoses."""


def summarize_run(run: Run, checks: Sequence[CheckSummary]) -> str:
    """Summarize the results of *run*, which has these *checks*, in a sentence or two."""
    verdicts = [check.verdict for check in checks]
    if not verdicts:
        return "No check ran: the state of this node is unknown."
    # An interrupted run is an ERROR, though none of its checks need be one.
    leading = run.verdict if run.verdict in verdicts else max(verdicts)
    count, total = verdicts.count(leading), len(verdicts)
    noun = "check" if total == 1 else "checks"
    counted = f"{count} {noun}" if count == total else f"{count} of {total} {noun}"
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


def needs_vendor(run: Run) -> bool:
    """Whether *run* fails a part so that its vendor wants the evidence."""
    failures = (fault for fault in list_run_faults(run) if fault.verdict is Verdict.FAIL)
    return any(fault.remedy in VENDOR_REMEDIES for fault in failures)


def format_next_steps(
    run: Run, steps: Mapping[Step, Sequence[PartFaults]], inventory: Inventory, rerun_command: str
) -> str:
    """Write the steps for the parts, and the command that verifies them; empty after a PASS."""
    demanded = {
        remedy: parts for (verdict, remedy), parts in steps.items() if verdict is run.verdict
    }
    if not demanded:
        return ""
    if is_all_skipped(run):
        chosen = "choose checks of what this node has (hpcverify checks)"
        return f"{chosen}, then: {rerun_command}"
    # The command at the end runs the checks again; it is a step only by itself.
    others = [remedy for remedy in demanded if remedy is not Remedy.RERUN]
    said = [_format_step(r, demanded[r], inventory) for r in others or demanded]
    drain = [DRAIN] if needs_drain(run.verdict, demanded) else []
    return f"{', '.join(drain + said)}{', then:' if others else ':'} {rerun_command}"


def needs_drain(verdict: Verdict, remedies: Iterable[Remedy]) -> bool:
    """Whether the node is to be drained before *remedies* are applied."""
    return verdict is Verdict.FAIL or not DISRUPTIVE_REMEDIES.isdisjoint(remedies)


def write_diagnosis_step(diagnosis: Diagnosis) -> str:
    """Write the step that *diagnosis* calls for; empty if that is only to run it again."""
    if diagnosis.remedy is Remedy.RERUN:
        return ""
    if diagnosis.fix and diagnosis.remedy is Remedy.FIX_CONFIGURATION:
        return diagnosis.fix
    parts = "the node" if not diagnosis.names else "them" if diagnosis.part_ids[1:] else "it"
    checks = name_checks(diagnosis.checks)
    step = REMEDY_STEPS[diagnosis.remedy].format(parts=parts, checks=checks)
    return f"{step} ({diagnosis.fix})" if diagnosis.fix else step


def write_step(step: Step) -> str:
    """Describe *step*, for an output that lists its parts next to it."""
    verdict, remedy = step
    sentence = REMEDY_SENTENCES[remedy]
    stays = verdict is not Verdict.FAIL or sentence.lower().startswith(DRAIN)
    return sentence if stays else f"{DRAIN.capitalize()}. {sentence}"


def _format_step(remedy: Remedy, parts: Sequence[PartFaults], inventory: Inventory) -> str:
    ids = [part[0].part_id for part in parts]
    fixes = tuple(dict.fromkeys(part[0].fix for part in parts))
    is_known = all(fixes) and len(fixes) <= MAX_NAMED
    if remedy is Remedy.FIX_CONFIGURATION:
        if is_known:
            return ", ".join(fixes)
        gpus = {gpu.id for gpu in inventory.of_kind("gpu")}
        if "node" in ids or MIN_PARTS_FOR_ALL <= len(gpus) == len(gpus.intersection(ids)):
            ids = ["node"]  # that of its parts is part of it
    names = list_part_names(ids, inventory)
    if len(names) > MAX_NAMED:
        some = (list_part_names([part_id], inventory)[0] for part_id in ids[:MAX_NAMED])
        names = [f"{', '.join(some)} (+{len(ids) - MAX_NAMED} more)"]
    checks = list_checks(fault for part in parts for fault in choose_deciding(part))
    step = REMEDY_STEPS[remedy].format(
        parts=", ".join(names), checks=name_checks(checks) or "the suite"
    )
    return f"{step} ({', '.join(fixes)})" if is_known else step


def write_rerun_command(run: Run, checks: Sequence[CheckSummary]) -> str:
    """Write the command that reruns what did not pass; all that ran, if that was most."""
    ran = dict.fromkeys(result.check for result in run.results)
    failed = {check.result.check for check in checks if check.verdict >= Verdict.WARN}
    few = run.complete and len(failed) <= len(ran) / 2
    return write_command(run.suite, [name for name in ran if name in failed] if few else run.chosen)


def write_command(suite: str, checks: Sequence[str] = ()) -> str:
    """Write the command that runs *suite*, or only *checks* of it."""
    import shlex  # noqa: PLC0415 - a healthy node has no next step

    chosen = [word for name in checks for word in ("--check", name)]
    return shlex.join(["hpcverify", "run", "--suite", suite, *chosen])


def explain_verdict(run: Run) -> str:
    """
    Explain the verdict of *run* in a line: its diagnoses, the worst first.

    A diagnosis that only calls for a rerun is left out if there is another, as in the next steps.
    """
    deciding = [d for d in diagnose_run(run) if d.verdict is run.verdict]
    found = [d for d in deciding if d.remedy is not Remedy.RERUN]
    return join_lines(d.line for d in found or deciding)


def join_lines(lines: Iterable[str]) -> str:
    """
    Join *lines* into a reason of at most `MAX_REASON_CHARACTERS`, each line once.

    If they are longer, each gets its share, so that a long one does not hide those after it.
    """
    kept = list(dict.fromkeys(filter(None, lines)))
    if len(whole := "; ".join(kept)) <= MAX_REASON_CHARACTERS:
        return whole
    room = MAX_REASON_CHARACTERS - len("; ") * (len(kept) - 1)
    share = max(MAX_LINE_CHARACTERS, room // len(kept))
    return shorten("; ".join(shorten(line, share) for line in kept), MAX_REASON_CHARACTERS)


def summarize_skips(checks: Sequence[CheckSummary]) -> str:
    """
    List in one line what was skipped; empty if nothing was.

    It gives the most common reason; the others are in ``hpcverify show``.
    """
    reasons: dict[str, list[str]] = {}
    for check in checks:
        if check.verdict is Verdict.SKIP:
            reasons.setdefault(check.result.reason, []).append(check.result.check)
    if not reasons:
        return ""
    reason, names = max(reasons.items(), key=lambda pair: len(pair[1]))
    others = [name for why, some in reasons.items() if why != reason for name in some]
    line = f"{len(names) + len(others)} skipped: {reason} ({', '.join(names)})"
    return "; for other reasons: ".join(filter(None, (line, ", ".join(others))))


def shorten(text: str, characters: int = MAX_LINE_CHARACTERS) -> str:
    """Shorten *text* to fit in a line: at the end of a word, unless that leaves too little."""
    if len(text) <= characters:
        return text
    words = text[:characters].rpartition(" ")[0]
    kept = words if len(words) > characters // 3 else text[: characters - 1]
    return f"{kept.rstrip(' (,;:')}…"
