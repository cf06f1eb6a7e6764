"""ib_write_bw is asked between pairs of nodes when the ranks have ended; it judges nothing."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from hpcverify.commands.collectives import describe_wire_opinion
from hpcverify.records.collectives import CollectiveRun, WireOpinion
from hpcverify_checks.collectives.meeting import LauncherArrival
from hpcverify_checks.collectives.wire import (
    ANSWER,
    SERVER,
    WirePair,
    collect_answers,
    pair_nodes,
    parse_rate,
    take_part,
)
from hpcverify_checks.ranks.board import FolderBoard
from hpcverify_checks.ranks.collective import CollectiveJob
from tests.checks.collectives.launched import launch_nodes

TABLE = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1112873          0.00               194.40 \t\t   0.370789
---------------------------------------------------------------------------------------
"""
"""As perftest 4.5 prints it; the heads are those in its program, the numbers are made up."""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program of that name into PATH."""
    program = folder / "ib_write_bw"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def ask_two_nodes() -> CollectiveRun:
    """Launch a rank on each of two nodes, and give the document."""
    asked = {"operations": ("all_reduce",), "timeline": False, "second_opinion": True}
    with launch_nodes(2, **asked) as launchers:
        run, fault = launchers[0].read_result()
    assert run, fault
    assert not run.missing
    return run


def test_the_average_is_read_in_bytes() -> None:
    assert parse_rate(TABLE) == pytest.approx(24.3)
    assert parse_rate(" IB device not found\n Unable to find the Infiniband/RoCE device\n") == 0


def test_nodes_are_paired_by_their_first_ranks_and_an_odd_one_is_left_out() -> None:
    nodes = ["a", "a", "b", "b", "c", "c", "d", "d", "e", "e"]

    assert pair_nodes(nodes) == (WirePair(2, 0), WirePair(6, 4))
    assert pair_nodes(["a", "a"]) == ()


@pytest.mark.system
def test_a_pair_is_asked_once_its_ranks_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends when its client has; the client alone prints a table."""
    (tmp_path / "table").write_text(TABLE)
    install(tmp_path, monkeypatch, f"[ $# = 9 ] || exec sleep 1; exec cat {tmp_path}/table")
    run = ask_two_nodes()

    assert [(one.sender, one.receiver) for one in run.wire_opinions] == [("n1", "n0")]
    assert [one.rate for one in run.wire_opinions] == pytest.approx([24.3])


def come(*addresses: str) -> list[LauncherArrival]:
    """Have launchers come from nodes with these addresses."""
    job = CollectiveJob("", len(addresses), "", 30.0, ("all_reduce",), (), 0.1)
    return [LauncherArrival(f"n{rank}", address, job) for rank, address in enumerate(addresses)]


def ask_pair(folder: Path) -> WireOpinion:
    """Have the launchers of two nodes do their parts, beside each other."""
    board, pairs = FolderBoard(folder), pair_nodes(["n0", "n1"])
    arrivals = come("127.0.0.1", "127.0.0.1")
    server = Thread(target=take_part, args=(pairs, 0, board, arrivals))
    server.start()
    take_part(pairs, 1, board, arrivals)
    server.join()
    (opinion,) = collect_answers(pairs, ["n0", "n1"], board)
    return opinion


def test_without_a_device_a_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcverify_checks.collectives.wire.TIMEOUT_SECONDS", 1.0)
    install(tmp_path, monkeypatch, 'echo " Unable to find the Infiniband/RoCE device"; exit 1')

    opinion = ask_pair(tmp_path)

    assert opinion.unable == "ib_write_bw: Unable to find the Infiniband/RoCE device"


def test_where_it_is_not_installed_a_line_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "perftest" in ask_pair(tmp_path).unable


def test_what_was_measured_is_told_in_a_line() -> None:
    assert describe_wire_opinion(WireOpinion("n1", "n0", 24.3)) == (
        "ib_write_bw from n1 to n0: 24.3 GB/s"
    )
    assert describe_wire_opinion(WireOpinion("n1", "n0", unable="not there")) == (
        "ib_write_bw from n1 to n0: nothing: not there"
    )


@pytest.mark.parametrize(
    "told",
    [
        b'["-p 1 --out_json_file=/etc/cron.d/evil", 18515]',
        b'["10.9.0.66", 18515]',
        b'"--out_json_file=evil"',
        b"18515.5",
        b"0",
        b"65536",
        b"\xff",
    ],
)
def test_what_a_node_says_of_its_server_becomes_no_argument_but_a_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bytes
) -> None:
    install(tmp_path, monkeypatch, f"echo called >{tmp_path}/called")
    board, pairs = FolderBoard(tmp_path), pair_nodes(["n0", "n1"])
    board.post(SERVER, 0, told)
    take_part(pairs, 1, board, come("127.0.0.1", "127.0.0.2"))
    (opinion,) = collect_answers(pairs, ["n0", "n1"], board)

    assert "sent what cannot be read" in opinion.unable
    assert not (tmp_path / "called").exists()


def test_the_client_is_sent_to_the_address_from_which_the_other_node_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcverify_checks.collectives.wire.TIMEOUT_SECONDS", 1.0)
    install(tmp_path, monkeypatch, f'echo "$@" >{tmp_path}/called; exit 1')
    board, pairs = FolderBoard(tmp_path), pair_nodes(["n0", "n1"])
    board.post(SERVER, 0, b"18515")
    take_part(pairs, 1, board, come("192.0.2.7", "192.0.2.8"))

    assert (tmp_path / "called").read_text().split()[-3:] == ["-p", "18515", "192.0.2.7"]


def test_an_opinion_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    board, pairs = FolderBoard(tmp_path), pair_nodes(["n0", "n1"])
    board.post(ANSWER, 1, b"[]")
    (opinion,) = collect_answers(pairs, ["n0", "n1"], board)

    assert "sent what cannot be read" in opinion.unable
