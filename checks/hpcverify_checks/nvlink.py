"""
NVLink: is each link up, fast and clean, and is the fabric healthy.

How many links should be up depends on the part. Boards with switches have all links of
their data sheet; a PCIe board has links only where a bridge is plugged in, and then all
of that bridge. Fewer are a fault if GPUs of the same model in the node or an earlier
run show more, or if no bridge explains it. A GPU that shows no link at all has none up.
Where all GPUs of a model have equally few, the board may be wired that way, or a
virtual machine may have part of it: that is a warning. If no link of the node is up
where all should be, they are not all broken: nobody set them up. In MIG mode an A100 has
no NVLink and later GPUs do not use theirs (NVIDIA Fabric Manager User Guide, "Interoperability
With Multi-Instance GPUs"). Such a GPU is not judged, and nothing of it is remembered.

The GPUs of a rack are in one NVLink domain, whose manager divides them into cliques. A GPU that
leaves its domain, or is in another one than its siblings, fails. If all GPUs of the node move
together, the manager has moved them, which is a warning. Nodes are compared by their facts.

Errors that a good link never makes count: retrainings, and failed ones; from NVLink 5 on
a recovery that succeeded is a warning of them. Checksum errors
matter only in large numbers, and forward error correction is how such links work: it is
shown and never judged. Each kind is judged by its rise since the last run, and the sum
by its worst seconds while the other checks loaded the links.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

import hpcverify.check as hv
from hpcverify.limits.specs import Spec
from hpcverify.telemetry import problems
from hpcverify.telemetry.gpus import GpuAnswers, Linkage, NvLink, NvlinkFabric
from hpcverify.telemetry.vendors import SourceFinder, find_source
from hpcverify.units import HOUR_SECONDS
from hpcverify_checks.node import gpu_source
from hpcverify_checks.node.counters import compare_with_last_run, find_peak_rate, read_moment
from hpcverify_checks.node.fixes import ACCEPT
from hpcverify_checks.node.parts import (
    LINKS_PER_BRIDGE,
    MAX_MESH_GPUS,
    TRAY_KEY_PREFIXES,
    find_model,
    has_optional_links,
    look_up_spec,
)

LINKS_UP = "links up"
"""The carry-over with the links that were up."""
FABRIC_PLACE = "fabric"
"""The carry-over with the place in the fabric that a GPU is held to."""
WINDOW_SECONDS = 10.0
"""Window under load in which errors are counted."""

RETRAINING_KINDS = ("recovery", "recovery_failed")
RATE_UNITS = {
    "replay": ("1/h", HOUR_SECONDS),
    "crc": ("1/s", 1.0),
    "receive": ("1/s", 1.0),
    "symbol": ("1/s", 1.0),
    "effective": ("1/s", 1.0),
    "recovered": ("1/h", HOUR_SECONDS),
}
"""Kinds judged by rate: the unit, and the shortest time in seconds to take it over."""
CORRECTED_KINDS = ("symbol", "recovered")
"""Kinds that are no errors: correcting symbols is normal, and recoveries have a finding."""


class NvlinkParams(hv.Params, frozen=True):
    """How many links to expect."""

    links: Annotated[int, Meta(ge=0)] | None = None
    """Links that should be up on each GPU, or 0 if NVLink is off on purpose; without it, the
    data sheet decides."""


def measure(
    ctx: hv.Context, params: NvlinkParams, find: SourceFinder = find_source
) -> Iterator[hv.CheckItem]:
    """Read the links and the fabric, and the errors since the last run."""
    yield from report_linkage(
        gpu_source.open_gpu_source(ctx, find).read_links(), ctx, params, Path("/")
    )


def report_linkage(
    reply: GpuAnswers[Linkage], ctx: hv.Context, params: NvlinkParams, root: Path
) -> Iterator[hv.CheckItem]:
    """Report the state and the errors of the links in *reply*."""
    answers = {part_id: k for part_id, k in reply.answers.items() if not k.mig}
    cut_up = frozenset(reply.answers.keys() - answers.keys())
    missed = frozenset(
        part_id
        for part_id, linkage in answers.items()
        if not linkage.links and _should_have_links(part_id, answers, ctx, params)
    )
    linked = {
        part_id: linkage
        for part_id, linkage in answers.items()
        if linkage.links or linkage.fabric or part_id in missed
    }
    if not (linked or reply.findings):
        if cut_up:
            raise hv.Skip("GPUs in MIG mode do not use NVLink", hv.Cause.NOT_OBSERVABLE)
        raise hv.Skip("no GPU of this node has NVLink")
    yield from gpu_source.report_troubles(reply)
    for part_id in sorted(cut_up):
        yield hv.Coverage(part_id, "NVLinks not judged: the GPU is in MIG mode")
    yield from _report_unread(linked, missed)
    yield from _report_active_links(linked, missed, cut_up, ctx, params)
    for part_id, linkage in linked.items():
        yield from _report_speeds(linkage, look_up_spec(ctx, part_id), part_id)
        yield from report_errors(linkage, ctx, part_id, root)
        yield from _report_fabric(linkage.fabric, part_id, _find_setup_fix(ctx, part_id))
    unwell = {finding.part_id for finding in reply.findings}
    # Without a link a GPU is in no fabric, and the links are reported.
    apart = {
        w
        for w, k in linked.items()
        if k.links is not None and all(link.active is False for link in k.links)
    }
    sound = {w: k.fabric for w, k in linked.items() if w not in unwell | apart}
    yield from _report_places(sound, ctx)


def _should_have_links(
    part_id: str, answers: Mapping[str, Linkage], ctx: hv.Context, params: NvlinkParams
) -> bool:
    if ctx.recall(LINKS_UP, part_id):
        return True
    sheet = look_up_spec(ctx, part_id)
    if sheet and sheet.key in LINKS_PER_BRIDGE:
        return False  # bridges are optional
    name = find_model(ctx, part_id)
    if any(_list_active(k) for w, k in answers.items() if find_model(ctx, w) == name):
        return True
    # A single GPU, as in a virtual machine, has nothing to link to.
    siblings = [g for g in ctx.inventory.of_kind("gpu") if find_model(ctx, g.id) == name]
    return not has_optional_links(sheet) and (len(siblings) > 1 or bool(params.links))


def _report_unread(
    linked: Mapping[str, Linkage], missed: frozenset[str]
) -> Iterator[hv.Finding | hv.Coverage]:
    for part_id, linkage in linked.items():
        if linkage.links is None:
            text = "its NVLinks could not be read"
            yield (
                hv.Finding("nvlink_unread", part_id, text)
                if part_id in missed
                else hv.Coverage(part_id, text)
            )


def _list_links(linkage: Linkage) -> tuple[NvLink, ...]:
    return linkage.links or ()


def _list_active(linkage: Linkage) -> frozenset[int]:
    return frozenset(link.number for link in _list_links(linkage) if link.active)


class Wiring(Struct, frozen=True):
    """The links of one GPU, and how many of them should be up."""

    part_id: str
    linkage: Linkage
    sheet: Spec | None
    before: frozenset[int]
    """Links that were up in earlier runs."""
    wanted: int | None
    """What the suite asks for."""

    @property
    def sheet_links(self) -> int:
        """Links on the data sheet; 0 if unknown."""
        return self.sheet.nvlink_links if self.sheet else 0

    @property
    def links_per_bridge(self) -> int:
        """Links of one bridge; 0 on a part without bridges."""
        return LINKS_PER_BRIDGE.get(self.sheet.key, 0) if self.sheet else 0


def _report_active_links(
    linked: Mapping[str, Linkage],
    missed: frozenset[str],
    cut_up: frozenset[str],
    ctx: hv.Context,
    params: NvlinkParams,
) -> Iterator[hv.CheckItem]:
    counted = {
        part_id: _list_active(linkage)
        for part_id, linkage in linked.items()
        if any(link.active is not None for link in _list_links(linkage))
        or (part_id in missed and linkage.links is not None)
    }
    for part_id, links in counted.items():
        siblings = [n for w, n in counted.items() if find_model(ctx, w) == find_model(ctx, part_id)]
        before = frozenset(map(int, (_recall(ctx, LINKS_UP, part_id) or "").split()))
        sheet = look_up_spec(ctx, part_id)
        wiring = Wiring(part_id, linked[part_id], sheet, before, params.links)
        yield hv.Measurement("links", len(links), "", part_id)
        yield hv.Fact("NVLinks up", str(len(links)), part_id)
        text = f"{len(links)} of {len(_list_links(linked[part_id]))} NVLinks are up"
        if _may_lead_to_any(cut_up, part_id, ctx):
            text += "; others may lead to GPUs in MIG mode, and are not missed"
        else:
            yield from _find_missing(wiring, links, [len(n) for n in siblings])
        yield hv.Coverage(part_id, text)
        # A link that went down stays missing until somebody says that it may be down.
        kept = links | before if params.links is None else links
        yield hv.CarryOver(LINKS_UP, " ".join(map(str, sorted(kept))), part_id)


def _recall(ctx: hv.Context, name: str, part_id: str) -> str | None:
    """Recall what an earlier run left; nothing with --accept-parts."""
    return None if ctx.accepts_parts else ctx.recall(name, part_id)


def _may_lead_to_any(cut_up: frozenset[str], part_id: str, ctx: hv.Context) -> bool:
    """Whether links of *part_id* may end at one of the GPUs *cut_up*, and not at a switch."""
    model = find_model(ctx, part_id)
    like = [gpu.id for gpu in ctx.inventory.of_kind("gpu") if find_model(ctx, gpu.id) == model]
    has_switches = not has_optional_links(look_up_spec(ctx, part_id)) and len(like) > MAX_MESH_GPUS
    return not (has_switches or cut_up.isdisjoint(like))


def _find_missing(
    wiring: Wiring, links: frozenset[int], siblings: Sequence[int]
) -> Iterator[hv.Finding]:
    most, wanted = max(siblings), wiring.wanted
    if wanted is not None:
        if len(links) < wanted:
            yield _report_down(wiring, f"the suite wants {wanted}")
    elif not (most or has_optional_links(wiring.sheet)) and len(siblings) > 1:
        text = (
            f"no NVLink is up on any of the {len(siblings)} GPUs of this model: systemctl "
            "start nvidia-fabricmanager, and check that NVreg_NvLinkDisable is not set (if NVLink "
            "is off on purpose: [params.nvlink] links = 0 in the site file)"
        )
        yield hv.Finding("nvlink_off", wiring.part_id, text, fix=START_MANAGER)
    elif lost := wiring.before - links:
        yield _report_down(wiring, f"up in an earlier run; {ACCEPT}", lost)
    elif wiring.links_per_bridge:
        bridges, rest = divmod(len(links), wiring.links_per_bridge)
        if rest:
            yield _report_down(wiring, f"a bridge carries {wiring.links_per_bridge}")
        elif 0 < len(links) < wiring.sheet_links:
            full = wiring.sheet_links // wiring.links_per_bridge
            text = f"NVLink by {bridges} of {full} bridges: plug in all of them, or none"
            yield hv.Finding("nvlink_bridge_missing", wiring.part_id, text)
    elif most and len(links) < max(most, wiring.sheet_links):
        if len(siblings) > 1 and len(set(siblings)) == 1:
            text = (
                f"{most} of {wiring.sheet_links} NVLinks are up, as on all {len(siblings)} GPUs of "
                "this model: is the board wired that way, or only partly passed through, or "
                f"is a switch dead? (if that is right: [params.nvlink] links = {most} in the "
                "site file)"
            )
            yield hv.Finding("nvlink_fewer", wiring.part_id, text)
        else:
            yield _report_down(wiring, f"{max(most, wiring.sheet_links)} should be up")


def _report_down(wiring: Wiring, why: str, which: frozenset[int] = frozenset()) -> hv.Finding:
    """Report links down (*which*, or all not up), and *why* that is wrong."""
    up = _list_active(wiring.linkage)
    down = which or {link.number for link in _list_links(wiring.linkage)} - up
    names = ", ".join(map(str, sorted(down)))
    what = f"NVLink {names} down" if names else "not all NVLinks are listed"
    return hv.Finding(
        "nvlink_down", wiring.part_id, f"{what}, {len(up)} are up: {why}", {"links": names}
    )


def _report_speeds(linkage: Linkage, sheet: Spec | None, part_id: str) -> Iterator[hv.CheckItem]:
    rates = {
        link.number: link.speed_gbs
        for link in _list_links(linkage)
        if link.active and link.speed_gbs
    }
    if not rates:
        return
    slowest, fastest = min(rates.values()), max(rates.values())
    yield hv.Measurement("speed", slowest, "GB/s", part_id)
    if sheet and sheet.nvlink_link_gbs:
        one_way = sheet.nvlink_link_gbs / 2
        yield hv.Measurement("speed.of_spec", slowest / one_way, "ratio", part_id)
    for number, rate in rates.items():
        if rate < fastest:
            yield hv.Measurement(f"link.{number}.of_fastest", rate / fastest, "ratio", part_id)


def report_errors(
    linkage: Linkage, ctx: hv.Context, part_id: str, root: Path
) -> Iterator[hv.CheckItem]:
    """Report the new errors of each kind, and the link with most of them."""
    links = _list_links(linkage)
    read = {f"{k.number} {e}": n for k in links for e, n in k.errors.items()}
    new = compare_with_last_run(ctx, part_id, read, read_moment(root))
    kept = {error for link in links for error in link.errors}
    for name in (k for k in RETRAINING_KINDS if k in kept):
        yield hv.Measurement(name, _sum_kind(new.shown, name), "", part_id)
        if new.from_last_run:
            yield hv.Measurement(f"{name}.delta", _sum_kind(new.last.counts, name), "", part_id)
    for name in (k for k in RATE_UNITS if k in kept):
        unit, seconds = RATE_UNITS[name]
        rate = new.compute_rate(partial(_sum_kind, kind=name), seconds)
        if rate is not None:
            yield hv.Measurement(f"{name}.rate", rate, unit, part_id)
    # Of 320 GB200 one link had any, 505: it failed five days later (marin#9086, Xid 149).
    for name, count in new.last.grown.items():
        number, _, kind = name.partition(" ")
        if kind == "recovered":
            text = (
                f"NVLink {number} lost its connection and recovered {count} times since {new.start}"
            )
            evidence = {"link": number, kind: str(count)}
            yield hv.Finding("nvlink_recovered", part_id, text, evidence)
    yield from _find_worst_link(new.last.grown, new.start, part_id)
    yield new.carry_over


def _sum_kind(counts: Mapping[str, int], kind: str) -> int:
    return sum(count for name, count in counts.items() if name.partition(" ")[2] == kind)


def _find_worst_link(new: Mapping[str, int], since: str, part_id: str) -> Iterator[hv.Finding]:
    links: Counter[str] = Counter()
    for name, count in new.items():
        number, _, error = name.partition(" ")
        if error not in CORRECTED_KINDS:
            links[number] += count
    if not links:
        return
    ((worst, most),) = links.most_common(1)
    named = ((name.partition(" "), count) for name, count in new.items())
    counted = {error: str(count) for (number, _, error), count in named if number == worst}
    names = ", ".join(f"{error} {count}" for error, count in counted.items())
    text = f"NVLink {worst} has {most} of {links.total()} errors since {since}: {names}"
    yield hv.Finding("nvlink_errors", part_id, text, {"link": worst, **counted})


START_MANAGER = "systemctl start nvidia-fabricmanager"
SETUP_FIX = f"{START_MANAGER}, and check its log (journalctl -u nvidia-fabricmanager)"
WAIT_FIX = "it may take minutes after a boot: run again; if it stays so, "
RACK_SETUP_FIX = "check the fabric manager of the rack (NMX-C), and that it has this node"
"""The nodes of a rack run none of their own (leptonai/gpud#1106)."""
SETUP_FLAGS = frozenset({"incorrect_configuration", "partition", "manager"})
"""Those of the error flags of the fabric that the fabric manager sets right."""
FABRIC_FLAG_TEXTS = {
    "degraded_bandwidth": "the fabric gives this GPU less bandwidth than it should",
    "route_recovery": "the fabric is recovering a route of this GPU",
    "route_unhealthy": "a route of this GPU through the fabric is unhealthy",
    "access_timeout": "this GPU's access to the fabric timed out",
    "incorrect_configuration": "the fabric is misconfigured",
    "partition": "this GPU is in no partition of the fabric",
    "manager": "the fabric manager has lost contact with this GPU",
}
"""What the error flags of the fabric mean."""


def _find_setup_fix(ctx: hv.Context, part_id: str) -> tuple[str, str]:
    """Find how to set up the fabric of a GPU: in words, and as a command."""
    sheet = look_up_spec(ctx, part_id)
    in_rack = sheet and sheet.key.startswith(TRAY_KEY_PREFIXES)
    return (RACK_SETUP_FIX, "") if in_rack else (SETUP_FIX, START_MANAGER)


def _report_fabric(
    fabric: NvlinkFabric | None, part_id: str, setup_fix: tuple[str, str]
) -> Iterator[hv.CheckItem]:
    yield hv.Fact("NVLink domain", fabric.domain if fabric and fabric.domain else "none", part_id)
    yield hv.Fact("NVLink clique", str(fabric.clique if fabric else 0), part_id)
    if fabric is None:
        return
    if fabric.state == "in_progress":
        text = "the GPU's registration with the fabric is in progress"
        then = setup_fix[0].removeprefix(f"{START_MANAGER}, and ")
        yield hv.Finding("fabric_starting", part_id, f"{text}; {WAIT_FIX}{then}")
        return  # the rest is not settled
    if fabric.state != "completed":
        text = f"the GPU's registration with the fabric has not started: {setup_fix[0]}"
        yield hv.Finding("fabric_not_ready", part_id, text, fix=setup_fix[1])
    elif fabric.status != "ok":
        text = f"the GPU could not register with the fabric: {fabric.status}"
        yield hv.Finding("fabric_failed", part_id, text)
    for flag in fabric.trouble:
        text = FABRIC_FLAG_TEXTS.get(flag, f"the fabric reports {flag}")
        words, fix = setup_fix if flag in SETUP_FLAGS else ("", "")
        yield hv.Finding(f"fabric_{flag}", part_id, ": ".join(filter(None, (text, words))), fix=fix)
    if fabric.summary in ("unhealthy", "limited"):
        text = f"fabric health of this GPU: {fabric.summary}"
        yield hv.Finding(f"fabric_{fabric.summary}", part_id, text)


NO_FABRIC, OWN_BOARD = "no fabric", "no NVLink domain"
"""Places of a GPU that is registered nowhere, and of one with the switches of its board."""


def _name_place(fabric: NvlinkFabric | None) -> str:
    """Name the place in the fabric; NCCL, too, takes the zero UUID for no domain (init.cc)."""
    if fabric is None:
        return NO_FABRIC
    if not (fabric.domain and fabric.clique):
        return OWN_BOARD
    return f"NVLink domain {fabric.domain}, clique {fabric.clique}"


def _rank_place(place: str) -> int:
    return {NO_FABRIC: 0, OWN_BOARD: 1}.get(place, 2)


def _report_places(
    fabrics: Mapping[str, NvlinkFabric | None], ctx: hv.Context
) -> Iterator[hv.Finding | hv.CarryOver]:
    """Compare where like GPUs are in the fabric: with each other, and with earlier runs."""
    models: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for part_id, fabric in fabrics.items():
        # `_report_fabric` has what the manager has not settled, or reports itself.
        if fabric is None or (
            (fabric.state, fabric.status) == ("completed", "ok")
            and SETUP_FLAGS.isdisjoint(fabric.trouble)
        ):
            models[find_model(ctx, part_id)][part_id] = _name_place(fabric)
    in_fabric = {find_model(ctx, w) for w, fabric in fabrics.items() if fabric}
    for model, places in models.items():
        held = {w: h for w in places if (h := _recall(ctx, FABRIC_PLACE, w))}
        lost = {w for w, h in held.items() if _rank_place(places[w]) < _rank_place(h)}
        for part_id, place in places.items():
            if part_id in lost:
                text = (
                    f"is in {place}, before in {held[part_id]}: check this GPU and its NVLinks "
                    f"in the fabric manager (of a rack: NMX-C), then reset the GPU; {ACCEPT}"
                )
                yield hv.Finding("fabric_lost", part_id, text)
            elif place == NO_FABRIC and model in in_fabric:
                words, fix = _find_setup_fix(ctx, part_id)
                text = f"not in the fabric that other GPUs of this model are in: {words}"
                yield hv.Finding("fabric_not_ready", part_id, text, fix=fix)
            if ctx.accepts_parts and place == NO_FABRIC:
                yield hv.CarryOver(FABRIC_PLACE, "", part_id)
        rest = {w: p for w, p in places.items() if w not in lost and p != NO_FABRIC}
        yield from _compare_places(rest, rest if ctx.accepts_parts else held)


def _compare_places(
    places: Mapping[str, str], held: Mapping[str, str]
) -> Iterator[hv.Finding | hv.CarryOver]:
    """Compare the *places* of GPUs in the fabric with those that they are *held* to."""
    usual, most = Counter(places.values()).most_common(1)[0] if places else ("", 0)
    known = held.keys() & places.keys()
    moved = {w for w in known if held[w] != places[w]}
    odd = set[str]()
    if most == len(places) and moved == known:
        if moved:
            text = (
                f"all GPUs are in {usual}, before in {held[min(moved)]}: check that the fabric "
                "manager of the rack (NMX-C) was meant to move them; this is reported once"
            )
            yield hv.Finding("fabric_moved", "node", text)
    elif 2 * most > len(places) and (moved or known != places.keys()):
        odd = {w for w, place in places.items() if place != usual}
    elif moved and moved != places.keys():
        odd = moved
    elif moved or known != places.keys():
        text = f"GPUs of one model are in {' and in '.join(sorted(set(places.values())))}"
        yield hv.Finding(
            "fabric_split", "node", f"{text}: check its partitions in the fabric manager; {ACCEPT}"
        )
        return
    for part_id in sorted(odd):
        others = sorted({p for w, p in places.items() if w not in odd})
        text = (
            f"is in {places[part_id]}, like GPUs of this node in {' and in '.join(others)}: check "
            f"this GPU in the fabric manager (of a rack: NMX-C); {ACCEPT}"
        )
        yield hv.Finding("fabric_differs", part_id, text)
    for part_id, place in places.items():
        before = held[part_id] if part_id in moved else usual
        yield hv.CarryOver(FABRIC_PLACE, before if part_id in odd else place, part_id)


def observe(watch: hv.Watch, ctx: hv.Context, params: NvlinkParams) -> Iterator[hv.CheckItem]:
    """Report the errors of the links in the worst seconds of the run."""
    for part_id, samples in watch.group_by_part("nvlink.errors"):
        rate = find_peak_rate(samples, WINDOW_SECONDS, WINDOW_SECONDS)
        yield hv.Measurement("errors.rate", rate, "1/s", part_id)


DCGM_CRC_SOURCE = "DCGM 4: NVIDIA's driver team counts checksum errors from 100 a second on"
DCGM_RECOVERY_SOURCE = "DCGM 4 diag: max_nvlink_recovery_errors=0"

CHECK = hv.Check(
    summary="NVLink: state, speed and errors of every link, and the fabric's health",
    measure=measure,
    observe=observe,
    params=NvlinkParams,
    metrics={
        "links": hv.Metric("", "low", "links that are up"),
        "speed": hv.Metric("GB/s", "low", "slowest link, one direction, signalling rate").fail(
            of_siblings=0.95, source="links are trained in larger steps"
        ),
        "speed.of_spec": hv.Metric("ratio", "low", "speed / data sheet").fail(
            low=0.9, source="data sheet; trained in larger steps"
        ),
        "link.*.of_fastest": hv.Metric("ratio", "low", "its speed / fastest link of the GPU").fail(
            low=0.95, source="links are trained in larger steps"
        ),
        "recovery": hv.Metric("", "high", "recoveries (retrainings) since driver start").warn(
            high=0, source=DCGM_RECOVERY_SOURCE
        ),
        "recovery_failed": hv.Metric("", "high", "failed recoveries since driver start").warn(
            high=0, source=DCGM_RECOVERY_SOURCE
        ),
        "*.delta": hv.Metric("", "high", "since the last run")
        .fail("recovery.delta", high=0, source=DCGM_RECOVERY_SOURCE)
        .fail("recovery_failed.delta", high=0, conclusive=True, source=DCGM_RECOVERY_SOURCE),
        "replay.rate": hv.Metric("1/h", "high", "packets resent since the last run").warn(
            high=60, source="DCGM 4 health watch: one a minute"
        ),
        "recovered.rate": hv.Metric("1/h", "high", "successful recoveries"),
        "*.rate": hv.Metric("1/s", "high", "since the last run, on all links")
        .fail("crc.rate", high=100, source=DCGM_CRC_SOURCE)
        .warn("receive.rate", "effective.rate", high=100, source=DCGM_CRC_SOURCE),
        "errors.rate": hv.Metric("1/s", "high", "in the worst 10 s of the run").fail(
            high=100, source=DCGM_CRC_SOURCE
        ),
    },
    finding_rules={
        **problems.PROBLEM_RULES,
        **hv.not_set_up(
            *("nvlink_off", "fabric_not_ready", "fabric_incorrect_configuration"),
            *("fabric_partition", "fabric_manager"),
        ),
        **hv.fail_on(
            *("nvlink_down", "fabric_degraded_bandwidth", "fabric_lost"),
            "fabric_differs",
        ),
        **hv.warn_on(
            *("nvlink_fewer", "nvlink_bridge_missing", "nvlink_recovered", "fabric_limited"),
            "fabric_moved",
        ),
        **hv.error_on("nvlink_unread", remedy=hv.Remedy.RERUN, cause=hv.Cause.UNMEASURED),
        **hv.listed("nvlink_errors"),
        **hv.error_on("fabric_starting", remedy=hv.Remedy.RERUN, cause=hv.Cause.MISCONFIGURED),
        **hv.fail_on("fabric_failed", remedy=hv.Remedy.REBOOT),
        **hv.warn_on("fabric_route_recovery", remedy=hv.Remedy.RERUN),
        **hv.fail_on("fabric_route_unhealthy", "fabric_unhealthy", remedy=hv.Remedy.RESET_GPU),
        **hv.warn_on("fabric_access_timeout", remedy=hv.Remedy.RESET_GPU),
        **hv.warn_on("fabric_split", remedy=hv.Remedy.FIX_CONFIGURATION),
    },
    placement=hv.Placement.PASSIVE,
    timeout=60,
)
