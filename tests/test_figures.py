"""The numbers that one asks a check for first."""

from __future__ import annotations

import pytest

from hpcverify.figures import choose_figures
from hpcverify.model import Measurement, Result, Verdict


def of(check: str, *found: Measurement) -> list[tuple[str, str, str]]:
    made = choose_figures(Result(check=check, verdict=Verdict.PASS, measurements=found))
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
        Result(check="gemm", verdict=Verdict.PASS, measurements=tuple(found))
    )

    assert figure.format_value(figure.typical) == "740 TFLOP/s"
    assert (figure.slowest.where, figure.parts) == ("gpu-1", 3)
    assert figure.share == "61.9 % of peak"


@pytest.mark.parametrize(
    ("check", "found", "told"),
    [
        (
            "allreduce",
            (
                Measurement("busbw.1MiB", 61.0, "GB/s"),
                Measurement("busbw.256MiB", 352.0, "GB/s"),
                Measurement("time_p50.1MiB", 90.0, "us"),
            ),
            [("busbw.256MiB", "352 GB/s", "")],
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
    check: str, found: tuple[Measurement, ...], told: list[tuple[str, str, str]]
) -> None:
    assert of(check, *found) == told
