"""
One session with one BMC over Redfish (DSP0266), by the DMTF's library.

A BMC is slow, has few sessions, and may be anything that answers at its address. So the
password is tried once, no redirection is followed, an answer has a size that it may not
exceed, only paths of the service itself are asked for, and the session is deleted again,
even where the time is up: an alarm ends whatever waits, as a BMC that sends a byte each
second meets every timeout of a socket.
"""

from __future__ import annotations

import io
import logging
import re
import signal
import ssl
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol
from urllib.parse import urljoin, urlsplit

import msgspec

from hpcverify.check import Cause, Remedy, Unable
from hpcverify.errors import write_install_command
from hpcverify.plan.bmc import BmcAccess

CONNECT_SECONDS = 10.0
READ_SECONDS = 20.0
"""Between two bytes of an answer: a BMC may think for seconds about each."""
LOGOUT_SECONDS = 10.0
"""What the end of a session may take, after the time for reading is up."""
MAX_ANSWER_BYTES = 8 * 2**20
"""A page of a long event log has less than 1 MB."""
MAX_REQUESTS = 1000
"""A board of eight GPUs has some 300 sensors, and a node 32 DIMMs and 16 drives."""
ALARM_INTERVAL = 1.0
"""Seconds after which the alarm comes again, if whatever it ended went on."""
SERVICE_ROOT = "/redfish/v1/"
PATH_PATTERN = re.compile(r"/redfish/v1(/[\w.~:@!$&'()*+,;=%?#/-]*)?")
REDIRECTIONS = range(300, 400)
LOGIN_REFUSALS = frozenset({400, 401, 403})
"""What BMCs answer to a wrong password, or for an account that they have locked."""
ABSENT_STATUSES = frozenset({404, 405, 410, 501})
HTTP_OK, HTTP_UNAUTHORIZED, HTTP_BUSY = 200, 401, 503


class OutOfTime(BaseException):
    """The time for reading is up; the library's own handlers must not catch it."""


class _UnfitAnswer(Exception):  # noqa: N818 - control flow: it becomes an `Unable`
    """Why an answer is not read."""


class Unreadable(Exception):  # noqa: N818 - one resource, of which the caller says what it means
    """A resource exists, or may, and cannot be read."""


class Service(Protocol):
    """What `read` asks."""

    def get(self, path: str) -> Mapping[str, Any] | None:
        """Read the resource at *path*; None if there is none."""
        ...


def find_missing_package() -> str:
    """Return the command that installs the library of Redfish; empty if it is installed."""
    try:
        _load_library()
    except ModuleNotFoundError:
        return write_install_command("redfish")
    return ""


def _load_library() -> Any:
    """Load the library, which only the controller needs, and which logs what it sends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import redfish  # noqa: PLC0415 - 0.1 s, and most nodes do not have it
    for name in ("redfish", "urllib3"):
        logging.getLogger(name).disabled = True
    logging.getLogger("redfish.rest.v1").disabled = True
    return redfish


@contextmanager
def open_session(access: BmcAccess) -> Generator[Service]:
    """
    Log in at the BMC, and log out again after the block, however that ends.

    Raises:
        Unable: it does not answer (TIMEOUT), refuses the password (DENIED), shows a
            certificate that is not trusted or answers wrongly (MISCONFIGURED), or is no
            Redfish service (MISSING).

    """
    session = _Session(access)
    try:
        with _alarm_after(access.seconds):
            session.log_in()
            yield session
    except OutOfTime:
        raise _build_silence(access, f"not done within {access.seconds:g} s") from None
    finally:
        session.log_out()


@contextmanager
def _alarm_after(seconds: float) -> Generator[None]:
    """Raise `OutOfTime` in the main thread after *seconds*."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, expire)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, ALARM_INTERVAL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, before)


class _Session:
    """A client of the library, with what it leaves open."""

    def __init__(self, access: BmcAccess) -> None:
        self._access = access
        self._library = _load_library()
        self._adapter = _make_adapter()
        self._requests = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._client = self._library.redfish_client(
                base_url=f"https://{access.address}",
                username=access.user,
                password=access.password,
                timeout=(CONNECT_SECONDS, READ_SECONDS),
                max_retry=0,  # a second try of a wrong password may lock the account
                cafile=_find_trusted(access),
                check_connectivity=False,
                proxies={"no_proxy": "*"},
                https_adapter=self._adapter,
            )

    def log_in(self) -> None:
        """Begin a session, with one try of the password."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._client.get_root_object()
                self._find_sessions()
                self._client.login(auth="session")
        except Exception as exc:  # noqa: BLE001 - what the library raises has no common base
            raise _explain_failure(exc, self._access, self._library) from None
        if not self._client.get_session_key():
            raise _build_wrong_answer(self._access, "opens no session (SessionService)")

    def _find_sessions(self) -> None:
        """Log in where the service root says, but only there if it is a path of its own."""
        links = self._client.root.get("Links")
        sessions = links.get("Sessions") if isinstance(links, Mapping) else None
        path = sessions.get("@odata.id") if isinstance(sessions, Mapping) else None
        if isinstance(path, str) and PATH_PATTERN.fullmatch(path):
            self._client.login_url = path

    def log_out(self) -> None:
        """Delete the session: a BMC has few, and keeps each for half an hour."""
        try:
            self._delete_session()
        finally:
            self._adapter.close()  # the library leaves its connection open

    def _delete_session(self) -> None:
        location = self._client.get_session_location()
        if not location:
            return
        # A BMC that named another host here would be sent our token.
        self._client.set_session_location(urlsplit(str(location)).path)
        # Nothing is lost but a session, which ends by itself.
        with suppress(Exception, OutOfTime), _alarm_after(LOGOUT_SECONDS):
            if PATH_PATTERN.fullmatch(self._client.get_session_location()):
                self._client.logout()

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
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # A connection that the BMC has closed meanwhile is worth a second try.
                answer = self._client.get(path, max_retry=1)
        except Exception as exc:  # noqa: BLE001 - as in `log_in`
            raise _explain_failure(exc, self._access, self._library) from None
        if answer.status in ABSENT_STATUSES:
            return None
        if answer.status == HTTP_UNAUTHORIZED:
            raise _build_wrong_answer(self._access, "has ended our session")
        if answer.status != HTTP_OK:
            raise Unreadable(f"{name}: HTTP {answer.status}")
        try:
            decoded = msgspec.json.decode(answer.read)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Unreadable(f"{name}: no JSON") from None
        if not isinstance(decoded, dict):
            raise Unreadable(f"{name}: no resource")
        return decoded


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


def as_list(value: object) -> list[Any]:
    """Return *value* if it is a list, and an empty one if not."""
    return value if isinstance(value, list) else []


def _find_trusted(access: BmcAccess) -> str | None:
    """Find the certificates to trust; without any the library would verify nothing."""
    if not access.verify:
        return None
    if access.ca:
        return access.ca
    from requests.utils import DEFAULT_CA_BUNDLE_PATH  # noqa: PLC0415 - of the library

    system = ssl.get_default_verify_paths()
    return system.cafile or system.capath or str(DEFAULT_CA_BUNDLE_PATH)


def _make_adapter() -> Any:
    from requests import PreparedRequest, Response  # noqa: PLC0415 - of the library
    from requests.adapters import HTTPAdapter  # noqa: PLC0415
    from urllib3 import HTTPResponse  # noqa: PLC0415

    class BoundedAdapter(HTTPAdapter):
        """Reads no answer beyond `MAX_ANSWER_BYTES`, and follows no redirection."""

        def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
            request.headers["Accept-Encoding"] = "identity"
            answer: Response = super().send(request, *args, **(options | {"stream": True}))
            if answer.status_code in REDIRECTIONS:
                answer.close()
                raise _UnfitAnswer("redirects to another place, which is not followed")
            body = answer.raw.read(MAX_ANSWER_BYTES + 1, decode_content=True)
            if len(body) > MAX_ANSWER_BYTES:
                answer.close()
                raise _UnfitAnswer(f"sends more than {MAX_ANSWER_BYTES >> 20} MiB for one resource")
            answer.raw.release_conn()
            answer.raw = HTTPResponse(io.BytesIO(body), preload_content=False)
            return answer

    return BoundedAdapter()


def _explain_failure(exc: BaseException, access: BmcAccess, library: Any) -> Unable:
    """Say what an error of the library means: never in its words, which may quote anything."""
    from requests.exceptions import RequestException, Timeout  # noqa: PLC0415 - of the library
    from urllib3.exceptions import NameResolutionError  # noqa: PLC0415

    if status := _find_status(exc, library):
        return _explain_status(status, access)
    explanations: tuple[tuple[type[BaseException], Callable[[Any], Unable]], ...] = (
        (_UnfitAnswer, lambda why: _build_wrong_answer(access, str(why))),
        (NameResolutionError, lambda _: _build_no_address(access)),
        (ssl.SSLError, lambda why: _build_distrust(access, why)),
        (Timeout, lambda _: _build_silence(access, "the time for an answer is over")),
        (RequestException, lambda _: _build_silence(access, "no connection")),
    )
    causes = list(_list_causes(exc))
    for kind, explain in explanations:
        for cause in causes:
            if isinstance(cause, kind):
                return explain(cause)
    return _build_wrong_answer(access, "answers what is not Redfish")


def _explain_status(status: int, access: BmcAccess) -> Unable:
    if status in LOGIN_REFUSALS:
        return _build_refusal(access, status)
    if status == HTTP_BUSY:
        return _build_wrong_answer(access, "is busy (HTTP 503), as during an update")
    if status in ABSENT_STATUSES:
        return Unable(
            f"{access.address} is not a Redfish service (HTTP {status}): correct [bmc] address",
            Cause.MISSING,
        )
    return _build_wrong_answer(access, f"answers HTTP {status}")


def _list_causes(exc: BaseException) -> Iterator[BaseException]:
    """Yield *exc* and what it came of, through what requests and urllib3 wrap."""
    todo, seen = [exc], set[int]()
    while todo:
        cause = todo.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        inner = (cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args)
        todo += [e for e in inner if isinstance(e, BaseException)]


def _find_status(exc: BaseException, library: Any) -> int:
    """Find the HTTP status that the library raised an error for; 0 if it was none."""
    rest = library.rest.v1
    if isinstance(exc, rest.ServerDownOrUnreachableError):
        return int(getattr(getattr(exc, "response", None), "status", 0))
    if isinstance(exc, rest.InvalidCredentialsError | rest.RedfishPasswordChangeRequiredError):
        return HTTP_UNAUTHORIZED
    if isinstance(exc, rest.SessionCreationError):
        match = re.match(r"HTTP ([0-9]{3}):", str(exc))
        return int(match[1]) if match else 0
    return 0


def _build_silence(access: BmcAccess, how: str) -> Unable:
    return Unable(
        f"the BMC at {access.address} does not answer ({how}): see whether it is up, and reset "
        "it if it is",
        Cause.TIMEOUT,
        Remedy.INSPECT,
    )


def _build_no_address(access: BmcAccess) -> Unable:
    return Unable(
        f"the BMC {access.address} has no address: correct [bmc] address, or the name service",
        Cause.MISCONFIGURED,
    )


def _build_distrust(access: BmcAccess, error: ssl.SSLError) -> Unable:
    why = getattr(error, "verify_message", "") or error.reason or "TLS failed"
    return Unable(
        f"the BMC at {access.address} is not trusted ({why}): set ca in [bmc] to a file with its "
        "certificate, or with that of who signed it",
        Cause.MISCONFIGURED,
    )


def _build_refusal(access: BmcAccess, status: int) -> Unable:
    return Unable(
        f"the BMC at {access.address} refuses the password of {access.user!r} (HTTP {status}): "
        "correct the file of [bmc] credentials",
        Cause.DENIED,
    )


def _build_wrong_answer(access: BmcAccess, what: str) -> Unable:
    return Unable(
        f"the BMC at {access.address} {what}: if it still does tomorrow, reset it",
        Cause.MISCONFIGURED,
        Remedy.INSPECT,
    )
