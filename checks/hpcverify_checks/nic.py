"""
The ports of InfiniBand, RoCE and Ethernet: up, as fast as they were, and clean.

What a port should do is what it did: each run remembers the rate, the addresses and the
keys of each port that is up, and the next one holds the port to that. So there is no list
of what a node must have, and a counter or a port that a model lacks fails no part. A port
that never had a link here, or that somebody switched off, is not judged; the first run warns
of adapters that have fewer links than most of the same board. A port of InfiniBand that has a link
and is not in service is reported from the first run on: a subnet manager activates each. The
ports by which an HGX B200 manages its NVSwitches are not judged. A port that is down or slower
on purpose is accepted by a run with ``--accept-parts``.

If all ports of a kind are down or slower at once, or half of them lost their link since the
last run, the cause is hardly in this node: that is one finding, about a switch or a cable tray.

Counters start with the driver and are judged by their rise since the last run, and by the
rate of it. A few errors are normal on links of 100 Gb/s a lane. Packets out of sequence and
receivers that were not ready are measured and not judged: adaptive routing and slow
applications cause them on good links. A counter that a port lacks is left out. Where only
the kernel counts how often the carrier went, a few times may be somebody's work on the
interface.

The kernel asks the firmware for much of this. A port that does not answer within the
patience, or with an error, is named, and is an ERROR: the others are judged all the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

import hpcverify.check as hv
from hpcverify.telemetry import nics
from hpcverify.telemetry.nics import PortReading, PortReadings
from hpcverify.units import HOUR_SECONDS
from hpcverify_checks.node.counters import (
    USUAL_LINK,
    CounterDelta,
    Growth,
    Moment,
    compare_with_last_run,
    list_aer_counts,
    read_moment,
)
from hpcverify_checks.node.fixes import ACCEPT

START_SECONDS = 240.0
"""After the boot, in which a port that is down may still be in training: gpud, too, calls
a port dropped after four minutes (store/scan_drops.go)."""
LINK_MARK = "link"
"""The name of the `CarryOver` with what a port is held to."""
MIN_TOGETHER = 2
"""Ports of a kind from which "all of them" says more than their names."""
MANY_TIMES = 10
"""A port that fell so many times as often as most of its like has a trouble of its own."""
MIN_SIBLINGS = 4
"""Ports of a model from which one that differs from all the others is odd."""
FALLS_OF_INFINIBAND = "counters link_downed"
SATURATED = {
    FALLS_OF_INFINIBAND: 0xFF,
    "counters link_error_recovery": 0xFF,
    "counters symbol_error": 0xFFFF,
    "counters port_rcv_errors": 0xFFFF,
    "counters local_link_integrity_errors": 0xF,
    "counters excessive_buffer_overrun_errors": 0xF,
}
"""Where these counters of InfiniBand end and stay: they have 16, 8 or 4 bits
(drivers/infiniband/core/sysfs.c of Linux)."""
FALLS = ("link_down", "carrier")
RATES = (
    *(*FALLS, "symbol", "recovery", "receive", "transmit", "timeout"),
    *("slow_restart", "sequence", "receiver_not_ready"),
)
DELTAS = (*FALLS, "integrity", "module")


class NicParams(hv.Params, frozen=True):
    """How long to wait for all ports together, in seconds."""

    patience: Annotated[float, Meta(gt=0)] = 3.0


class Expected(Struct, frozen=True):
    """What a port was when it was last up, which it is held to."""

    rate: float | None = None
    shown_rate: str = ""
    pcie_width: int | None = None
    gids: tuple[int, ...] = ()
    pkeys: tuple[str, ...] = ()


def measure(ctx: hv.Context, params: NicParams) -> Iterator[hv.CheckItem]:
    """Read the ports as they are now, and their errors since the last run."""
    root = Path("/")
    yield from report_ports(nics.read_ports(root, params.patience), ctx, params, root)


def report_ports(
    readings: PortReadings, ctx: hv.Context, params: NicParams, root: Path
) -> Iterator[hv.CheckItem]:
    """Report the state and the errors of the ports in *readings*."""
    ports = readings.ports
    if not (ports or readings.silent or readings.refusing):
        raise hv.Skip("no network port of this node hangs on a device")
    yield from _report_unread(readings, params.patience)
    expected = {port.part_id: _recall_expected(ctx, port.part_id) for port in ports}
    known = {part_id: before for part_id, before in expected.items() if before is not None}
    now = read_moment(root)
    outward = [port for port in ports if not port.is_internal]
    yield from _report_down(outward, known, now)
    yield from _report_inactive(outward, ctx, now)
    yield from _report_slow([p for p in ports if p.is_up and p.part_id in known], known)
    for port in ports:
        before = known.get(port.part_id)
        if port.is_up:
            yield from _report_link(port, before or Expected())
            yield _remember(port, before)
        elif before is None and (ctx.accepts_parts or not (port.is_linked or _is_starting(now))):
            yield hv.CarryOver(LINK_MARK, "", port.part_id)  # nothing is expected of it any more
    yield from _report_odd_lanes(ports, known)
    if not _is_starting(now):
        seen = {p.part_id for p in outward if ctx.recall(LINK_MARK, p.part_id) is not None}
        yield from _report_fewer_links(outward, seen | known.keys())
    yield from _report_firmware(ports)
    yield from _report_counters(ports, known, ctx, now)
    for port in ports:
        yield hv.Coverage(port.part_id, _describe(port))


def _report_unread(readings: PortReadings, patience: float) -> Iterator[hv.Finding]:
    for part_id, label in readings.silent:
        text = (
            f"does not answer within {patience:g} s: its firmware or driver hangs; "
            f"see dmesg for {label}, then reboot the node"
        )
        if (part_id, label) == nics.NETWORK:
            text = (
                f"the network ports cannot be listed within {patience:g} s: a driver holds "
                "the kernel's lock of all interfaces; see dmesg, then reboot the node"
            )
        yield hv.Finding("nic_hung", part_id, text)
    for part_id, label in readings.refusing:
        text = (
            "answers with an error instead of its state: its firmware or driver is dead; "
            f"see dmesg for {label}, then reboot the node"
        )
        yield hv.Finding("nic_hung", part_id, text)


def _recall_expected(ctx: hv.Context, part_id: str) -> Expected | None:
    # With --accept-parts, only what it was before the load counts.
    carry_overs = () if ctx.accepts_parts else ctx.carry_overs
    for marks in (carry_overs, ctx.before_load):
        try:
            text = replace(ctx, carry_overs=marks).recall(LINK_MARK, part_id) or ""
            return msgspec.json.decode(text, type=Expected)
        except msgspec.MsgspecError:  # there is none, or an older version wrote another format
            continue
    return None


def _remember(port: PortReading, before: Expected | None) -> hv.CarryOver:
    """Remember what *port* is, and what it was where it has less of it now."""
    was = before or Expected()
    slower = _is_below(port.rate, was.rate)
    width = port.pcie.width if port.pcie else None
    kept = Expected(
        rate=was.rate if slower or port.rate is None else port.rate,
        shown_rate=was.shown_rate if slower or port.rate is None else port.shown_rate,
        pcie_width=was.pcie_width if _is_below(width, was.pcie_width) else width,
        gids=was.gids if _list_lost(was.gids, port.gids) else port.gids or (),
        pkeys=was.pkeys if _list_lost(was.pkeys, port.pkeys) else port.pkeys or (),
    )
    return hv.CarryOver(LINK_MARK, msgspec.json.encode(kept).decode(), port.part_id)


def _is_below(now: float | None, before: float | None) -> bool:
    return now is not None and before is not None and now < before


def _list_lost(before: Iterable[object], now: Sequence[object] | None) -> list[object]:
    """List what is gone; nothing is, if the table could not be read."""
    return [] if now is None else [item for item in before if item not in now]


def _report_down(
    ports: Sequence[PortReading], known: Mapping[str, Expected], now: Moment
) -> Iterator[hv.Finding]:
    used = [port for port in ports if port.part_id in known]
    enabled = [port for port in used if not port.is_disabled]
    down = {port.part_id for port in enabled if not (port.is_up or port.is_linked)}
    for what, like in _group_alike(enabled, known, down):
        unlinked = [port for port in like if port.part_id in down]
        if _is_starting(now):
            yield from map(_report_starting, unlinked)
        elif len(unlinked) >= MIN_TOGETHER and len(unlinked) == len(like):
            text = (
                f"all {len(like)} {what} are down at once "
                f"({', '.join(p.label for p in like)}): look at their switch, its power and "
                f"the cable tray before this node; {ACCEPT}"
            )
            yield hv.Finding("all_ports_down", "node", text, {p.label: p.state for p in like})
        else:
            for port in unlinked:
                was = known[port.part_id].shown_rate
                before = f", before {was}" if was else ""
                text = f"is down ({port.state}){before}: {_fix_cable(port)}; {ACCEPT}"
                yield hv.Finding("port_down", port.part_id, text)
    for port in used:
        if port.is_disabled:
            text = f"was up and is switched off now ({port.state}): switch it on; {ACCEPT}"
            yield hv.Finding("port_disabled", port.part_id, text)


def _is_starting(now: Moment) -> bool:
    return now.seconds is not None and now.seconds < START_SECONDS


def _report_starting(port: PortReading) -> hv.Finding:
    text = (
        f"is not in service ({port.state}) so soon after the boot: its link may be in training; "
        f"run again {START_SECONDS:.0f} s after the boot"
    )
    return hv.Finding("port_starting", port.part_id, text)


def _fix_cable(port: PortReading) -> str:
    adapter = f" of the adapter at {port.address}" if port.address else ""
    return (
        f"reseat or replace the cable{adapter} and its modules, and look at the port of the switch"
    )


def _report_inactive(
    ports: Sequence[PortReading], ctx: hv.Context, now: Moment
) -> Iterator[hv.Finding]:
    """Report ports of InfiniBand with a link that no subnet manager has activated."""
    linked = [p for p in ports if p.layer == nics.INFINIBAND and p.is_linked and not p.is_disabled]
    idle = [p for p in linked if not p.is_up and ctx.recall(LINK_MARK, p.part_id) != ""]
    if ctx.accepts_parts or not idle:
        return
    if _is_starting(now):
        yield from map(_report_starting, idle)
    elif len(idle) == len(linked) >= MIN_TOGETHER:
        text = (
            f"none of the {len(linked)} InfiniBand ports with a link is in service "
            f"({', '.join(p.label for p in idle)}): start the subnet manager of their fabric "
            f"(sminfo prints it); {ACCEPT}"
        )
        yield hv.Finding("port_not_active", "node", text, {p.label: p.state for p in idle})
    else:
        for port in idle:
            text = (
                f"has a link and is not in service ({port.state}): check that the subnet manager "
                f"(sminfo prints it) is up and configures this port; {ACCEPT}"
            )
            yield hv.Finding("port_not_active", port.part_id, text)


def _report_slow(
    ports: Sequence[PortReading], known: Mapping[str, Expected]
) -> Iterator[hv.Finding]:
    slow = {p.part_id for p in ports if _is_below(p.rate, known[p.part_id].rate)}
    for what, like in _group_alike(ports, known, slow):
        slower = [port for port in like if port.part_id in slow]
        if len(slower) >= MIN_TOGETHER and len(slower) == len(like):
            rates = {p.label: f"{p.shown_rate}, before {known[p.part_id].shown_rate}" for p in like}
            listed = "; ".join(f"{label} {rate}" for label, rate in rates.items())
            text = f"all {len(like)} {what} are slower than before ({listed}): was their switch "
            yield hv.Finding(
                "all_ports_slow", "node", f"{text}or its cables changed? {ACCEPT}", rates
            )
            continue
        for port in slower:
            text = (
                f"runs at {port.shown_rate}, before at {known[port.part_id].shown_rate}: "
                f"{_fix_cable(port)}; {ACCEPT}"
            )
            yield hv.Finding("port_slow", port.part_id, text)


def _group_alike(
    ports: Iterable[PortReading], known: Mapping[str, Expected], hit: Collection[str]
) -> Iterator[tuple[str, list[PortReading]]]:
    """
    Group *ports* by what they are plugged into, as far as it shows, and name each group.

    Those of a layer are one group if all were *hit*. Else it is those of a layer and rate:
    the ports of a dead fabric stand beside a management port that is up.
    """
    layers: defaultdict[str, defaultdict[float | None, list[PortReading]]]
    layers = defaultdict(lambda: defaultdict(list))
    for port in ports:
        layers[port.layer][known[port.part_id].rate].append(port)
    for layer, by_rate in layers.items():
        every = [port for like in by_rate.values() for port in like]
        if len(by_rate) == 1 or all(port.part_id in hit for port in every):
            yield f"{layer} ports", every
        else:
            for rate, like in by_rate.items():
                speed = "no known rate" if rate is None else f"{rate:g} Gb/s"
                yield f"{layer} ports of {speed}", like


def _report_link(port: PortReading, before: Expected) -> Iterator[hv.CheckItem]:
    if port.rate is not None:
        yield hv.Measurement("rate", port.rate, "Gb/s", port.part_id)
    yield from _measure_pcie(port, before)
    for code, what, lost in (
        ("gid_missing", "GID index", _list_lost(before.gids, port.gids)),
        ("pkey_missing", "partition key", _list_lost(before.pkeys, port.pkeys)),
    ):
        if lost:
            fix = (
                "is the address of the interface set?"
                if port.layer == nics.ETHERNET
                else "what does the subnet manager say of the port?"
            )
            listed = ", ".join(map(str, lost))
            yield hv.Finding(code, port.part_id, f"lost {what} {listed}: {fix} {ACCEPT}")
    if port.headroom is not None:
        yield hv.Measurement("module.headroom", port.headroom, "°C", port.part_id)


def _measure_pcie(port: PortReading, before: Expected) -> Iterator[hv.Measurement]:
    now, best = port.pcie, port.best_pcie
    if now and before.pcie_width is not None:
        missing = max(0, before.pcie_width - now.width)
        yield hv.Measurement("pcie.width.missing", missing, "", port.part_id)
    elif now and best:
        unused = max(0, best.width - now.width)
        yield hv.Measurement("pcie.width.unused", unused, "", port.part_id)
    if now and best:
        unused = max(0, best.generation - now.generation)
        yield hv.Measurement("pcie.generation.unused", unused, "", port.part_id)


def _report_odd_lanes(
    ports: Sequence[PortReading], known: Mapping[str, Expected]
) -> Iterator[hv.Finding]:
    """Report new ports with fewer lanes, at the same rate of a lane, than most of their model."""
    models: defaultdict[tuple[str, str, float], list[PortReading]] = defaultdict(list)
    for port in ports:
        if port.lanes and port.rate and port.model:
            models[port.model, port.board, port.rate / port.lanes].append(port)
    for like in models.values():
        most = max(port.lanes or 0 for port in like)
        odd = [port for port in like if (port.lanes or 0) < most]
        if len(like) < MIN_SIBLINGS or 2 * len(odd) >= len(like):
            continue
        for port in odd:
            if port.part_id not in known:
                text = (
                    f"runs at {port.shown_rate}, {len(like) - len(odd)} of {len(like)} of its "
                    f"model on {most} lanes: {_fix_cable(port)}"
                )
                yield hv.Finding("port_narrow", port.part_id, text)


def _report_fewer_links(
    ports: Sequence[PortReading], known: Collection[str]
) -> Iterator[hv.Finding]:
    """
    Report new ports without a link on adapters that have fewer links than most of the same board.

    Many adapters have a second port that is not in use, so adapters are compared and not ports.
    """
    adapters: defaultdict[tuple[str, str, str], list[PortReading]] = defaultdict(list)
    for port in ports:
        if port.board:
            slot = port.address.rpartition(".")[0] or port.part_id
            adapters[port.layer, port.board, slot].append(port)
    boards: defaultdict[tuple[str, str, int], list[list[PortReading]]] = defaultdict(list)
    for (layer, board, _), adapter in adapters.items():
        boards[layer, board, len(adapter)].append(adapter)
    for like in boards.values():
        counts = [sum(port.is_up or port.is_linked for port in adapter) for adapter in like]
        usual = max(counts, key=lambda count: (counts.count(count), count))
        many, total = counts.count(usual), sum(map(len, like))
        if total < MIN_SIBLINGS or (2 * many <= len(like) and 2 * sum(counts) <= total):
            continue
        for adapter, count in zip(like, counts, strict=True):
            unlinked = [p for p in adapter if not (p.is_up or p.is_linked or p.is_disabled)]
            for port in unlinked[: max(0, usual - count)]:
                if port.part_id not in known:
                    text = (
                        f"has no link ({port.state}), although {many} of {len(like)} adapters of "
                        f"its board have {usual}: if it should, {_fix_cable(port)}; this is "
                        "reported once"
                    )
                    yield hv.Finding("port_unlinked", port.part_id, text)


def _report_firmware(ports: Iterable[PortReading]) -> Iterator[hv.Finding]:
    boards: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for port in ports:
        if port.board and port.firmware:
            boards[port.board][port.label] = port.firmware
    for board, versions in boards.items():
        if len(set(versions.values())) > 1:
            listed = ", ".join(f"{label} {version}" for label, version in versions.items())
            text = f"adapters of board {board} have different firmware ({listed}): update them"
            yield hv.Finding("firmware_mixed", "node", text, versions)


def _report_counters(
    ports: Sequence[PortReading], known: Mapping[str, Expected], ctx: hv.Context, now: Moment
) -> Iterator[hv.CheckItem]:
    growths = {port.part_id: _compare_counts(port, ctx, now) for port in ports}
    compared = {part_id: growth for part_id, growth in growths.items() if growth.from_last_run}
    used = [port for port in ports if port.part_id in known and port.part_id in compared]
    lately = list(_find_falls(used, known, {w: g.last for w, g in compared.items()}))
    spans = {part_id: growth.choose_delta(HOUR_SECONDS) for part_id, growth in compared.items()}
    shared = _collect_ids(lately), _collect_ids(_find_falls(used, known, spans))
    for what, like, fell in lately:
        many = "all" if len(fell) == len(like) else f"{len(fell)} of"
        text = (
            f"{many} {len(like)} {what} lost their link since the last run "
            f"({', '.join(port.label for port in fell)}): was a switch restarted?"
        )
        yield hv.Finding("ports_fell_together", "node", text)
    for port in ports:
        growth = growths[port.part_id]
        if growth.from_last_run:
            in_last, in_span = (port.part_id in together for together in shared)
            yield from _measure_growth(growth, port, in_last=in_last, in_span=in_span)
        yield from _report_saturated(port)
        yield growth.carry_over


def _compare_counts(port: PortReading, ctx: hv.Context, now: Moment) -> Growth:
    """Compare with the last run; if none was since the boot, with the time before the load."""
    counts = {**port.counts, **list_aer_counts(port.address, port.errors)}
    growth = compare_with_last_run(ctx, port.part_id, counts, now)
    if growth.from_last_run or not ctx.before_load:
        return growth
    earlier = replace(ctx, carry_overs=ctx.before_load)
    return compare_with_last_run(earlier, port.part_id, counts, now)


def _find_falls(
    ports: Sequence[PortReading], known: Mapping[str, Expected], deltas: Mapping[str, CounterDelta]
) -> Iterator[tuple[str, list[PortReading], list[PortReading]]]:
    """
    Find links that fell together, half of their like or more: the group, its ports, and those.

    One that fell far more often than most is left out: it has a trouble of its own.
    """
    falls = {
        p.part_id: max(
            (n for kind in FALLS for n in _select_kind(deltas[p.part_id].counts, kind)), default=0
        )
        for p in ports
    }
    hit = {part_id for part_id, count in falls.items() if count}
    for what, like in _group_alike(ports, known, hit):
        counts = sorted(falls[port.part_id] for port in like if port.part_id in hit)
        usual = counts[(len(counts) - 1) // 2] if counts else 0
        fell = [p for p in like if 0 < falls[p.part_id] <= usual * MANY_TIMES]
        if len(fell) >= MIN_TOGETHER and 2 * len(counts) >= len(like):
            yield what, like, fell


def _collect_ids(
    found: Iterable[tuple[str, list[PortReading], list[PortReading]]],
) -> frozenset[str]:
    return frozenset(port.part_id for _, _, fell in found for port in fell)


def _select_kind(counts: Mapping[str, int], kind: str) -> list[int]:
    names = nics.COUNTER_KINDS[kind]
    return [count for name, count in counts.items() if name in names]


def _sum_pcie_kind(counts: Mapping[str, int], kind: str) -> int:
    return sum(count for name, count in counts.items() if name.split(" ")[1] == kind)


def _measure_growth(
    growth: Growth, port: PortReading, *, in_last: bool, in_span: bool
) -> Iterator[hv.CheckItem]:
    """Measure the errors; not the falls that it shares *in_last* or *in_span* with others."""
    part_id, span = port.part_id, growth.choose_delta(HOUR_SECONDS)
    for kind in RATES:
        grown = _select_kind(span.counts, kind)
        rate = span.compute_rate(max(grown, default=0), HOUR_SECONDS)
        if grown and rate is not None and not (in_span and kind in FALLS):
            yield hv.Measurement(f"{kind}.rate", rate, "1/h", part_id)
    for kind in DELTAS:
        grown = _select_kind(growth.last.counts, kind)
        if grown and not (in_last and kind in FALLS):
            yield hv.Measurement(f"{kind}.delta", max(grown), "", part_id)
    counted = {name.split(" ")[1] for name in growth.last.counts}
    for kind in sorted(counted & {"fatal", "non_fatal"}):
        new = _sum_pcie_kind(growth.last.counts, kind)
        yield hv.Measurement(f"pcie.{kind}.delta", new, "", part_id)
    rate = growth.compute_rate(partial(_sum_pcie_kind, kind="correctable"), HOUR_SECONDS)
    if "correctable" in counted and rate is not None:
        allowed = (port.best_pcie or port.pcie or USUAL_LINK).allowed_errors
        yield hv.Measurement("pcie.correctable.rate", rate / allowed, "ratio", part_id)
    if evidence := growth.list_new():
        listed = ", ".join(f"{name.split(' ', 1)[1]} {count}" for name, count in evidence.items())
        yield hv.Finding("port_errors", part_id, f"since {growth.start}: {listed}", evidence)


def _report_saturated(port: PortReading) -> Iterator[hv.Finding]:
    if port.layer != nics.INFINIBAND:
        return
    stuck = [name for name, most in SATURATED.items() if port.counts.get(name) == most]
    if stuck:
        listed = ", ".join(name.split(" ")[1] for name in stuck)
        adapter, _, number = port.label.partition(" port ")
        fix = f"perfquery -C {adapter} -P {number or 1} -R resets it"
        text = f"{listed} has saturated and no longer counts: {fix}"
        blind = FALLS_OF_INFINIBAND in stuck
        yield hv.Finding("falls_uncounted" if blind else "counter_saturated", port.part_id, text)


def _describe(port: PortReading) -> str:
    words = (
        port.layer,
        port.shown_rate or port.state,
        f"firmware {port.firmware}" if port.firmware else "",
        f"at {port.address}" if port.address else "",
        f"{len(port.counts)} counters read",
    )
    return ", ".join(filter(None, words))


NVSENTINEL = "NVIDIA NVSentinel, docs/nic-health-monitor/link-counter-detection.md, section 4"
FATAL_SOURCE = "PCI Express: after a fatal error a link is unreliable"
SLOT_SOURCE = "what adapter and slot support: reseat the adapter"

CHECK = hv.Check(
    summary="ports of InfiniBand, RoCE and Ethernet: up, as fast as before, and clean",
    measure=measure,
    params=NicParams,
    metrics={
        "rate": hv.Metric("Gb/s", "low", "rate of the link now"),
        "module.headroom": hv.Metric("°C", "low", "below the critical heat of the module").warn(
            low=0, source="the module's own threshold"
        ),
        "pcie.width.missing": hv.Metric(
            "", "neither", "PCIe lanes fewer than in an earlier run"
        ).fail(high=0, source=f"what the link had: reseat the adapter; {ACCEPT}"),
        "pcie.width.unused": hv.Metric(
            "", "neither", "PCIe lanes fewer than adapter and slot support, on a new port"
        ).warn(high=0, source=SLOT_SOURCE),
        "pcie.generation.unused": hv.Metric(
            "", "neither", "PCIe generations below what adapter and slot support"
        ).warn(high=1, source=f"{SLOT_SOURCE}, and an idle link may save power by one"),
        "link_down.delta": hv.Metric("", "high", "times the link fell since the last run").warn(
            high=0, source="a job on this port lost its connections"
        ),
        "link_down.rate": hv.Metric("1/h", "high", "times the link fell").fail(
            high=2, source="gpud: a port that came back three times is flapping"
        ),
        "carrier.delta": hv.Metric("", "high", "times the carrier went since the last run").warn(
            high=0, source="a link that fell, or work on the interface: a job lost connections"
        ),
        "carrier.rate": hv.Metric("1/h", "high", "times the carrier went").fail(
            high=20, source="hpcverify default: no interface is set up that often"
        ),
        "symbol.rate": hv.Metric("1/h", "high", "symbol errors that were not corrected").warn(
            high=120, source=f"InfiniBand: a bit error rate of 1e-12 ({NVSENTINEL})"
        ),
        "recovery.rate": hv.Metric("1/h", "high", "times the link had to be retrained").warn(
            high=300, source=f"5 a minute: {NVSENTINEL}"
        ),
        "receive.rate": hv.Metric("1/h", "high", "broken packets received").warn(
            high=36_000, source=f"10 a second: {NVSENTINEL}"
        ),
        "transmit.rate": hv.Metric("1/h", "high", "packets not sent for want of a carrier").warn(
            high=36_000, source="hpcverify default: as for receive"
        ),
        "integrity.delta": hv.Metric("", "high", "overruns and too many physical errors").warn(
            high=0, source=NVSENTINEL
        ),
        "timeout.rate": hv.Metric("1/h", "high", "acknowledgements that did not come in time").warn(
            high=3600, source=f"1 a second: {NVSENTINEL}"
        ),
        "sequence.rate": hv.Metric("1/h", "high", "packets out of sequence or sent again"),
        "receiver_not_ready.rate": hv.Metric("1/h", "high", "answers of a receiver not ready"),
        "slow_restart.rate": hv.Metric("1/h", "high", "slow restarts of RoCE").warn(
            high=36_000, source=f"10 a second: {NVSENTINEL}"
        ),
        "module.delta": hv.Metric(
            "", "high", "events of the module: heat, bus, short circuit"
        ).warn(high=0, source="mlx5: events of the module"),
        "pcie.fatal.delta": hv.Metric("", "high", "fatal errors of PCIe since the last run").fail(
            high=0, conclusive=True, source=FATAL_SOURCE
        ),
        "pcie.non_fatal.delta": hv.Metric("", "high", "uncorrected, non-fatal, likewise").warn(
            high=0, source="PCI Express: a request was lost"
        ),
        "pcie.correctable.rate": hv.Metric(
            "ratio", "high", "corrected errors of PCIe / what is allowed"
        ).warn(high=1, source="as for GPUs (check pcie)"),
    },
    finding_rules={
        **hv.fail_on("port_down", "all_ports_down", "port_slow"),
        **hv.error_on("port_starting", remedy=hv.Remedy.RERUN, cause=hv.Cause.UNMEASURED),
        **hv.not_set_up("port_not_active", "gid_missing", "pkey_missing"),
        **hv.error_on("nic_hung", remedy=hv.Remedy.REBOOT, cause=hv.Cause.HUNG),
        **hv.warn_on(
            "port_disabled", "firmware_mixed", "falls_uncounted", remedy=hv.Remedy.FIX_CONFIGURATION
        ),
        **hv.warn_on("port_unlinked", "port_narrow", "all_ports_slow", "ports_fell_together"),
        **hv.listed("port_errors", "counter_saturated"),
    },
    placement=hv.Placement.PASSIVE,
    timeout=30,
)
