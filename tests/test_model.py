"""Values that are kept: their order, their JSON, and what a run makes of them."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import msgspec
import pytest

from hpcverify.model import (
    Cause,
    Inventory,
    Maturity,
    Measurement,
    Part,
    Result,
    Run,
    Verdict,
    verdict_of,
)
from tests.doubles import a_run


def result(verdict: Verdict, cause: Cause = Cause.NONE, *, required: bool = False) -> Result:
    return Result(check="c", verdict=verdict, cause=cause, required=required)


def test_verdicts_are_ordered_worst_last() -> None:
    names = [v.value for v in sorted(Verdict)]

    assert names == ["pass", "skip", "warn", "error", "fail"]
    assert all(a < b for a, b in pairwise(Verdict))


def test_a_run_is_as_bad_as_its_worst_result() -> None:
    results = tuple(result(v) for v in (Verdict.PASS, Verdict.ERROR, Verdict.WARN))

    assert verdict_of(results) is Verdict.ERROR


@pytest.mark.parametrize("cause", [Cause.NOT_APPLICABLE, Cause.NOT_OBSERVABLE])
def test_a_skip_is_left_out(cause: Cause) -> None:
    skip = result(Verdict.SKIP, cause)

    assert verdict_of((result(Verdict.PASS), skip)) is Verdict.PASS
    assert verdict_of((skip,)) is Verdict.ERROR


def test_a_check_in_beta_can_do_no_more_than_warn() -> None:
    beta = Result(check="c", verdict=Verdict.FAIL, maturity=Maturity.BETA)

    assert verdict_of((result(Verdict.PASS), beta)) is Verdict.WARN


def test_to_skip_what_is_required_is_an_error() -> None:
    skip = result(Verdict.SKIP, Cause.NOT_APPLICABLE, required=True)

    assert verdict_of((result(Verdict.PASS), skip)) is Verdict.ERROR


def test_a_run_without_results_could_not_judge() -> None:
    assert verdict_of(()) is Verdict.ERROR


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_hold_comes_back_as_none(value: float) -> None:
    kept = msgspec.json.encode(Measurement("m", value))

    assert msgspec.json.decode(kept, type=Measurement).value is None


def test_a_run_comes_back_from_json_as_it_was() -> None:
    run = a_run()

    assert msgspec.json.decode(msgspec.json.encode(run), type=Run) == run


def test_a_document_from_before_there_were_rounds_is_of_one() -> None:
    document = json.loads(msgspec.json.encode(a_run()))
    for name in ("rounds", "left_out"):
        del document[name]
    del document["results"][0]["round"]

    assert msgspec.convert(document, Run, strict=False) == a_run()


NODE = Inventory(
    parts=(
        Part("cpu", "cpu", "CPU"),
        *(Part("gpu", f"GPU-{9 - i}", f"GPU {i}") for i in range(8)),
        *(Part("disk", f"disk-{i}", f"nvme{i}") for i in range(2)),
    )
)
EVERY = [f"GPU-{i}" for i in range(2, 10)]


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (["GPU-7", "GPU-9", "GPU-8"], "GPU 0, GPU 1, GPU 2"),
        (EVERY, "all 8 GPUs"),
        (EVERY[1:], "GPU 0, GPU 1, GPU 2, GPU 3, GPU 4, GPU 5, GPU 6"),
        ([*EVERY, "cpu"], "CPU, all 8 GPUs"),
        (["disk-1", "disk-0"], "nvme0, nvme1"),
        (["cpu"], "CPU"),
        (["gone", "cpu", "gone"], "CPU, gone"),
        ([], ""),
    ],
)
def test_parts_are_named_in_the_order_of_the_node_and_all_as_all(ids: list[str], told: str) -> None:
    assert NODE.format_names(ids) == told
