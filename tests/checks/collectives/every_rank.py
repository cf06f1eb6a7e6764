"""The same fault under the collectives of all ranks, the test's own process included."""

from __future__ import annotations

import json

import pytest
import torch.distributed as dist

from tests.checks.collectives.faulty.sitecustomize import (
    ANY,
    COLLECTIVES,
    FOLDER,
    install,
)


def put_under_every_rank(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Put *fault* under the rank of this process, and under its one peer."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    monkeypatch.setenv("FAULTS", json.dumps({ANY: fault}))
    for name in COLLECTIVES:  # so that it is put back
        monkeypatch.setattr(dist, name, getattr(dist, name))
    install({ANY: fault})
