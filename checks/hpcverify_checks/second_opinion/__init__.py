"""
Ask tools of others for a second opinion on the host's cores and memory.

The people who run the largest fleets find bad cores with tools of their own. Two are
public and simple to start: stressapptest, which copies memory and verifies checksums of it,
and cpu_check, which hashes, compresses, encrypts and copies on one core and verifies on
another. Each that is on the PATH of the node runs for its share of the time (see `tools`).

What such a tool counts as a hardware error is a FAIL, whatever our own checks say: it has
written data and read others. But we cannot prove it as we prove our own products, so it is
not conclusive evidence: the node becomes a suspect, and only a rerun that fails, or a
person, takes it out of service. A tool that does not end, does not start or has compared
nothing gives no opinion, which is an ERROR. No tool installed is nothing to report.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta

import hpcverify.check as hv
from hpcverify.processes import CompletedTool, ToolRunner, name_signal, run_tool
from hpcverify.telemetry import cpu
from hpcverify.units import format_count
from hpcverify_checks.node.cores import format_ranges
from hpcverify_checks.second_opinion.tools import TOOLS, Opinion, Tool

MISCOMPARE_CODE = "miscompare"
END_SECONDS = 15.0
"""Each tool fills its memory before its time, and reads all of it afterwards."""
PATIENCE = 3
"""A tool is ended after this many times its time, as on a busy node."""
LEAST_SECONDS = 5.0
"""With less time stressapptest would take that long all the same."""


class SecondOpinionParams(hv.Params, frozen=True):
    """How long all tools run together, in equal shares, in seconds."""

    seconds: Annotated[float, Meta(ge=LEAST_SECONDS)] = 60.0


def list_installed() -> list[Tool]:
    """
    List those of `TOOLS` that are on the PATH.

    Raises:
        Skip: None is.

    """
    installed = [tool for tool in TOOLS if shutil.which(tool.name)]
    if not installed:
        names = " nor ".join(tool.name for tool in TOOLS)
        ways = ", or ".join(tool.source for tool in TOOLS)
        raise hv.Skip(f"neither {names} is installed: {ways}", hv.Cause.NOT_OBSERVABLE)
    return installed


def applies(_ctx: hv.Context) -> None:
    """
    Look for the tools before the node has cooled.

    Raises:
        Skip: None is installed.

    """
    list_installed()


def estimate(_ctx: hv.Context, params: SecondOpinionParams) -> float:
    """Add to the time of the tools what each takes to begin and to end."""
    return params.seconds + len(TOOLS) * END_SECONDS


def measure(
    _ctx: hv.Context, params: SecondOpinionParams, run: ToolRunner = run_tool
) -> Iterator[hv.CheckItem]:
    """Ask each tool that is installed; what one cannot tell, another still may."""
    installed = list_installed()
    seconds = round(max(LEAST_SECONDS, params.seconds / len(installed)))
    failed: list[hv.Unable] = []
    for tool in installed:
        try:
            yield from ask(tool, seconds, run)
        except hv.Unable as exc:
            failed.append(exc)
    if failed:
        raise failed[0]


def ask(tool: Tool, seconds: int, run: ToolRunner) -> Iterator[hv.CheckItem]:
    """
    Run *tool*, and report what it says.

    Raises:
        Unable: It says nothing: it did not end, failed on its own, or compared nothing.

    """
    command = tool.write_command(seconds, cpu.read_cores().allowed)
    with hv.operation(tool.name):
        answer = run(command, timeout=PATIENCE * (seconds + END_SECONDS))
    opinion = tool.read((answer.stdout + answer.stderr).decode(errors="replace"))
    if opinion.errors:
        yield report_errors(tool, command, opinion)
    elif answer.returncode or not opinion.compared:
        raise explain_silence(tool, command, answer, opinion)
    yield hv.Measurement(f"{tool.name}.errors", opinion.errors)
    if opinion.compared:
        yield hv.Coverage("node", f"{tool.name}: {opinion.compared} compared in {seconds} s")


def report_errors(tool: Tool, command: Sequence[str], opinion: Opinion) -> hv.Finding:
    """Report what *tool* found, of the core that it suspects if it is only one."""
    suspects = sorted(set(opinion.suspects))
    counted = format_count(opinion.errors, "hardware error")
    text = f"{tool.name} counted {counted}; the first: {opinion.first}"
    if suspects:
        noun = "core" if len(suspects) == 1 else "cores"
        text += f"; it suspects {noun} {format_ranges(suspects)}"
    return hv.Finding(
        MISCOMPARE_CODE,
        f"cpu{suspects[0]}" if len(suspects) == 1 else "node",
        text,
        {"tool": tool.name, "command": shlex.join(command), "compared": opinion.compared},
    )


def explain_silence(
    tool: Tool, command: Sequence[str], answer: CompletedTool, opinion: Opinion
) -> hv.Unable:
    """Explain why *tool* has no opinion."""
    again = f"run {shlex.join(command)}"
    if answer.returncode < 0:
        text = (
            f"{tool.name} was killed by {name_signal(-answer.returncode)}: "
            f"see the kernel log, and {again}"
        )
        return hv.Unable(text, hv.Cause.CRASHED, hv.Remedy.INSPECT)
    if answer.returncode:
        text = f"{tool.name} failed with status {answer.returncode} ({opinion.first}): {again}"
        return hv.Unable(text, hv.Cause.MISCONFIGURED, hv.Remedy.INSPECT)
    text = f"{tool.name} compared nothing: end what else keeps the node busy, and {again}"
    return hv.Unable(text, hv.Cause.UNMEASURED, hv.Remedy.RERUN)


CHECK = hv.Check(
    summary="what tools of others say of the host: stressapptest, cpu_check",
    measure=measure,
    applies=applies,
    estimate=estimate,
    params=SecondOpinionParams,
    metrics={"*.errors": hv.Metric("", "high", "hardware errors that the tool counted")},
    finding_rules=hv.fail_on(MISCOMPARE_CODE),
    placement=hv.Placement.NODE,
    timeout=900.0,
    only_named=True,  # only a burn-in has the time for what our own checks test as well
)
