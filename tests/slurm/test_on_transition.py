"""The examples for `on_transition` say what changed where it can be heard."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from email import message_from_string, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseRequestHandler, StreamRequestHandler, TCPServer
from threading import Thread

import pytest

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.notify import TransitionNotifier
from hpcverify.fleet.states import Node, State
from hpcverify.records.store import Store
from tests.waiting import PATIENCE_S

SLURM = Path(__file__).parents[2] / "slurm"
BAD = Node(
    name="n7",
    state=State.QUARANTINED,
    enforced=True,
    reason="sdc: GPU 3: a wrong word\nBcc: x@example.org ü",
)


class Web(BaseHTTPRequestHandler):
    """Takes what is posted."""

    heard: list[str]
    status = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.heard.append(body.decode())
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Be silent."""


class Mail(StreamRequestHandler):
    """Takes a mail, by as much of SMTP as that needs (RFC 5321)."""

    heard: list[str]
    answer = "250 taken"

    def handle(self) -> None:
        self._say("220 listening")
        for line in self.rfile:
            match line.split()[0].upper():
                case b"DATA":
                    self._say("354 go on")
                    lines = iter(self.rfile.readline, b".\r\n")
                    self.heard.append(b"".join(lines).decode())
                    self._say(self.answer)
                case b"QUIT":
                    self._say("221 bye")
                    return
                case _:
                    self._say("250 well")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@contextmanager
def listening(handler: type[BaseRequestHandler]) -> Generator[int]:
    """Listen on a port of this machine's own, and give its number."""
    with TCPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def tell(folder: Path, text: str, *nodes: Node) -> list[str]:
    """Have the program *text* told of *nodes*; return what was said of that."""
    program = folder / "on_transition"
    program.write_text(text)
    program.chmod(0o755)
    ledger, said = Ledger(folder / "state"), list[str]()
    for node in nodes:
        ledger.put(node, "test")
    store = Store(folder / "state")
    TransitionNotifier(
        str(program), ledger, store, said.append, timeout=PATIENCE_S, time_budget=PATIENCE_S
    ).notify()
    return said


def webhook(port: int) -> str:
    """Give the example with an address of ours."""
    text = (SLURM / "on_transition.webhook").read_text()
    address = "https://chat.example.org"
    assert address in text
    return text.replace(address, f"http://127.0.0.1:{port}")


def mail(port: int) -> str:
    """Give the example with a mail server of ours."""
    text = (SLURM / "on_transition.mail").read_text()
    server = '"localhost", 25'
    assert server in text
    return text.replace(server, f'"127.0.0.1", {port}')


def test_the_webhook_posts_what_changed_with_a_line_for_people(tmp_path: Path) -> None:
    heard: list[str] = []
    with listening(type("Ours", (Web,), {"heard": heard})) as port:
        assert tell(tmp_path, webhook(port), BAD) == []

    (body,) = map(json.loads, heard)
    assert (body["node"], body["after"]) == ("n7", "quarantined")
    assert body["text"].startswith("n7: unverified -> quarantined: sdc: GPU 3")


def test_the_mail_has_what_one_needs_and_no_header_of_a_nodes_making(tmp_path: Path) -> None:
    heard: list[str] = []
    with listening(type("Ours", (Mail,), {"heard": heard})) as port:
        well = Node(name="n1", state=State.HEALTHY)
        assert tell(tmp_path, mail(port), BAD, well) == []

    (text,) = heard
    found = message_from_string(text, policy=policy.default)
    assert found["Subject"] == "hpcverify: n7: unverified -> quarantined"
    assert found["Bcc"] is None
    assert isinstance(found, EmailMessage)
    assert "reason: sdc: GPU 3: a wrong word" in found.get_content()


@pytest.mark.parametrize(
    ("example", "handler"),
    [
        (webhook, type("Refusing", (Web,), {"heard": [], "status": 500})),
        (mail, type("Refusing", (Mail,), {"heard": [], "answer": "451 later"})),
    ],
)
def test_what_was_refused_is_told_again(
    tmp_path: Path, example: Callable[[int], str], handler: type[BaseRequestHandler]
) -> None:
    with listening(handler) as port:
        (line,) = tell(tmp_path, example(port), BAD)
    assert "Traceback" not in line
    assert line.endswith("; the next cycle tries again")
    assert len(Ledger(tmp_path / "state").list_pending_transitions(10)) == 1


def test_the_unit_of_the_timer_hides_no_brake() -> None:
    unit = (SLURM / "hpcverify-sweep.service").read_text()
    (line,) = (x for x in unit.splitlines() if x.startswith("SuccessExitStatus="))
    assert "4" not in line.partition("=")[2].split()
    assert "ExecStart=/opt/hpcverify/bin/hpcverify fleet sweep" in unit.splitlines()
