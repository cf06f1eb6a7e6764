"""Fleets for the tests of their page: some nodes bad in every way, the others well."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from random import Random

from msgspec.structs import replace

from hpcverify.fleet.outages import NodeOutage, OutageCause
from hpcverify.fleet.states import Node, State
from hpcverify.insight.judgement import FleetJudgement, JudgedOutlier
from hpcverify.insight.month import FleetMonth, build_month
from hpcverify.insight.outlook import DueNode, FleetOutlook, ReliabilityReport
from hpcverify.insight.overview import Overview, build_overview
from hpcverify.model import (
    Cause,
    Fault,
    FaultKind,
    Limit,
    Remedy,
    Result,
    Verdict,
    verdict_of,
)
from hpcverify.peers.distribution import Distribution, count_values
from hpcverify.peers.fleet import MetricJudgement
from hpcverify.peers.values import MetricName
from hpcverify.records.last_result import LastResult
from hpcverify.records.reported_facts import ReportedFacts
from hpcverify.reliability.outages import Estimate, FleetReliability
from hpcverify.selection.ranking import NodeRisk
from hpcverify.summary.diagnosis import diagnose_run
from hpcverify.trends.fleet import PartChange
from tests.doubles import a_run

NOW = datetime(2026, 11, 21, 7, tzinfo=UTC).timestamp()
MADE = datetime.fromtimestamp(NOW, UTC)
HOUR = 3600.0
DAY = 86400.0
CHECKS = (
    *("allreduce", "copies", "ecc", "exact", "gemm", "gpu_memory", "gpu_setup"),
    *("inventory", "kernels", "nvlink", "p2p", "pcie", "pcie_bandwidth", "recovery"),
    *("sdc", "storage", "stress", "thermal", "training", "xid"),
)
SLOW = "GPU 3 (…4f21): bf16.sustained 612 TFLOP/s < 702.2 (0.71 of spec 989, H100 SXM5)"
SLOW_LIMIT = Limit("bf16.sustained", low=702.2, source="0.71 of spec 989, H100 SXM5")


def said(node: str, check: str = "gemm", **changes: object) -> LastResult:
    """Make last night's result of a check on *node*; it passed."""
    base: dict[str, object] = {
        "node": node,
        "suite": "idle",
        "run": f"20261121T032100Z-{node}",
        "started": datetime(2026, 11, 21, 3, 21, tzinfo=UTC),
        "overall": Verdict.FAIL,
        "check": check,
        "verdict": Verdict.PASS,
        "reason": "",
        "cause": Cause.NONE,
        "remedy": Remedy.NONE,
    }
    return LastResult(**{**base, **changes})  # type: ignore[arg-type]


def bad(  # noqa: PLR0917 - what a result says, in the order of a sentence
    node: str,
    check: str,
    verdict: Verdict,
    remedy: Remedy,
    reason: str,
    faults: tuple[Fault, ...] = (),
) -> LastResult:
    """Make a result that is not PASS; without *faults* it has one that is its reason."""
    is_slow = reason == SLOW
    plain = Fault(
        kind=FaultKind.OUTSIDE if is_slow else FaultKind.FINDING,
        part_id="gpu-3",
        part_kind="gpu",
        check=check,
        code=SLOW_LIMIT.name if is_slow else reason,
        text=reason,
        verdict=verdict,
        remedy=remedy,
        limit=SLOW_LIMIT if is_slow else None,
        value=612.0 if is_slow else None,
        unit="TFLOP/s" if is_slow else "",
    )
    failed = Result(
        check=check,
        verdict=verdict,
        remedy=remedy,
        reason=reason,
        faults=faults or (plain,),
    )
    (result,) = list_last(node, failed)
    return result


def list_last(node: str, *results: Result) -> list[LastResult]:
    """Make the last results of *node*, all of one run."""
    diagnoses = diagnose_run(a_run(results=results, verdict=verdict_of(results)))
    return [
        said(
            node,
            result.check,
            verdict=result.verdict,
            remedy=result.remedy,
            reason=result.reason,
            diagnoses=tuple(d for d in diagnoses if result.check in d.checks),
        )
        for result in results
    ]


def well(name: str) -> Node:
    """Make a node that passed last night."""
    return Node(
        name=name,
        state=State.HEALTHY,
        since=NOW - 9 * DAY,
        last_pass_at=NOW - 3.5 * HOUR,
        last_run_at=NOW - 3.5 * HOUR,
        verdict="pass",
    )


def name_of(place: int) -> str:
    """Name the node at *place*: 32 are a rack."""
    return f"gpu-r{place // 32 + 1:03d}-n{place % 32 + 1:02d}"


def sick() -> dict[str, Node]:
    """Make a node in every state that there is."""
    return {
        node.name: node
        for node in (
            Node(
                name=name_of(5),
                state=State.QUARANTINED,
                enforced=True,
                since=NOW - 2 * DAY,
                reason=f"gemm: {SLOW}",
                checks=("gemm", "thermal"),
                last_pass_at=NOW - 3 * DAY,
                verdict="fail",
                last_run_at=NOW - 3 * HOUR,
            ),
            Node(
                name=name_of(17),
                state=State.REPEAT_OFFENDER,
                enforced=True,
                since=NOW - 6 * DAY,
                reason="sdc: quarantined 3 times within 28 days",
                checks=("sdc",),
                last_pass_at=NOW - 8 * DAY,
                verdict="fail",
                last_run_at=NOW - 3 * HOUR,
            ),
            Node(
                name=name_of(23),
                state=State.SUSPECT,
                since=NOW - 3 * HOUR,
                reason="nvlink: GPU 0 link 7 is down",
                checks=("nvlink",),
                last_pass_at=NOW - DAY,
                verdict="fail",
                last_run_at=NOW - 3 * HOUR,
            ),
            Node(
                name=name_of(30),
                state=State.HELD,
                enforced=True,
                since=NOW - 5 * HOUR,
                reason="firmware of the switch",
                by="anna",
                last_pass_at=NOW - DAY,
            ),
            Node(
                name=name_of(33), foreign="bad fan, ticket 4711 (root)", last_pass_at=NOW - 12 * DAY
            ),
            Node(name=name_of(40), state=State.VERIFYING, enforced=True, suite="burnin"),
            Node(name=name_of(50)),
        )
    }


def faults() -> list[LastResult]:
    """Make the results of checks on sick nodes, and on some that only warn."""
    return [
        bad(name_of(5), "gemm", Verdict.FAIL, Remedy.REPLACE, SLOW),
        bad(name_of(5), "thermal", Verdict.WARN, Remedy.INSPECT, "GPU 3: 91 °C > 87"),
        bad(name_of(17), "sdc", Verdict.FAIL, Remedy.REPLACE, "1 word differs"),
        bad(name_of(23), "nvlink", Verdict.FAIL, Remedy.RESET_GPU, "link 7 is down"),
        bad(name_of(44), "storage", Verdict.WARN, Remedy.INSPECT, "fsync.p99 13 ms"),
        bad(name_of(45), "allreduce", Verdict.ERROR, Remedy.FIX_CONFIGURATION, "no nccl"),
        *(bad(name_of(i), "xid", Verdict.SKIP, Remedy.NONE, "no kernel log") for i in range(8, 12)),
    ]


def fleet(count: int = 64, tripped: str = "") -> Overview:
    """Make a fleet of *count* nodes, seven of them in a state of their own."""
    nodes = {name_of(i): well(name_of(i)) for i in range(count)} | sick()
    loud = {(one.node, one.check): one for one in faults()}
    return build_overview(nodes, (), _results(nodes, loud), now=NOW, tripped=tripped)


def _results(
    nodes: dict[str, Node], loud: dict[tuple[str, str], LastResult]
) -> Iterator[LastResult]:
    silent = {name_of(50), name_of(40)}
    for name in nodes.keys() - silent:
        for check in CHECKS:
            yield loud.get((name, check)) or said(name, check)


def links(shown: Overview) -> dict[tuple[str, str], str]:
    """Give every node the page of its run."""
    return {(r.node.name, "idle"): f"nodes/{r.node.name}/idle.html" for r in shown.rows}


def rotten(count: int, one_in: int) -> Overview:
    """Make a fleet in which one result in *one_in* is a failure with a long reason."""
    nodes = {name_of(i): well(name_of(i)) for i in range(count)}
    pairs = [(name, check) for name in nodes for check in CHECKS]
    results = [
        bad(*pair, Verdict.FAIL, Remedy.REPLACE, SLOW) if place % one_in == 0 else said(*pair)
        for place, pair in enumerate(pairs)
    ]
    return build_overview(nodes, (), results, now=NOW)


def tell_versions(count: int) -> list[ReportedFacts]:
    """
    Let *count* nodes tell their versions, oldest first, two runs of each node.

    Four are kept on a newer kernel, three have a BIOS setting of their own, one of which is
    out of service, and two thirds got another driver in the last days.
    """
    kind = {"system": "Supermicro SYS-821GE-TNHR", "CPU": "2 x Xeon 8480", "GPU": "NVIDIA H100"}
    line = "default_hugepagesz=2M iommu=pt nouveau.modeset=0 pci=realloc=off quiet rw"
    before: list[ReportedFacts] = []
    after: list[ReportedFacts] = []
    for place in range(count):
        kernel = "6.8.0-50-generic" if place < 4 else "6.8.0-40-generic"
        odd = place in (30, 41, 42)
        facts = kind | {"GPU driver": "570.86.15", "kernel": kernel, "SMT": "on", "IOMMU": "off"}
        facts["kernel command line"] = line.replace("iommu=pt ", "") if odd else line
        facts["SMT"] = "off" if odd else "on"
        new = facts | ({"GPU driver": "575.51.03"} if 3 * place < 2 * count else {})
        moved = NOW - 3 * DAY + place * HOUR / 2
        node = name_of(place)
        before.append(
            ReportedFacts(
                node=node, source="parts", first=NOW - 20 * DAY, last=moved - HOUR, facts=facts
            )
        )
        after.append(
            ReportedFacts(node=node, source="parts", first=moved, last=NOW - 3 * HOUR, facts=new)
        )
    return [*before, *after]


def drifting(count: int = 64) -> Overview:
    """Make a fleet whose versions differ; the runs of the driver's first night warned."""
    nodes = {name_of(i): well(name_of(i)) for i in range(count)}
    nodes[name_of(30)] = sick()[name_of(30)]
    told = tell_versions(count)
    moved = {one.node: one.first for one in told[count:]}
    changed = "gpu name changed from H100 to H100 80GB"
    results = [
        replace(
            bad(name, "inventory", Verdict.WARN, Remedy.INSPECT, changed),
            started=datetime.fromtimestamp(moved[name], UTC),
            overall=Verdict.WARN,
        )
        if 3 * place < 2 * count
        else said(name, "inventory")
        for place, name in enumerate(nodes)
    ]
    return build_overview(nodes, (), results, now=NOW, told=told)


GEMM = "gemm bf16.sustained (idle, NVIDIA H100 80GB HBM3)"
COPIES = "pcie_bandwidth h2d (idle, NVIDIA H100 80GB HBM3)"
DRIVER = "driver 570.86.15 to 575.51.03"
FSYNC = "storage fsync.p99 (idle)"


def distribute(
    name: str, unit: str, centre: float, share: float, *far: float
) -> tuple[MetricJudgement, Distribution]:
    """Make a metric of 512 parts whose values are normal, with some that are *far*."""
    draw = Random(name)  # noqa: S311 - the same values every time
    values = [*far, *(draw.gauss(centre, share * centre) for _ in range(512 - len(far)))]
    metric = MetricJudgement(
        name=MetricName(name, unit=unit),
        worse="high" if unit == "ms" else "low",
        parts=512,
        nodes=64,
        median=centre,
        spread=share,
        floor=0.02,
    )
    return metric, count_values(values)


def judge(**changes: object) -> FleetJudgement:
    """Make the judgement of a night: outliers of every level, a step, a trend and a rollout."""
    slow = JudgedOutlier(
        level="part",
        name=f"{name_of(44)} GPU 3",
        node=name_of(44),
        nodes=(name_of(44),),
        suite="idle",
        metric=GEMM,
        verdict=Verdict.WARN,
        distance=0.046,
        cause="throttles by heat: clock 1290 MHz (peers 1395), temperature 86 °C (peers 71)",
        since=date(2026, 11, 14),
        last=date(2026, 11, 21),
        shown=(True,) * 6,
    )
    node = replace(slow, level="node", name=name_of(12), node=name_of(12), distance=0.031, cause="")
    switch = JudgedOutlier(
        level="switch",
        name="leaf7",
        nodes=tuple(map(name_of, range(8, 12))),
        suite="idle",
        metric=COPIES,
        verdict=Verdict.FAIL,
        distance=0.12,
        since=date(2026, 11, 19),
        last=date(2026, 11, 21),
        shown=(True,) * 3,
    )
    step = PartChange(
        node=name_of(20),
        part="GPU 5",
        metric=GEMM,
        verdict=Verdict.WARN,
        kind="step",
        size=0.012,
        before=702.4,
        after=694.0,
        unit="TFLOP/s",
        day=date(2026, 11, 17),
        why="with VBIOS 96.00.A5 to 96.00.B1; 13 parts with it are what they were in the median",
    )
    trend = replace(
        step,
        node=name_of(21),
        part="nvme0",
        metric=FSYNC,
        kind="trend",
        size=0.34,
        before=6.2,
        after=8.3,
        unit="ms",
        day=date(2026, 11, 21),
        why="crosses its limit about 2026-12-09 (2026-12-01 to 2027-01-04)",
    )
    base: dict[str, object] = {
        "night": date(2026, 11, 21),
        "outliers": (switch, slow, node),
        "changes": (trend, step),
        "notes": (
            f"{GEMM}: rollout: 42 of 63 parts with {DRIVER} became 0.8 % worse: no fault of theirs",
        ),
        "unconfirmed": (replace(slow, name=f"{name_of(2)} GPU 0", node=name_of(2), shown=(True,)),),
        "metrics": (
            distribute(GEMM, "TFLOP/s", 702.0, 0.006, 669.8, 680.2, 681.0),
            distribute(COPIES, "GB/s", 55.2, 0.004, *[48.6] * 32),
            distribute(FSYNC, "ms", 6.4, 0.03, 8.3),
        ),
        "screened": 197,
    }
    return FleetJudgement(**{**base, **changes})  # type: ignore[arg-type]


def due(place: int, score: float, *reasons: str, why: str = "last verified 26 h ago") -> DueNode:
    """Make a node that is due."""
    return DueNode(node=name_of(place), risk=NodeRisk(score, reasons), why=why)


def foresee(judgement: FleetJudgement | None, **changes: object) -> FleetOutlook:
    """Make the outlook of a fleet with a history."""
    rate = Estimate(0.004, 0.003, 0.0052)
    known = FleetReliability(
        nodes=64,
        node_days=5610.0,
        outages=23,
        found=15,
        failure_rate=rate,
        share_out=Estimate(0.021, 0.012, 0.03),
        weeks=0,
    )
    returned = ("came back 26 h ago", "3 outages in 90 days")
    base: dict[str, object] = {
        "due": (
            due(23, 1.0, why="suspect: nvlink: GPU 0 link 7 is down"),
            due(5, 9.3, *returned, why="came back 26 h ago"),
            due(3, 3.1, "neighbour gpu-r001-n06 failed 2 days ago"),
            *(due(i, 0.9) for i in range(34, 39)),
        ),
        "due_count": 8,
        "judged_by": "by published data: 23 outages of this site are known, 50 are needed "
        "to fit weights to",
        "reliability": ReliabilityReport(schema=1, time=MADE, days=90.0, reliability=known),
        "judgement": judgement,
    }
    return FleetOutlook(**{**base, **changes})  # type: ignore[arg-type]


def judged(judgement: FleetJudgement | None = None, **changes: object) -> Overview:
    """Make the fleet with what its past says; *changes* are of the outlook."""
    return replace(fleet(), outlook=foresee(judgement, **changes), month=a_month(64))


def a_month(count: int) -> FleetMonth:
    """Make the nights of *count* nodes: most pass, one failed often, and fewer fail lately."""
    draw = Random(7)  # noqa: S311 - the same nights every time
    today = MADE.date()
    nights = list[tuple[str, date, Verdict]]()
    for place in range(count):
        for age in range(30):
            failed = draw.random() < (0.2 if place == 5 else 0.0002 * age)
            failed |= age == 0 and place in (5, 17, 23)
            warned = draw.random() < 0.01
            verdict = Verdict.FAIL if failed else Verdict.WARN if warned else Verdict.PASS
            if draw.random() < 0.93:
                nights.append((name_of(place), today - timedelta(days=age), verdict))
    held = [
        NodeOutage(
            node=name_of(place),
            began=NOW - (9 - place) * DAY,
            ended=NOW - 2 * DAY if place == 3 else 0.0,
            cause=OutageCause.VERIFICATION,
            reason="gemm",
            held=True,
        )
        for place in (3, 5, 7)
    ]
    return build_month(nights, held, today)


def judged_in_all_ways(count: int) -> Overview:
    """Make a fleet of which everything that a page can show is known, with some long names."""
    crowd = PartChange(
        nodes=tuple(map(name_of, range(64, 96))),
        part="256 parts",
        metric=COPIES,
        verdict=Verdict.WARN,
        kind="step",
        size=0.12,
        before=55.2,
        after=48.6,
        unit="GB/s",
        day=date(2026, 11, 15),
        why="look for what they share, such as a switch or a setting",
    )
    made = judge()
    again = replace(made.outliers[1], metric=COPIES, distance=0.031)
    judgement = judge(changes=(*made.changes, crowd), outliers=(*made.outliers, again))
    versions = drifting(count).drift
    return replace(fleet(count), outlook=foresee(judgement), drift=versions, month=a_month(count))


def bare() -> Overview:
    """Make a site on its first day: three nodes, one with the name that a cloud gave it."""
    long = "pool7-0003.eu-central-1a.compute.a-provider-with-a-long-name.internal.example.org"
    nodes = {name: Node(name=name, first_seen_at=NOW - HOUR) for name in (long, "n1", "n2")}
    unknown = FleetReliability(
        nodes=3, node_days=0.1, outages=0, found=0, failure_rate=None, share_out=None, weeks=0
    )
    reliability = ReliabilityReport(schema=1, time=MADE, days=0.04, reliability=unknown)
    waiting = tuple(DueNode(node=name, risk=NodeRisk(1.0), why="never verified") for name in nodes)
    outlook = foresee(None, due=waiting, due_count=3, reliability=reliability)
    return replace(build_overview(nodes, (), (), now=NOW), outlook=outlook)
