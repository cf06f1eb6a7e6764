"""One run on a node at a time."""

from __future__ import annotations

import os
import uuid
from contextlib import ExitStack

import pytest

from hpcverify.errors import UnverifiedError
from hpcverify.lock import node_lock


def test_the_second_is_told_who_holds_the_node() -> None:
    name = f"\0hpcverify.test.{uuid.uuid4()}"

    with (
        node_lock(name),
        pytest.raises(UnverifiedError, match=f"process {os.getpid()}"),
        node_lock(name),
    ):
        pass


def test_the_node_is_free_again_afterwards() -> None:
    name = f"\0hpcverify.test.{uuid.uuid4()}"

    for _ in range(3):
        with node_lock(name):
            pass


def test_who_waits_has_the_node_when_the_other_has_ended() -> None:
    name = f"\0hpcverify.test.{uuid.uuid4()}"
    asked: list[bool] = []
    with ExitStack() as first:
        first.enter_context(node_lock(name))

        def stopped() -> bool:  # the other ends while we wait
            asked.append(True)
            first.close()
            return False

        with node_lock(name, wait=60, stopped=stopped) as waited:
            assert waited
    assert asked == [True]


def test_who_finds_the_node_free_has_not_waited() -> None:
    with node_lock(f"\0hpcverify.test.{uuid.uuid4()}", wait=60) as waited:
        assert not waited


@pytest.mark.parametrize(("wait", "stopped"), [(0.01, False), (60, True)])
def test_waiting_ends_in_time_and_when_told_to_stop(
    wait: float,
    stopped: bool,  # noqa: FBT001 - a case
) -> None:
    name = f"\0hpcverify.test.{uuid.uuid4()}"

    with (
        node_lock(name),
        pytest.raises(UnverifiedError, match=f"process {os.getpid()}"),
        node_lock(name, wait=wait, stopped=lambda: stopped),
    ):
        pass
