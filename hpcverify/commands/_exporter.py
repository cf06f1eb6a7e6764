"""What node_exporter must do for the metrics of a site, for `hpcverify doctor`."""

from __future__ import annotations

import re
import socket
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event, Timer

from hpcverify.commands._advice import Advice
from hpcverify.errors import StoreError
from hpcverify.run.folders import explain_silence

ADDRESS = ("127.0.0.1", 9100)
"""Where node_exporter listens unless it is told otherwise."""
TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 * 2**20
SCRAPE_ERROR = re.compile(r"^node_textfile_scrape_error (\S+)$", re.MULTILINE)
LISTED_FILE = re.compile(r'^node_textfile_mtime_seconds\{file="([^"\n]+)"\}', re.MULTILINE)
OUR_FILES = "hpcverify_*.prom"


def inspect_exporter(directory: Path, address: tuple[str, int] = ADDRESS) -> Iterator[Advice]:
    """Inspect whether the node_exporter at *address* collects the text files in *directory*."""
    subject = "metrics directory"
    if silence := explain_silence(directory):
        yield Advice(subject, silence, f"umount -f -l {directory}, and mount it again")
        return
    try:
        mode = directory.stat().st_mode
    except OSError as exc:
        yield Advice(subject, f"{directory}: {exc.strerror}", f"mkdir -p {directory}")
        return
    if not stat.S_ISDIR(mode):
        yield Advice(subject, f"{directory} is not a directory", "set [metrics] directory")
        return
    if mode & stat.S_IWOTH:
        yield Advice(subject, f"all users can write to {directory}", f"chmod o-w {directory}")
        return
    yield Advice(subject, str(directory))
    yield _compare_files(directory, address)


def _compare_files(directory: Path, address: tuple[str, int]) -> Advice:
    subject, where = "node_exporter", ":".join(map(str, address))
    try:
        answer = _fetch_metrics(address)
    except StoreError as exc:
        return Advice(subject, f"none answers on {where} ({exc}): its files are not compared")
    start = f"start it with --collector.textfile.directory={directory}"
    error = SCRAPE_ERROR.search(answer)
    if error is None:
        return Advice(subject, f"that on {where} reads no text files", start)
    if float(error[1]):
        why = f"that on {where} cannot read a text file"
        return Advice(subject, why, f"see its log, and what else is in {directory}")
    listed = {Path(file).name for file in LISTED_FILE.findall(answer)}
    missing = sorted(path.name for path in directory.glob(OUR_FILES) if path.name not in listed)
    if missing:
        return Advice(subject, f"that on {where} does not list {', '.join(missing)}", start)
    return Advice(subject, f"that on {where} reads the text files without an error")


def _fetch_metrics(address: tuple[str, int]) -> str:
    """
    Get what listens at *address*, whoever that is.

    Raises:
        StoreError: nothing answers there, or not as a web server does, or too slowly.

    """
    connection = HTTPConnection(*address, timeout=TIMEOUT_S)
    late = Event()
    try:
        connection.connect()
        with _hang_up_after(TIMEOUT_S, connection.sock, late):
            connection.request("GET", "/metrics")
            answer = connection.getresponse().read(MAX_ANSWER_BYTES)
    except (OSError, HTTPException) as exc:
        is_silent = late.is_set() or isinstance(exc, TimeoutError)
        why = (exc.strerror or str(exc)) if isinstance(exc, OSError) else ""
        why = why or f"no web server: {type(exc).__name__}"
        raise StoreError("timed out" if is_silent else why) from exc
    finally:
        connection.close()
    if late.is_set():  # what came is not all
        raise StoreError("timed out")
    return answer.decode(errors="replace")


@contextmanager
def _hang_up_after(seconds: float, line: socket.socket, late: Event) -> Generator[None]:
    """End the connection of *line* if the block takes longer: who trickles keeps nobody."""

    def hang_up() -> None:
        late.set()
        with suppress(OSError):  # it has just ended
            line.shutdown(socket.SHUT_RDWR)

    timer = Timer(seconds, hang_up)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
