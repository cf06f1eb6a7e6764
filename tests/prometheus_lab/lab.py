"""
A Prometheus with a node_exporter and an Alertmanager, and the receiver of its messages.

They listen on ports of 127.0.0.1 that the kernel chooses. Intervals are seconds: what a test
waits for is an alert, not its delay.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.prometheus_lab.tools import find_tool
from tests.waiting import PATIENCE_S, wait_until

ADDRESS = re.compile(r"(?i)(?:listening|listen).*?address=(127\.0\.0\.1:[1-9]\d*)")
"""In the log of each daemon, once it listens."""
PROMETHEUS = """
global: {{scrape_interval: {seconds}s, scrape_timeout: {seconds}s, evaluation_interval: 1s}}
rule_files: [{rules}]
alerting:
  alertmanagers: [static_configs: [targets: ["{alertmanager}"]]]
scrape_configs:
  - {{job_name: node, static_configs: [targets: ["{exporter}"]]}}
"""
ALERTMANAGER = """
route:
  {{receiver: site, group_by: ["..."], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}}
receivers:
  - {{name: site, webhook_configs: [{{url: "http://{receiver}/", send_resolved: true}}]}}
"""


@dataclass(frozen=True)
class Alert:
    """An alert as it arrives at a site's receiver."""

    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.labels["alertname"]


@dataclass(frozen=True)
class Monitoring:
    """The running daemons."""

    address: str
    """The address of Prometheus."""
    exporter: str
    """The address of node_exporter."""
    received: list[Alert]
    """What has arrived, the oldest first."""

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate *expression* now."""
        path = "/api/v1/query?" + urlencode({"query": expression})
        answer = json.loads(fetch(self.address, path))
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    def until(self, happens: Callable[[], object]) -> None:
        """Wait until *happens* is true."""
        wait_until(happens, lambda: self.received)

    def await_alert(self, name: str, status: str = "firing", **labels: str) -> Alert:
        """Wait until the last word on the alert with *labels* is *status*, and give it."""

        def find_last() -> Alert | None:
            alerts = (
                alert
                for alert in reversed(self.received)
                if alert.name == name and labels.items() <= alert.labels.items()
            )
            return next(alerts, None)

        self.until(lambda: (last := find_last()) is not None and last.status == status)
        last = find_last()
        assert last is not None
        return last


SEE_OWN_FILES = 'mount --bind "$0/share" /usr/share; exec "$@"'
"""What a shell does first: Debian's Alertmanager reads its templates where they are installed."""


def fetch(address: str, path: str) -> str:
    """Get *path* from the daemon at *address*."""
    host, _, port = address.partition(":")
    connection = HTTPConnection(host, int(port), timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@contextmanager
def start_exporter(directory: Path, folder: Path) -> Generator[str]:
    """Start a node_exporter that reads *directory* and nothing else; give its address."""
    options = (
        "--collector.disable-defaults",
        "--collector.textfile",
        f"--collector.textfile.directory={directory}",
    )
    with _start("prometheus-node-exporter", folder, *options) as address:
        yield address


@contextmanager
def start_monitoring(
    directory: Path, rules: str = "", *, seconds: int = 3
) -> Generator[Monitoring]:
    """
    Watch the text files in *directory* with the YAML of *rules*.

    Prometheus reads them every so many *seconds*, and gives up a scrape that takes longer.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hvprom-")))
        received: list[Alert] = []
        receiver = stack.enter_context(_receive(received))
        (folder / "alertmanager.yml").write_text(ALERTMANAGER.format(receiver=receiver))
        alertmanager = stack.enter_context(
            _start(
                "prometheus-alertmanager",
                folder,
                f"--config.file={folder}/alertmanager.yml",
                f"--storage.path={folder}/alertmanager",
                "--cluster.listen-address=",
            )
        )
        exporter = stack.enter_context(start_exporter(directory, folder))
        (folder / "rules.yml").write_text(rules or "groups: []")
        config = PROMETHEUS.format(
            rules=folder / "rules.yml",
            alertmanager=alertmanager,
            exporter=exporter,
            seconds=seconds,
        )
        yield Monitoring(stack.enter_context(_prometheus(folder, config)), exporter, received)


@contextmanager
def _prometheus(folder: Path, config: str) -> Generator[str]:
    (folder / "prometheus.yml").write_text(config)
    files = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
    with _start("prometheus", folder, *files) as address:
        log = folder / "prometheus.log"
        wait_until(lambda: "Ready" in fetch(address, "/-/ready"), log.read_text)
        yield address


@contextmanager
def _start(name: str, folder: Path, *options: str) -> Generator[str]:
    """Run a daemon until the end, or the death of this process; give its address."""
    log = folder / f"{name}.log"
    program = find_tool(name)
    command: list[str | Path] = [
        "unshare",
        "--mount",
        *([] if os.geteuid() == 0 else ["--map-root-user"]),
    ]
    command += ["setpriv", "--pdeathsig", "KILL", "sh", "-ec", SEE_OWN_FILES, program.parents[1]]
    command += [program, "--web.listen-address=127.0.0.1:0", *options]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:

        def find_address() -> re.Match[str] | None:
            assert process.poll() is None, log.read_text()
            return ADDRESS.search(log.read_text())

        yield wait_until(find_address, log.read_text)[1]
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _receive(received: list[Alert]) -> Generator[str]:
    """Listen for what Alertmanager sends, and keep it; give the address."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.extend(
                Alert(alert["status"], alert["labels"], alert["annotations"])
                for alert in message["alerts"]
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Write nothing beside the results of the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
