"""The numbers that one asks a check for first."""

from __future__ import annotations

import pytest

from hpcverify.model import Inventory, Measurement, Part, Result, Verdict
from hpcverify.summary.figures import choose_figures
from hpcverify.testing import INVENTORY


def of(check: str, *found: Measurement) -> list[tuple[str, str, str]]:
    made = choose_figures(Result(check=check, verdict=Verdict.PASS, measurements=found), INVENTORY)
    return [(f.name, f.format_value(f.typical), f.share) for f in made]


def test_the_share_is_of_the_slowest_part_and_the_number_of_the_middle_one() -> None:
    found = [
        Measurement(f"bf16.{name}", value, unit, f"gpu-{i}")
        for i, rate in enumerate((740e3, 612e3, 742e3))
        for name, value, unit in (
            ("sustained", rate, "GFLOP/s"),
            ("of_peak", rate / 989e3, "ratio"),
        )
    ]
    (figure,) = choose_figures(
        Result(check="gemm", verdict=Verdict.PASS, measurements=tuple(found)), INVENTORY
    )

    assert figure.format_value(figure.typical) == "740 TFLOP/s"
    assert (figure.slowest.part_id, figure.parts) == ("gpu-1", 3)
    assert figure.share == "61.9 % of peak"


@pytest.mark.parametrize(
    ("check", "found", "expected"),
    [
        (
            "allreduce",
            (
                Measurement("busbw.1MiB", 61.0, "GB/s"),
                Measurement("busbw.256MiB", 352.0, "GB/s"),
                Measurement("time_p50.1MiB", 90.0, "us"),
            ),
            [("busbw.256MiB", "352 GB/s", ""), ("time_p50.1MiB", "90 \N{MICRO SIGN}s", "")],
        ),
        (
            "storage",
            (
                Measurement("seq_read.bandwidth", 6410.0, "MB/s", "nvme0"),
                Measurement("seq_write.bandwidth", 387.0, "MB/s", "nvme0"),
            ),
            [("seq_read.bandwidth", "6.41 GB/s", ""), ("seq_write.bandwidth", "387 MB/s", "")],
        ),
        (
            "training",
            (
                Measurement("tokens", 7449.0, "1/s", "cpu"),
                Measurement("mfu", 0.0661, "ratio", "cpu"),
            ),
            [("tokens", "7449 per second", "6.61 % MFU")],
        ),
        ("gemm", (Measurement("bf16.sustained", None, "GFLOP/s"),), []),
        ("acme", (Measurement("speed", 1.0, "GB/s"),), []),
    ],
)
def test_figures_come_from_what_was_measured(
    check: str, found: tuple[Measurement, ...], expected: list[tuple[str, str, str]]
) -> None:
    assert of(check, *found) == expected


H100 = Part("gpu", "gpu-0", "GPU 0", {"name": "NVIDIA H100 80GB HBM3"})


def test_a_share_that_no_check_measured_is_taken_of_the_data_sheet() -> None:
    copied = Measurement("memory.copy", 2680.0, "GB/s", "gpu-0")
    result = Result(check="gpu_memory", verdict=Verdict.PASS, measurements=(copied,))
    (figure,) = choose_figures(result, Inventory(parts=(H100,)))
    (unknown,) = choose_figures(result, Inventory(parts=()))

    assert figure.share == "80 % of data sheet"
    assert unknown.share == ""


@pytest.mark.parametrize(
    ("metric", "unit", "before", "expected"),
    [
        ("busbw.1GiB", "GB/s", (100.0, 200.0), "-10.0 %"),
        ("time_p50.1KiB", "us", (60.0,), "+50.0 %"),
        ("busbw.1GiB", "GB/s", (), ""),
        ("busbw.1GiB", "GB/s", (0.0,), ""),
    ],
)
def test_the_slowest_part_is_compared_with_itself_in_the_last_run(
    metric: str, unit: str, before: tuple[float, ...], expected: str
) -> None:
    found = (Measurement(metric, 90.0, unit, "gpu-1"),)
    (figure,) = choose_figures(
        Result(check="allreduce", verdict=Verdict.PASS, measurements=found),
        INVENTORY,
        lambda name, part: before if (name, part) == (metric, "gpu-1") else (),
    )

    assert figure.change == expected


def test_the_slowest_of_several_times_is_the_longest() -> None:
    found = tuple(Measurement("time_p50.1KiB", v, "us", f"gpu-{i}") for i, v in enumerate((9, 12)))
    (figure,) = choose_figures(
        Result(check="allreduce", verdict=Verdict.PASS, measurements=found), INVENTORY
    )

    assert figure.slowest.part_id == "gpu-1"
