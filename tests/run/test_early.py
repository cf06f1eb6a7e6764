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


FORKS = """
import os, sys
from hpcverify.run import early
known = [name for name in sys.argv[1:] if f"hpcverify_checks.{name}" in sys.modules]
fork = os.fork
def count():
    loaded = [name for name in sys.argv[1:] if f"hpcverify_checks.{name}" in sys.modules]
    print(known, loaded)
    return fork()
os.fork = count
with early.start_worker(sys.argv[1:]):
    sys.stdout.flush()
"""


def test_engine_and_worker_import_no_check_twice() -> None:
    command = [sys.executable, "-c", FORKS, "ecc", "nic"]
    assert subprocess.check_output(command, text=True) == "[] ['ecc', 'nic']\n"


RETURNS = """
from hpcverify.processes import run_tool
from hpcverify.run import early
early.run_command(lambda: print(run_tool(["false"], timeout=300).returncode))
"""


def test_the_status_of_a_program_is_read_also_where_the_caller_ignores_sigchld() -> None:
    """Without a reset, waitpid(2) fails with ECHILD, and subprocess returns 0."""
    line = 'trap \'\' CHLD; exec "$0" -c "$1"'
    output = subprocess.check_output(["bash", "-c", line, sys.executable, RETURNS], text=True)
    assert output == "1\n"
