"""
A BMC on loopback: sushy-tools serves its resources, and this adds sessions and faults.

Every part of a session is as DSP0266 has it: a POST to the service's collection, a token in
X-Auth-Token, and a DELETE. A fault replaces the answer to one path.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from base64 import b64encode
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sushy_tools.static import main as sushy_static

from hpcverify.plan.bmc import BmcAccess
from tests.redfish_lab.resources import Tree

USER, PASSWORD = "hpcverify", "s3cret-Pa55word"
TOKEN = "0123456789abcdef"  # noqa: S105 - likewise
SESSIONS = "/redfish/v1/SessionService/Sessions"
TRICKLE_SECONDS = 0.2

Fault = Callable[["_Handler"], None]


def make_certificate(folder: Path) -> Path:
    """Make a self-signed certificate of 127.0.0.1, with its key, in one file."""
    path, key = folder / "bmc.pem", folder / "bmc.key"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    name = ("-subj", "/CN=bmc", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    files = ("-keyout", str(key), "-out", str(path), "-days", "30")
    command = ["openssl", "req", "-x509", *curve, *files, *name]
    subprocess.run(command, check=True, capture_output=True)
    return path


@dataclass
class FakeBmc:
    """A BMC with the resources *tree*, below *folder*; *faults* are by path."""

    folder: Path
    certificate: Path
    tree: Tree
    password: str = PASSWORD
    answers_per_connection: int = 0
    """A connection that had as many is closed when it is used again; 0: after each answer."""
    location: str = f"{SESSIONS}/1"
    """Where a new session is, as the BMC says it."""
    page: int = 0
    """Members in a page of a collection that has more; 0: all."""
    is_skip_known: bool = True
    faults: dict[str, Fault] = field(default_factory=dict[str, Fault])
    requests: list[str] = field(default_factory=list[str])
    logins: int = 0
    open_sessions: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    """What hangs waits for this."""
    port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def make_access(self, **changes: Any) -> BmcAccess:
        usual: dict[str, Any] = {"password": PASSWORD, "ca": str(self.certificate), "seconds": 600}
        return BmcAccess(address=self.address, user=USER, **(usual | changes))

    def write(self) -> None:
        """Write the resources where sushy-tools finds them."""
        for path, resource in self.tree.items():
            at = self.folder / path
            at.mkdir(parents=True, exist_ok=True)
            (at / "index.json").write_text(json.dumps(resource))


class _Handler(sushy_static.RequestHandler):  # type: ignore[misc]  # it ships no types
    path: str

    def __init__(self, bmc: FakeBmc, *arguments: Any) -> None:
        self.bmc, self.answered = bmc, 0
        self.protocol_version = "HTTP/1.1" if bmc.answers_per_connection else "HTTP/1.0"
        super().__init__(*arguments)

    def parse_request(self) -> bool:
        """Close a connection that was open for too long, whatever is asked."""
        if self.answered and self.answered == self.bmc.answers_per_connection:
            self.close_connection = True
            return False
        self.answered += 1
        return bool(super().parse_request())

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _log_request(self, method: str) -> None:
        """Print nothing: sushy-tools would print the token."""

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        """Answer with a resource, or with the fault of its path."""
        self.bmc.requests.append(f"GET {self.path}")
        parts = urlsplit(self.path)
        name = parts.path.removeprefix("/redfish/v1").strip("/")
        if fault := self.bmc.faults.get(name):
            with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
                fault(self)
            return
        if name and self.headers["X-Auth-Token"] != TOKEN and not self._has_password():
            self.reply(401)
            return
        resource = self.bmc.tree.get(name, {})
        if self.bmc.page and "Members" in resource:
            self._reply_page(name, parse_qs(parts.query))
            return
        self.path = f"/redfish/v1/{self.bmc.folder.name}/{name}"
        if self.bmc.answers_per_connection and name in self.bmc.tree:
            self.reply(200, json.dumps(resource).encode())
        else:
            super().do_GET()

    def _has_password(self) -> bool:
        given = self.headers["Authorization"]
        if given is None:
            return False
        self.bmc.logins += 1
        wanted = b64encode(f"{USER}:{self.bmc.password}".encode()).decode()
        return bool(given == f"Basic {wanted}")

    def _reply_page(self, name: str, query: dict[str, list[str]]) -> None:
        resource = self.bmc.tree[name]
        known = self.bmc.is_skip_known or "page" in query
        skip = int((query.get("$skip") or ["0"])[0]) if known else 0
        members = resource["Members"][skip : skip + self.bmc.page]
        page = {**resource, "Members": members}
        if skip + self.bmc.page < len(resource["Members"]):
            following = f"/redfish/v1/{name}?$skip={skip + self.bmc.page}&page=1"
            page["Members@odata.nextLink"] = following
        self.reply(200, json.dumps(page).encode())

    def do_POST(self) -> None:  # noqa: N802 - the name that http.server calls
        self.bmc.requests.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        name = self.path.removeprefix("/redfish/v1/")
        if fault := self.bmc.faults.get(f"POST {name}"):
            with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
                fault(self)
            return
        self.bmc.logins += 1
        said = json.loads(body)
        if (said["UserName"], said["Password"]) != (USER, self.bmc.password):
            # Some quote what they were sent.
            self.reply(401, json.dumps({"error": {"message": f"not {said['Password']}"}}).encode())
            return
        self.bmc.open_sessions += 1
        self.reply(201, b"{}", X_Auth_Token=TOKEN, Location=self.bmc.location)

    def do_DELETE(self) -> None:  # noqa: N802 - the name that http.server calls
        self.bmc.requests.append(f"DELETE {self.path}")
        self.bmc.open_sessions -= 1
        self.reply(204)


def hang(handler: _Handler) -> None:
    """Answer nothing until the test is over."""
    handler.bmc.released.wait()


def break_off(handler: _Handler, status: int = 200, **headers: str) -> None:
    """End in the middle of the body."""
    handler.send_response(status)
    for name, value in (headers | {"Content-Length": "100"}).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(b'{"Id":')
    handler.close_connection = True


def trickle(handler: _Handler) -> None:
    """Answer a byte at a time, for ever."""
    handler.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while not handler.bmc.released.wait(TRICKLE_SECONDS):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def flood(handler: _Handler) -> None:
    """Answer with 100 MB."""
    handler.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n")
    for _ in range(100):
        handler.wfile.write(b" " * 2**20)


def answer_with(status: int, body: bytes = b"", **headers: str) -> Fault:
    """Make a fault that answers with *body*."""
    return lambda handler: handler.reply(status, body, **headers)


@contextmanager
def serve(*bmcs: FakeBmc) -> Generator[None]:
    """Serve *bmcs*, whose folders have one parent, each on a port of its own."""
    before = sushy_static.REDFISH_MOCKUP_FILES
    sushy_static.REDFISH_MOCKUP_FILES = str(bmcs[0].folder.parent)
    servers: list[_Server] = []
    threads: list[threading.Thread] = []
    try:
        for bmc in bmcs:
            bmc.write()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(bmc.certificate, bmc.certificate.with_suffix(".key"))
            server = _Server(("127.0.0.1", 0), partial(_Handler, bmc))
            server.context = context
            bmc.port = server.server_address[1]
            servers.append(server)
            threads.append(threading.Thread(target=server.serve_forever, args=(0.02,)))
            threads[-1].start()
        yield
    finally:
        for bmc in bmcs:
            bmc.released.set()
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
        sushy_static.REDFISH_MOCKUP_FILES = before


class _Server(ThreadingHTTPServer):
    context: ssl.SSLContext
    daemon_threads = False

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Wrap the connection in the thread that serves it: a client may never shake hands."""
        with (
            suppress(ssl.SSLError, OSError),
            self.context.wrap_socket(request, server_side=True) as wrapped,
        ):
            super().finish_request(wrapped, client_address)
