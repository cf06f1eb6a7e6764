"""The page of collectives shows all ranks as one picture, in which a straggler stands out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hpcverify.cli import cli
from hpcverify.isolation.stragglers import compute_delays
from hpcverify.records.collectives import (
    STEP,
    CollectiveRun,
    OpinionRate,
    RankPlace,
    RankSteps,
    SecondOpinion,
    Straggler,
    Transfers,
    WrongResult,
)
from hpcverify_reports.collectives import render
from hpcverify_reports.ranks import MAX_NODE_ROWS, draw_ranks
from tests.reports.collective_runs import COLUMNS, a_collective_run
from tests.reports.dom import Dom
from tests.reports.samples import HOSTILE

STEP_S = 0.01


def page_of(run: CollectiveRun) -> str:
    """Render the page of documents."""
    return render(run)


def titles(run: CollectiveRun, flagged: tuple[int, ...] = ()) -> list[str]:
    """List what the squares of the picture say."""
    picture = draw_ranks(run, flagged)
    assert picture is not None
    return [square.title for block in picture.blocks for square in block.squares]


def test_a_late_rank_is_the_only_one_that_stands_out() -> None:
    told = titles(a_collective_run(4, 8, late=13))

    assert len(told) == len(COLUMNS)
    assert all(each.startswith("n2 rank 13, arrives late, ") for each in told)
    assert told[0].endswith("all_reduce 64 KiB: rank 13: 5.965 ms, 59.65 % of a step")


def step_times(late: int, seconds: float) -> tuple[RankSteps, ...]:
    """Make the steps of 16 ranks, of 10 ms each, to which one comes late."""
    begins = [n * STEP_S for n in range(20)]
    return tuple(
        RankSteps(
            rank,
            tuple(at + (seconds if rank == late else 0.0) for at in begins),
            tuple(at + STEP_S * 0.9 for at in begins),
            1e-5,
        )
        for rank in range(16)
    )


def test_who_comes_late_to_steps_of_equal_work_stands_out() -> None:
    steps = step_times(5, 0.004)
    delays = compute_delays(STEP, 0, steps)
    run = a_collective_run(2, 8, steps=steps, delays=delays)

    assert titles(run) == [
        "n1 rank 5, arrives late, step: rank 5: 4 ms, 40 % of a step",
    ]


def test_who_sends_slowly_stands_out_among_transfers_as_far_as_its() -> None:
    transfers = tuple(
        Transfers(sender, receiver, (far * (3 if sender == 5 else 1),) * 5)
        for sender in range(16)
        for receiver in range(16)
        if sender != receiver
        for far in (1e-3 if sender // 8 == receiver // 8 else 5e-3,)
    )

    run = a_collective_run(2, 8, delays=(), transfers=transfers)

    assert titles(run) == ["n1 rank 5, sends slowly, to others: rank 5: 200 % longer than others"]


def test_nobody_stands_out_of_ranks_that_are_alike() -> None:
    assert titles(a_collective_run(4, 8)) == []


def test_what_the_clocks_cannot_tell_is_no_delay() -> None:
    run = a_collective_run(4, 8, late=13)
    vague = replace(run, delays=tuple(replace(d, clock_error=0.1) for d in run.delays))

    assert titles(vague) == []


def test_of_many_ranks_a_row_is_a_node_and_the_late_one_is_still_named() -> None:
    run = a_collective_run(64, 8, late=301)
    picture = draw_ranks(run, [301])

    assert picture is not None
    names = [name for block in picture.blocks for name in block.names]
    assert (picture.unit, len(names), picture.more) == ("node", 64, "")
    assert [name.text for name in names if name.weight > 400] == ["n38"]
    assert any(told.startswith("n38, by rank, 5: rank 301: ") for told in titles(run))
    assert len(page_of(run)) < 60_000


def test_of_more_nodes_than_anybody_reads_those_with_delays_are_shown() -> None:
    picture = draw_ranks(a_collective_run(400, 1, late=333), ())

    assert picture is not None
    names = [name.text for block in picture.blocks for name in block.names]
    assert len(names) == MAX_NODE_ROWS
    assert "n334" in names
    assert picture.more.startswith("Not shown: 272 nodes that lose at most ")


def test_ranks_of_a_node_stand_together_in_the_order_in_which_people_count() -> None:
    mixed = tuple(RankPlace(rank, f"n{10 - rank % 2}", "cpu") for rank in range(4))
    picture = draw_ranks(replace(a_collective_run(2, 2), ranks=mixed), ())

    assert picture is not None
    names = [name.text for block in picture.blocks for name in block.names]
    assert names == ["n9 rank 1", "n9 rank 3", "n10 rank 0", "n10 rank 2"]


OPINION = SecondOpinion("all_reduce_perf", "n1", 8, (OpinionRate(2**28, 243.7, 12.0),))
WRONG = WrongResult(1, "all_reduce", 65536, 17, 3, 1024, "0x1", "0x3")


@pytest.mark.parametrize(
    ("run", "texts"),
    [
        (a_collective_run(), ["No rank holds up the others", "800 steps compared"]),
        (
            a_collective_run(late=13),
            ["n2 holds up the others", "6 ms a step", "shorten each step by 37.5 %"],
        ),
        (
            a_collective_run(
                stragglers=tuple(Straggler(r, "sends_slowly", 0.01, 0.5) for r in (0, 31))
            ),
            ["n1, n4 hold up the others", "sends slowly"],
        ),
        (
            a_collective_run(stragglers=(Straggler(8, "computes_slowly", 0.01, 0.5, "n2"),)),
            ["n2 holds up the others", "n2, with all its ranks, computes slowly"],
        ),
        (a_collective_run(wrong=(WRONG,)), ["Wrong results on n1", "0x3", "1024"]),
        (
            a_collective_run(
                missing=(8, 9), delays=(), timings=(), reasons={8: "killed by SIGBUS"}
            ),
            ["No answer from n2", "8, 9", "got no answer", "killed by SIGBUS"],
        ),
        (
            a_collective_run(unable="torch is not installed", timings=(), delays=()),
            ["Could not be measured", "torch is not installed"],
        ),
        (
            a_collective_run(2, 8, second_opinion=OPINION),
            [
                "all_reduce_perf on 8 GPUs of n1, the mean of its steps",
                "on this one node; ours went over the network",
                "all_reduce 256 MiB 243.7 GB/s 50.3 GB/s 12",
            ],
        ),
        (
            a_collective_run(second_opinion=replace(OPINION, rates=(), unable="it is not there")),
            ["Second opinion", "Nothing was measured: it is not there."],
        ),
        (a_collective_run(), ["ring", "12.5 % of all bytes", "2.27.5", "50.3 GB/s", "256 MiB"]),
    ],
)
def test_the_page_says(run: CollectiveRun, texts: list[str]) -> None:
    said = Dom(page_of(run)).text

    assert [text for text in texts if text not in said] == []


def test_a_rank_that_is_not_in_the_list_breaks_no_page() -> None:
    stranger = a_collective_run(missing=(99,), wrong=(replace(WRONG, rank=77),), ranks=())

    assert "Wrong results on rank 77" in Dom(page_of(stranger)).text


def test_a_rank_that_never_came_is_on_no_node_that_anybody_knows() -> None:
    there = a_collective_run(2, 1).ranks
    run = a_collective_run(missing=(2,), ranks=(*there, RankPlace(2, "", "")), wire_share=0.0)
    text = Dom(page_of(run)).text

    assert "No answer from rank 2" in text
    assert "3 ranks on 2 nodes" in text
    assert "Over the network" not in text


def test_the_page_has_no_scripts_and_what_others_wrote_is_text() -> None:
    made = a_collective_run(unable=HOSTILE, settings={HOSTILE: HOSTILE}, backend=HOSTILE)
    ranks = tuple(replace(place, node=HOSTILE, device=HOSTILE) for place in made.ranks)
    page = Dom(page_of(replace(made, ranks=ranks)))

    assert not {"script", "img", "link", "iframe"} & set(page.tags())


def test_a_document_becomes_a_page(tmp_path: Path) -> None:
    document, page = tmp_path / "run.json", tmp_path / "page.html"
    document.write_bytes(msgspec.json.encode(a_collective_run(late=13)))

    done = CliRunner().invoke(cli, ["report", str(document), "-o", str(page)])

    assert (done.exit_code, done.output) == (0, f"wrote {page}\n")
    assert "n2 holds up the others" in Dom(page.read_text()).text
