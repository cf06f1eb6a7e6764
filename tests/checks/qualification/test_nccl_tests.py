"""Bus bandwidths of all_reduce_perf are measured where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.check import Cause, Finding, Measurement, Skip, Unable
from hpcverify.model import Device, Inventory
from hpcverify.testing import make_context
from hpcverify_checks.qualification.nccl_tests import NcclTestsParams, measure

RECORDED = Path(__file__).parents[1] / "ranks/recorded"
GPUS = tuple(Device("cuda", f"GPU-{i}", f"GPU {i}") for i in range(2))
INVENTORY = Inventory(devices=GPUS)


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
    """It ends with 1 when it has counted wrong elements: once that hid them."""
    text = (RECORDED / f"{name}.txt").read_text().replace(*change)
    install(tmp_path, monkeypatch, text, 1 if wrong else 0)
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
