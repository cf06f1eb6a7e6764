"""What a sweep says before it begins."""

from __future__ import annotations

import pytest

from hpcverify.commands.sweep import warn_if_passive
from hpcverify.plan.config import Site


@pytest.mark.parametrize(
    ("suite", "lines"), [("prolog", 1), ("epilog", 1), ("idle", 0), ("quick", 0)]
)
def test_a_suite_of_passive_checks_is_said_to_make_no_full_pass(
    suite: str, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_if_passive(suite, Site())

    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    assert all("has only passive checks: passing it is not a full pass" in s for s in said)
