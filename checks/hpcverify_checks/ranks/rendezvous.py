"""
Ranks that meet at a board, and say which of them is lost.

A rank that waits for another one is healthy as far as anybody knows. A rank that fails
announces why; one that falls silent is found by a roll call (`process_group`). Its peers then
raise `LostRanks`, which names only the lost ranks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic, sleep

from msgspec import Struct
from msgspec.structs import replace

import hpcverify.check as hv
from hpcverify_checks.ranks.board import Board, BoardError, FolderBoard, open_board

LOOPBACK = "127.0.0.1"
LOOPBACK_SECONDS = 5.0
"""The time for a connection that needs no other process: where it is down, packets are lost."""
POLL_SECONDS = 0.02
MAX_REASON_CHARACTERS = 300
"""The length of the reason why a rank failed, as its peers read it."""
RANK_LOST_RULE = hv.FindingRule(hv.Verdict.ERROR, hv.Remedy.RERUN, cause=hv.Cause.TIMEOUT)
"""The mildest remedy: a finding of the lost part itself goes before it."""


class RankGroup(Struct, frozen=True):
    """What ranks need to know to meet, whatever they do together."""

    folder: str
    """Where they meet: a folder, which its owner removes, or the address of a board."""
    world: int
    backend: str
    timeout: float
    """Seconds after which a peer that does not answer counts as lost."""


class LostRanks(hv.Unable):
    """Raised by a rank that cannot go on without others; its own part is not judged."""

    def __init__(self, lost: Mapping[int, str]) -> None:
        reasons = "; ".join(f"rank {rank} {why}" for rank, why in lost.items())
        super().__init__(f"{reasons}: run the check again", hv.Cause.TIMEOUT, hv.Remedy.RERUN)
        self.lost = dict(lost)


@contextmanager
def announce_failure(board: Board, rank: int) -> Generator[None]:
    """Post why *rank* failed, if the block fails for a reason of its own."""
    try:
        yield
    except LostRanks:
        raise
    except Exception as exc:  # whatever it is, the peers must not wait; it is raised again
        reason = str(exc) if isinstance(exc, hv.Unable) else f"{type(exc).__name__}: {exc}"
        first_line = reason.strip().partition("\n")[0][:MAX_REASON_CHARACTERS]
        with suppress(BoardError):  # then those that wait for the board know enough
            board.post("lost", rank, f"was lost: it failed with {first_line!r}".encode())
        raise


def read_failures(board: Board) -> dict[int, str]:
    """Read why ranks are lost, as far as they or others announced it."""
    return {rank: why.decode(errors="replace") for rank, why in board.read("lost").items()}


def exchange_messages(group: RankGroup, rank: int, name: str, message: bytes = b"") -> list[bytes]:
    """
    Send *message* about *name* to all ranks of *group*; return the message of each.

    Uses the board, so that no process group need exist yet.

    Raises:
        LostRanks: a rank failed, or sent nothing in time.

    """
    board = open_board(group.folder)
    with miss_silent_board(group):
        board.post(name, rank, message)
        deadline = monotonic() + group.timeout
        while len(answers := board.read(name, group.world)) < group.world:
            if failures := read_failures(board):
                raise LostRanks(failures)
            if monotonic() > deadline:
                missing = [r for r in range(group.world) if r not in answers]
                raise LostRanks(describe_silence(group, missing))
            sleep(board.pause)
    return [answers[r] for r in range(group.world)]


@contextmanager
def miss_silent_board(group: RankGroup) -> Generator[None]:
    """Count rank 0, on whose node the board is, as lost if the board does not answer."""
    try:
        yield
    except BoardError as exc:
        raise LostRanks({0: f"was lost: {exc}"}) from exc


def describe_silence(group: RankGroup, ranks: Collection[int]) -> dict[int, str]:
    """Say of each of *ranks* that it was silent for the timeout of *group*."""
    return dict.fromkeys(ranks, f"was lost: it did not start or answer within {group.timeout:g} s")


def has_anyone_given_up(group: RankGroup) -> bool:
    """Whether a rank is lost, or a roll call has begun."""
    board = open_board(group.folder)
    with miss_silent_board(group):
        return any(board.read(topic) for topic in ("lost", "roll"))


def require_loopback() -> None:
    """Require that processes of this node reach each other, before they try for a minute."""
    with socket.create_server((LOOPBACK, 0)) as probe:
        try:
            socket.create_connection(probe.getsockname(), LOOPBACK_SECONDS).close()
        except OSError as exc:
            why = exc.strerror or exc
            text = f"the loopback does not work ({why}): ip link set lo up"
            raise hv.Unable(text, hv.Cause.MISCONFIGURED) from exc


@contextmanager
def set_environment(values: Mapping[str, str]) -> Generator[None]:
    """Set variables of this process, and of those that it starts, while the block runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def report_lost_ranks(ctx: hv.Context, items: Iterator[hv.CheckItem]) -> Iterator[hv.CheckItem]:
    """
    Yield the *items* of a rank; if others are lost, report them and not this part.

    If the rank fails for a reason of its own, its peers read that reason at once.
    """
    try:
        with announce_failure(FolderBoard(ctx.shared), ctx.rank):
            yield from items
    except LostRanks as exc:
        if ctx.device.kind == "cpu":  # its ranks are processes and no parts
            raise
        for rank, why in exc.lost.items():
            witness = {"witness": ctx.device.part}
            yield hv.Finding(hv.RANK_LOST_CODE, ctx.peers[rank].part, why, data=witness)
        labels = ", ".join(ctx.peers[rank].label for rank in exc.lost)
        yield hv.Coverage(ctx.device.part, f"could not be judged without {labels}")


def merge_lost_ranks(
    items: Collection[hv.JudgedItem], inventory: hv.Inventory
) -> Iterator[hv.JudgedItem]:
    """Merge the findings of several witnesses about one lost rank into one about its part."""
    lost: dict[str, list[hv.Finding]] = {}
    for item in items:
        if isinstance(item, hv.Finding) and item.code == hv.RANK_LOST_CODE:
            lost.setdefault(item.part_id, []).append(item)
        else:
            yield item
    for findings in lost.values():
        # The error that it announced says more than its silence.
        best = max(findings, key=lambda finding: "failed" in finding.text)
        names = inventory.format_names([finding.data["witness"] for finding in findings])
        yield replace(best, text=f"{best.text}; without it {names} could not be judged", data={})
