"""
What the outputs of one run cost if 5,000 of its parts failed, which a document of 3 MB can have.

CPU time of each, once; half as many parts beside it show whether it grows with the document.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.records.documents import count_bytes  # noqa: E402 - below the path
from tests.reports.test_growth import OUTPUTS, make_alike, make_unlike  # noqa: E402

PARTS = 5000
MAX_CPU_S = 5.0
"""What an output of such a document may take."""


def main() -> None:
    """Measure, and print one line for each output."""
    print(f"{PARTS} failed parts, load {os.getloadavg()[0]:.1f}")
    for make in (make_alike, make_unlike):
        few, many = make(PARTS // 2), make(PARTS)
        print(f"{make.__name__}: {count_bytes(many.results) / 1e6:.1f} MB")
        for name, write in OUTPUTS.items():
            with tempfile.TemporaryDirectory(prefix="hvpages-") as folder:
                seconds = []
                for run in (few, many):
                    began = time.process_time()
                    write(run, Path(folder))
                    seconds.append(time.process_time() - began)
            missed = "" if seconds[1] <= MAX_CPU_S else ": too slow"
            print(f"  {name}: {seconds[0]:.2f} s, twice the parts {seconds[1]:.2f} s{missed}")


if __name__ == "__main__":
    main()
