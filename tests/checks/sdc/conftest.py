"""All tests of the check go by the work that was done, and not by the time that it took."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.checks.sdc.work_clock import WorkClock


@pytest.fixture(scope="module", autouse=True)
def work_clock() -> Generator[WorkClock]:
    clock = WorkClock(product_seconds=0.002)
    with pytest.MonkeyPatch.context() as patch:
        clock.put_into(patch)
        yield clock
