"""The numbers of NVML that we use are those of every driver."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping

import pynvml
import pytest

from hpcverify.telemetry.nvml.questions import find_slowdown_counters
from tests.nvml_lab.nvmllab import ROOT
from tests.telemetry.nvml.constants import (
    RELEASES,
    SLOWDOWN_COUNTERS,
    TABLE,
    list_used_constants,
)


def read_table() -> Mapping[str, Mapping[str, str]]:
    """Read the numbers by constant and by release; empty where a release lacks it."""
    with TABLE.open(newline="") as file:
        return {row.pop("constant"): row for row in csv.DictReader(file)}


def test_every_constant_has_one_number_in_all_releases_that_have_it() -> None:
    table = read_table()
    for name in set(list_used_constants()):
        assert name in table, f"{name}: python -m tests.telemetry.nvml.constants"
        numbers = set(table[name].values()) - {""}
        assert numbers == {str(getattr(pynvml, name))}, name


def test_the_oldest_release_that_we_install_with_has_every_constant() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pin,) = (d for d in project["dependencies"] if d.startswith("nvidia-ml-py"))
    oldest = pin.partition("=")[2]
    assert [n for n in set(list_used_constants()) if not read_table()[n][oldest]] == []


@pytest.mark.parametrize("release", RELEASES)
def test_the_slowdown_counters_are_those_of_the_driver(release: str) -> None:
    table = read_table()
    driver = release.partition(".")[2]
    expected = [table[name][release] for name in SLOWDOWN_COUNTERS]
    assert [str(n) for n in find_slowdown_counters(driver)] == [n for n in expected if n]


@pytest.mark.parametrize(
    ("driver", "first"),
    [("575.0", 251), ("580.81.99", 251), ("580.82.01", 269), ("595.91.07", 269), ("", None)],
)
def test_a_driver_between_releases_has_the_counters_of_the_older(
    driver: str, first: int | None
) -> None:
    assert next(iter(find_slowdown_counters(driver)), None) == first
