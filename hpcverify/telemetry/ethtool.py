"""
What a network driver tells beyond sysfs: its statistics, as ``ethtool -S`` lists them, and
the address that is burnt in (``ethtool -P``).

They are asked of the kernel by ioctl: structures and numbers are those of
``linux/ethtool.h`` and ``linux/sockios.h``. No program is started for it.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from array import array
from collections.abc import Collection

SIOCETHTOOL = 0x8946
GET_STRINGS, GET_STATISTICS, GET_PERMANENT_ADDRESS, GET_SET_INFO = 0x1B, 0x1D, 0x20, 0x37
MAC_BYTES = 6
STATISTICS_SET = 1
NAME_BYTES = 32
INTERFACE_NAME_BYTES = 16
SPARE = 1024
"""Statistics more than were announced: the kernel copies as many as there are by then, and
a driver that gains queues in between has more of them."""


def read_statistics(interface: str, names: Collection[str]) -> dict[str, int]:
    """Read those of *names* that the driver of *interface* counts; none if it refuses."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            return _read_statistics(asked, interface, names)
    except OSError:
        return {}


def read_permanent_mac(interface: str) -> str | None:
    """Read the MAC that is burnt in, as in ``b8:3f:d2:00:00:01``; None if it is not known."""
    request = struct.pack("=II", GET_PERMANENT_ADDRESS, MAC_BYTES).ljust(8 + MAC_BYTES, b"\0")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            answer = _ask(asked, interface, request)
    except OSError:
        return None
    size = struct.unpack_from("=II", answer)[1]
    mac = answer[8:]
    return mac.hex(":") if size == MAC_BYTES and any(mac) else None


def _read_statistics(
    asked: socket.socket, interface: str, names: Collection[str]
) -> dict[str, int]:
    info = _ask(asked, interface, struct.pack("=IIQI", GET_SET_INFO, 0, 1 << STATISTICS_SET, 0))
    command, _, sets, count = struct.unpack_from("=IIQI", info)
    if command != GET_SET_INFO or not sets or not count:
        return {}
    room = count + SPARE
    head = struct.pack("=III", GET_STRINGS, STATISTICS_SET, count)
    listed = _ask(asked, interface, head.ljust(12 + room * NAME_BYTES, b"\0"))
    end = 12 + NAME_BYTES * min(count, struct.unpack_from("=III", listed)[2])
    starts = range(12, end, NAME_BYTES)
    texts = (listed[start : start + NAME_BYTES].partition(b"\0")[0] for start in starts)
    listed_names = (text.decode(errors="replace") for text in texts)
    places = {name: place for place, name in enumerate(listed_names) if name in names}
    if not places:
        return {}
    head = struct.pack("=II", GET_STATISTICS, count)
    values = _ask(asked, interface, head.ljust(8 + room * 8, b"\0"))
    known = struct.unpack_from("=II", values)[1]
    return {
        name: struct.unpack_from("=Q", values, 8 + place * 8)[0]
        for name, place in places.items()
        if place < known
    }


def _ask(asked: socket.socket, interface: str, request: bytes) -> bytes:
    answer = array("B", request)
    address, _ = answer.buffer_info()
    name = interface.encode()[: INTERFACE_NAME_BYTES - 1].ljust(INTERFACE_NAME_BYTES, b"\0")
    fcntl.ioctl(asked, SIOCETHTOOL, struct.pack("=16sQ16x", name, address))
    return answer.tobytes()
