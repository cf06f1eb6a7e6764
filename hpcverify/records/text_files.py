"""Text files for node_exporter: complete or as before, for every program to read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hpcverify.metrics.text import MetricFamily, render
from hpcverify.records.documents import write_bytes

FILE_MODE = 0o644
"""node_exporter is another user, who drops a file that it cannot read."""


def write_text_file(path: Path, families: Iterable[MetricFamily]) -> None:
    """
    Write *families* to *path*, in a directory that node_exporter collects.

    Until it is complete it has a name that does not end in ``.prom``, so that it is not
    collected. The directory may belong to another user, as on Debian: whoever owns it can say
    what they like to node_exporter anyway, and no link of theirs is followed.

    Raises:
        StoreError: it cannot be written; the file before stays as it is, with its time.

    """
    write_bytes(path, render(families), mode=FILE_MODE)
