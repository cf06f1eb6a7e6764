"""A run on a terminal: failures first, then speeds, then the rest."""

from __future__ import annotations

import io

import pytest
from inline_snapshot import external_file
from msgspec.structs import replace
from rich.text import Text

from hpcverify.model import Inventory, Limit, Measurement, Part, Result, Run, Verdict, verdict_of
from hpcverify.summary.run_summary import summarize
from hpcverify.summary.terminal import (
    MAX_FOLDED_ROWS,
    Console,
    print_items,
    print_table,
    show_run,
    show_speeds,
)
from tests.doubles import a_result, a_run

GPUS = tuple(Part("gpu", f"gpu-{i}", f"GPU {i}") for i in range(8))
LIMIT = Limit(name="bf16.sustained", low=700e3, source="spec")
WIDTHS = (60, 80, 100, 140)


def gemm(slow: float = 730e3, **changes: object) -> Result:
    """Measure eight GPUs, of which GPU 3 has the speed *slow*."""
    rates = {gpu.id: 740e3 + i for i, gpu in enumerate(GPUS)} | {"gpu-3": slow}
    measured = [
        Measurement(f"bf16.{name}", value, unit, part)
        for part, rate in rates.items()
        for name, value, unit in (
            ("sustained", rate, "GFLOP/s"),
            ("of_peak", rate / 989e3, "ratio"),
        )
    ]
    made = a_result("gemm", measurements=tuple(measured), limits=(LIMIT,), findings=())
    return replace(made, **changes)


def node(*results: Result) -> Run:
    inventory = Inventory(parts=GPUS)
    return a_run(results=results, inventory=inventory, verdict=verdict_of(results))


def shown(run: Run, width: int = 140, before: tuple[float, ...] = ()) -> list[str]:
    """Print the result of *run*, and its speeds, on a terminal of *width* columns."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    show_run(run, console)
    show_speeds(summarize(run, lambda _check: lambda _name, _part: before), console)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


SLOW = gemm(612e3, verdict=Verdict.FAIL)
MIXED = node(
    a_result("ecc", verdict=Verdict.SKIP, reason="no GPU on this node"),
    a_result("inventory", measurements=(), limits=()),
    gemm(),
    a_result("sdc", verdict=Verdict.FAIL, reason="wrong", findings=(), limits=()),
)
SHOWN = {
    "speed, share, limit and change": shown(node(gemm()), before=(700e3, 1.0)),
    "no column for what is not known": shown(node(gemm()), width=100),
    "a remark of a check that passed": shown(
        node(gemm(reason="CPU: tested on 1 of 2 online cores"))
    ),
    "a failure with its speed": shown(node(SLOW)),
    "folded on a narrow terminal": shown(node(SLOW), width=60),
    "rounds are counted before the worst": shown(node(gemm(), replace(SLOW, round=2))),
    "failures first, skips last": shown(MIXED),
}


def test_what_a_terminal_shows_reads_as_kept() -> None:
    text = "\n\n".join("\n".join([f"# {case}", *lines]) for case, lines in SHOWN.items())

    assert f"{text}\n" == external_file("terminal.txt")


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    long = a_result("pcie_bandwidth", verdict=Verdict.FAIL, reason="x" * 300, findings=())
    storage = a_result(
        "storage",
        measurements=(Measurement("cached.seq_read.bandwidth", 819.0, "MB/s", "gpu-0"),),
    )
    lines = shown(node(long, gemm(), storage), width, (1.0,))

    assert max(map(len, lines)) <= width
    assert "GPU 3 of 8" in " ".join(" ".join(lines).split())


WHY = "gemm: GPU 3: bf16.sustained 612 TFLOP/s < 702.2 (0.71 of spec 989, H100 SXM5)"


@pytest.mark.parametrize(("width", "lines"), [(60, 5), (160, 2)])
def test_a_sentence_stands_below_its_row_where_it_would_be_a_narrow_strip(
    width: int, lines: int
) -> None:
    out = io.StringIO()
    rows = [("n17", "quarantined", Text("FAIL"), "31 h", WHY)]

    head = ("node", "state", "verdict", "last full pass", "why")
    print_table(Console(file=out, width=width), head, rows)

    told = out.getvalue().splitlines()
    assert len(told) == lines
    assert max(map(len, told)) <= width
    assert " ".join(" ".join(told[-3:]).split()).endswith(WHY)


@pytest.mark.parametrize("width", [60, 80])
def test_the_head_of_a_table_stands_above_its_columns(width: int) -> None:
    out = io.StringIO()
    rows = [("20261121-034500-0123456789ab", "quick", "FAIL", WHY)]

    print_table(Console(file=out, width=width), ("run", "suite", "verdict", "why"), rows)

    head, _, row, *_ = out.getvalue().splitlines()
    assert [head.index(name) for name in ("suite", "verdict")] == [
        row.index(cell) for cell in ("quick", "FAIL")
    ]


def test_a_table_of_short_cells_has_one_line_for_each_row() -> None:
    out = io.StringIO()

    print_table(Console(file=out, width=30), ("node", "why"), [("n" * 20, "drained")])

    assert out.getvalue().splitlines()[1].split() == ["n" * 20, "drained"]


def test_an_item_that_is_folded_stays_beside_its_dash() -> None:
    out = io.StringIO()

    print_items(Console(file=out, width=40), [WHY, "[b]"])

    first, *more, last = out.getvalue().splitlines()
    assert first.startswith(" - gemm")
    assert all(line.startswith("   ") for line in more)
    assert last.rstrip() == " - [b]"


def test_a_long_table_has_a_line_for_each_row_in_columns_and_is_safe_to_print() -> None:
    out = io.StringIO()
    rows = [("-", f"n{i}", Text("well")) for i in range(MAX_FOLDED_ROWS)]

    print_table(Console(file=out), ("", "node", "why"), [*rows, ("verify", "nö\x1b1", "x" * 300)])

    lines = out.getvalue().splitlines()
    assert len(lines) == MAX_FOLDED_ROWS + 2
    assert lines[1] == "-       n0    well"
    assert lines[-1] == "verify  nö␛1  " + "x" * 300
