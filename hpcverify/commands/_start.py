"""
How a run begins: its worker starts first, and lists the hardware while the rest is imported.

This is a module of its own because `_run` reads the options, and this imports `_run`.
"""

from __future__ import annotations

import gc
from typing import NoReturn

from hpcverify.commands._request import RunRequest


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
