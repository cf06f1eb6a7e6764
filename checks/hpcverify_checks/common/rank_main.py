"""
A rank on the CPU, in a process of its own.

``python -m hpcverify_checks.common.rank_main WORK RANK PARENT ORDER`` calls ``run_rank`` of
the module WORK, with its peers, and writes each result to the folder of their group at
once, since it may crash later. It dies with its parent, however that dies.
"""

from __future__ import annotations

import sys
from importlib import import_module

import msgspec

from hpcverify.processes import die_with_parent
from hpcverify_checks.common.rendezvous import RankGroup, file_of


def main() -> None:
    """Be one rank until its work is done."""
    work, rank, parent, order = sys.argv[1:]
    die_with_parent(int(parent))
    group = msgspec.json.decode(order, type=RankGroup)
    module = import_module(work)
    torch = import_module("torch")  # takes seconds, which no other rank should wait for
    torch.set_flush_denormal(False)  # as `find_torch_device` does in the first rank
    file_of(group, f"rank{rank}.ready").touch()
    with file_of(group, f"rank{rank}.json").open("wb", buffering=0) as out:
        for result in module.run_rank(int(rank), order):
            out.write(result + b"\n")


if __name__ == "__main__":
    main()
