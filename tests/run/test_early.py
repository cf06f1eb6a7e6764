"""The worker that is forked before the rest of the engine is there, and what it keeps open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

KEEPS = """
import os, sys, time
from hpcverify.run import early
lock, pipe = 500, 501  # which nobody opens by chance
os.dup2(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), lock)
os.dup2(os.pipe()[0], pipe)
os.environ[early.HOOKS_LOCK_VARIABLE] = str(lock)
with early.start_worker(()) as worker:
    descriptors = f"/proc/{worker.pid}/fd"
    while str(pipe) in os.listdir(descriptors):
        time.sleep(0.01)
    print(str(lock) in os.listdir(descriptors))
"""


def test_a_worker_keeps_the_lock_of_the_hooks_and_no_pipe_of_the_caller(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KEEPS, str(tmp_path / "lock")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
