"""
The secret that the ranks of a job know, and nobody else.

Ranks that one launcher starts inherit it. Launchers that srun starts on several nodes have
nothing in common but public numbers, and MUNGE, by which Slurm itself identifies users: the
launcher of rank 0 makes the secret, and shows everybody a credential that munged opens for
the same user alone. A credential that somebody else made is refused by its user id. If the
variable `SECRET_VARIABLE` is set, it is used instead of MUNGE.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

import hpcverify.check as hv
from hpcverify.processes import CompletedTool, run_tool
from hpcverify.records.collectives import SECRET_VARIABLE
from hpcverify_checks.ranks.seal import MIN_SECRET_CHARACTERS

SOCKET = Path("/run/munge/munge.socket.2")
"""The socket of munged, unless Slurm's configuration names another (AuthInfo)."""
TIMEOUT_SECONDS = 10.0
OPENED_STATUSES = (0, 15, 16, 17)
"""Exit statuses of unmunge (munge.h): opened; or opened, and expired, rewound or replayed. The
last three are safe: whoever replays a credential does not know the secret in it."""
MAX_CREDENTIAL_BYTES = 4096
OPENED = re.compile(rb"UID:\s*(?:\S+\s+)?\(?(\d+)\)?\s*\n\n([0-9a-f]{64})")
FIX = f"export {SECRET_VARIABLE}=$(openssl rand -hex 32) before srun, or on all nodes"


def make_secret() -> tuple[str, bytes]:
    """
    Give the secret of the ranks, and the credential by which the others learn it, if any.

    Raises:
        Unable: there is nothing that only the job's user can read.

    """
    if secret := read_secret():
        return secret, b""
    secret = secrets.token_hex(32)
    done = _run("munge", f"--restrict-uid={os.geteuid()}", "--ttl=-1", stdin=secret.encode())
    credential = done.stdout.strip()
    if done.returncode != 0 or not 0 < len(credential) <= MAX_CREDENTIAL_BYTES:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise _build_refusal(f"munge: {lines[-1] if lines else f'status {done.returncode}'}")
    return secret, credential


def read_secret() -> str:
    """
    Read the secret that the environment has; empty if it has none.

    Raises:
        Unable: it is short enough to be guessed, or no text.

    """
    secret = os.environ.get(SECRET_VARIABLE, "")
    if secret and (len(secret) < MIN_SECRET_CHARACTERS or not secret.isprintable()):
        text = f"{SECRET_VARIABLE} has fewer than {MIN_SECRET_CHARACTERS} printable characters"
        raise hv.Unable(f"{text}: {FIX}", hv.Cause.MISCONFIGURED)
    return secret


def expect_secret() -> str:
    """
    Read the secret that the environment has; empty if a credential is to be opened for it.

    Raises:
        Unable: it has none, and nothing here could open one.

    """
    secret = read_secret()
    if not secret and shutil.which("unmunge") is None:
        raise _build_refusal("unmunge is not installed")
    return secret


def open_credential(credential: bytes) -> str:
    """
    Get the secret out of a *credential*; empty if it is not of this user, and for it.

    Raises:
        Unable: there is no MUNGE here.

    """
    if not 0 < len(credential) <= MAX_CREDENTIAL_BYTES:
        return ""
    done = _run("unmunge", "--keys=UID", stdin=credential)
    opened = OPENED.fullmatch(done.stdout)
    if done.returncode not in OPENED_STATUSES or not opened or int(opened[1]) != os.geteuid():
        return ""
    return opened[2].decode()


def _run(program: str, *options: str, stdin: bytes) -> CompletedTool:
    socket = list[str]()
    if not SOCKET.exists():
        with suppress(hv.Unable):  # without Slurm
            config = run_tool(["scontrol", "show", "config"], timeout=TIMEOUT_SECONDS).stdout
            named = re.findall(r"(?m)^AuthInfo\s*=.*?socket=([^\s,]+)", config.decode())
            socket = [f"--socket={path}" for path in named]
    try:
        return run_tool([program, *socket, *options], timeout=TIMEOUT_SECONDS, stdin=stdin)
    except hv.Unable as exc:
        raise _build_refusal(str(exc)) from exc


def _build_refusal(why: str) -> hv.Unable:
    text = f"the ranks have no secret in common ({why}): {FIX}"
    return hv.Unable(text, hv.Cause.MISCONFIGURED)
