"""
Reads all GPUs of a scenario at given seconds of it, and prints the samples.

Time stands still at each: what is sampled is exact, and nobody waits. As arguments:
the root of the node, the scenario, and the seconds.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import msgspec

from hpcverify.check import Sample
from hpcverify.telemetry.nvml.gauges import NvmlReader


def main() -> None:
    """Print one JSON list of samples."""
    scenario = Path(os.environ["NVML_LAB_SCENARIO"])
    story = Path(sys.argv[2]).read_text()
    samples: list[Sample] = []
    second = 0.0
    with closing(NvmlReader(clock=lambda: second)) as reader:
        for second in map(float, sys.argv[3:]):
            new = scenario.with_suffix(".new")
            new.write_text(f"{story}\nfreeze_t = {second}\n")
            new.replace(scenario)
            samples += [Sample(r.name, r.value, r.unit, r.part_id, second) for r in reader.read()]
    sys.stdout.write(msgspec.json.encode(samples).decode())


main()
