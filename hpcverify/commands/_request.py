"""
The options of ``hpcverify run``.

The arguments that Slurm's hooks give are read here: a job waits for the answer, and click
takes longer to import than eight GPUs to read. click reads all others, and says what is
wrong with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

COMMAND = "run"
HOOK_OPTIONS = {"--suite": "suite", "--spool": "spool", "--fail-closed": "fail_closed"}
"""The options of the hooks (slurm/hooks.sh), each with a value, and their fields."""


class RunRequest(Struct, frozen=True, kw_only=True):
    """The options of the command line."""

    suite: str
    checks: tuple[str, ...] = ()
    quiet: bool = False
    """Do not print progress."""
    as_json: bool = False
    """Print the run document on standard output."""
    outputs: tuple[str, ...] = ()
    """Files to write: run documents (``.json``) or pages."""
    verbose: bool = False
    strict: bool = False
    force: bool = False
    accept_parts: bool = False
    expect_gpus: int | None = None
    spool: str | None = None
    wait: float = 0
    """Seconds to wait while another run holds the node."""
    fail_closed: str | None = None
    """Names of checks; if given, only their conclusive evidence makes the exit status 1."""


def read_hook_request(arguments: Sequence[str]) -> RunRequest | None:
    """Read *arguments* as the hooks give them; None if they are not of that form."""
    command, names, values = arguments[:1], arguments[1::2], arguments[2::2]
    if list(command) != [COMMAND] or "--suite" not in names or len(names) != len(values):
        return None
    if not HOOK_OPTIONS.keys() >= set(names) or any(v.startswith("-") for v in values):
        return None
    fields = {HOOK_OPTIONS[name]: value for name, value in zip(names, values, strict=True)}
    return RunRequest(**fields)  # type: ignore[arg-type] # all of them are text
