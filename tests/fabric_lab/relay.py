"""
Hand frames between two interfaces, each *delay* seconds after it came.

``python -m tests.fabric_lab.relay IN OUT DELAY``: a delay in both directions, for a kernel
that has no netem. Frames keep what the kernel still has to do with them (virtio_net_hdr:
checksums, segments), so that even those of 64 KiB pass whole.
"""

from __future__ import annotations

import errno
import select
import socket
import sys
from collections import deque
from time import monotonic

SOL_PACKET = 263
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
ETH_P_ALL = 3
MAX_FRAME = 1 << 17
BUFFER = 8 << 20


def relay(names: list[str], delay: float) -> None:
    """Hand frames over until the interfaces are gone or the process is ended."""
    ends = [_open_interface(name) for name in names]
    waiting: deque[tuple[float, int, bytes]] = deque()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        left = max(0.0, waiting[0][0] - monotonic()) if waiting else None
        for end in select.select(ends, [], [], left)[0]:
            index = ends.index(end)
            waiting.append((monotonic() + delay, 1 - index, end.recv(MAX_FRAME)))
        while waiting and waiting[0][0] <= monotonic():
            _, index, frame = waiting.popleft()
            try:
                ends[index].send(frame)
            except OSError as exc:
                if exc.errno != errno.ENOBUFS:  # the link's queue is full: the frame is lost
                    raise


def _open_interface(name: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
    end.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER)
    end.bind((name, ETH_P_ALL))
    return end


if __name__ == "__main__":
    relay(sys.argv[1:3], float(sys.argv[3]))
