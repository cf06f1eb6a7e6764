"""A text file for node_exporter is complete, readable, or as it was before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from hpcverify.errors import StoreError
from hpcverify.metrics.text import MetricFamily, make_gauge, render
from hpcverify.records.text_files import write_text_file

DISK_KIB = 64
WRITER = """
import os, signal, sys
from pathlib import Path
from hpcverify.metrics.text import make_gauge
from hpcverify.records.text_files import write_text_file

def end_here(*values, **named):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(os, sys.argv[2], end_here)
write_text_file(Path(sys.argv[1]), [make_gauge("hpcverify_nodes_missing", 2)])
"""


def test_everybody_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    before = os.umask(0o077)
    try:
        write_text_file(path, [make_gauge("hpcverify_nodes_missing", 2)])
    finally:
        os.umask(before)

    assert path.stat().st_mode & 0o777 == 0o644
    assert path.read_bytes() == render([make_gauge("hpcverify_nodes_missing", 2)])
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("call", ["fchmod", "fsync", "replace"])
def test_a_killed_writer_leaves_the_old_file_whole_with_its_time(tmp_path: Path, call: str) -> None:
    path = tmp_path / "a.prom"
    write_text_file(path, [make_gauge("hpcverify_nodes_missing", 1)])
    content, status = path.read_bytes(), path.stat()
    done = subprocess.run([sys.executable, "-c", WRITER, path, call], check=False)

    assert done.returncode == -signal.SIGKILL
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (content, status.st_mtime_ns)
    assert [path.name for path in tmp_path.glob("*.prom")] == ["a.prom"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    options = f"size={DISK_KIB}k,nr_inodes=64"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", tmp_path], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


@pytest.mark.needs("root")
def test_a_full_disk_keeps_the_old_file_and_nothing_else(small_disk: Path) -> None:
    path = small_disk / "a.prom"
    write_text_file(path, [make_gauge("hpcverify_nodes_missing", 1)])
    content = path.read_bytes()
    large = MetricFamily(
        "hpcverify_node_recent_returns", {(f"n{i}",): 1 for i in range(DISK_KIB * 40)}
    )
    with pytest.raises(StoreError, match="No space left on device"):
        write_text_file(path, [large])

    assert path.read_bytes() == content
    assert [*small_disk.iterdir()] == [path]
