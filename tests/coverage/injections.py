"""
Faults of silent data corruption, put below all of our code, and what must come of each.

The tests that inject them take what they expect from `injections.csv`, so that the page says
what the tests hold. Most faults are put under torch or the C library; where one is in what a
library chose to do, or in what the host computed, its own tests are named.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcverify.model import Verdict
from tests.tables import read_table

CORE, EACH_CORE, NOBODY = "the core", "each core", "nobody"
SDC = "tests/checks/sdc/test_injections.py"
PRODUCT = f"{SDC}::test_a_fault_under_a_product_is_reported_as_the_table_says"
RANDOM = f"{SDC}::test_a_fault_under_random_products_is_reported_as_the_table_says"
TURN = f"{SDC}::test_a_fault_of_one_shape_is_reported_in_its_turn"
COMPARISON = f"{SDC}::test_a_fault_under_a_comparison_is_reported_as_the_table_says"
COPY = f"{SDC}::test_a_fault_under_a_copy_is_reported_as_the_table_says"


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault, the verdict and the accused part that it must lead to, and who holds that."""

    fault: str
    check: str
    verdict: Verdict
    part: str
    tests: tuple[str, ...] = ()
    note: str = ""
    """If nothing is found, why."""


INJECTIONS = read_table(Path(__file__).with_name("injections.csv"), Injection)


def find_injection(check: str, fault: str) -> Injection:
    return next(row for row in INJECTIONS if (row.check, row.fault) == (check, fault))
