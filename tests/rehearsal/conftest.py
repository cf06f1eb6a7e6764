"""What the tests of the rehearsal share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rehearsal.node import Node, make_node


@pytest.fixture
def rehearse(tmp_path: Path, nvml_library: Path) -> Callable[..., Node]:
    """Give what makes a node."""

    def make(**options: object) -> Node:
        return make_node(tmp_path, nvml_library, **options)  # type: ignore[arg-type]

    return make
