"""
Sixty days of a fleet that nobody has: the sample data of the pictures of the dashboards.

Nodes fail by lot, with the same lots each time. One rack loses power, and one kind of GPU gets
slower after a change of the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

from hpcverify.fleet.states import State
from hpcverify.metrics.table import CAUSES, HOLDS, METRICS, STATES
from hpcverify.units import DAY_SECONDS, HOUR_SECONDS

END = 1_800_000_000
STEP_S = 2 * int(HOUR_SECONDS)
DAYS = 60
BEGIN = END - DAYS * int(DAY_SECONDS)
RACKS, NODES_A_RACK = 8, 8
NODES = tuple(f"r{1 + n // NODES_A_RACK:02d}n{1 + n % NODES_A_RACK}" for n in range(64))
SHOWN_NODE = "r03n4"
CONTROLLER = {"instance": "ctl:9100", "job": "node"}
BUCKETS = {metric.name: metric.buckets for metric in METRICS if metric.buckets}
FAULTS = (
    ("gemm", "bf16.sustained", "inspect"),
    ("xid", "xid79", "replace"),
    ("nic", "link_down", "inspect"),
    ("storage", "write", "replace"),
    ("ecc", "uncorrected", "replace"),
)
SPEEDS = {
    ("gemm", "bf16.sustained"): (660.0, 989.0, "TFLOP/s"),
    ("gemm", "fp8.sustained"): (1270.0, 1979.0, "TFLOP/s"),
    ("gpu_memory", "bandwidth"): (3050.0, 3350.0, "GB/s"),
}
"""What a GPU reaches, what its data sheet promises, and the unit."""
MODEL = "NVIDIA H100 80GB HBM3"
DRIVER_CHANGE = END - 18 * DAY_SECONDS
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Failure:
    """A node fails, is quarantined after a rerun, and is repaired."""

    node: str
    began: float
    days: float
    check: str
    code: str
    remedy: str

    @property
    def ended(self) -> float:
        return self.began + self.days * DAY_SECONDS

    def name_state(self, now: float) -> State | None:
        """Name the state of the node at *now*; None before and after."""
        if not self.began <= now < self.ended:
            return None
        if now - self.began < STEP_S:
            return State.SUSPECT
        return State.VERIFYING if self.ended - now <= 2 * STEP_S else State.QUARANTINED


@dataclass
class History:
    """The fleet, and its counters so far."""

    lots: Random = field(default_factory=lambda: Random(4))
    totals: Counter[tuple[str, tuple[tuple[str, str], ...]]] = field(
        default_factory=Counter[tuple[str, tuple[tuple[str, str], ...]]]
    )

    @cached_property
    def failures(self) -> list[Failure]:
        failures = [
            Failure(
                node=self.lots.choice(NODES),
                began=BEGIN + self.lots.random() * DAYS * DAY_SECONDS,
                days=self.lots.uniform(0.5, 4),
                **dict(zip(("check", "code", "remedy"), self.lots.choice(FAULTS), strict=True)),
            )
            for _ in range(34)
        ]
        fault = {"check": "nic", "code": "link_down", "remedy": "inspect"}
        power = END - 4 * DAY_SECONDS
        failures += [Failure(f"r05n{n}", power, 1.0 + n / 8, **fault) for n in range(1, 7)]
        failures.append(Failure(SHOWN_NODE, END - 3 * DAY_SECONDS, 9, *FAULTS[0]))
        failures.append(Failure("r06n7", END - 1.3 * DAY_SECONDS, 5, *FAULTS[1]))
        failures.append(Failure("r02n2", END - 1.1 * HOUR_SECONDS, 3, *FAULTS[3]))
        return sorted(failures, key=lambda failure: failure.began)

    def write(self) -> Iterator[str]:
        """Yield the lines of the whole history, as OpenMetrics."""
        for now in range(BEGIN, END + 1, STEP_S):
            for name, labels, value in self.list_samples(now):
                pairs = ",".join(f'{key}="{text}"' for key, text in labels.items())
                yield f"{name}{{{pairs}}} {value:.10g} {now}\n"
        yield "# EOF\n"

    def list_samples(self, now: float) -> Iterator[tuple[str, Labels, float]]:
        """Yield what the text files say at *now*."""
        down = {f.node: f for f in self.failures if f.name_state(now)}
        states = {node: self.name_state(node, down, now) for node in NODES}
        for name, labels, value in (
            *self.list_nodes(states, down),
            *self.list_findings(now),
            *self.list_speeds(now),
            *self.list_controller(now),
        ):
            yield f"hpcverify_{name}", {**CONTROLLER, **labels}, value
        yield from self.list_runs(now)

    def name_state(self, node: str, down: Mapping[str, Failure], now: float) -> str:
        failure = down.get(node)
        return (failure and failure.name_state(now)) or State.HEALTHY

    def list_nodes(
        self, states: Mapping[str, str], down: Mapping[str, Failure]
    ) -> Iterator[tuple[str, Labels, float]]:
        count = Counter(states.values())
        drained = count[State.QUARANTINED]
        held = {"drain": drained, "reservation": len(down) - drained, "others": 0}
        for state in STATES:
            yield "nodes", {"state": state}, count[state]
            yield from self.add("node_seconds_total", {"state": state}, count[state] * STEP_S)
        for hold in HOLDS:
            yield "nodes_held", {"hold": hold}, held[hold]
            yield from self.add("held_node_seconds_total", {"hold": hold}, held[hold] * STEP_S)
        for rack in range(1, RACKS + 1):
            place = {"place": f"r{rack:02d}"}
            yield "place_nodes", place, NODES_A_RACK
            yield "place_nodes_out", place, sum(node.startswith(place["place"]) for node in down)
        for node, failure in down.items():
            label = {"node": node}
            for state in STATES:
                yield "node_state", {**label, "state": state}, state == states[node]
            yield "node_state_since_timestamp_seconds", label, failure.began
            yield "node_full_pass_timestamp_seconds", label, failure.began - 0.8 * DAY_SECONDS
            yield "node_parts_missing", {**label, "kind": "gpu"}, failure.code == "xid79"
            hold = "drain" if states[node] == State.QUARANTINED else "reservation"
            cause = {"check": failure.check, "remedy": failure.remedy}
            yield "node_hold_info", {**label, "hold": hold, **cause}, 1
        lost = sum(failure.code == "xid79" for failure in down.values())
        for kind, parts in {"gpu": 512, "nic": 512, "disk": 128}.items():
            yield "parts_expected", {"kind": kind}, parts
            yield "parts_present", {"kind": kind}, parts - lost * (kind == "gpu")

    def list_findings(self, now: float) -> Iterator[tuple[str, Labels, float]]:
        for check, code, _ in FAULTS:
            labels = {"check": check, "code": code, "verdict": "fail"}
            mine = [failure for failure in self.failures if failure.code == code]
            opened = [failure for failure in mine if now - STEP_S < failure.began <= now]
            yield from self.add("findings_total", labels, len(opened))
            yield "findings_open", labels, sum(bool(f.name_state(now)) for f in mine)
        began = [failure for failure in self.failures if now - STEP_S < failure.began <= now]
        ended = [failure for failure in self.failures if now - STEP_S < failure.ended <= now]
        for cause in CAUSES:
            counted = len(began) if cause == "verification" else 0
            yield from self.add("failures_total", {"cause": cause}, counted)
        holds = [failure.days * 900 for failure in began]
        returns = [failure.days * DAY_SECONDS for failure in ended]
        for name, values in {"time_to_hold": holds, "time_to_return": returns}.items():
            for bound in (*BUCKETS[f"hpcverify_{name}_seconds"], float("inf")):
                le = {"cause": "verification", "le": f"{bound:g}".replace("inf", "+Inf")}
                below = sum(value <= bound for value in values)
                yield from self.add(f"{name}_seconds_bucket", le, below)

    def list_speeds(self, now: float) -> Iterator[tuple[str, Labels, float]]:
        for (check, metric), (reached, peak, unit) in SPEEDS.items():
            lot = Random(f"{metric} {int(now // DAY_SECONDS)}")
            slower = 0.96 if now > DRIVER_CHANGE and check == "gemm" else 1.0
            median = reached * slower * lot.uniform(0.995, 1.005)
            shares = {"min": lot.uniform(0.93, 0.96), "median": 1.0, "max": 1.03}
            for statistic, share in shares.items():
                labels = {"check": check, "metric": metric, "model": MODEL, "statistic": statistic}
                yield "measurement", {**labels, "unit": unit}, median * share
                yield "measurement_peak_ratio", labels, median * share / peak
        for verdict, count in {"warn": 3, "fail": 1}.items():
            yield "outliers", {"verdict": verdict}, count if now > DRIVER_CHANGE else 1
        crossing = {"node": "r07n2", "check": "storage", "metric": "write.bandwidth"}
        yield "trend_crossing_timestamp_seconds", crossing, END + 9 * DAY_SECONDS

    def list_controller(self, now: float) -> Iterator[tuple[str, Labels, float]]:
        newly = sum(now - DAY_SECONDS < failure.began <= now for failure in self.failures)
        yield "controller_turn_timestamp_seconds", {}, now - 240
        yield "controller_turn_duration_seconds", {}, self.lots.uniform(3, 5)
        yield "controller_turn_errors", {}, 0
        yield "spool_refusals", {}, 0
        yield "nodes_to_hold", {}, 0
        yield "nodes_overdue", {}, 2
        yield "events_waiting", {"reader": "file"}, 0
        yield "sweep_end_timestamp_seconds", {}, now - now % DAY_SECONDS
        yield "breaker_tripped", {}, 0
        yield "breaker_held_nodes", {}, newly
        yield "breaker_limit_nodes", {}, 7
        doubted = END - 17 * DAY_SECONDS < now < END - 16 * DAY_SECONDS
        for check in ("gemm", "gpu_memory", "nic", "storage", "xid"):
            yield "check_doubted", {"check": check}, doubted and check == "gemm"

    def list_runs(self, now: float) -> Iterator[tuple[str, Labels, float]]:
        """Yield what the text files of one node say."""
        failure = next(f for f in reversed(self.failures) if f.node == SHOWN_NODE)
        failed = now >= failure.began
        own = {"instance": f"{SHOWN_NODE}:9100", "job": "node"}
        for suite, seconds in {"quick": 95, "burnin": 5400}.items():
            of_suite = {**own, "suite": suite}
            every = DAY_SECONDS if suite == "quick" else 14 * DAY_SECONDS
            verdict = "fail" if failed and suite == "quick" else "pass"
            yield "hpcverify_run_timestamp_seconds", of_suite, now - now % every
            lot = Random(f"{suite} {now // every}")
            yield "hpcverify_run_duration_seconds", of_suite, seconds * lot.uniform(0.97, 1.04)
            for other in ("pass", "skip", "warn", "error", "fail"):
                yield "hpcverify_run_verdict", {**of_suite, "verdict": other}, other == verdict
            for check in ("ecc", "gemm", "nic", "storage", "xid"):
                word = verdict if check == failure.check else "pass"
                of_check = {**of_suite, "check": check, "verdict": word}
                yield "hpcverify_check_verdict_info", of_check, 1
        if failed:
            finding = {"check": failure.check, "code": failure.code, "verdict": "fail"}
            part = {"suite": "quick", "kind": "gpu", "index": "3"}
            yield "hpcverify_finding_info", {**own, **part, **finding}, 1

    def add(self, name: str, labels: Labels, value: float) -> Iterator[tuple[str, Labels, float]]:
        """Add *value* to a counter, and yield what it is now."""
        key = (name, tuple(labels.items()))
        self.totals[key] += int(value)
        yield name, labels, self.totals[key]
