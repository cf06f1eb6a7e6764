"""A network, mounts and a kernel log of this process's own, so that tests do not meet."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import tempfile
from fcntl import ioctl
from pathlib import Path

import pytest

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
IFF_UP = 1
ADDRESS = "192.0.2.1"
"""For documentation only (RFC 5737). With 127.0.0.1 alone, getaddrinfo(3) resolves no IPv4 name."""
KERNEL_LOG = "6,1,1,-;Linux version of the tests\n"


def require_root() -> None:
    """Skip the test that runs, as the mark `needs("root")` does."""
    if os.geteuid():
        pytest.skip("missing: root")


def separate_node() -> None:
    """
    Give this thread, and all processes that it starts, a node of its own. Needs root.

    The node lock is a socket of the network. A full disk that one test mounts does not
    reach the node of another test, and neither do the kernel's lines about that disk.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
        for request, address in ((SIOCSIFADDR, ADDRESS), (SIOCSIFNETMASK, "255.255.255.255")):
            value = struct.pack("16sHxx4s8x", b"lo:1", socket.AF_INET, socket.inet_aton(address))
            ioctl(any_socket, request, value.ljust(40, b"\0"))
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    if Path("/dev/kmsg").exists():
        descriptor, log = tempfile.mkstemp()
        os.write(descriptor, KERNEL_LOG.encode())
        os.close(descriptor)
        subprocess.run(["mount", "--bind", log, "/dev/kmsg"], check=True)
        # A daemon of a test that writes to the kernel log must not empty it for later tests.
        subprocess.run(["mount", "-o", "remount,bind,ro", "/dev/kmsg"], check=True)
        Path(log).unlink()


def let_all_enter(folder: Path) -> None:
    """Let other users pass through all folders above *folder*, and read it."""
    for each in (folder, *folder.parents):
        if not each.stat().st_mode & 0o001:
            each.chmod(0o755)
