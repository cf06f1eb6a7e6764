"""Find what no rerun could take back."""

from __future__ import annotations

from collections.abc import Iterator

from hpcverify.check import (
    Check,
    CheckItem,
    Context,
    Finding,
    FindingRule,
    Params,
    Placement,
    Verdict,
)


class GraveParams(Params, frozen=True):
    """Whether there is anything to find."""

    wrong: bool = True


def measure(ctx: Context, params: GraveParams) -> Iterator[CheckItem]:
    """Say that a word was wrong."""
    if params.wrong:
        yield Finding("wrong_word", ctx.device.part, "a word was wrong")


CHECK = Check(
    summary="a wrong word that the parameters choose",
    measure=measure,
    params=GraveParams,
    metrics={},
    finding_rules={"wrong_word": FindingRule(Verdict.FAIL, conclusive=True)},
    placement=Placement.NODE,
)
