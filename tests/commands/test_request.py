"""What Slurm's hooks ask for is read without click, and as click reads it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpcverify.commands._request import RunRequest, read_hook_request
from hpcverify.commands.run import command


@pytest.mark.parametrize(
    "arguments",
    [
        ("--suite", "prolog"),
        ("--suite", "epilog", "--spool", "/shared/hpc verify"),
        ("--suite", "prolog", "--spool", "/spool", "--fail-closed", "ecc xid"),
        ("--suite", "prolog", "--fail-closed", ""),
        ("--suite", "prolog", "--suite", "epilog"),
    ],
)
def test_the_arguments_of_a_hook_mean_what_click_says(arguments: Sequence[str]) -> None:
    by_click = command.make_context("run", [*arguments]).params
    assert read_hook_request(["run", *arguments]) == RunRequest(**by_click)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("run",),
        ("show", "--suite", "prolog"),
        ("run", "--suite"),
        ("run", "--suite", "--help"),
        ("run", "--suite", "prolog", "--help"),
        ("run", "--suite=prolog"),
        ("run", "--spool", "/spool"),
        ("run", "--suite", "prolog", "--strict", "yes"),
        ("run", "prolog", "--suite"),
    ],
)
def test_all_other_arguments_are_left_to_click(arguments: Sequence[str]) -> None:
    assert read_hook_request(arguments) is None
