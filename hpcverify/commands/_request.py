"""
The options of ``hpcverify run``, and how it begins.

The arguments that Slurm's hooks give are read here: a job waits for the answer, and click
takes longer to import than eight GPUs to read. click reads all others, and says what is
wrong with them.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import NoReturn

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


def verify_for_hook(request: RunRequest) -> NoReturn:
    """Verify this node as *request* says, and exit with the status."""
    from hpcverify.console import exit_with, handle_output_errors

    def verify() -> int:
        with handle_output_errors(lambda: True):
            return verify_node(request)

    exit_with(verify)


def verify_node(request: RunRequest) -> int:
    """Verify this node as *request* says; return the exit status."""
    from hpcverify.plan.suite import load_suite
    from hpcverify.run.early import start_worker

    suite = load_suite(request.suite)
    with start_worker(request.checks or [entry.name for entry in suite.check]) as worker:
        # The worker does not need this, and lists the hardware meanwhile.
        from hpcverify.commands._run import carry_out

        gc.freeze()  # what was imported is not searched for garbage
        return carry_out(request, suite, worker)
