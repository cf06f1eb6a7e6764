"""The faults of the fabric act on the links that they name, and on no other: plain TCP says so."""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from threading import Thread
from time import monotonic
from typing import NamedTuple

import pytest

from tests.fabric_lab.network import Network

pytestmark = pytest.mark.needs("root")

SLOW = 20.0
"""Mbit/s of a slow link."""
MIB = 1 << 20
PATIENCE = 60.0
FAST_MBIT = 4 * SLOW
"""A link is free if it is faster, since the machine may be busy."""


class Transfer(NamedTuple):
    """How long a stream took: *size* bytes, and then one byte back."""

    size: int
    seconds: float

    @property
    def mbit(self) -> float:
        """Its rate, in Mbit/s."""
        return self.size * 8 / self.seconds / 1e6


def transfer(network: Network, sender: str, receiver: str, size: int = MIB) -> Transfer:
    with network.inside(receiver):
        server = socket.create_server((network.data_address(receiver), 0))
    with network.inside(sender):
        client = socket.create_connection(server.getsockname(), timeout=PATIENCE)
    with server, client:
        peer, _ = server.accept()
        peer.settimeout(PATIENCE)
        reader = Thread(target=_read_and_answer, args=(peer, size))
        reader.start()
        started = monotonic()
        client.sendall(bytes(size))
        client.recv(1)
        ended = monotonic()
        reader.join()
    return Transfer(size, ended - started)


def _read_and_answer(peer: socket.socket, size: int) -> None:
    with peer:
        while size:
            size -= len(peer.recv(MIB))
        peer.sendall(b"!")


def rates(network: Network) -> dict[str, float]:
    """Measure each direction between all nodes, in Mbit/s; keys are "n1>n2"."""
    return {
        f"{a}>{b}": transfer(network, a, b).mbit
        for a in network.nodes
        for b in network.nodes
        if a != b
    }


def slow_ones(network: Network) -> set[str]:
    """Name the directions that are not free."""
    return {name for name, mbit in rates(network).items() if mbit < FAST_MBIT}


@pytest.mark.timed
def test_a_healthy_fabric_is_free_in_every_direction(network: Network) -> None:
    assert slow_ones(network) == set()


@pytest.mark.timed
def test_a_slow_sender_is_slow_to_all_and_receives_as_ever(network: Network) -> None:
    with network.slow_to_send("n2", SLOW):
        assert slow_ones(network) == {"n2>n1", "n2>n3", "n2>n4"}
        assert transfer(network, "n2", "n3").mbit < 2 * SLOW  # a burst goes free
    assert slow_ones(network) == set()


@pytest.mark.timed
def test_a_slow_receiver_is_slow_from_all_and_sends_as_ever(network: Network) -> None:
    with network.slow_to_receive("n3", SLOW):
        assert slow_ones(network) == {"n1>n3", "n2>n3", "n4>n3"}
    assert slow_ones(network) == set()


@pytest.mark.timed
def test_a_slow_link_is_slow_in_one_direction_between_two_nodes(network: Network) -> None:
    with network.slow_link("n1", "n4", SLOW):
        assert slow_ones(network) == {"n1>n4"}
    assert slow_ones(network) == set()


@pytest.mark.timed
def test_a_slow_switch_is_slow_to_the_others_and_free_within(network: Network) -> None:
    with network.slow_switch("sw2", SLOW):
        across = {"n1>n3", "n1>n4", "n2>n3", "n2>n4", "n3>n1", "n3>n2", "n4>n1", "n4>n2"}
        assert slow_ones(network) == across
    assert slow_ones(network) == set()


@pytest.mark.timed
def test_a_lossy_node_sends_again_and_again(network: Network) -> None:
    with network.lossy("n1", 15):
        assert transfer(network, "n1", "n2", 8 * MIB).mbit < FAST_MBIT
        assert transfer(network, "n3", "n4").mbit > FAST_MBIT
    assert slow_ones(network) == set()


def round_trip(network: Network, a: str, b: str) -> float:
    """Give the quickest of some round trips, in seconds."""
    return min(transfer(network, a, b, 1).seconds for _ in range(5))


@pytest.mark.timed
def test_a_delayed_node_answers_late_both_ways(network: Network) -> None:
    late = 0.02
    with network.delayed("n4", late):
        assert 2 * late <= round_trip(network, "n4", "n1") < 3 * late
        assert 2 * late <= round_trip(network, "n1", "n4") < 3 * late
        assert round_trip(network, "n1", "n3") < late
    assert round_trip(network, "n1", "n4") < late


@pytest.mark.parametrize("node", ["n1", "n3"])
def test_an_unplugged_node_hears_nothing_until_it_is_back(network: Network, node: str) -> None:
    with network.unplugged(node), pytest.raises(OSError):  # noqa: PT011 — a timeout, or no route
        reach(network, "n2", node, timeout=2)
    reach(network, "n2", node)


def reach(network: Network, a: str, b: str, timeout: float = PATIENCE) -> None:
    """Open a connection within *timeout* seconds; a port that was down may take a while."""
    with network.inside(b):
        server = socket.create_server((network.data_address(b), 0))
    until = monotonic() + timeout
    with server, network.inside(a):
        while True:
            try:
                socket.create_connection(server.getsockname(), timeout=timeout).close()
            except OSError:
                if monotonic() > until:
                    raise
            else:
                return


@pytest.mark.timed
def test_faults_of_two_nodes_act_at_the_same_time(network: Network) -> None:
    faults: list[AbstractContextManager[None]] = [
        network.slow_to_send("n1", SLOW), network.slow_to_receive("n2", SLOW)
    ]  # fmt: skip
    with faults[0], faults[1]:
        assert slow_ones(network) == {"n1>n2", "n1>n3", "n1>n4", "n3>n2", "n4>n2"}
