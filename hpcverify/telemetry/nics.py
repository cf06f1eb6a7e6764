"""
Network adapters and their ports: what they are, whether they are up, and what they count.

A port is what a cable is plugged into: the InfiniBand port of an adapter, or the Ethernet
port with whatever RDMA counters belong to it. What only stands for others is none: a bond,
a VLAN, a bridge, a veth, IPoIB, a virtual function, a representor or a subfunction, and
neither is a radio. In a virtual machine, a function that serves another interface is none:
the host takes it away and gives it back as it likes.

The kernel answers many of these files by asking the firmware, which can take for ever when
that is dead (mlx5: minutes for each command). So the ports are read in a thread beside this
one, and a port that does not answer in time is named and left behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.model import Part
from hpcverify.telemetry import aer, ethtool, pci, sysfs
from hpcverify.telemetry.visit import Visit

INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
ETHERNET_TYPE, IPOIB_TYPE = "1", "32"
"""ARPHRD_ETHER and ARPHRD_INFINIBAND of ``linux/if_arp.h``."""
BURNT_IN_ADDRESS, SET_ADDRESS = "0", "3"
"""NET_ADDR_PERM and NET_ADDR_SET of ``linux/netdevice.h``: the latter is that of a team, or
somebody chose it."""
IS_ENABLED = 1
"""IFF_UP of ``linux/if.h``: somebody switched the interface on."""
PHYSICAL_FUNCTION = "pf"
"""In ``phys_port_name`` of what stands in the host for a function (``pf0vf1``); the port
itself is ``p0`` (net/devlink of Linux)."""
PLANES_PREFIX = "smi"
"""How a device with the planes of an XDR port is named, beside that of its adapter."""
SUBFUNCTION = ".sf."
"""In the name of the auxiliary device that is a piece of an adapter."""
VIRTUAL_DRIVERS = frozenset(
    {"virtio_net", "ena", "efa", "gve", "mana", "hv_netvsc", "vmxnet3", "vif", "xen_netfront"}
)
"""Drivers of adapters that a hypervisor makes up: their speed is what it likes to say."""

CARRIER_FALLS = "net carrier_down_count"
"""The carrier also goes when somebody sets the interface up anew, and with mlx5 when he
changes its queues (mlx5e_switch_priv_channels)."""
LINK_FALLS = "link_down_events"
"""How the statistics begin in which an adapter counts what its link really did."""
COUNTER_KINDS: Mapping[str, tuple[str, ...]] = {
    "link_down": (
        *("counters link_downed", "ethtool link_down_events_phy"),
        "ethtool link_down_events",
    ),
    "carrier": (CARRIER_FALLS,),
    "symbol": (
        *("counters symbol_error", "ethtool rx_symbol_err_phy"),
        "ethtool rx_pcs_symbol_err_phy",
    ),
    "recovery": ("counters link_error_recovery",),
    "receive": (
        *("counters port_rcv_errors", "statistics rx_crc_errors", "statistics rx_frame_errors"),
        *("ethtool rx_crc_errors_phy", "ethtool rx_fcs_err_frames"),
    ),
    "transmit": ("statistics tx_carrier_errors", "ethtool tx_errors_phy"),
    "integrity": (
        "counters local_link_integrity_errors",
        "counters excessive_buffer_overrun_errors",
    ),
    "timeout": (
        *("hw_counters local_ack_timeout_err", "hw_counters roce_adp_retrans_to"),
        "hw_counters req_transport_retries_exceeded",
    ),
    "sequence": (
        *("hw_counters packet_seq_err", "hw_counters out_of_sequence"),
        *("hw_counters implied_nak_seq_err", "hw_counters roce_adp_retrans"),
    ),
    "receiver_not_ready": ("hw_counters rnr_nak_retry_err",),
    "slow_restart": ("hw_counters roce_slow_restart",),
    "module": (
        *("ethtool module_bus_stuck", "ethtool module_high_temp"),
        "ethtool module_bad_shorted",
    ),
}
"""The counters of each kind of trouble: where they are, and their names. Those of one kind
count the same trouble at several places, so the highest of them tells it."""
_COUNTERS = tuple(
    (folder, name)
    for names in COUNTER_KINDS.values()
    for folder, name in [full.split(" ") for full in names]
)
COUNTER_FILES = tuple(pair for pair in _COUNTERS if pair[0] != "ethtool")
ETHTOOL_NAMES = frozenset(name for folder, name in _COUNTERS if folder == "ethtool")

UNSET_CHARACTERS = "0:"
"""All that is in a GUID or GID that nobody set; the GUID of an EFA adapter is one."""
GIDS = 4
"""How many of the first entries are looked at: the addresses of the port itself. Later ones
come and go with the addresses of containers."""
FIRST_PKEYS, MAX_PKEYS = 4, 128
"""How many of the first keys are looked at, set or not; beyond them, all up to an unset one."""
UNSET_PKEY = "0x0000"

SWITCH_MANAGEMENT = "SMDL=SW_MNG"
"""In the vital product data of the functions by which an HGX B200 or B300 manages its NVSwitches;
in all else they are ConnectX-7 adapters (NVIDIA Fabric Manager User Guide)."""
FUNCTIONS = range(8)

NETWORK = ("node", "the network")
"""Stands for the ports if not even their list can be read."""

StatisticsReader = Callable[[str, Collection[str]], Mapping[str, int]]
MacReader = Callable[[str], str | None]
"""Reads the burnt-in MAC of the interface of a name."""


class PortReading(Struct, frozen=True, kw_only=True):
    """What a port said of itself."""

    part_id: str
    label: str
    layer: str
    model: str = ""
    board: str = ""
    firmware: str = ""
    address: str = ""
    state: str
    """In the words of the kernel; empty if it refused to tell."""
    is_up: bool
    is_disabled: bool
    is_linked: bool
    """Whether the cable carries a signal, even if the port is not in service yet."""
    is_internal: bool = False
    """Whether it leads to the NVSwitches of the board; not looked at while it is up."""
    rate: float | None = None
    """Gb/s; None if it is not known, or made up."""
    shown_rate: str = ""
    lanes: int | None = None
    pcie: aer.Link | None = None
    best_pcie: aer.Link | None = None
    gids: tuple[int, ...] | None = None
    """The indexes that hold an address; None if there is no table."""
    pkeys: tuple[str, ...] | None = None
    headroom: float | None = None
    """°C below the threshold of the hottest module; None without a sensor."""
    counts: dict[str, int] = {}
    errors: Mapping[str, Mapping[str, int]] = {}
    """Those of PCIe, as `aer.read_errors` gives them."""


class PortReadings(Struct, frozen=True):
    """What the ports of a node said; the others by id and label."""

    ports: tuple[PortReading, ...]
    silent: tuple[tuple[str, str], ...] = ()
    refusing: tuple[tuple[str, str], ...] = ()


class PortPlace(Struct, frozen=True, kw_only=True):
    """Where in sysfs a port is: an interface, an RDMA port, or both."""

    part: Part
    layer: str
    net: Path | None = None
    rdma: Path | None = None
    """The port's folder, as ``/sys/class/infiniband/mlx5_0/ports/1``."""

    @property
    def folder(self) -> Path:
        """What the kernel removes with the port."""
        folder = self.net or self.rdma
        assert folder is not None  # noqa: S101 - a place has one of the two
        return folder

    @property
    def name(self) -> tuple[str, str]:
        """The id and the label of its part."""
        return self.part.id, self.part.label


def list_nics(root: Path, ask_mac: MacReader = ethtool.read_permanent_mac) -> Iterator[Part]:
    """Describe the network ports that hang on a device; failing these, any other."""
    nets = sysfs.list_entries(root / "sys/class/net")
    for _, part in (*_describe_interfaces(nets, ask_mac), *_describe_adapters(root, nets)):
        yield part


def _describe_interfaces(nets: Iterable[Path], ask_mac: MacReader) -> list[tuple[Path, Part]]:
    """Describe those of *nets* that stand for themselves."""
    nets = [net for net in nets if os.path.exists(f"{net}/address")]  # noqa: PTH110 - as below
    real = [net for net in nets if sysfs.is_hardware(net)]
    if not real:
        return [(net, _describe_ethernet(net, ask_mac)) for net in nets if net.name != "lo"]
    described = {
        net: _describe_ethernet(net, ask_mac)
        for net in real
        if sysfs.read_text(net / "type") != IPOIB_TYPE
        and not (_is_subfunction(net) or _serves_another(net))
    }
    owned = {_find_device(net) for net, part in described.items() if _has_own_mac(part)}
    own = ((n, p) for n, p in described.items() if _has_own_mac(p) or _find_device(n) not in owned)
    return list(_tell_apart(own))


def _has_own_mac(part: Part) -> bool:
    """Whether *part* goes by its MAC; a representor has one that was made up."""
    return part.id not in (part.facts.get("pci_address"), f"nic-{part.label}")


def _describe_adapters(root: Path, nets: Iterable[Path]) -> list[tuple[Path, Part]]:
    """Describe the RDMA adapters that stand for themselves; *nets* are all interfaces."""
    adapters = sysfs.list_entries(root / "sys/class/infiniband")
    lent = {_find_device(net) for net in nets if _serves_another(net)}
    real = [a for a in adapters if sysfs.is_hardware(a) and not _is_subfunction(a)]
    own = ((a, _describe_infiniband(a)) for a in real if _find_device(a) not in lent)
    return list(_tell_apart(own))


def _is_subfunction(entry: Path) -> bool:
    device = _find_device(entry)
    return device is not None and SUBFUNCTION in device.name


def _serves_another(net: Path) -> bool:
    """Whether *net* is the fast path of a virtual adapter (hv_netvsc, net_failover)."""
    # There are hundreds of interfaces on some nodes, and pathlib takes five times as long.
    return os.path.exists(f"{net}/master/device")  # noqa: PTH110


def _find_device(entry: Path) -> Path | None:
    return sysfs.resolve_link(entry / "device")


def _tell_apart(entries: Iterable[tuple[Path, Part]]) -> Iterator[tuple[Path, Part]]:
    """Add the name to an id that an earlier entry has: nothing promises that they differ."""
    taken: set[str] = set()
    for entry, part in entries:
        part_id = f"{part.id} {part.label}" if part.id in taken else part.id
        taken.add(part_id)
        yield entry, replace(part, id=part_id)


def _describe_ethernet(port: Path, ask_mac: MacReader) -> Part:
    facts = sysfs.drop_unknown(
        pci_address=pci.find_address(port / "device"), driver=pci.read_driver(port / "device")
    )
    mac = _read_permanent_mac(port, ask_mac)
    part_id = mac or facts.get("pci_address") or f"nic-{port.name}"
    return Part("nic", part_id, port.name, facts)


def _read_permanent_mac(port: Path, ask_mac: MacReader) -> str | None:
    """Read the address that is burnt in; one that was set or made up may change."""
    if bonded := sysfs.read_text(port / "bonding_slave/perm_hwaddr"):
        return bonded
    if not sysfs.is_hardware(port):
        return None
    how = sysfs.read_text(port / "addr_assign_type")
    if how == SET_ADDRESS:
        return ask_mac(port.name)
    return sysfs.read_text(port / "address") if how == BURNT_IN_ADDRESS else None


def _describe_infiniband(adapter: Path) -> Part:
    facts = sysfs.drop_unknown(
        model=sysfs.read_text(adapter / "hca_type"),
        board=sysfs.read_text(adapter / "board_id"),
        firmware=sysfs.read_text(adapter / "fw_ver"),
        pci_address=pci.find_address(adapter / "device"),
    )
    guid = sysfs.read_text(adapter / "node_guid") or ""
    address = facts.get("pci_address")
    # The bare address may be the id of its interface.
    part_id = f"rdma-{address}" if address else f"nic-{adapter.name}"
    part_id = guid if guid.strip(UNSET_CHARACTERS) else part_id
    if adapter.name.startswith(PLANES_PREFIX):  # numbered anew at each boot
        part_id += " planes"
    return Part("nic", part_id, adapter.name, facts)


def read_ports(
    root: Path, patience: float, statistics: StatisticsReader = ethtool.read_statistics
) -> PortReadings:
    """
    Read all ports, for *patience* seconds at most.

    First one after the other: several threads that read small files at once mostly wait for
    each other. If one port holds them up for half of the time, the others get threads of
    their own. A port that is unplugged meanwhile is left out.
    """
    answers: dict[str, PortReading] = {}
    deadline = time.monotonic() + patience

    def read(several: Sequence[PortPlace]) -> None:
        for place in several:
            answers[place.part.id] = read_port(place, root, statistics)

    search = Visit(lambda: list(find_ports(root)))
    if not search.ends_within(patience):
        return PortReadings((), silent=(NETWORK,))
    places = search.take()
    first = Visit(partial(read, places))
    first.ends_within(deadline - patience / 2 - time.monotonic())
    unread = [place for place in places if place.part.id not in answers]
    # The first of them is what holds the others up.
    for visit in (*[Visit(partial(read, [place])) for place in unread[1:]], first):
        if visit.ends_within(deadline - time.monotonic()):
            visit.take()
    in_time = dict(answers)
    here = [place for place in places if place.part.id in in_time]
    return PortReadings(
        tuple(port for place in here if (port := in_time[place.part.id]).state),
        silent=tuple(place.name for place in places if place.part.id not in in_time),
        refusing=tuple(
            place.name
            for place in here
            if not in_time[place.part.id].state and place.folder.exists()
        ),
    )


def find_ports(root: Path, ask_mac: MacReader = ethtool.read_permanent_mac) -> Iterator[PortPlace]:
    """Find the ports of this node; what is read here is answered without the firmware."""
    interfaces = sysfs.list_entries(root / "sys/class/net")
    described = _describe_interfaces(interfaces, ask_mac)
    parts = {net: part for net, part in described if _is_port(net)}
    nets = {net: _find_device(net) for net in parts}
    carried: dict[Path, Path] = {}
    for adapter, part in _describe_adapters(root, interfaces):
        for port in sysfs.list_entries(adapter / "ports"):
            layer = sysfs.read_text(port / "link_layer") or INFINIBAND
            own = _find_interface(nets, adapter, port) if layer == ETHERNET else None
            if own is not None:
                carried[own] = port
            else:
                ids = f"{part.id}/{port.name}", f"{part.label} port {port.name}"
                named = part if port.name == "1" else Part("nic", *ids, part.facts)
                yield PortPlace(part=named, layer=layer, rdma=port)
    for net, part in parts.items():
        yield PortPlace(part=part, layer=ETHERNET, net=net, rdma=carried.get(net))


def _is_port(net: Path) -> bool:
    radio = (net / "wireless").exists() or (net / "phy80211").exists()
    return (
        sysfs.is_hardware(net)
        and not radio
        and sysfs.read_text(net / "type") == ETHERNET_TYPE
        and PHYSICAL_FUNCTION not in (sysfs.read_text(net / "phys_port_name") or "")
    )


def _find_interface(nets: Mapping[Path, Path | None], adapter: Path, port: Path) -> Path | None:
    """Find the interface on the same function of the adapter, of several by its port."""
    device = _find_device(adapter)
    own = [net for net, other in nets.items() if other == device]
    if len(own) <= 1:
        return own[0] if own else None
    number = int(port.name) - 1 if port.name.isdigit() else 0
    return next((net for net in own if sysfs.read_number(net / "dev_port") == number), None)


def read_port(place: PortPlace, root: Path, statistics: StatisticsReader) -> PortReading:
    """Read the port at *place*; what it does not tell is left out."""
    facts = place.part.facts
    if place.rdma is not None and place.net is not None:
        facts = _describe_infiniband(place.rdma.parent.parent).facts | facts
    address = facts.get("pci_address", "")
    common = partial(
        PortReading,
        part_id=place.part.id,
        label=place.part.label,
        layer=place.layer,
        model=facts.get("model", ""),
        board=facts.get("board", ""),
        firmware=facts.get("firmware", ""),
        address=address,
        pcie=aer.read_link(address, root) if address else None,
        best_pcie=aer.find_best_link(address, root) if address else None,
        errors=aer.read_errors(address, root) if address else {},
        gids=_read_gids(place),
        pkeys=_read_pkeys(place.rdma) if place.rdma else None,
        headroom=_read_module_headroom(place),
        counts=_read_counts(place, statistics),
    )
    if place.net is None:
        reading = _read_rdma_state(place.folder, common)
        internal = (
            place.layer == INFINIBAND and not reading.is_up and _manages_switches(address, root)
        )
        return replace(reading, is_internal=internal)
    return _read_interface_state(place.net, facts.get("driver", ""), common)


def _read_interface_state(
    net: Path, driver: str, common: Callable[..., PortReading]
) -> PortReading:
    flags = sysfs.read_text(net / "flags") or ""
    try:
        is_enabled = bool(int(flags, 16) & IS_ENABLED)
    except ValueError:
        is_enabled = bool(flags)
    carrier = sysfs.read_text(net / "carrier") == "1"
    speed = sysfs.read_number(net / "speed")
    known = carrier and speed is not None and speed > 0 and driver not in VIRTUAL_DRIVERS
    duplex = " half duplex" if sysfs.read_text(net / "duplex") == "half" else ""
    return common(
        state=("carrier" if carrier else "no carrier") if flags else "",
        is_up=carrier,
        # A hypervisor takes the carrier of what it makes up: there is no cable to look at.
        is_disabled=bool(flags) and (not is_enabled or (not carrier and driver in VIRTUAL_DRIVERS)),
        is_linked=carrier,
        rate=speed / 1000 if known and speed else None,
        shown_rate=f"{speed / 1000:g} Gb/s{duplex}" if known and speed else "",
    )


def _read_rdma_state(port: Path, common: Callable[..., PortReading]) -> PortReading:
    text = sysfs.read_text(port / "state") or ""
    state = text.rpartition(": ")[2]
    physical = (sysfs.read_text(port / "phys_state") or "").rpartition(": ")[2]
    shown = sysfs.read_text(port / "rate") or ""
    rate, lanes = _parse_rate(shown)
    is_up = state == "ACTIVE"
    return common(
        state=f"{state}, {physical or '?'}" if text else "",
        is_up=is_up,
        is_disabled=physical == "Disabled",
        is_linked=physical == "LinkUp",
        rate=rate if is_up else None,
        shown_rate=shown if is_up else "",
        lanes=lanes if is_up else None,
    )


def _manages_switches(address: str, root: Path) -> bool:
    """Whether a function of the device at *address* manages NVSwitches; only root can read it."""
    device = root / pci.PCI_DEVICES_FOLDER / address.rpartition(".")[0]
    return any(
        SWITCH_MANAGEMENT in (sysfs.read_text(f"{device}.{number}/vpd") or "")
        for number in FUNCTIONS
        if address
    )


def _parse_rate(shown: str) -> tuple[float | None, int | None]:
    """Read ``400 Gb/sec (4X NDR)``: Gb/s and lanes."""
    number, _, rest = shown.partition(" Gb/sec")
    lanes = rest.strip(" (").partition("X")[0]
    is_number = number.replace(".", "", 1).isdecimal()
    return float(number) if is_number else None, int(lanes) if lanes.isdecimal() else None


def sum_port_rates(root: Path) -> float:
    """Sum the rates of all active RDMA ports, in GB/s; pieces of a physical function count once."""
    rates: dict[Path | None, float] = {}
    for adapter in sysfs.list_entries(root / "sys/class/infiniband"):
        rate = sum(
            _parse_rate(sysfs.read_text(port / "rate") or "")[0] or 0.0
            for port in sysfs.list_entries(adapter / "ports")
            if (sysfs.read_text(port / "state") or "").endswith("ACTIVE")
        )
        function = _find_device(adapter)
        if function and SUBFUNCTION in function.name:
            function = function.parent
        else:
            function = sysfs.resolve_link(adapter / "device/physfn") or function
        rates[function] = max(rate, rates.get(function, 0.0))
    return sum(rates.values()) / 8


def _read_gids(place: PortPlace) -> tuple[int, ...] | None:
    port, net = place.rdma, place.net
    if port is None or (place.layer == ETHERNET and net is None):
        return None
    mode = sysfs.read_text(net / "master/bonding/mode") if net else None
    if mode and mode.startswith("active-backup"):  # another port of the bond takes them over
        return None
    # Those after the first of InfiniBand belong to virtual functions.
    first = range(GIDS if net else 1)
    texts = {index: sysfs.read_text(f"{port}/gids/{index}") for index in first}
    if not any(texts.values()):
        return None
    set_here = [i for i, text in texts.items() if text and text.strip(UNSET_CHARACTERS)]
    if net is None:
        return tuple(set_here)
    # Addresses of the interface or its bond: the address of a container goes with it.
    owners = [(i, sysfs.read_text(port / f"gid_attrs/ndevs/{i}")) for i in set_here]
    bonds = {owner for _, owner in owners if (net / f"upper_{owner}/bonding").exists()}
    return tuple(i for i, owner in owners if owner in {None, net.name, *bonds})


def _read_pkeys(port: Path) -> tuple[str, ...] | None:
    keys: list[str] = []
    for index in range(MAX_PKEYS):
        key = sysfs.read_text(f"{port}/pkeys/{index}")
        if index >= FIRST_PKEYS and key in (None, UNSET_PKEY):
            break
        keys += [key] if key else []
    return tuple(key for key in keys if key != UNSET_PKEY) if keys else None


def _read_module_headroom(place: PortPlace) -> float | None:
    entry = place.net or (place.rdma.parent.parent if place.rdma else None)
    if entry is None:
        return None
    rooms: list[float] = []
    for label in sysfs.list_entries(entry / "device/hwmon", "hwmon*/temp*_label"):
        if "module" not in (sysfs.read_text(label) or "").lower():
            continue
        channel = label.name.removesuffix("label")
        now = sysfs.read_number(label.with_name(f"{channel}input"))
        limit = sysfs.read_number(label.with_name(f"{channel}crit"))
        if now and limit and limit > 0:
            rooms.append((limit - now) / 1000)
    return min(rooms, default=None)


def _read_counts(place: PortPlace, statistics: StatisticsReader) -> dict[str, int]:
    rdma = {"counters": f"{place.rdma}/counters", "hw_counters": f"{place.rdma}/hw_counters"}
    net = {"net": f"{place.net}", "statistics": f"{place.net}/statistics"}
    folders = (rdma if place.rdma else {}) | (net if place.net else {})
    counts: dict[str, int] = {}
    for folder, name in COUNTER_FILES:
        text = sysfs.read_text(f"{folders[folder]}/{name}") if folder in folders else None
        if text and text.isdecimal():
            counts[f"{folder} {name}"] = int(text)
    if place.net is not None:
        counted = statistics(place.net.name, ETHTOOL_NAMES)
        counts |= {f"ethtool {name}": count for name, count in counted.items()}
        if any(name.startswith(LINK_FALLS) for name in counted):
            counts.pop(CARRIER_FALLS, None)  # the adapter itself knows better
    return counts
