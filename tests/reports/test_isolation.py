"""The page of an isolation names the faulty nodes with the evidence, and the cleared ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hpcverify.cli import cli
from hpcverify.errors import StoreError
from hpcverify.isolation.answer import IsolationAnswer
from hpcverify_reports.isolation import render
from tests.isolation.paper import make_paper
from tests.isolation.stand_in import SimulatedCluster
from tests.reports.dom import Dom
from tests.reports.samples import HOSTILE


@pytest.fixture(scope="module")
def sender(tmp_path_factory: pytest.TempPathFactory) -> IsolationAnswer:
    """Isolate the one of 16 nodes that sends slowly."""
    cluster = SimulatedCluster(senders=("n7",))
    return make_paper(tmp_path_factory.mktemp("isolation"), 16, cluster).run()


def test_the_faulty_node_stands_first_with_its_evidence(sender: IsolationAnswer) -> None:
    page = Dom(render(sender))

    assert "n7 spoils collectives" in page.text
    assert "sends slowly" in page.text
    failed = [row for row in page.rows if row[2:3] == ["failed"]]
    assert failed
    assert all("16 GB/s, 40% of the busbw of other tests" in row[3] for row in failed)
    assert sum(row[3].startswith("all_reduce ") for row in failed) >= 3
    assert "n[1-6,8-16]" in page.text
    assert "15 nodes" in page.text


def test_the_matrix_has_a_bad_row_for_a_bad_sender(sender: IsolationAnswer) -> None:
    failed = {(one.sender, one.receiver) for one in sender.sent if one.outcome == "failed"}
    page = render(sender)

    assert {name for name, _ in failed} == {"n7"}
    assert page.count("<rect ") == len(failed) >= 2
    assert all(f"<title>n7, to, {receiver}: " in page for _, receiver in failed)


def test_a_link_accuses_nobody(tmp_path: Path) -> None:
    cluster = SimulatedCluster(links=(("n2", "n5"), ("n5", "n2")))
    answer = make_paper(tmp_path, 16, cluster).run()

    said = Dom(render(answer)).text
    assert "A link is slow: n" in said
    assert "neither is slow with other nodes" in said


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({}, "No fault found"),
        ({"untested": {"n1": "is busy"}}, "No fault found for certain"),
        ({"switches": ("leaf3",)}, "A switch spoils collectives: leaf3"),
        ({"between": (("s0", "s6"),)}, "a node of s0 and a node of s6 are slow with each other"),
    ],
)
def test_the_headline_is_the_worst_that_is_known(changes: dict[str, object], headline: str) -> None:
    made = IsolationAnswer(id="x", passed=4, rounds=2, tests=3, node_minutes=8.0)

    assert headline in Dom(render(replace(made, **changes))).text


def test_what_others_wrote_is_text(sender: IsolationAnswer) -> None:
    (accused,) = sender.faulty
    page = render(
        replace(sender, faulty=(replace(accused, node=HOSTILE),), passed_nodes=(HOSTILE,))
    )

    assert not {"script", "img", "link", "iframe"} & set(Dom(page).tags())


def test_an_answer_becomes_a_page(sender: IsolationAnswer, tmp_path: Path) -> None:
    answer, page = tmp_path / "answer.json", tmp_path / "page.html"
    answer.write_bytes(msgspec.json.encode(sender))

    done = CliRunner().invoke(cli, ["report", str(answer), "-o", str(page)])

    assert (done.exit_code, done.output) == (0, f"wrote {page}\n")
    assert "n7 spoils collectives" in Dom(page.read_text()).text


def test_an_answer_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    cut = tmp_path / "answer.json"
    cut.write_text('{"passed": 3}')

    done = CliRunner().invoke(cli, ["report", str(cut), "-o", str(tmp_path / "page.html")])

    assert isinstance(done.exception, StoreError)
    assert "is not the result of an isolation" in str(done.exception)
