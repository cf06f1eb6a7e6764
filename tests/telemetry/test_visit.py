"""A visit that never ends is left behind, and one that ends late has answered."""

from __future__ import annotations

import threading

import pytest

from hpcverify.telemetry.visit import Visit
from tests.waiting import PATIENCE_S


def test_a_visit_gives_its_answer() -> None:
    visit = Visit(lambda: 7)
    assert visit.ends_within(PATIENCE_S)
    assert visit.take() == 7


def test_a_visit_that_does_not_return_is_left_behind_and_may_return_later() -> None:
    returned = threading.Event()
    visit = Visit(lambda: returned.wait(PATIENCE_S))
    assert not visit.ends_within(0)
    returned.set()
    assert visit.ends_within(PATIENCE_S)
    assert visit.take()


def test_what_a_visit_raises_is_raised_where_it_is_taken() -> None:
    visit = Visit(lambda: 1 // 0)
    assert visit.ends_within(PATIENCE_S)
    with pytest.raises(ZeroDivisionError):
        visit.take()
