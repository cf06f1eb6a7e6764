"""How many parts a node should have is what its inventory says."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcverify.fleet.part_counts import MAX_PARTS, PartCount, count_parts
from hpcverify.model import Finding, Limit, Measurement, Verdict
from tests.doubles import a_result, a_run

SEEN = a_result(
    "inventory", measurements=(Measurement("gpus", 7), Measurement("disks", 2)), limits=()
)


def count(**changes: object) -> dict[str, tuple[int, int]]:
    run = a_run(node="n1", results=(replace(SEEN, **changes),))
    return {part.kind: (part.expected, part.present) for part in count_parts(run)}


def test_all_that_are_there_are_expected() -> None:
    assert count() == {"gpu": (7, 7), "disk": (2, 2)}


def test_each_part_that_the_last_inventory_had_is_missing() -> None:
    lost = [Finding("gpu_missing", f"GPU-{i}", "it is gone") for i in range(2)]
    assert count(findings=(*lost, Finding("xid", "GPU-2", "79"))) == {"gpu": (9, 7), "disk": (2, 2)}


def test_a_limit_of_the_site_says_how_many_there_should_be() -> None:
    assert count(limits=(Limit("gpus", low=8.0), Limit("disks", low=1.0))) == {
        "gpu": (8, 7),
        "disk": (2, 2),
    }


def test_a_board_that_lacks_parts_says_how_many() -> None:
    lacks = Measurement("gpus.missing_from_board", 1)
    assert count(measurements=(*SEEN.measurements, lacks))["gpu"] == (8, 7)


@pytest.mark.parametrize("verdict", [Verdict.ERROR, Verdict.SKIP])
def test_an_inventory_that_could_not_be_judged_counts_nothing(verdict: Verdict) -> None:
    assert count(verdict=verdict) == {}


def test_a_run_without_an_inventory_counts_nothing() -> None:
    assert count_parts(a_run(results=(a_result("gemm"),))) == ()


@pytest.mark.parametrize("claim", [1e30, -5.0])
def test_an_absurd_claim_of_a_node_is_bounded(claim: float) -> None:
    (part,) = count_parts(
        a_run(
            node="n1",
            results=(
                a_result(
                    "inventory",
                    measurements=(Measurement("gpus", claim),),
                    limits=(Limit("gpus", low=claim),),
                ),
            ),
        )
    )

    assert part == PartCount("n1", "gpu", part.present, part.present)
    assert 0 <= part.present <= MAX_PARTS
