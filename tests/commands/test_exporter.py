"""``hpcverify doctor`` finds out whether node_exporter collects what we write."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hpcverify.commands._advice import Advice
from hpcverify.commands._exporter import inspect_exporter
from hpcverify.metrics.table import FLEET_FILE_NAME
from hpcverify.metrics.text import make_gauge
from hpcverify.records.text_files import write_text_file
from tests.prometheus_lab.lab import start_exporter


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "textfiles"
    folder.mkdir()
    write_text_file(folder / FLEET_FILE_NAME, [make_gauge("hpcverify_nodes_missing", 0)])
    return folder


@contextmanager
def exporter_of(directory: Path, tmp_path: Path) -> Generator[tuple[str, int]]:
    """Start a node_exporter that reads *directory*."""
    folder = tmp_path / "exporter"
    folder.mkdir()
    with start_exporter(directory, folder) as address:
        host, _, port = address.partition(":")
        yield host, int(port)


@contextmanager
def answers(words: bytes) -> Generator[tuple[str, int]]:
    """Listen on a port, and answer the first caller with *words*."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            caller, _ = server.accept()
            with caller, suppress(OSError):  # it hangs up early
                caller.recv(4096)
                caller.sendall(words)

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()
        thread.join()


def ask(directory: Path, address: tuple[str, int]) -> Advice:
    *_, last = inspect_exporter(directory, address)
    return last


@pytest.mark.needs("prometheus-node-exporter")
def test_an_exporter_that_lists_our_files_needs_no_fix(directory: Path, tmp_path: Path) -> None:
    with exporter_of(directory, tmp_path) as address:
        advice = [*inspect_exporter(directory, address)]
    assert [item.subject for item in advice] == ["metrics directory", "node_exporter"]
    assert not any(item.fix for item in advice)


@pytest.mark.needs("prometheus-node-exporter")
def test_an_exporter_of_another_directory_gets_its_option(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with exporter_of(other, tmp_path) as address:
        advice = ask(directory, address)

    assert FLEET_FILE_NAME in advice.state
    assert f"--collector.textfile.directory={directory}" in advice.fix


@pytest.mark.needs("prometheus-node-exporter")
def test_a_file_that_the_exporter_drops_is_an_error_to_look_into(
    directory: Path, tmp_path: Path
) -> None:
    (directory / "other.prom").write_text("no metric at all")
    with exporter_of(directory, tmp_path) as address:
        advice = ask(directory, address)
    assert "cannot read" in advice.state
    assert str(directory) in advice.fix


def test_an_exporter_without_text_files_gets_its_option(directory: Path) -> None:
    with answers(b"HTTP/1.0 200 OK\r\n\r\nup 1\n") as address:
        advice = ask(directory, address)
    assert "--collector.textfile.directory" in advice.fix


def test_where_none_listens_nothing_is_to_be_done(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    assert ask(directory, address).fix == ""


@pytest.mark.parametrize("words", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.0 200 OK\r\nX" * 70_000])
def test_what_is_no_web_server_costs_a_line(directory: Path, words: bytes) -> None:
    with answers(words) as address:
        advice = ask(directory, address)
    assert (advice.subject, advice.fix) == ("node_exporter", "")


@pytest.mark.system
@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n", b"H"])
def test_who_answers_a_byte_at_a_time_keeps_nobody(directory: Path, begin: bytes) -> None:
    over = threading.Event()

    def trickle(server: socket.socket) -> None:
        caller, _ = server.accept()
        with caller, suppress(OSError):  # it hangs up
            caller.sendall(begin)
            while not over.wait(0.1):
                caller.sendall(b"a")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickle, args=(server,))
        thread.start()
        try:
            found = ask(directory, server.getsockname())
        finally:
            over.set()
            thread.join()
    assert "none answers" in found.state
    assert "timed out" in found.state


def test_a_directory_that_all_can_write_to_is_named_with_the_fix(directory: Path) -> None:
    directory.chmod(0o777)
    (advice,) = inspect_exporter(directory)
    assert advice.fix == f"chmod o-w {directory}"


def test_a_directory_that_is_not_one_is_named(directory: Path) -> None:
    (missing,) = inspect_exporter(directory / "missing")
    (file,) = inspect_exporter(directory / FLEET_FILE_NAME)
    assert missing.fix == f"mkdir -p {directory}/missing"
    assert "is not a directory" in file.state
