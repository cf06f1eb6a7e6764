"""
A network of switches and nodes on this machine, whose links can be broken.

Each node is a network namespace with two interfaces, as most clusters have: ``mgmt0``, by
which Slurm reaches it and which is never at fault, and ``net0``, by which jobs talk. A
switch is a bridge; the switches are joined by an uplink to one spine. The bridges are in a
namespace of their own; in that of the caller there is one interface, ``mgmt``.

A namespace lives as long as a process in it, and those that hold them end with this one:
nothing is left behind, whatever happens. Addresses are those for tests of networks (RFC
2544).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNET = 0x40000000
DATA = "net0"
"""The interface of a node that jobs use."""
CONTROLLER = "ctl"
MAX_NODES = 200
MAX_SEGMENTS = 65535
"""Of what the kernel hands over at once, as it is by itself."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Network:
    """Nodes at their switches."""

    switches: Mapping[str, Sequence[str]]
    holders: Mapping[str, int]
    """The process that holds the namespace of each node, and of the "fabric"."""
    mbit: float
    """What a healthy link carries each way, in Mbit/s. An uplink carries that for each node."""

    @property
    def nodes(self) -> list[str]:
        """All nodes, in the order of their addresses."""
        return [node for nodes in self.switches.values() for node in nodes]

    def management_address(self, node: str) -> str:
        """Give the address by which Slurm reaches a node, or the controller."""
        return f"198.18.0.{_number(self.nodes, node)}"

    def data_address(self, node: str) -> str:
        """Give the address by which jobs reach a node; the controller is on no data network."""
        if node == CONTROLLER:
            return self.management_address(node)
        return f"198.19.0.{_number(self.nodes, node)}"

    def describe_for_slurm(self) -> str:
        """Say where each daemon is, as slurm-lab.sh reads it (LAB_NETWORK)."""
        return "".join(
            f"{node} {self.holders.get(node, '-')} {self.management_address(node)}"
            f" {self.data_address(node)}\n"
            for node in (*self.nodes, CONTROLLER)
        )

    def describe_topology(self) -> str:
        lines = [f"SwitchName={s} Nodes={','.join(n)}" for s, n in self.switches.items()]
        return "\n".join([*lines, f"SwitchName=spine Switches={','.join(self.switches)}", ""])

    @contextmanager
    def inside(self, name: str) -> Generator[None]:
        """Have this thread, and what it starts, in the network of a node or the fabric."""
        with ExitStack() as opened:
            home = opened.enter_context(Path("/proc/thread-self/ns/net").open())
            there = opened.enter_context(Path(f"/proc/{self.holders[name]}/ns/net").open())
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def do(self, where: str, *commands: str) -> None:
        """Run *commands* of ip, tc and nft in the network of a node or the fabric."""
        with self.inside(where):
            _run(commands)

    def count_received(self, node: str) -> int:
        """Count the bytes that a node has received from other nodes."""
        with self.inside(node):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        line = next(line for line in lines if line.split(":")[0].strip() == DATA)
        return int(line.partition(":")[2].split()[0])

    @contextmanager
    def slow_to_send(self, node: str, mbit: float) -> Generator[None]:
        """Let a node send no more than *mbit* Mbit/s."""
        with self._shaped(node, [DATA], mbit, self.mbit):
            yield

    @contextmanager
    def slow_to_receive(self, node: str, mbit: float) -> Generator[None]:
        """Let a switch send no more than *mbit* Mbit/s to a node."""
        with self._shaped("fabric", [node], mbit, self.mbit):
            yield

    @contextmanager
    def low_rate(self, node: str, mbit: float) -> Generator[None]:
        """Let a node neither send nor receive more than *mbit* Mbit/s."""
        with self.slow_to_send(node, mbit), self.slow_to_receive(node, mbit):
            yield

    @contextmanager
    def slow_link(self, sender: str, receiver: str, mbit: float) -> Generator[None]:
        """Let *sender* send no more than *mbit* Mbit/s to *receiver*; to others as ever."""
        add = f"tc class add dev {DATA} parent 1:"
        self.do(
            sender,
            f"tc qdisc del dev {DATA} root",
            f"tc qdisc add dev {DATA} root handle 1: htb default 2",
            f"{add} classid 1:1 htb rate {mbit}mbit quantum 60000",
            f"{add} classid 1:2 htb rate {self.mbit}mbit quantum 60000",
            f"tc filter add dev {DATA} parent 1: protocol ip"
            f" u32 match ip dst {self.data_address(receiver)}/32 flowid 1:1",
        )
        try:
            yield
        finally:
            self.do(sender, f"tc qdisc del dev {DATA} root", _shape(DATA, self.mbit))

    @contextmanager
    def slow_switch(self, switch: str, mbit: float) -> Generator[None]:
        """Let a switch exchange no more than *mbit* Mbit/s with the others, each way."""
        healthy = self.mbit * len(self.switches[switch])
        with self._shaped("fabric", [f"{switch}-up", f"{switch}-down"], mbit, healthy):
            yield

    @contextmanager
    def lossy(self, node: str, percent: int) -> Generator[None]:
        """Lose some of the packets that a node sends."""
        # Else a packet would be what the kernel hands over at once: up to 64 KiB of a stream.
        self.do(node, f"ip link set {DATA} gso_max_segs 1")
        self.do(
            "fabric",
            "nft add table netdev faults",
            f"nft add chain netdev faults {node}"
            f" {{ type filter hook ingress device {node} priority 0; }}",
            f"nft add rule netdev faults {node} numgen random mod 100 < {percent} drop",
        )
        try:
            yield
        finally:
            self.do("fabric", f"nft delete chain netdev faults {node}")
            self.do(node, f"ip link set {DATA} gso_max_segs {MAX_SEGMENTS}")

    @contextmanager
    def unplugged(self, node: str) -> Generator[None]:
        """Take the cable of a node out of its switch."""
        self.do("fabric", f"ip link set {node} down")
        try:
            yield
        finally:
            self.do("fabric", f"ip link set {node} up")

    @contextmanager
    def delayed(self, node: str, seconds: float) -> Generator[None]:
        """Delay all that a node sends and receives by *seconds* more."""
        switch = next(name for name, nodes in self.switches.items() if node in nodes)
        self.do(
            "fabric",
            f"ip link add name {node}-a type veth peer name {node}-b",
            f"ip link set {node} nomaster",
            f"ip link set {node}-a up",
            f"ip link set {node}-b master {switch} up",
        )
        command = [sys.executable, "-m", "tests.fabric_lab.relay", node, f"{node}-a", str(seconds)]
        try:
            with self.inside("fabric"):
                relay = subprocess.Popen(command, stdout=subprocess.PIPE)
            with relay:
                try:
                    assert relay.stdout is not None
                    assert relay.stdout.readline() == b"ready\n"
                    yield
                finally:
                    relay.kill()
        finally:
            self.do("fabric", f"ip link del {node}-a", f"ip link set {node} master {switch}")

    @contextmanager
    def _shaped(
        self, where: str, interfaces: Sequence[str], mbit: float, healthy: float
    ) -> Generator[None]:
        self.do(where, *(_shape(interface, mbit) for interface in interfaces))
        try:
            yield
        finally:
            self.do(where, *(_shape(interface, healthy) for interface in interfaces))


@contextmanager
def a_network(switches: Mapping[str, Sequence[str]], mbit: float) -> Generator[Network]:
    """
    Build a network with the nodes of each of *switches*; it goes with the block.

    Its links carry *mbit* Mbit/s: so little that they, and not the CPUs of a busy machine,
    are what collectives wait for.
    """
    with ExitStack() as held:
        names = ["fabric", *(node for nodes in switches.values() for node in nodes)]
        holders = {name: held.enter_context(_hold_namespace()) for name in names}
        network = Network(switches, holders, mbit)
        assert len(network.nodes) <= MAX_NODES
        _build_fabric(network)
        try:
            yield network
        finally:
            # Else it goes a little later, with its peer: the next network could meet it.
            _run(["ip link del mgmt"])


def _build_fabric(network: Network) -> None:
    fabric = network.holders["fabric"]
    own = f"{network.management_address(CONTROLLER)}/24"
    _run(
        [
            f"ip link add name mgmt type veth peer name {CONTROLLER} netns {fabric}",
            f"ip address add {own} dev mgmt",
            "ip link set mgmt up",
        ]
    )
    commands = [
        *_add_switch("mgmt"),
        f"ip link set {CONTROLLER} master mgmt up",
        *_add_switch("spine"),
    ]
    for switch, nodes in network.switches.items():
        commands += [
            *_add_switch(switch),
            f"ip link add name {switch}-up type veth peer name {switch}-down",
            f"ip link set {switch}-up master {switch} up",
            f"ip link set {switch}-down master spine up",
            _shape(f"{switch}-up", network.mbit * len(nodes)),
            _shape(f"{switch}-down", network.mbit * len(nodes)),
        ]
        for node in nodes:
            holder = network.holders[node]
            commands += [
                f"ip link add name {node} type veth peer name {DATA} netns {holder}",
                f"ip link set {node} master {switch} up",
                _shape(node, network.mbit),
                f"ip link add name m-{node} type veth peer name mgmt0 netns {holder}",
                f"ip link set m-{node} master mgmt up",
            ]
    network.do("fabric", *commands)
    for node in network.nodes:
        network.do(
            node,
            "ip link set lo up",
            f"ip address add {network.data_address(node)}/24 dev {DATA}",
            f"ip address add {network.management_address(node)}/24 dev mgmt0",
            f"ip link set {DATA} up",
            _shape(DATA, network.mbit),
            "ip link set mgmt0 up",
        )


def _add_switch(name: str) -> list[str]:
    return [f"ip link add name {name} type bridge", f"ip link set {name} up"]


def _shape(interface: str, mbit: float) -> str:
    """Give the command that lets no more than *mbit* Mbit/s out of an interface."""
    return f"tc qdisc replace dev {interface} root tbf rate {mbit}mbit burst 64kb latency 5ms"


def _number(nodes: Sequence[str], node: str) -> int:
    return 254 if node == CONTROLLER else nodes.index(node) + 1


@contextmanager
def _hold_namespace() -> Generator[int]:
    """Give the process of a new network namespace, which ends when this process does."""
    # No addresses of IPv6: they come late, and half of a test would use them.
    script = "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; echo ready; exec cat"
    command = ["unshare", "--net", "sh", "-ec", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n", "a network of its own takes root"
        yield holder.pid


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _run(commands: Iterable[str]) -> None:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    for command in commands:
        done = subprocess.run(
            command.split(), env={"PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
