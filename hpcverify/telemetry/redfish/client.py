"""
One session with one BMC over Redfish (DSP0266).

A BMC is slow, has few sessions, and may be anything that answers at its address. So the
password is tried once, no redirection is followed, an answer has a size that it may not
exceed, only paths of the service itself are asked for, and the session is deleted again,
even where the time is up: what waits then is left behind, as a BMC that sends a byte each
second meets every timeout of a socket.
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
REDIRECTIONS = range(300, 400)

logging.getLogger("urllib3").propagate = False  # it quotes headers that it cannot parse


class Unreadable(Exception):  # noqa: N818 - one resource, of which the caller says what it means
    """A resource exists, or may, and cannot be read."""


class Service(Protocol):
    """What `read` asks."""

    def get(self, path: str) -> Mapping[str, Any] | None:
        """Read the resource at *path*; None if there is none."""


def visit_bmc(access: BmcAccess, read: Callable[[Service], A]) -> A:
    """
    Log in at the BMC, *read* it, and log out again, however that ends.

    Raises:
        Unable: it does not answer (TIMEOUT), refuses the password (DENIED), shows a
            certificate that is not trusted or answers wrongly (MISCONFIGURED), or is no
            Redfish service (MISSING).

    """
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
        """The headers that prove who asks."""
        self._location = ""
        """The path of the session; empty without one."""
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
        status, _, body = self._ask("GET", SERVICE_ROOT)
        if status not in (HTTP_OK, HTTP_UNAUTHORIZED):  # some show their root to no stranger
            raise _explain_status(status, access)
        root = _decode(body) if status == HTTP_OK else {}
        if not isinstance(root, dict):
            raise _build_wrong_answer(access, "answers what is not Redfish")
        path = get_link(root, "Links", "Sessions")
        path = path if PATH_PATTERN.fullmatch(path) else SESSIONS
        self._pool.close()  # the BMC may have closed its connection, and POST has only one try
        self._pool = self._open_pool()
        login = {"UserName": access.user, "Password": access.password}
        status, headers, body = self._ask("POST", path, msgspec.json.encode(login))
        if status in ABSENT_STATUSES:
            both = b64encode(f"{access.user}:{access.password}".encode()).decode()
            self._credentials = {"Authorization": f"Basic {both}"}
            return
        if status not in LOGGED_IN:
            raise _explain_status(status, access)
        self._credentials = {"X-Auth-Token": headers.get("X-Auth-Token", "")}
        answer = _decode(body)
        own = get_text(answer, "@odata.id") if isinstance(answer, dict) else ""
        for place in filter(None, (own, headers.get("Location"))):
            with suppress(ValueError):
                # A BMC that named another host here would be sent our token.
                location = urlsplit(urljoin(path, place)).path
                if PATH_PATTERN.fullmatch(location):
                    self._location = location
        if b"PasswordChangeRequired" in body:
            raise _explain_status(HTTP_UNAUTHORIZED, access)
        if not self._credentials["X-Auth-Token"]:
            raise _build_wrong_answer(access, "opens no session (SessionService)")

    def log_out(self) -> None:
        """Delete the session: a BMC has few, and keeps each for half an hour."""
        location, self._location = self._location, ""
        with suppress(Unable):  # nothing is lost but a session, which ends by itself
            if location:
                self._ask("DELETE", location, tries=2)

    def get(self, path: str) -> Mapping[str, Any] | None:
        """
        Read the resource at *path*; None if there is none.

        Raises:
            Unreadable: it cannot be read; another may.
            Unable: nothing more can.

        """
        if not PATH_PATTERN.fullmatch(path):
            raise Unreadable(f"{path[:80]!a} is not a path of a Redfish service")
        self._requests += 1
        if self._requests > MAX_REQUESTS:
            raise _build_wrong_answer(self._access, f"has more than {MAX_REQUESTS} resources")
        name = path.removeprefix(SERVICE_ROOT)
        # A connection that the BMC has closed meanwhile is worth a second try.
        status, _, body = self._ask("GET", path.replace("//", "/"), tries=2)
        if status in ABSENT_STATUSES:
            return None
        if status == HTTP_UNAUTHORIZED:
            if "Authorization" in self._credentials:
                raise _explain_status(status, self._access)
            raise _build_wrong_answer(self._access, "has ended our session")
        if status != HTTP_OK:
            raise Unreadable(f"{name}: HTTP {status}")
        resource = _decode(body)
        if not isinstance(resource, dict):
            raise Unreadable(f"{name}: no {'JSON' if resource is None else 'resource'}")
        return resource

    def _ask(
        self, method: str, path: str, body: bytes | None = None, tries: int = 1
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request; return the status, the headers and the body of the answer."""
        if self.is_over and method != "DELETE":
            raise _build_silence(self._access, "the time is up")
        headers = {**HEADERS, **self._credentials}
        if body is not None:
            headers["Content-Type"] = "application/json"
        for left in reversed(range(tries)):
            try:
                with self._pool.request(
                    method, path, body, headers=headers, redirect=False, preload_content=False
                ) as answer:
                    if answer.status in REDIRECTIONS:
                        text = "redirects to another place, which is not followed"
                        raise _build_wrong_answer(self._access, text)
                    data = answer.read(MAX_ANSWER_BYTES + 1)
            except (exceptions.HTTPError, ValueError) as exc:
                if not left:
                    raise _explain_failure(exc, self._access) from None
            else:
                break
        if len(data) > MAX_ANSWER_BYTES:
            text = f"sends more than {MAX_ANSWER_BYTES >> 20} MiB for one resource"
            raise _build_wrong_answer(self._access, text)
        return answer.status, answer.headers, data


def _decode(body: bytes) -> object:
    """Decode JSON; None if it is none."""
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
                f"the BMC {access.address} has no address: correct [bmc] address, or the name "
                "service",
                Cause.MISCONFIGURED,
            )
        case exceptions.SSLError(args=(error, *_)):
            why = getattr(error, "verify_message", "") or getattr(error, "reason", "")
            return Unable(
                f"the BMC at {access.address} is not trusted ({why or 'TLS failed'}): set ca in "
                "[bmc] to a file with its certificate, or with that of who signed it",
                Cause.MISCONFIGURED,
            )
        case exceptions.NewConnectionError():  # which is a timeout by its type
            return _build_silence(access, "no connection")
        case exceptions.TimeoutError():
            return _build_silence(access, "the time for an answer is over")
        case exceptions.HTTPError():
            return _build_silence(access, "no connection")
    return _build_wrong_answer(access, "answers what is not Redfish")


def _explain_status(status: int, access: BmcAccess) -> Unable:
    if status in LOGIN_REFUSALS:
        return Unable(
            f"the BMC at {access.address} refuses the password of {access.user!r} (HTTP {status}): "
            "correct the file of [bmc] credentials",
            Cause.DENIED,
        )
    if status == HTTP_BUSY:
        return _build_wrong_answer(access, "is busy (HTTP 503), as during an update")
    if status in ABSENT_STATUSES:
        return Unable(
            f"{access.address} is not a Redfish service (HTTP {status}): correct [bmc] address",
            Cause.MISSING,
        )
    return _build_wrong_answer(access, f"answers HTTP {status}")


def _build_silence(access: BmcAccess, how: str) -> Unable:
    return Unable(
        f"the BMC at {access.address} does not answer ({how}): see whether it is up, and reset "
        "it if it is",
        Cause.TIMEOUT,
        Remedy.INSPECT,
    )


def _build_wrong_answer(access: BmcAccess, what: str) -> Unable:
    return Unable(
        f"the BMC at {access.address} {what}: if it still does tomorrow, reset it",
        Cause.MISCONFIGURED,
        Remedy.INSPECT,
    )
