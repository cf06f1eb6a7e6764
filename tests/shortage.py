"""A process that may open no more files."""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from contextlib import contextmanager, suppress


@contextmanager
def few_files(left: int) -> Generator[None]:
    """Leave this process and its children *left* descriptors to open."""
    taken: list[int] = []
    soft, conclusive = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), conclusive))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(2))
        for _ in range(left):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, conclusive))
