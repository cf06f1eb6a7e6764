"""What is said of one part, or of many parts of one node, is said once."""

from __future__ import annotations

from msgspec.structs import replace

from hpcverify.insight.judgement import (
    count_other_metrics,
    group_by_part,
    list_judgement_lines,
    name_judged,
)
from tests.reports.fleets import judge


def test_metrics_of_one_part_are_one_entry() -> None:
    slow = judge().outliers[1]
    groups = group_by_part([slow, replace(slow, metric="other")], name_judged)
    assert {title: len(group) for title, group in groups.items()} == {slow.title: 2}


def test_many_parts_of_one_node_are_one_entry_of_the_node_and_few_are_not() -> None:
    slow = judge().outliers[1]
    parts = [replace(slow, name=f"{slow.node} GPU {i}") for i in range(8)]
    assert [*group_by_part(parts, name_judged)] == [f"{slow.node} (several parts)"]
    assert [*group_by_part(parts[:2], name_judged)] == [part.title for part in parts[:2]]


def test_changes_of_a_node_whose_parts_all_slowed_are_one_line() -> None:
    step = next(change for change in judge().changes if change.node)
    changes = tuple(
        replace(step, part=part, metric=f"gemm {part}") for part in ("GPU 0-3, 6", "GPU 4", "GPU 7")
    )
    (line,) = list_judgement_lines(judge(outliers=(), notes=(), changes=changes))

    assert line.startswith(f"past: {step.node} (several parts): ")
    assert "(and in 2 other metrics)" in line


def test_a_metric_is_not_counted_beside_itself() -> None:
    assert count_other_metrics("a", ["a", "a"]) == ""
    assert count_other_metrics("a", ["a", "b"]) == " (and in 1 other metric)"
