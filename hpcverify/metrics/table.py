"""
The metrics of hpcverify: names, types, labels and help, each in one place.

The text files, the reference page, the alert rules and the dashboards follow this table.
Names obey https://prometheus.io/docs/practices/naming/: one prefix, base units, ``_total``
for counters, ``_info`` for gauges that are always 1 and carry labels. Set members that may
exist are exported as 0. The reason of a state, the id of a part and the id of a run are
never labels: their values have no end.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from hpcverify.model import Remedy, Verdict

PREFIX = "hpcverify_"
FLEET_FILE_NAME = "hpcverify_controller.prom"
MAX_LISTED_NODES = 1000
"""Nodes that have series of their own, unless a site asks for all."""
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


class MetricType(StrEnum):
    """What the text format calls the type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Writer(StrEnum):
    """Which file has a metric."""

    CONTROLLER = "controller"
    """``hpcverify_controller.prom``, of the whole fleet, after each cycle."""
    NODE = "node"
    """``hpcverify_run_SUITE.prom`` on each node, after each run of that suite."""


class Label(Struct, frozen=True):
    """A label of metrics."""

    name: str
    meaning: str
    values: tuple[str, ...] = ()
    """All that it may be; empty: the names are those of the site or of the checks."""


class PrometheusMetric(Struct, frozen=True, kw_only=True):
    """One metric."""

    name: str
    type: MetricType = MetricType.GAUGE
    labels: tuple[Label, ...] = ()
    unit: str = ""
    """The base unit, which ends the name; empty: a number of things, a flag, or labels alone."""
    help: str
    writer: Writer = Writer.CONTROLLER
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram, in the unit."""
    alerts: tuple[str, ...] = ()
    """The alerts that ask for it."""
    runbook: str = ""
    """What to look at when it is not as it should be; empty: it explains others."""


STATES = (
    "healthy",
    "unverified",
    "verifying",
    "suspect",
    "held",
    "quarantined",
    "repeat offender",
    "held by others",
)
FORGOTTEN = "forgotten"
HOLDS = ("drain", "reservation", "others")
CAUSES = ("verification", "own run", "others", "person")
STATISTICS = ("min", "median", "max")

NODE = Label("node", "the name of the node, as Slurm has it")
STATE = Label("state", "the state of a node", STATES)
BEFORE = Label("before", "the state that a node left", STATES)
AFTER = Label("after", "the state that a node came into", (*STATES, FORGOTTEN))
HOLD = Label(
    "hold",
    "how users' jobs are kept off: drained or reserved by hpcverify, or by others",
    HOLDS,
)
CAUSE = Label("cause", "who found that a node is out of order", CAUSES)
CHECK = Label("check", "the name of a check")
CODE = Label("code", "the code of a finding, or the metric that is outside its limit")
VERDICT = Label("verdict", "a verdict", tuple(verdict.value for verdict in Verdict))
REMEDY = Label("remedy", "what to do about it", tuple(remedy.value for remedy in Remedy))
KIND = Label("kind", "the kind of a part", ("gpu", "nic", "disk", "dimm"))
PLACE = Label("place", "the leaf switch of a node, or the rack in its name")
READER = Label("reader", "the reader of the events")
CONVENIENCE = Label("convenience", "a task of the controller other than holding nodes")
METRIC = Label("metric", "the name of a measurement")
MODEL = Label("model", "the product of the parts, as their driver names it")
UNIT = Label("unit", "the unit of the measurement")
STATISTIC = Label("statistic", "which value of the fleet", STATISTICS)
SUITE = Label("suite", "the name of a suite")
VERSION = Label("version", "the version of hpcverify")
PART_KIND = Label("kind", "the kind of a part, or node")
INDEX = Label("index", "the number of the part within its kind; of a GPU, that of its driver")

_HOLD_BUCKETS = (0.0, MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 12 * HOUR, DAY, 7 * DAY)
_OUTAGE_BUCKETS = (
    *(10 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR),
    *(DAY, 2 * DAY, 4 * DAY, 7 * DAY, 14 * DAY, 30 * DAY),
)

CONTROLLER_METRICS = (
    PrometheusMetric(
        name="hpcverify_build_info",
        labels=(VERSION,),
        help="The version of hpcverify on the controller.",
    ),
    PrometheusMetric(
        name="hpcverify_controller_cycle_timestamp_seconds",
        unit="seconds",
        help="When the last cycle of the controller ended.",
        alerts=("HpcverifyControllerSilent", "HpcverifyFindingRise"),
        runbook="Run `systemctl list-timers 'hpcverify*'`, then `hpcverify fleet collect` by hand.",
    ),
    PrometheusMetric(
        name="hpcverify_controller_cycle_duration_seconds",
        unit="seconds",
        help="How long the last cycle of the controller took.",
        runbook="A cycle of minutes waits for Slurm or for the spool: see its log.",
    ),
    PrometheusMetric(
        name="hpcverify_controller_cycle_errors",
        help="Actions that failed in the last command of the controller.",
        runbook="Run `hpcverify fleet collect`: it prints each of them with the fix.",
    ),
    PrometheusMetric(
        name="hpcverify_malfunctions",
        help="Conveniences of the controller that do not work now.",
        runbook="Run `hpcverify nodes`: its last lines show what does not work, and why.",
    ),
    PrometheusMetric(
        name="hpcverify_malfunction_since_timestamp_seconds",
        labels=(CONVENIENCE,),
        unit="seconds",
        help="Since when a convenience of the controller has not worked.",
        alerts=("HpcverifyMalfunction",),
    ),
    PrometheusMetric(
        name="hpcverify_sweep_end_timestamp_seconds",
        unit="seconds",
        help="When the last sweep ended; 0: never.",
        runbook="Run `systemctl status hpcverify-sweep` and `hpcverify fleet sweep --dry-run`.",
    ),
    PrometheusMetric(
        name="hpcverify_night_timestamp_seconds",
        unit="seconds",
        help="When the newest night that was compared with peers and the past began; 0: never.",
        runbook="Run `hpcverify nodes`; without DuckDB, nights are not judged.",
    ),
    PrometheusMetric(
        name="hpcverify_verifications_open",
        help="Verifications that were ordered and have not ended.",
        runbook="Run `squeue` in the partition of the sweep, and `hpcverify fleet collect`.",
    ),
    PrometheusMetric(
        name="hpcverify_spool_refusals",
        help="Documents and directories in the spool that the last command refused.",
        runbook="Run `hpcverify fleet collect`: it prints why each is refused.",
    ),
    PrometheusMetric(
        name="hpcverify_events_waiting",
        labels=(READER,),
        help="Events that a reader has not received yet.",
        alerts=("HpcverifyEventsStuck",),
        runbook="Run `hpcverify doctor` on the controller: it reports a reader that is behind.",
    ),
    PrometheusMetric(
        name="hpcverify_nodes",
        labels=(STATE,),
        help="Nodes that the scheduler lists, by state.",
        alerts=("HpcverifyCapacityLow", "HpcverifyFleetStale"),
        runbook="Run `hpcverify nodes`: the worst come first.",
    ),
    PrometheusMetric(
        name="hpcverify_nodes_missing",
        help="Known nodes that the scheduler has not listed for an hour.",
        runbook="`hpcverify nodes forget` a node that is gone for good.",
    ),
    PrometheusMetric(
        name="hpcverify_nodes_held",
        labels=(HOLD,),
        help="Nodes that are out of service now, by how users' jobs are kept off.",
        alerts=("HpcverifyCapacityLow",),
        runbook="Run `hpcverify nodes`, then `hpcverify nodes show NODE` for its history.",
    ),
    PrometheusMetric(
        name="hpcverify_nodes_to_hold",
        help="Nodes that should be out of service and are not held yet.",
        alerts=("HpcverifyNodesNotHeld",),
        runbook="Run `hpcverify fleet collect`: it prints what Slurm refused.",
    ),
    PrometheusMetric(
        name="hpcverify_nodes_observed",
        help="Nodes that failed and stay in service: the site observes, or the breaker is tripped.",
        runbook="Run `hpcverify nodes`; [quarantine] enforce makes failures count.",
    ),
    PrometheusMetric(
        name="hpcverify_nodes_prolog_error",
        help="Nodes that Slurm drained because a prolog failed, and that were not taken over.",
        alerts=("HpcverifyPrologErrors",),
        runbook="Read slurmd's log there; `hpcverify nodes` lists them as held by others.",
    ),
    PrometheusMetric(
        name="hpcverify_nodes_accused",
        help="Nodes in service with conclusive evidence from a hook, not verified since.",
        alerts=("HpcverifyEvidenceInService",),
        runbook="Run `hpcverify nodes`: verify them, or hold them.",
    ),
    PrometheusMetric(
        name="hpcverify_nodes_overdue",
        help="Nodes in service without a full pass for overdue_days, or for 7 days if that is 0.",
        alerts=("HpcverifyFleetStale",),
        runbook="Run `hpcverify fleet sweep --dry-run --explain`: it lists the skipped nodes.",
    ),
    PrometheusMetric(
        name="hpcverify_nodes_unlisted",
        help="Nodes without their own series because there are too many of them.",
        runbook="Set [metrics] all_nodes, or run `hpcverify nodes`.",
    ),
    PrometheusMetric(
        name="hpcverify_place_nodes",
        labels=(PLACE,),
        help="Nodes at a leaf switch or in a rack.",
    ),
    PrometheusMetric(
        name="hpcverify_place_nodes_out",
        labels=(PLACE,),
        help="Nodes at a leaf switch or in a rack that are out of service or failed.",
        runbook="Several nodes of one place: look for what they share before any of them.",
    ),
    PrometheusMetric(
        name="hpcverify_transitions_total",
        type=MetricType.COUNTER,
        labels=(BEFORE, AFTER),
        help="Changes of nodes from one state to another.",
        runbook="Run `hpcverify nodes show NODE` for the history of one.",
    ),
    PrometheusMetric(
        name="hpcverify_node_seconds_total",
        type=MetricType.COUNTER,
        labels=(STATE,),
        unit="seconds",
        help="Seconds that nodes were in a state, all nodes together.",
    ),
    PrometheusMetric(
        name="hpcverify_held_node_seconds_total",
        type=MetricType.COUNTER,
        labels=(HOLD,),
        unit="seconds",
        help="Seconds that nodes were out of service, all nodes together.",
    ),
    PrometheusMetric(
        name="hpcverify_outages_total",
        type=MetricType.COUNTER,
        labels=(CAUSE,),
        help="Times that a node failed or was held, by anyone.",
    ),
    PrometheusMetric(
        name="hpcverify_failures_total",
        type=MetricType.COUNTER,
        labels=(CAUSE,),
        help="Outages in which the node was judged to be at fault, or Slurm set it down.",
        runbook="Run `hpcverify fleet reliability`.",
    ),
    PrometheusMetric(
        name="hpcverify_time_to_hold_seconds",
        type=MetricType.HISTOGRAM,
        labels=(CAUSE,),
        unit="seconds",
        buckets=_HOLD_BUCKETS,
        help="Time from the beginning of an outage until users' jobs were kept off the node.",
    ),
    PrometheusMetric(
        name="hpcverify_time_to_return_seconds",
        type=MetricType.HISTOGRAM,
        labels=(CAUSE,),
        unit="seconds",
        buckets=_OUTAGE_BUCKETS,
        help="Time from the beginning of an outage until the node was back in service.",
        runbook="Run `hpcverify nodes`: a node that stays in one state for days needs attention.",
    ),
    PrometheusMetric(
        name="hpcverify_breaker_tripped",
        help="1 while the breaker is tripped and nodes are not held for failures.",
        alerts=("HpcverifyBreakerTripped",),
        runbook="Run `hpcverify fleet breaker`; after the fix, `hpcverify fleet breaker reset`.",
    ),
    PrometheusMetric(
        name="hpcverify_breaker_held_nodes",
        help="Nodes newly held within the window of the breaker.",
    ),
    PrometheusMetric(
        name="hpcverify_breaker_limit_nodes",
        help="Nodes that may be newly held within the window; one more trips the breaker.",
    ),
    PrometheusMetric(
        name="hpcverify_breaker_out_nodes",
        help="Nodes that runs took out of service, however long ago.",
    ),
    PrometheusMetric(
        name="hpcverify_breaker_out_limit_nodes",
        help="Nodes that may be out of service for failures; one more trips the breaker.",
    ),
    PrometheusMetric(
        name="hpcverify_check_doubted",
        labels=(CHECK,),
        help="1 while a check fails too widely to hold nodes for it alone.",
        alerts=("HpcverifyCheckDoubted",),
        runbook="Run `hpcverify fleet breaker`: check the driver and the image, not the nodes.",
    ),
    PrometheusMetric(
        name="hpcverify_findings_total",
        type=MetricType.COUNTER,
        labels=(CHECK, CODE, VERDICT),
        help="Findings that were opened, one for each part.",
        alerts=("HpcverifyFindingRise",),
        runbook="Run `hpcverify nodes`: a code that rises on many nodes has a common cause.",
    ),
    PrometheusMetric(
        name="hpcverify_findings_open",
        labels=(CHECK, CODE, VERDICT),
        help="Findings that are open now.",
        runbook="Run `hpcverify nodes`, then `hpcverify show` for a run.",
    ),
    PrometheusMetric(
        name="hpcverify_parts_expected",
        labels=(KIND,),
        help="Parts of all nodes by their last accepted inventory.",
    ),
    PrometheusMetric(
        name="hpcverify_parts_present",
        labels=(KIND,),
        help="Parts of all nodes that their newest run found.",
        runbook="Run `hpcverify nodes`, then `hpcverify show` for the run of that node.",
    ),
    PrometheusMetric(
        name="hpcverify_measurement",
        labels=(CHECK, METRIC, MODEL, UNIT, STATISTIC),
        help="What parts reached in the suite of the sweep, in the newest night that was judged.",
        runbook="Run `hpcverify fleet peers`; all values are in `hpcverify history`.",
    ),
    PrometheusMetric(
        name="hpcverify_measurement_peak_ratio",
        labels=(CHECK, METRIC, MODEL, STATISTIC),
        unit="ratio",
        help="The same as a share of the figure in the data sheet of the product.",
        runbook="Run `hpcverify doctor --floors` on a node for the figures and their sources.",
    ),
    PrometheusMetric(
        name="hpcverify_outliers",
        labels=(VERDICT,),
        help="Parts, nodes and places that are worse than their peers, by the newest night.",
        runbook="Run `hpcverify fleet peers`.",
    ),
    PrometheusMetric(
        name="hpcverify_trend_crossing_timestamp_seconds",
        labels=(NODE, CHECK, METRIC),
        unit="seconds",
        help="When the worst part of a node will cross a limit if its trend continues.",
        alerts=("HpcverifyTrendCrossesLimit",),
        runbook="Run `hpcverify history NODE`, and plan the replacement of the part.",
    ),
    PrometheusMetric(
        name="hpcverify_node_state",
        labels=(NODE, STATE),
        help="1 for the state that a node is in, 0 for the others.",
        runbook="Run `hpcverify nodes show NODE`.",
    ),
    PrometheusMetric(
        name="hpcverify_node_state_since_timestamp_seconds",
        labels=(NODE,),
        unit="seconds",
        help="When a node entered its state.",
        alerts=("HpcverifyNodeHeldLong",),
        runbook="Run `hpcverify nodes show NODE`: its reason shows what it waits for.",
    ),
    PrometheusMetric(
        name="hpcverify_node_hold_info",
        labels=(NODE, HOLD, CHECK, REMEDY),
        help="A node that is out of service: how, for which failed check, and what to do.",
        alerts=("HpcverifyNodeHeldLong", "HpcverifyPartsMissing"),
        runbook="Follow the remedy, then `hpcverify nodes repaired NODE`.",
    ),
    PrometheusMetric(
        name="hpcverify_node_full_pass_timestamp_seconds",
        labels=(NODE,),
        unit="seconds",
        help="When a node last passed a suite that loads it; 0: never.",
    ),
    PrometheusMetric(
        name="hpcverify_node_run_timestamp_seconds",
        labels=(NODE,),
        unit="seconds",
        help="When the last run that was ordered for a node ended; 0: never.",
    ),
    PrometheusMetric(
        name="hpcverify_node_recent_returns",
        labels=(NODE,),
        help="Times that a node came back to service after a failure, in 7 days; at most 2 count.",
        alerts=("HpcverifyNodeBackTwice",),
        runbook="Repair it: a rerun clears a part that fails intermittently.",
    ),
    PrometheusMetric(
        name="hpcverify_node_parts_missing",
        labels=(NODE, KIND),
        help="Parts of a node that its newest run did not find.",
        alerts=("HpcverifyPartsMissing",),
        runbook="Run `hpcverify nodes show NODE`; after a removal, run --accept-parts.",
    ),
)
"""Those of the controller's file."""

# node_exporter 1.5 drops series without a word where two files have another help or type of one
# metric. A node has files of several versions: so neither ever changes here.
NODE_METRICS = (
    PrometheusMetric(
        name="hpcverify_run_info",
        labels=(SUITE, VERSION),
        writer=Writer.NODE,
        help="The version of hpcverify that made the last run of a suite on this node.",
    ),
    PrometheusMetric(
        name="hpcverify_run_timestamp_seconds",
        labels=(SUITE,),
        unit="seconds",
        writer=Writer.NODE,
        help="When the last run of a suite on this node ended.",
        runbook="Run `hpcverify show` on the node.",
    ),
    PrometheusMetric(
        name="hpcverify_run_duration_seconds",
        labels=(SUITE,),
        unit="seconds",
        writer=Writer.NODE,
        help="How long the last run of a suite on this node took.",
    ),
    PrometheusMetric(
        name="hpcverify_run_verdict",
        labels=(SUITE, VERDICT),
        writer=Writer.NODE,
        help="1 for the verdict of the last run of a suite on this node, 0 for the others.",
        runbook="Run `hpcverify show` on the node.",
    ),
    PrometheusMetric(
        name="hpcverify_check_verdict_info",
        labels=(SUITE, CHECK, VERDICT),
        writer=Writer.NODE,
        help="The verdict of a check in the last run of a suite on this node.",
        runbook="Run `hpcverify show` on the node.",
    ),
    PrometheusMetric(
        name="hpcverify_finding_info",
        labels=(SUITE, CHECK, CODE, VERDICT, PART_KIND, INDEX),
        writer=Writer.NODE,
        help="What the last run of a suite on this node has against a part.",
        runbook="Run `hpcverify show` on the node.",
    ),
)
"""Those of the files that each node has."""

METRICS = (*CONTROLLER_METRICS, *NODE_METRICS)
