"""How commands print, and what becomes of an error: one line, and its own exit status."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import IO, NoReturn, TextIO

from hpcverify.errors import HpcverifyError, OutputError, explain_shortage
from hpcverify.summary.printable import escape_json, format_json, make_printable

EXIT_UNVERIFIED = 3
EXIT_UNREAD = 141
"""The status when the reader of our output is gone, as with ``| head``: 128 + SIGPIPE (13),
which is neither a verdict nor an error of ours."""
OUTPUT_FAILURES = {
    errno.ENOSPC: "cannot be written: no space is left",
    errno.EDQUOT: "cannot be written: the quota is used up",
    errno.EFBIG: "cannot be written: the file has become too large",
}
"""Errors of standard output; unlike files that we open, it has no file name."""


def exit_with(command: Callable[[], object]) -> NoReturn:
    """Run *command* and exit with its status; an error of ours prints one line."""
    try:
        status = command()
    except HpcverifyError as exc:
        say(str(exc))
        status = exc.exit_code
    except Exception as exc:  # noqa: BLE001 - a bug in hpcverify ends here, with a log
        status = EXIT_UNVERIFIED
        if short := explain_shortage(exc):
            say(f"hpcverify cannot continue: {short}")
            sys.exit(status)
        from hpcverify.records.bug_log import keep_log  # noqa: PLC0415 - rarely needed

        say(
            f"a bug in hpcverify ({type(exc).__name__}: {exc}); "
            f"please report it with {keep_log(exc)}"
        )
    sys.exit(status)  # type: ignore[arg-type] # click returns what a command does


@contextmanager
def handle_output_errors(stores: Callable[[], bool]) -> Generator[None]:
    """Report an error of printing, which must not exit with 1 (FAIL); a closed pipe is silent."""
    try:
        yield
    except BrokenPipeError:
        unread = [stream for stream in (sys.stdout, sys.stderr) if is_reader_gone(stream)]
        if not unread:  # it was another pipe, and a bug
            raise
        for stream in unread:
            _discard_output(stream)
        sys.exit(EXIT_UNREAD)
    except OSError as exc:
        why = OUTPUT_FAILURES.get(exc.errno or 0)
        if why is None or exc.filename is not None:
            raise
        _discard_output(sys.stdout)
        raise OutputError(why, kept=stores()) from None


@contextmanager
def ignore_closed_pipe(stream: TextIO) -> Generator[None]:
    """Print to *stream*; if nobody reads it any more, go on without."""
    try:
        yield
    except BrokenPipeError:
        if not is_reader_gone(stream):
            raise
        _discard_output(stream)


def is_reader_gone(stream: TextIO) -> bool:
    """Whether *stream* is a pipe whose reader is gone."""
    poll = select.poll()
    poll.register(stream.fileno(), 0)  # with no events requested, poll reports errors only
    return bool(poll.poll(0))


def report_mistakes(mistakes: Iterable[str]) -> None:
    """Print each of the *mistakes* in the configuration, and exit with 2 if there is one."""
    lines = list(dict.fromkeys(mistakes))
    for line in lines:
        say(line)
    if lines:
        sys.exit(HpcverifyError.exit_code)


def echo(text: str = "", stream: IO[str] | None = None) -> None:
    """Print *text*, which may quote others, to *stream* or standard output."""
    print(make_printable(text), file=stream, flush=True)


def say(text: str) -> None:
    """Print one line to standard error."""
    one_line = " ".join(text.split())
    print_to_stderr(f"hpcverify: {one_line}")


def print_to_stderr(text: str) -> None:
    """Print *text*; if standard error cannot be written, the exit status remains."""
    try:
        echo(text, sys.stderr)
    except OSError:
        _discard_output(sys.stderr)


def _discard_output(stream: TextIO) -> None:
    """Discard what *stream* holds: Python would fail to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_json(value: object) -> None:
    """Print *value* as JSON that a person can read too."""
    print_json_text(format_json(value))


def print_json_text(text: bytes) -> None:
    """Print *text*, which is JSON, as UTF-8, whatever the terminal can show."""
    import click  # noqa: PLC0415 - hooks print none

    click.echo(escape_json(text))  # noqa: TID251 - bytes
