"""
Processes of Python that are forked where others would be started.

To import torch takes seconds, and a run has a worker for each GPU. A child that is to run
``python -P -m MODULE`` goes on from its parent in place of a fresh interpreter: it has
what its parent had imported, and no GPU in use (see `gpu.list_gpus`).
"""

from __future__ import annotations

import atexit
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-P", "-m")
STDERR = 2


class ForkingPopen(subprocess.Popen[Any]):
    """As `subprocess.Popen`, whose child never comes to replace itself."""

    def __init__(self, args: Any, *more: Any, **kwargs: Any) -> None:
        if not isinstance(args, str | bytes) and tuple(args)[: len(COMMAND)] == COMMAND:
            module, *arguments = tuple(args)[len(COMMAND) :]
            kept = tuple(kwargs.get("pass_fds", ()))
            kwargs["preexec_fn"] = lambda: _become(module, arguments, kept)
        super().__init__(args, *more, **kwargs)


def _become(module: str, arguments: Sequence[str], kept: Collection[int]) -> None:
    """Run *module* in this child, after its descriptors are in place; never returns."""
    status: Any = 1
    try:
        for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if number > STDERR and number not in kept:
                with suppress(OSError):  # that of the listing itself
                    os.close(number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, 1, closefd=False)  # noqa: SIM115 - for as long as we live
            for number, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as exc:
        status = exc.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()  # there is no other way
        os._exit(status if isinstance(status, int) else int(status is not None))


def install() -> None:
    """Have whoever starts a process of Python fork it."""
    setattr(subprocess, "Popen", ForkingPopen)  # noqa: B010 - a class
