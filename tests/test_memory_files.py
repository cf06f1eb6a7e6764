"""Files in memory, also where a sandbox forbids what makes them."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import subprocess
from pathlib import Path

import pytest

from hpcverify.memory_files import create_memory_file
from tests.cli import Cli

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
NUMBERS = {"x86_64": {"memfd_create": 319, "sched_setaffinity": 203}}
"""The numbers of calls of the kernel: asm/unistd_64.h."""
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


def forbid(call: str, error: int = errno.EPERM) -> None:
    """Have the kernel refuse *call* to this process from now on, and to those that it starts."""
    rules = [
        (LOAD, 0, 0, 0),
        (EQUAL, 0, 1, NUMBERS[platform.machine()][call]),
        (RETURN, 0, 0, ERRNO | error),
        (RETURN, 0, 0, ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program) == 0


def test_a_file_in_memory_is_on_no_disk() -> None:
    made = create_memory_file("name")
    try:
        assert "memfd:name" in str(Path(f"/proc/self/fd/{made}").readlink())
    finally:
        os.close(made)


@pytest.mark.skipif(platform.machine() not in NUMBERS, reason="other numbers of calls")
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("memfd_create", errno.EPERM),
        ("memfd_create", errno.ENOSYS),
        ("sched_setaffinity", errno.EPERM),
    ],
)
def test_a_run_in_a_sandbox_measures_as_elsewhere(cli: Cli, call: str, error: int) -> None:
    done = subprocess.run(
        [*cli.command, "run", "--check", "steady"],
        env=cli.environment,
        capture_output=True,
        text=True,
        preexec_fn=lambda: forbid(call, error),
        check=False,
    )
    assert (done.returncode, "PASS  steady" in done.stderr) == (0, True), done.stderr
    assert len(cli.list_documents()) == 1
