"""
A rank on the CPU, in a process of its own.

``python -m hpcverify_checks.ranks.rank_main WORK RANK PARENT ORDER`` calls ``run_rank`` of
the module WORK, with its peers, and leaves each result on the board of their group at once,
in the place of the last one, since it may crash later. It dies with its parent, however that
dies.
"""

from __future__ import annotations

import sys
from importlib import import_module

import msgspec

from hpcverify.processes import die_with_parent
from hpcverify_checks.ranks.board import open_board
from hpcverify_checks.ranks.peers import READY, RESULT
from hpcverify_checks.ranks.rendezvous import RankGroup


def main() -> None:
    """Be one rank until its work is done."""
    work, number, parent, order = sys.argv[1:]
    die_with_parent(int(parent))
    rank = int(number)
    board = open_board(msgspec.json.decode(order, type=RankGroup).folder)
    module = import_module(work)
    torch = import_module("torch")  # takes seconds, which no other rank should wait for
    torch.set_flush_denormal(False)  # as `find_torch_device` does in the first rank
    board.post(READY, rank)
    for result in module.run_rank(rank, order):
        board.post(RESULT, rank, result)


if __name__ == "__main__":
    main()
