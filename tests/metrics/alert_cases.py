"""Series of fleets with each fault that an alert is for, and of healthy ones that look odd."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Case(Struct, frozen=True):
    """Series of a fleet, and which alerts fire at a time."""

    rule: str
    """What the alert does, as a name of the test."""
    alert: str
    series: Mapping[str, str]
    """Values by series, one each *step*; ``@`` stands for the labels of the controller."""
    minutes: int
    """When to look."""
    fires: tuple[Mapping[str, str], ...] = ()
    """The labels of each alert that fires, without those of the scrape."""
    step: int = 1
    """In minutes."""


HOUR = 60
DAY = 24 * HOUR
"""In minutes."""
TURN = "hpcverify_controller_turn_timestamp_seconds{@}"
BREAKER = "hpcverify_breaker_tripped{@}"
DOUBT = 'hpcverify_check_doubted{check="gemm",@}'
TO_HOLD = "hpcverify_nodes_to_hold{@}"
SINCE = 'hpcverify_node_state_since_timestamp_seconds{node="n2",@}'
HOLD = 'hpcverify_node_hold_info{node="n2",hold="drain",check="gemm",remedy="replace",@}'
N2_HELD = {"node": "n2", "hold": "drain", "check": "gemm", "remedy": "replace"}
RETURNS = 'hpcverify_node_recent_returns{node="n2",@}'
HEALTHY = 'hpcverify_nodes{state="healthy",@}'
BY_PERSON = 'hpcverify_nodes{state="held",@}'
QUARANTINED = 'hpcverify_nodes{state="quarantined",@}'
OVERDUE = "hpcverify_nodes_overdue{@}"
MISSING = 'hpcverify_node_parts_missing{node="n2",kind="gpu",@}'
DRAINED = 'hpcverify_nodes_held{hold="drain",@}'
RESERVED = 'hpcverify_nodes_held{hold="reservation",@}'
OTHERS = 'hpcverify_nodes_held{hold="others",@}'
SCRAPE_ERROR = "node_textfile_scrape_error{@}"
FILE_TIME = 'node_textfile_mtime_seconds{file="/var/lib/%s.prom",@}'
WAITING = 'hpcverify_events_waiting{reader="journald",@}'
MALFUNCTION = 'hpcverify_malfunction_since_timestamp_seconds{convenience="history",@}'
FINDINGS = 'hpcverify_findings_total{check="xid",code="lost",verdict="fail",@}'
LOST = {"check": "xid", "code": "lost", "verdict": "fail"}
CROSSING = 'hpcverify_trend_crossing_timestamp_seconds{node="n2",check="thermal",metric="power",@}'


def name_by_others(series: str) -> str:
    return series.replace('hold="drain"', 'hold="others"')


CASES = (
    Case(
        *("half an hour without a turn", "HpcverifyControllerSilent"), {TURN: "0 60x60"}, 40, ({},)
    ),
    Case("no file at all", "HpcverifyControllerSilent", {TURN: "stale"}, 20, ({},)),
    Case(
        "a file that is gone for half an hour",
        "HpcverifyControllerSilent",
        {TURN: "0+60x10 stale"},
        45,
        ({},),
    ),
    Case(
        "one cluster of two whose host is down",
        "HpcverifyControllerSilent",
        {TURN.replace("@", '@,cluster="b"'): "0+60x10 stale"},
        45,
        ({"cluster": "b"},),
    ),
    Case(
        "not while its host reboots",
        "HpcverifyControllerSilent",
        {TURN: "0+60x10 stale _x9 1200+60x30"},
        50,
    ),
    Case(
        "not between turns of ten minutes",
        "HpcverifyControllerSilent",
        {TURN: "0x12 780x12 1560x12 2340x12"},
        50,
    ),
    Case(
        "not for a controller that moved, and left its file",
        "HpcverifyControllerSilent",
        {TURN: "60x200", TURN.replace("@", 'instance="new:9100",job="node"'): "0+60x200"},
        200,
    ),
    Case("at once", "HpcverifyBreakerTripped", {BREAKER: "0 1x10"}, 2, ({},)),
    Case("not before it trips", "HpcverifyBreakerTripped", {BREAKER: "0x90"}, 90),
    Case(
        "a doubt of half an hour",
        "HpcverifyCheckDoubted",
        {DOUBT: "0 1x60"},
        40,
        ({"check": "gemm"},),
    ),
    Case(
        "not for a doubt that the next passes end",
        "HpcverifyCheckDoubted",
        {DOUBT: "0 1x20 0x60"},
        60,
    ),
    Case(
        "a drain that is refused for half an hour",
        "HpcverifyNodesNotHeld",
        {TO_HOLD: "0 2x60"},
        40,
        ({},),
    ),
    Case(
        "not for a drain that a later turn achieves",
        "HpcverifyNodesNotHeld",
        {TO_HOLD: "0 2x20 0x60"},
        60,
    ),
    Case(
        "a node that is held for more than three days",
        "HpcverifyNodeHeldLong",
        {SINCE: "600x900", HOLD: "1x900"},
        3 * DAY + 15,
        (N2_HELD,),
        step=5,
    ),
    Case(
        "not for a node that was held yesterday",
        "HpcverifyNodeHeldLong",
        {SINCE: "600x800", HOLD: "1x800"},
        DAY,
        step=5,
    ),
    Case(
        "not for a maintenance that is planned",
        "HpcverifyNodeHeldLong",
        {SINCE: "600x1200", name_by_others(HOLD): "1x1200"},
        4 * DAY,
        step=5,
    ),
    Case(
        "not for a node that was forgotten",
        "HpcverifyNodeHeldLong",
        {SINCE: "600x900 stale", HOLD: "1x900 stale"},
        4 * DAY,
        step=5,
    ),
    Case(
        "a second return within a week",
        "HpcverifyNodeBackTwice",
        {RETURNS: "0 1 2x10"},
        5,
        ({"node": "n2"},),
    ),
    Case("not for a first return", "HpcverifyNodeBackTwice", {RETURNS: "0 1x90"}, 90),
    Case(
        "a tenth of the fleet unverified for more than a day",
        "HpcverifyFleetStale",
        {OVERDUE: "12x400", HEALTHY: "90x400", QUARANTINED: "10x400"},
        DAY + HOUR,
        ({},),
        step=5,
    ),
    Case(
        "a tenth of the fleet, though a scrape is missed now and then",
        "HpcverifyFleetStale",
        {
            OVERDUE: " ".join(["12x140 stale"] * 3),
            HEALTHY: " ".join(["90x140 stale"] * 3),
            QUARANTINED: " ".join(["10x140 stale"] * 3),
        },
        DAY + 2 * HOUR,
        ({},),
        step=5,
    ),
    Case(
        "not for a new fleet on its first day",
        "HpcverifyFleetStale",
        {OVERDUE: "100x200 0x200", HEALTHY: "100x400"},
        DAY + HOUR,
        step=5,
    ),
    Case(
        "not for a fleet of no nodes",
        "HpcverifyFleetStale",
        {OVERDUE: "0x400", HEALTHY: "0x400"},
        DAY + HOUR,
        step=5,
    ),
    Case(
        "a part that is missing for an hour",
        "HpcverifyPartsMissing",
        {MISSING: "1x90"},
        70,
        ({"node": "n2", "kind": "gpu"},),
    ),
    Case(
        "not while somebody else has the node",
        "HpcverifyPartsMissing",
        {MISSING: "1x90", name_by_others(HOLD): "1x90"},
        70,
    ),
    Case("not for a part that is back", "HpcverifyPartsMissing", {MISSING: "1x30 0x60"}, 70),
    Case(
        "more than a twentieth of the fleet drained",
        "HpcverifyCapacityLow",
        {DRAINED: "6x90", HEALTHY: "94x90", QUARANTINED: "6x90", BY_PERSON: "0x90"},
        70,
        ({},),
    ),
    Case(
        "not while others have half of the fleet",
        "HpcverifyCapacityLow",
        {DRAINED: "1x90", OTHERS: "50x90", HEALTHY: "99x90", BY_PERSON: "0x90"},
        70,
    ),
    Case(
        "not while a new fleet is admitted",
        "HpcverifyCapacityLow",
        {DRAINED: "0x90", RESERVED: "100x90", HEALTHY: "0x90", BY_PERSON: "0x90"},
        70,
    ),
    Case(
        "not for nodes that a person holds",
        "HpcverifyCapacityLow",
        {DRAINED: "20x90", HEALTHY: "80x90", BY_PERSON: "20x90"},
        70,
    ),
    Case(
        "not for two nodes of a small cluster",
        "HpcverifyCapacityLow",
        {DRAINED: "2x90", HEALTHY: "8x90", BY_PERSON: "0x90"},
        70,
    ),
    Case(
        "a file of ours that cannot be read",
        "HpcverifyTextfileBroken",
        {SCRAPE_ERROR: "0x10 1x60", FILE_TIME % "hpcverify_run_quick": "0x10 stale"},
        40,
        ({},),
    ),
    Case(
        "as long as the file cannot be read",
        "HpcverifyTextfileBroken",
        {SCRAPE_ERROR: "0x10 1x700", FILE_TIME % "hpcverify_run_quick": "0x10 stale"},
        2 * DAY,
        ({},),
        step=5,
    ),
    Case(
        "not for a host whose file of ours was deleted",
        "HpcverifyTextfileBroken",
        {SCRAPE_ERROR: "0x60 1x60", FILE_TIME % "hpcverify_run_quick": "0x10 stale"},
        110,
    ),
    Case(
        "not for a host without a file of ours",
        "HpcverifyTextfileBroken",
        {SCRAPE_ERROR: "0x10 1x60", FILE_TIME % "raid": "0x60"},
        40,
    ),
    Case(
        "not for one scrape",
        "HpcverifyTextfileBroken",
        {SCRAPE_ERROR: "0x10 1 0x60", FILE_TIME % "hpcverify_run_quick": "0x60"},
        40,
    ),
    Case(
        "events that wait for an hour",
        "HpcverifyEventsStuck",
        {WAITING: "0 4x90"},
        70,
        ({"reader": "journald"},),
    ),
    Case(
        "events that wait, though a scrape is missed now and then",
        "HpcverifyEventsStuck",
        {WAITING: "6x48 stale 6x48"},
        80,
        ({"reader": "journald"},),
    ),
    Case(
        "not where each turn hands over what came",
        "HpcverifyEventsStuck",
        {WAITING: "900x20 0 30x50 0 4x20"},
        80,
    ),
    Case(
        "a convenience that fails for an hour",
        "HpcverifyMalfunction",
        {MALFUNCTION: "60x90"},
        70,
        ({"convenience": "history"},),
    ),
    Case(
        "a convenience that fails, though a scrape is missed now and then",
        "HpcverifyMalfunction",
        {MALFUNCTION: "60x48 stale 60x48"},
        80,
        ({"convenience": "history"},),
    ),
    Case(
        "not for one that works again in the next turns",
        "HpcverifyMalfunction",
        {MALFUNCTION: "60x20 stale"},
        70,
    ),
    Case(
        "a code that was not seen before, on eight nodes",
        "HpcverifyFindingRise",
        {FINDINGS: "_x576 8x100"},
        2 * DAY + 2 * HOUR,
        (LOST,),
        step=5,
    ),
    Case(
        "three times what is usual",
        "HpcverifyFindingRise",
        {FINDINGS: "0+2x100 220+20x10"},
        104 * 144,
        (LOST,),
        step=144,
    ),
    Case(
        "not for what is usual", "HpcverifyFindingRise", {FINDINGS: "0+2x120"}, 104 * 144, step=144
    ),
    Case(
        "not for the past that a new Prometheus reads",
        "HpcverifyFindingRise",
        {FINDINGS: "900x250"},
        20 * HOUR,
        step=5,
    ),
    Case(
        "not for one finding on one node",
        "HpcverifyFindingRise",
        {FINDINGS: "_x576 1x100"},
        2 * DAY + 2 * HOUR,
        step=5,
    ),
    Case(
        "a limit that will be crossed in twelve days",
        "HpcverifyTrendCrossesLimit",
        {CROSSING: f"{12 * 86400}x60"},
        40,
        ({"node": "n2", "check": "thermal", "metric": "power"},),
    ),
    Case(
        "not for one that will be crossed in a month",
        "HpcverifyTrendCrossesLimit",
        {CROSSING: f"{30 * 86400}x60"},
        40,
    ),
)
