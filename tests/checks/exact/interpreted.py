"""A process in which Triton interprets its kernels, so that they need no GPU."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import pytest


@contextmanager
def interpreter() -> Generator[Executor]:
    """Start such a process: Triton decides for good as it is imported."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            pool.submit(int).result()
        yield pool
