"""What the ledger counts for metrics, and the parts of the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcverify.fleet import counters
from hpcverify.fleet.ledger_file import SET_FACT, LedgerFile
from hpcverify.fleet.part_counts import PartCount
from hpcverify.fleet.states import DAY_S
from hpcverify.metrics.text import BucketCounts, LabelValues

COUNTED_FACT = "node seconds counted"
"""The fact that says until when node-seconds are counted."""
MAX_COUNTED_GAP_S = DAY_S
SWEEP_FACT = "sweep ended"


class CounterLedger(LedgerFile):
    """What the ledger counts: changes in the write that makes them, and the time of nodes."""

    def read_counter(
        self, metric: str, possible: Iterable[LabelValues] = ()
    ) -> dict[LabelValues, float]:
        """Read the counter *metric* by its labels, 0 for what is *possible* and never was."""
        return counters.build_counter(self._select_counters(metric), possible)

    def read_histogram(
        self, metric: str, possible: Iterable[LabelValues] = ()
    ) -> dict[LabelValues, BucketCounts]:
        """Read the histogram *metric*, likewise."""
        return counters.build_histogram(self._select_counters(metric), possible)

    def _select_counters(self, metric: str) -> list[tuple[str, float]]:
        query = "select labels, value from counters where metric = ? order by labels"
        return [(labels, value) for labels, value in self._select(query, metric)]

    def count_node_seconds(self, by_state: Mapping[str, int], by_hold: Mapping[str, int]) -> None:
        """
        Count the time since the last call for so many nodes in each state and hold.

        A longer time than `MAX_COUNTED_GAP_S` is left out: no controller was there to see what
        the nodes did.
        """
        now = self.clock()
        last = float(self.read_fact(COUNTED_FACT) or now)
        elapsed = now - last if 0 < now - last <= MAX_COUNTED_GAP_S else 0.0
        with self._open_database(write=True) as db:
            db.execute(SET_FACT, (COUNTED_FACT, repr(now)))
            for metric, nodes in (
                ("hpcverify_node_seconds_total", by_state),
                ("hpcverify_held_node_seconds_total", by_hold),
            ):
                for label, number in nodes.items():
                    counters.count(db, metric, (label,), number * elapsed)

    def list_part_counts(self) -> list[PartCount]:
        """List how many parts of each kind the nodes should have, and how many they have."""
        rows = self._select("select node, kind, expected, present from part_counts")
        return [PartCount(*row) for row in rows]

    def record_sweep_end(self) -> None:
        """Record that a sweep has ended now."""
        self._execute(SET_FACT, SWEEP_FACT, repr(self.clock()))

    def read_sweep_end(self) -> float:
        """Say when the last sweep ended, in seconds since 1970; 0: none has."""
        return float(self.read_fact(SWEEP_FACT) or 0)
