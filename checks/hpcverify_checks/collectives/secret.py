"""
Where the ranks of a job get the secret from that they all know and nobody else does.

Ranks that one launcher starts inherit it. Launchers that srun starts on several nodes have
nothing in common but public numbers, and MUNGE, by which Slurm itself knows who is who: the
launcher of rank 0 makes the secret, and shows everybody a credential that munged opens for
the same user alone. A credential that somebody else made is refused by its user id. Where
the variable `SECRET_VARIABLE` is set, it is used instead, and MUNGE is not asked.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from pathlib import Path

from hpcverify.check import Cause, Unable
from hpcverify.processes import CompletedTool, run_tool
from hpcverify.records.collectives import SECRET_VARIABLE
from hpcverify_checks.common.seal import MIN_SECRET_CHARACTERS

SOCKET = Path("/run/munge/munge.socket.2")
"""Where munged is, unless Slurm's configuration says otherwise (AuthInfo)."""
TIMEOUT_SECONDS = 10.0
OPENED_STATUSES = (0, 15, 16, 17)
"""Of unmunge (munge.h): opened; or opened, and expired, rewound or replayed. The last three
are no danger: who replays a credential does not know the secret in it."""
MAX_CREDENTIAL_BYTES = 4096
OPENED = re.compile(rb"UID:\s*(?:\S+\s+)?\(?(\d+)\)?\s*\n\n([0-9a-f]{64})")
FIX = f"export {SECRET_VARIABLE}=$(openssl rand -hex 32) before srun, or on all nodes"


def make_secret() -> tuple[str, bytes]:
    """
    Give the secret of the ranks, and the credential by which the others learn it, if any.

    Raises:
        Unable: there is nothing that only the job's user can read.

    """
    if given := read_secret():
        return given, b""
    secret = secrets.token_hex(32)
    only = f"--restrict-uid={os.geteuid()}"
    done = _run("munge", only, "--ttl=-1", stdin=secret.encode())
    credential = done.stdout.strip()
    if done.returncode != 0 or not 0 < len(credential) <= MAX_CREDENTIAL_BYTES:
        raise _build_refusal(f"munge: {_find_last_line(done)}")
    return secret, credential


def read_secret() -> str:
    """
    Read the secret that the environment has; empty if it has none.

    Raises:
        Unable: it is short enough to be guessed, or no text.

    """
    given = os.environ.get(SECRET_VARIABLE, "")
    if given and (len(given) < MIN_SECRET_CHARACTERS or not given.isprintable()):
        text = f"{SECRET_VARIABLE} has fewer than {MIN_SECRET_CHARACTERS} printable characters"
        raise Unable(f"{text}: {FIX}", Cause.MISCONFIGURED)
    return given


def expect_secret() -> str:
    """
    Read the secret that the environment has; empty if a credential is to be opened for it.

    Raises:
        Unable: it has none, and nothing here could open one.

    """
    given = read_secret()
    if not given and shutil.which("unmunge") is None:
        raise _build_refusal("unmunge is not installed")
    return given


def open_credential(credential: bytes) -> str:
    """
    Get the secret out of a *credential*; empty if it is not of this user, and for it.

    Raises:
        Unable: there is no MUNGE here.

    """
    if not 0 < len(credential) <= MAX_CREDENTIAL_BYTES:
        return ""
    done = _run("unmunge", "--keys=UID", stdin=credential)
    found = OPENED.fullmatch(done.stdout)
    if done.returncode not in OPENED_STATUSES or not found or int(found[1]) != os.geteuid():
        return ""
    return found[2].decode()


def _run(program: str, *options: str, stdin: bytes) -> CompletedTool:
    socket = () if SOCKET.exists() else tuple(f"--socket={path}" for path in _ask_slurm())
    try:
        return run_tool([program, *socket, *options], timeout=TIMEOUT_SECONDS, stdin=stdin)
    except Unable as exc:
        raise _build_refusal(str(exc)) from exc


def _ask_slurm() -> list[str]:
    """Ask where munged is, if it is not in its usual place."""
    try:
        done = run_tool(["scontrol", "show", "config"], timeout=TIMEOUT_SECONDS)
    except Unable:  # then there is none
        return []
    return re.findall(r"^AuthInfo\s*=.*?socket=([^\s,]+)", done.stdout.decode(), re.MULTILINE)


def _build_refusal(why: str) -> Unable:
    text = f"the ranks have no secret in common ({why}): {FIX}"
    return Unable(text, Cause.MISCONFIGURED)


def _find_last_line(done: CompletedTool) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"status {done.returncode}"
