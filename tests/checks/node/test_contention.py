"""Times on a node that others use are left out, and the report says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.check import Rule
from hpcverify.limits.resolve import resolve
from hpcverify.model import CheckItem, Coverage, Measurement, Verdict
from hpcverify.testing import INVENTORY, judge_by
from hpcverify_checks import allreduce, gemm, training
from hpcverify_checks.node.contention import MAX_OTHER_CORES, CpuUsage

BEGUN = CpuUsage(wall=100.0, busy=50.0, own=7.0)
QUIET = CpuUsage(wall=110.0, busy=70.0, own=27.0)
CROWDED = CpuUsage(wall=110.0, busy=65.0, own=12.0)
SPREAD = Measurement("fp32.spread", 3.7, "ratio", "cpu")
SPEED = Measurement("fp32.sustained", 90.0, "GFLOP/s", "cpu")


def test_what_others_had_is_what_was_used_and_not_by_us() -> None:
    assert BEGUN.count_other_cores(QUIET) == 0.0
    assert BEGUN.count_other_cores(CROWDED) == pytest.approx(1.0)


def test_the_hypervisors_other_guests_are_others_too(tmp_path: Path) -> None:
    stat = tmp_path / "proc/stat"
    stat.parent.mkdir()
    stat.write_text("cpu  100 0 0 900 50 0 0 0 0 0\ncpu0 100 0 0 900 50 0 0 0 0 0\n")
    before = CpuUsage.read(tmp_path)
    stat.write_text("cpu  100 0 0 900 90 0 0 200 0 0\n")
    now = CpuUsage.read(tmp_path)
    assert now.busy - before.busy == pytest.approx(2.0)


def test_where_the_kernel_does_not_say_nobody_else_is_busy(tmp_path: Path) -> None:
    assert CpuUsage.read(tmp_path).count_other_cores(CpuUsage.read(tmp_path)) == 0.0


def test_on_a_quiet_node_everything_is_kept() -> None:
    assert list(BEGUN.omit_if_busy(["*.spread"], [SPREAD, SPEED], QUIET)) == [SPREAD, SPEED]


def test_on_a_node_that_others_use_the_rest_is_kept_and_the_loss_told() -> None:
    found = list(BEGUN.omit_if_busy(["*.spread"], [SPREAD, SPEED], CROWDED))
    text = "other processes used 1.0 cores during the measurement; left out: *.spread"
    assert found == [SPEED, Coverage("cpu", text)]


def test_what_the_engine_itself_may_take_is_no_crowd() -> None:
    engine = CpuUsage(wall=110.0, busy=60.0 + 10 * MAX_OTHER_CORES, own=17.0)
    assert list(BEGUN.omit_if_busy(["*.spread"], [SPREAD], engine)) == [SPREAD]


@pytest.mark.parametrize(
    ("names", "rules", "slow"),
    [
        (gemm.name_contended_metrics("fp32"), gemm.CHECK.rules, [SPREAD]),
        (
            training.CONTENDED_METRICS,
            training.CHECK.rules,
            [
                Measurement("step_p95", 900.0, "ms", "cpu"),
                Measurement("input.share", 0.4, "ratio", "cpu"),
            ],
        ),
        (
            allreduce.CONTENDED_METRICS,
            allreduce.CHECK.rules,
            [Measurement("jitter.1MiB", 80.0, "ratio", "node")],
        ),
    ],
)
def test_a_healthy_cpu_that_others_use_is_not_warned_of(
    names: tuple[str, ...], rules: dict[str, Rule], slow: list[CheckItem]
) -> None:
    crowded = BEGUN.omit_if_busy(names, slow, CROWDED)
    numbers = [f for f in crowded if isinstance(f, Measurement)]

    def past(name: str, _where: str) -> tuple[float, ...]:
        return (100.0, 101.0, 99.0, 100.0, 100.0) if name == "step_p95" else ()

    limits = resolve(rules, numbers, INVENTORY, past)
    assert judge_by(numbers, limits, {}).verdict is Verdict.PASS
    alone = [f for f in BEGUN.omit_if_busy(names, slow, QUIET) if isinstance(f, Measurement)]
    limits = resolve(rules, alone, INVENTORY, past)
    assert judge_by(alone, limits, {}).verdict is Verdict.WARN
