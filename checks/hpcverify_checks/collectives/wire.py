"""
A second opinion on the wire: ``ib_write_bw`` of perftest between pairs of nodes.

When all ranks have ended, the launcher of one node of each pair starts the server, and that
of the other node writes to it. Rank 0's launcher chooses the pairs and collects the rates.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from time import monotonic, sleep

import msgspec
from msgspec import Struct

import hpcverify.check as hv
from hpcverify.processes import run_tool
from hpcverify.records.collectives import WireOpinion
from hpcverify_checks.collectives.meeting import LauncherArrival
from hpcverify_checks.ranks.board import UNREADABLE, Board, Port, describe_unreadable

PROGRAM, PACKAGE = "ib_write_bw", "perftest"
SECONDS = 2
ARGUMENTS = ("-D", str(SECONDS), "-s", "65536", "-F", "--report_gbits")
"""The duration, the message size, and no warning about the CPU's frequency."""
TIMEOUT_SECONDS = 20.0
"""The time for one pair to find each other and to write."""
COLLECT_SECONDS = TIMEOUT_SECONDS + 10
BITS_IN_BYTE = 8
ROW_FIELDS = 5
"""Bytes, iterations, peak, average and message rate."""
SERVER, ANSWER = "wire_server", "wire_answer"


class WirePair(Struct, frozen=True):
    """The first ranks of two nodes."""

    sender: int
    receiver: int


def pair_nodes(nodes: Sequence[str]) -> tuple[WirePair, ...]:
    """Pair the nodes in their order, by the node of each rank; an odd one is left out."""
    firsts = [nodes.index(node) for node in dict.fromkeys(nodes)]
    return tuple(WirePair(b, a) for a, b in zip(firsts[::2], firsts[1::2], strict=False))


def take_part(
    pairs: Sequence[WirePair], rank: int, board: Board, arrivals: Sequence[LauncherArrival]
) -> None:
    """Do the part of the launcher of *rank*, if it has one, and post the result on the *board*."""
    for pair in pairs:
        try:
            if rank == pair.receiver:
                with socket.create_server(("", 0)) as free:
                    port = free.getsockname()[1]
                board.post(SERVER, rank, msgspec.json.encode(port))
                run_tool(
                    [PROGRAM, *ARGUMENTS, "-p", str(port)], timeout=TIMEOUT_SECONDS, package=PACKAGE
                )
            elif rank == pair.sender:
                rate = _write(pair, board, arrivals[pair.receiver].address)
                board.post(ANSWER, rank, msgspec.json.encode(rate))
        except hv.Unable as exc:
            board.post(ANSWER, pair.sender, msgspec.json.encode(str(exc)))


def _write(pair: WirePair, board: Board, address: str) -> float:
    """Write to the other node, at the *address* from which it came; give GB/s."""
    deadline = monotonic() + TIMEOUT_SECONDS
    last = "the other node has not reported where it listens"
    while monotonic() < deadline:
        if message := board.read(SERVER).get(pair.receiver):
            try:
                port = msgspec.json.decode(message, type=Port)
            except UNREADABLE as exc:
                text = f"the other node {describe_unreadable(exc)}"
                raise hv.Unable(text, hv.Cause.MISCONFIGURED) from exc
            command = [PROGRAM, *ARGUMENTS, "-p", str(port), address]
            done = run_tool(command, timeout=TIMEOUT_SECONDS, package=PACKAGE)
            text = done.stdout.decode(errors="replace")
            if done.returncode == 0 and (rate := parse_rate(text)):
                return rate
            lines = [*text.splitlines(), *done.stderr.decode(errors="replace").splitlines()]
            last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        sleep(board.pause)  # its server may not listen yet
    raise hv.Unable(f"{PROGRAM}: {last}", hv.Cause.CRASHED)


def parse_rate(text: str) -> float:
    """Read the average of its last row with ``--report_gbits``, in GB/s; 0: there is none."""
    rates = [_parse_row(line.split()) for line in text.splitlines()]
    return next((rate for rate in reversed(rates) if rate), 0.0)


def _parse_row(fields: list[str]) -> float:
    if len(fields) < ROW_FIELDS or not (fields[0].isdecimal() and fields[1].isdecimal()):
        return 0.0
    try:
        return float(fields[3]) / BITS_IN_BYTE
    except ValueError:
        return 0.0


def collect_answers(
    pairs: Sequence[WirePair], nodes: Sequence[str], board: Board
) -> tuple[WireOpinion, ...]:
    """Wait for the rates of all pairs."""
    deadline = monotonic() + COLLECT_SECONDS
    answers: dict[int, bytes] = {}
    while len(answers) < len(pairs) and monotonic() < deadline:
        answers = board.read(ANSWER, len(pairs))
        sleep(board.pause)
    return tuple(
        _build_opinion(nodes[pair.sender], nodes[pair.receiver], answers.get(pair.sender))
        for pair in pairs
    )


def _build_opinion(sender: str, receiver: str, answer: bytes | None) -> WireOpinion:
    rate: float | str = "it did not answer"
    if answer:
        try:
            rate = msgspec.json.decode(answer, type=float | str)
        except UNREADABLE as exc:
            rate = f"it {describe_unreadable(exc)}"
    if isinstance(rate, str):
        return WireOpinion(sender, receiver, unable=rate)
    return WireOpinion(sender, receiver, rate)
