"""
A rank of an all-reduce on the CPU, in a process of its own.

``python -m hpcverify_checks._rank RANK PARENT JOB`` meets its peers, reduces, and
leaves what it found in the folder of the job. It dies with its parent, however that
dies.
"""

from __future__ import annotations

import sys

import msgspec

from hpcverify.processes import die_with
from hpcverify_checks._collective import (
    Job,
    all_reduce,
    file_of,
    joined,
    reduced,
    share_of_threads,
)


def main() -> None:
    """Be one rank until all sizes are done."""
    rank, parent = int(sys.argv[1]), int(sys.argv[2])
    job = msgspec.json.decode(sys.argv[3], type=Job)
    die_with(parent)
    import torch

    device = torch.device("cpu")
    file_of(job, f"rank{rank}.ready").touch()
    with share_of_threads(job), joined(job, rank, device):
        found = list(reduced(job, rank, device, all_reduce))
    file_of(job, f"rank{rank}.json").write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
