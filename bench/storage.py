"""
Does the storage check reach what fio reaches when it is called by hand?

Run with ``python bench/storage.py [DIRECTORY [MIB]]``. Prints the sequential
bandwidths that the check measures in DIRECTORY (of temporary files by default) as a
share of those of one fio command with the same job, in pairs. fio does the work in
both: what is looked for is what we lose by how we lay out the files, time them and
add them up.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from hpcverify.units import MIB
from hpcverify_checks.storage.extents import lay_out
from hpcverify_checks.storage.fio_runner import Fio
from hpcverify_checks.storage.jobs import read_back, write
from pairs import compare

TOLERANCE = 0.03
STREAMS = 2
PAIRS = 25
RNG = random.Random()  # noqa: S311 - data to write, no secret

BY_HAND = (
    "fio --name=hand --numjobs=2 --thread --group_reporting --ioengine=libaio "
    "--iodepth=8 --direct=1 --bs=1M --verify=crc32c --verify_interval=4k "
    "--verify_state_save=0 --output-format=json"
)
WRITE = " --rw=write --do_verify=0 --refill_buffers --fallocate=none --end_fsync=1"
READ = " --rw=read --verify_fatal=1"


def ours(way: str, folder: Path, mib: int) -> float:
    """Give what the check measures, in MB/s."""
    fio = Fio(folder=folder, engine="libaio", direct=True)
    room = lay_out(folder, mib * MIB, STREAMS, RNG)
    wrote = write(fio, room, RNG)
    report = wrote if way == "write" else read_back(fio, room)
    empty(folder)
    return report.compute_bandwidth(way)


def by_hand(way: str, folder: Path, mib: int) -> float:
    """Give what fio itself reports for both of its jobs, in MB/s."""
    place = f" --directory={folder} --size={mib // STREAMS}M"
    reported = call(BY_HAND + WRITE + place)
    if way == "read":
        reported = call(BY_HAND + READ + place)
    empty(folder)
    return reported[way]["bw_bytes"] / 1e6


def call(command: str) -> dict[str, dict[str, float]]:
    """Run fio, and give its one group of jobs."""
    done = subprocess.run(command.split(), check=True, stdout=subprocess.PIPE)
    group: dict[str, dict[str, float]] = json.loads(done.stdout)["jobs"][0]
    return group


def empty(folder: Path) -> None:
    """Remove the files, so that each pass writes new ones."""
    for path in folder.iterdir():
        path.unlink()


def main() -> int:
    """Compare both ways; 1 if either is off, by all that its interval allows."""
    parent = sys.argv[1] if len(sys.argv) > 1 else None
    mib = int(sys.argv[2]) if len(sys.argv) > 2 else 512
    off = False
    with tempfile.TemporaryDirectory(dir=parent) as name:
        for way in ("write", "read"):
            share = compare(
                partial(ours, way, Path(name), mib),
                partial(by_hand, way, Path(name), mib),
                pairs=PAIRS,
            )
            off |= share.low > 1 + TOLERANCE or share.high < 1 - TOLERANCE
            print(f"storage: sequential {way} of {mib} MiB: {share} of fio by hand")
    return int(off)


if __name__ == "__main__":
    sys.exit(main())
