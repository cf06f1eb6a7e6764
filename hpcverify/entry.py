"""
Where the command line begins: ``gate`` runs before anything else is loaded.

A job may wait for its answer, and importing the rest of the command line takes several
times as long as starting Python.
"""

from __future__ import annotations

import sys

EXIT_UNVERIFIED = 3


def main() -> None:
    """Run ``hpcverify gate`` or the command line; an error before it exits with 3, not 1 (FAIL)."""
    try:
        _run_command()
    except Exception as exc:  # noqa: BLE001 - whatever a broken installation raises
        what = " ".join(f"{type(exc).__name__}: {exc}".split())
        sys.stderr.write(
            f"hpcverify: cannot start ({what}). Fix: install it again; check PYTHONPATH and "
            "the clock\n"
        )
        sys.exit(EXIT_UNVERIFIED)


def _run_command() -> None:
    if sys.argv[1:] == ["gate"]:
        from hpcverify import gate  # noqa: PLC0415 - not for other commands

        sys.exit(gate.print_gate(gate.find_gate_path()))
    from hpcverify.run.early import run_command  # noqa: PLC0415 - not for `gate`

    run_command(_run_command_line)


def _run_command_line() -> None:
    from hpcverify.imports import replace_modules  # noqa: PLC0415 - not for `gate`

    # It comes with torch, msgspec can do without, and it takes as long to import as msgspec.
    with replace_modules({"typing_extensions": None}):
        import msgspec  # noqa: F401, PLC0415 - before anything else imports it
    from hpcverify.commands._request import read_hook_request  # noqa: PLC0415 - likewise

    request = read_hook_request(sys.argv[1:])
    if request is not None:
        from hpcverify.commands._start import verify_for_hook  # noqa: PLC0415 - likewise

        verify_for_hook(request)
    from hpcverify.cli import main as run_cli  # noqa: PLC0415 - not for hooks

    run_cli()
