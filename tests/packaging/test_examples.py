"""The examples for collectors: what they make of the file of events."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from hpcverify.events.chain import verify_chain
from hpcverify.events.event import EventKind
from hpcverify.fleet.event_log import NewEvent
from hpcverify.fleet.event_stream import EventStream
from hpcverify.fleet.ledger import Ledger
from hpcverify.plan.config import Events
from tests.packaging.machine import ROOT
from tests.waiting import PATIENCE_S, wait_until

EXAMPLES = ROOT / "packaging/examples"
EVENTS_FILE = "/var/lib/hpcverify/events.jsonl"


@dataclass
class Collector:
    """A TCP socket on the loopback that takes messages of RFC 5424, octet-counted."""

    server: socket.socket
    connections: list[socket.socket] = field(default_factory=list[socket.socket])
    buffers: dict[socket.socket, bytes] = field(default_factory=dict[socket.socket, bytes])
    messages: list[str] = field(default_factory=list[str])

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self.server.getsockname()[1]
        return port

    def listen(self) -> None:
        """Take connections from now on."""
        self.server.listen()
        self.server.settimeout(0)

    def read(self) -> list[str]:
        """Read what has arrived, and give all messages so far."""
        try:
            connection, _ = self.server.accept()
            connection.settimeout(0)
            self.buffers[connection] = b""
        except BlockingIOError:
            pass
        for connection in self.buffers:
            try:
                self.buffers[connection] += connection.recv(2**20)
            except BlockingIOError:
                continue
            self.buffers[connection] = self._split(self.buffers[connection])
        return self.messages

    def _split(self, data: bytes) -> bytes:
        """Move the whole messages of *data* to the others; return the rest."""
        while b" " in data:
            size, _, rest = data.partition(b" ")
            if len(rest) < int(size):
                break
            self.messages.append(rest[: int(size)].decode())
            data = rest[int(size) :]
        return data

    def close(self) -> None:
        """Close every socket."""
        for connection in (self.server, *self.buffers):
            connection.close()


@dataclass
class Rsyslog:
    """A rsyslogd with the example alone, beside the ledger in *folder*."""

    folder: Path
    port: int
    ledger: Ledger
    settings: Events = field(default_factory=Events)
    process: subprocess.Popen[bytes] | None = None

    @property
    def events(self) -> Path:
        """The file that it follows."""
        return self.folder / "events.jsonl"

    def write_configuration(self) -> Path:
        """Write the example for this folder and this port."""
        example = (EXAMPLES / "rsyslog.conf").read_text()
        for known, own in (
            (EVENTS_FILE, str(self.events)),
            ('"siem.example.org"', '"127.0.0.1"'),
            ('"601"', f'"{self.port}"'),
            ('action.resumeInterval="10"', 'action.resumeInterval="1"'),
        ):
            assert example.count(known) == 1, known
            example = example.replace(known, own)
        path = self.folder / "rsyslog.conf"
        path.write_text(f'global(workDirectory="{self.folder}")\n{example}')
        return path

    def start(self) -> None:
        """Start it."""
        command = ("rsyslogd", "-n", "-f", self.write_configuration())
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        self.process = subprocess.Popen(
            [*command, "-i", self.folder / "pid"], env={"PATH": path, "LC_ALL": "C.UTF-8"}
        )

    def stop(self, end: signal.Signals = signal.SIGTERM) -> None:
        """Send it the signal *end*, and wait until it has ended."""
        if self.process:
            self.process.send_signal(end)
            self.process.wait(PATIENCE_S)
            self.process = None
            (self.folder / "pid").unlink(missing_ok=True)

    def has_begun(self) -> bool:
        """Whether it has read the file, and kept what it read."""
        return any(self.folder.glob("imfile-state:*")) and any(
            path.stat().st_size for path in self.folder.glob("hpcverify-events.0*")
        )

    def append(self, count: int) -> None:
        """Append *count* events, as the controller does."""
        for _ in range(count):
            self.ledger.record_event(NewEvent(kind=EventKind.HEARTBEAT, text="Zoë ⚠"))
        EventStream(self.folder, self.settings, self.ledger).drain()

    def list_lines(self) -> list[str]:
        """List the lines of all events."""
        return [bytes(line).decode() for _, line in self.ledger.read_lines(0, 10_000)]


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    collector = Collector(server)
    yield collector
    collector.close()


@pytest.fixture
def rsyslog(tmp_path: Path, collector: Collector) -> Iterator[Rsyslog]:
    rsyslog = Rsyslog(tmp_path, collector.port, Ledger(tmp_path))
    yield rsyslog
    rsyslog.stop(signal.SIGKILL)


def read_lines(collector: Collector) -> list[str]:
    """Read the line in each message that has arrived so far."""
    parts = [message.partition(" - - - ") for message in collector.read()]
    assert {header.split()[0] for header, _, _ in parts} <= {"<134>1"}  # local0.info
    return [line for _, _, line in parts]


def wait_for_events(collector: Collector, count: int) -> None:
    """Wait until *count* events have arrived."""
    wait_until(lambda: len(collector.read()) >= count, lambda: f"{count} events did not arrive")


def rotate(rsyslog: Rsyslog) -> None:
    """Rotate the file with logrotate and the example for it."""
    path = rsyslog.folder / "logrotate.conf"
    path.write_text(
        (EXAMPLES / "logrotate.conf").read_text().replace(EVENTS_FILE, str(rsyslog.events))
    )
    path.chmod(0o644)
    state = ("--state", rsyslog.folder / "logrotate.state")
    command = ("/usr/sbin/logrotate", "--force", *state, path)
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    assert not rsyslog.events.exists()


@pytest.mark.needs("logrotate")
@pytest.mark.parametrize("by_size", [False, True])
def test_rsyslog_delivers_each_event_once_and_in_order_through_rotations_and_a_restart(
    rsyslog: Rsyslog, collector: Collector, *, by_size: bool
) -> None:
    rsyslog.settings = Events(max_mib=0.001 if by_size else 0)
    collector.listen()
    rsyslog.append(20)
    rsyslog.start()
    wait_for_events(collector, 20)

    rsyslog.append(20)
    if by_size:  # it must have seen a file before that is rotated
        wait_for_events(collector, 40)
    else:
        rotate(rsyslog)
    rsyslog.append(20)
    wait_for_events(collector, 60)

    rsyslog.stop()
    if not by_size:  # what is rotated meanwhile, it does not read: the page says so
        rsyslog.append(20)
    rsyslog.start()
    rsyslog.append(20)
    wait_for_events(collector, len(rsyslog.list_lines()))
    rsyslog.stop()

    assert rsyslog.events.with_name("events.jsonl.1").exists()
    assert read_lines(collector) == rsyslog.list_lines()
    assert verify_chain(line.encode() for line in read_lines(collector)).wrong == 0


@pytest.mark.needs("rsyslogd")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_rsyslog_loses_no_event_when_it_ends_while_the_collector_is_down(
    rsyslog: Rsyslog, collector: Collector, end: signal.Signals
) -> None:
    rsyslog.append(50)
    rsyslog.start()
    wait_until(rsyslog.has_begun, lambda: "rsyslogd read nothing")
    rsyslog.append(50)
    rsyslog.stop(end)
    rsyslog.start()
    collector.listen()

    everything = {*rsyslog.list_lines()}
    wait_until(lambda: {*read_lines(collector)} == everything, lambda: "an event is lost")


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_every_example_follows_the_file_that_the_controller_writes(path: Path) -> None:
    follows = path.name != "splunk-props.conf"  # which only says how its lines are read
    assert (EVENTS_FILE in path.read_text()) is follows


def test_no_stream_of_loki_is_labelled_with_a_node() -> None:
    vector = yaml.safe_load((EXAMPLES / "vector.yaml").read_text())
    fluent = yaml.safe_load((EXAMPLES / "fluent-bit.yaml").read_text())
    (loki,) = (out for out in fluent["pipeline"]["outputs"] if out["name"] == "loki")
    (labels,) = re.findall(
        r"stage\.labels \{\s*values = (.*)", (EXAMPLES / "loki.alloy").read_text()
    )

    assert vector["sinks"]["loki"]["labels"].keys() == {"job", "kind"}
    assert (loki["labels"], loki["label_keys"]) == ("job=hpcverify", "$kind")
    assert labels == '{kind = ""}'


@pytest.mark.parametrize("name", ["splunk-inputs.conf", "splunk-props.conf"])
def test_splunk_reads_events_under_one_source_type(name: str) -> None:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((EXAMPLES / name).read_text())
    (section,) = parser.sections()
    assert "hpcverify:event" in (section, parser[section].get("sourcetype"))
