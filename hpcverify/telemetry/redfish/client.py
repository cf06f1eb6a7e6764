"""
One session with one BMC over Redfish (DSP0266).

A BMC is slow, has few sessions, and may be anything that responds at its address. So the
password is tried once, a redirection is followed once and only to a path of the service on
the same host, a response has a maximum size, and only paths of the service are requested.
The session is deleted again, even if the time is up: the thread that still waits is left
behind, as a BMC that sends a byte each second meets every timeout of a socket.
"""

from __future__ import annotations

import logging
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec
import urllib3
from urllib3 import exceptions

from hpcverify.check import Cause, Remedy, Unable
from hpcverify.plan.bmc import BmcAccess
from hpcverify.telemetry.redfish.resources import as_list, get_link, get_text
from hpcverify.telemetry.visit import Visit

A = TypeVar("A")

TIMEOUT = urllib3.Timeout(connect=10, read=20)
"""Seconds; *read* is between two bytes of an answer: a BMC may think for seconds about each."""
LOGOUT_SECONDS = 10.0
"""What the end of a session may take, after the time for reading is up."""
MAX_ANSWER_BYTES = 8 * 2**20
"""A page of a long event log has less than 1 MB."""
MAX_REQUESTS = 1000
"""A board of eight GPUs has some 300 sensors, and a node 32 DIMMs and 16 drives."""
SERVICE_ROOT = "/redfish/v1/"
SESSIONS = "/redfish/v1/SessionService/Sessions"
"""Where sessions are made since 1.6.0 of the specification, if the service root is silent."""
PATH_PATTERN = re.compile(r"/redfish/v1(/[\w.~:@!$&'()*+,;=%?#/-]*)?")
HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "OData-Version": "4.0"}
LOGIN_REFUSALS = frozenset({400, 401, 403})
"""What BMCs answer to a wrong password, or for an account that they have locked."""
ABSENT_STATUSES = frozenset({404, 405, 410, 501})
HTTP_OK, HTTP_UNAUTHORIZED, HTTP_BUSY = 200, 401, 503
LOGGED_IN = frozenset({200, 201, 202, 204})
REDIRECTIONS = frozenset({301, 302, 307, 308})
"""Of the same resource; 303 names another one, to which a login must not be sent."""

logging.getLogger("urllib3").propagate = False  # it quotes headers that it cannot parse


class Unreadable(Exception):  # noqa: N818 - one resource, of which the caller says what it means
    """A resource exists, or may, and cannot be read."""


class Service(Protocol):
    """What `read` asks."""

    def get(self, path: str) -> Mapping[str, Any] | None:
        """Read the resource at *path*; None if there is none."""


def visit_bmc(access: BmcAccess, read: Callable[[Service], A]) -> A:
    """Log in at the BMC, *read* it, and log out again, however that ends."""
    session = _Session(access)
    visit = Visit(partial(session.visit, read))
    if visit.ends_within(access.seconds):
        return visit.take()
    session.is_over = True
    Visit(session.log_out).ends_within(LOGOUT_SECONDS)
    raise _build_silence(access, f"not done within {access.seconds:g} s")


class _Session:
    def __init__(self, access: BmcAccess) -> None:
        self._access = access
        self._credentials: Mapping[str, str] = {}
        self._location = ""
        self._requests = 0
        self.is_over = False
        """Whether the time is up: then nothing is asked any more."""
        if not access.verify:
            urllib3.disable_warnings(exceptions.InsecureRequestWarning)
        self._pool = self._open_pool()

    def _open_pool(self) -> urllib3.HTTPConnectionPool:
        access = self._access
        try:
            return urllib3.connection_from_url(
                f"https://{access.address}",
                timeout=TIMEOUT,
                retries=False,
                cert_reqs="CERT_REQUIRED" if access.verify else "CERT_NONE",
                ca_certs=access.ca or None,
            )
        except exceptions.HTTPError as exc:  # a port above 65535
            raise _explain_failure(exc, access) from None

    def visit(self, read: Callable[[Service], A]) -> A:
        try:
            self.log_in()
            return read(self)
        finally:
            self.log_out()
            self._pool.close()

    def log_in(self) -> None:
        """Begin a session, with one try of the password; a BMC without any gets it each time."""
        access = self._access
        answer = self._open("GET", SERVICE_ROOT)
        body = _read_body(answer)
        if answer.status not in (HTTP_OK, HTTP_UNAUTHORIZED):  # some show no root before a login
            raise _explain_status(answer.status, access)
        root = _decode(body) if answer.status == HTTP_OK else {}
        if not isinstance(root, dict):
            raise _build_wrong_answer(access, "does not respond as a Redfish service")
        path = get_link(root, "Links", "Sessions")
        path = path if PATH_PATTERN.fullmatch(path) else SESSIONS
        self._pool.close()  # the BMC may have closed its connection, and POST has only one try
        self._pool = self._open_pool()
        login = {"UserName": access.user, "Password": access.password}
        answer = self._open("POST", path, msgspec.json.encode(login))
        if answer.status in LOGGED_IN:
            # A session must be deleted even if the body of its response is broken or never ends.
            self._credentials = {"X-Auth-Token": answer.headers.get("X-Auth-Token", "")}
            self._location = _find_session(path, answer.headers.get("Location", ""))
        body = _read_body(answer)
        if answer.status in ABSENT_STATUSES:
            both = b64encode(f"{access.user}:{access.password}".encode()).decode()
            self._credentials = {"Authorization": f"Basic {both}"}
            return
        if answer.status not in LOGGED_IN:
            raise _explain_status(answer.status, access)
        if not self._location and isinstance(session := _decode(body), dict):
            self._location = _find_session(path, get_text(session, "@odata.id"))
        if b"PasswordChangeRequired" in body:
            raise _explain_status(HTTP_UNAUTHORIZED, access)
        if not self._credentials["X-Auth-Token"]:
            raise _build_wrong_answer(access, "opens no session (SessionService)")

    def log_out(self) -> None:
        """Delete the session: a BMC has few, and keeps each for half an hour."""
        location, self._location = self._location, ""
        with suppress(Unable):  # nothing is lost but a session, which ends by itself
            if location:
                _read_body(self._open("DELETE", location, tries=2))

    def get(self, path: str) -> Mapping[str, Any] | None:
        """
        Read the resource at *path*; None if there is none.

        Raises:
            Unreadable: this resource cannot be read.
            Unable: no resource can be read.

        """
        if not PATH_PATTERN.fullmatch(path):
            raise Unreadable(f"{path[:80]!a} is not a path of a Redfish service")
        self._requests += 1
        if self._requests > MAX_REQUESTS:
            raise _build_wrong_answer(self._access, f"has more than {MAX_REQUESTS} resources")
        name = path.removeprefix(SERVICE_ROOT)
        # A connection that the BMC has closed meanwhile is worth a second try.
        answer = self._open("GET", path.replace("//", "/"), tries=2)
        body = _read_body(answer)
        if answer.status in ABSENT_STATUSES:
            return None
        if answer.status == HTTP_UNAUTHORIZED:
            if "Authorization" in self._credentials:
                raise _explain_status(answer.status, self._access)
            raise _build_wrong_answer(self._access, "has ended the session")
        if answer.status != HTTP_OK:
            raise Unreadable(f"{name}: HTTP {answer.status}")
        if len(body) > MAX_ANSWER_BYTES:
            raise Unreadable(f"{name}: more than {MAX_ANSWER_BYTES >> 20} MiB")
        resource = _decode(body)
        if not isinstance(resource, dict):
            raise Unreadable(f"{name}: no {'JSON' if resource is None else 'resource'}")
        return resource

    def _open(
        self, method: str, path: str, body: bytes | None = None, tries: int = 1
    ) -> urllib3.BaseHTTPResponse:
        """Send a request, and follow one redirection to another path of the service."""
        answer = self._send(method, path, body, tries)
        if answer.status not in REDIRECTIONS:
            return answer
        here = f"https://{self._access.address}"
        with suppress(ValueError):
            place = urlsplit(urljoin(f"{here}{path}", answer.headers.get("Location", "")))
            target = f"{place.path}?{place.query}" if place.query else place.path
            is_own = f"{place.scheme}://{place.netloc}" == here and PATH_PATTERN.fullmatch(target)
            if is_own and target != path:
                _read_body(answer)
                return self._send(method, target, body, tries)
        return answer

    def _send(
        self, method: str, path: str, body: bytes | None, tries: int
    ) -> urllib3.BaseHTTPResponse:
        if self.is_over and method != "DELETE":
            raise _build_silence(self._access, "the time is up")
        headers = {**HEADERS, **self._credentials}
        if body is not None:
            headers["Content-Type"] = "application/json"
        while True:
            tries -= 1
            try:
                return self._pool.request(
                    method, path, body, headers=headers, redirect=False, preload_content=False
                )
            except (exceptions.HTTPError, ValueError) as exc:
                if not tries:
                    raise _explain_failure(exc, self._access) from None


def _read_body(answer: urllib3.BaseHTTPResponse) -> bytes:
    """Read the body of *answer* up to `MAX_ANSWER_BYTES` and one; nothing if it is broken."""
    with answer:
        try:
            return answer.read(MAX_ANSWER_BYTES + 1)
        except (exceptions.HTTPError, ValueError):
            return b""


def _find_session(path: str, place: str) -> str:
    """Find the path of a session in *place*, whose host does not count; empty if it has none."""
    with suppress(ValueError):
        location = urlsplit(urljoin(path, place)).path
        if place and PATH_PATTERN.fullmatch(location):
            return location
    return ""


def _decode(body: bytes) -> object:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(body)
    return None


def list_members(service: Service, path: str) -> Iterator[Mapping[str, Any]]:
    """
    Yield the members of the collection at *path*, page by page; none without a path.

    A member is as the collection has it: the resource, or only a link to it. A BMC that ignores
    what a link to the next page asks for gives the same page again: that is the end, if all
    members were there.

    Raises:
        Unreadable: a page cannot be read, or the pages form a loop before their end.

    """
    seen: list[object] = []
    while path:
        page = service.get(path)
        if page is None:
            return
        members = [member for member in as_list(page.get("Members")) if isinstance(member, dict)]
        if members and members[0] in seen:
            count = page.get("Members@odata.count")
            if isinstance(count, int) and len(seen) < count:
                raise Unreadable(f"{path.removeprefix(SERVICE_ROOT)}: its pages form a loop")
            return
        seen += members
        yield from members
        link = page.get("Members@odata.nextLink") or page.get("@odata.nextLink")
        path = urljoin(path, link) if members and isinstance(link, str) else ""


def _explain_failure(exc: Exception, access: BmcAccess) -> Unable:
    """Explain an error of urllib3, but not in its words, which may quote anything."""
    match exc:
        case exceptions.NameResolutionError() | exceptions.LocationParseError():
            return Unable(
                f"the BMC {access.address} cannot be resolved. Fix: correct [bmc] address, or the "
                "name "
                "service",
                Cause.MISCONFIGURED,
            )
        case exceptions.SSLError(args=(error, *_)):
            why = getattr(error, "verify_message", "") or getattr(error, "reason", "")
            return Unable(
                f"the BMC at {access.address} is not trusted ({why or 'TLS failed'}). Fix: set ca "
                "in "
                "[bmc] to a file with its certificate or that of its authority",
                Cause.MISCONFIGURED,
            )
        case exceptions.NewConnectionError():  # which is a timeout by its type
            return _build_silence(access, "no connection")
        case exceptions.TimeoutError():
            return _build_silence(access, "the response timed out")
        case exceptions.HTTPError():
            return _build_silence(access, "no connection")
    return _build_wrong_answer(access, "does not respond as a Redfish service")


def _explain_status(status: int, access: BmcAccess) -> Unable:
    if status in LOGIN_REFUSALS:
        return Unable(
            f"the BMC at {access.address} refuses the password of {access.user!r} (HTTP {status}). "
            "Fix: correct the file of [bmc] credentials",
            Cause.DENIED,
        )
    if status == HTTP_BUSY:
        return _build_wrong_answer(access, "is busy (HTTP 503), as during an update")
    if status in ABSENT_STATUSES:
        return Unable(
            f"{access.address} is not a Redfish service (HTTP {status}). Fix: correct [bmc] "
            "address",
            Cause.MISSING,
        )
    return _build_wrong_answer(access, f"returned HTTP {status}")


def _build_silence(access: BmcAccess, how: str) -> Unable:
    return Unable(
        f"the BMC at {access.address} does not respond ({how}). Fix: check its power and network, "
        "and reset it",
        Cause.TIMEOUT,
        Remedy.INSPECT,
    )


def _build_wrong_answer(access: BmcAccess, what: str) -> Unable:
    return Unable(
        f"the BMC at {access.address} {what}. Fix: reset it if this persists until tomorrow",
        Cause.MISCONFIGURED,
        Remedy.INSPECT,
    )
