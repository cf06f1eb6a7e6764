"""One run on a node at a time."""

from __future__ import annotations

import os
import uuid

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
