"""The output of all_reduce_perf is read as its versions print it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.check import Cause, Finding, Measurement, Skip, Unable
from hpcverify.model import Device, Inventory
from hpcverify.testing import make_context
from hpcverify_checks.qualification.nccl_tests import (
    BusRow,
    NcclTestsParams,
    measure,
    parse_rows,
)

RECORDED = Path(__file__).parent / "recorded"
GPUS = tuple(Device("cuda", f"GPU-{i}", f"GPU {i}") for i in range(2))
INVENTORY = Inventory(devices=GPUS)


@pytest.mark.parametrize(
    ("name", "sizes", "last"),
    [
        ("errors", [4, 8, 128, 512], BusRow(512, 46.42, 0.02, 6e-08)),
        ("counts", [2**15, 2**20, 2**24, 2**25], BusRow(2**25, 195.40, 300.52, 0)),
        ("version_2_20", [2**13, 2**14, 2**15, 2**16], BusRow(2**16, 64.71, 1.01, 0)),
    ],
)
def test_the_in_place_columns_of_each_version_are_read(
    name: str, sizes: list[int], last: BusRow
) -> None:
    rows = parse_rows((RECORDED / f"{name}.txt").read_text())

    assert [row.size for row in rows] == sizes
    assert rows[-1] == last


def test_results_that_were_not_checked_have_no_count() -> None:
    line = "8 2 float sum -1 14.51 0.00 0.00 N/A 14.04 0.00 0.00 N/A"

    assert parse_rows(line) == [BusRow(8, 14.04, 0.0, None)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# Avg bus bandwidth    : 41.2497",
        "n1: Test NCCL failure common.cu:958 'unhandled cuda error'",
        "12 34 a log line that begins with two numbers and goes on for long",
        (RECORDED / "prefixed.txt").read_text(),
    ],
)
def test_other_text_has_no_rows(text: str) -> None:
    assert parse_rows(text) == []


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int) -> None:
    """Put a program of that name into PATH that prints *text* and ends with *status*."""
    program = folder / "all_reduce_perf"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_each_size_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, (RECORDED / "counts.txt").read_text(), 0)
    found = list(measure(make_context(tmp_path, inventory=INVENTORY), NcclTestsParams()))

    assert Measurement("busbw.16MiB", 243.71, "GB/s") in found
    assert Measurement("time.16MiB", 120.47, "us") in found


@pytest.mark.parametrize(
    ("name", "change", "wrong"),
    [
        ("counts", ("", ""), []),
        ("errors", ("", ""), []),
        ("counts", ("243.71       0", "243.71      12"), ["12 wrong elements of 16MiB"]),
    ],
)
def test_wrong_elements_are_a_finding_and_rounding_is_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: tuple[str, str],
    wrong: list[str],
) -> None:
    text = (RECORDED / f"{name}.txt").read_text().replace(*change)
    install(tmp_path, monkeypatch, text, 0)
    found = list(measure(make_context(tmp_path, inventory=INVENTORY), NcclTestsParams()))

    told = [item.text for item in found if isinstance(item, Finding)]
    assert told == [f"all_reduce_perf counts {text}" for text in wrong]


def test_without_nccl_tests_it_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Skip, match=r"git clone https://github\.com/NVIDIA/nccl-tests") as skipped:
        list(measure(make_context(tmp_path, inventory=INVENTORY), NcclTestsParams()))

    assert skipped.value.cause is Cause.MISSING


def test_a_program_that_fails_is_an_error_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "n1: Test NCCL failure common.cu:958", 3)

    with pytest.raises(Unable, match=r"ended with 3; its last line: n1: Test NCCL failure"):
        list(measure(make_context(tmp_path, inventory=INVENTORY), NcclTestsParams()))


def test_one_gpu_has_nothing_to_reduce_with(tmp_path: Path) -> None:
    alone = Inventory(devices=GPUS[:1])
    with pytest.raises(Skip, match="fewer than two GPUs"):
        list(measure(make_context(tmp_path, inventory=alone), NcclTestsParams()))
