"""Logs of our own bugs, to paste into a report."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from hpcverify.errors import ConfigError
from hpcverify.plan.config import state_dir
from hpcverify.summary.printable import make_printable


def keep_log(exc: BaseException) -> Path:
    """Write a log for the bug report on *exc*; return its path."""
    now = datetime.now(UTC)
    text = "\n".join(
        [
            "```",
            f"hpcverify {version('hpcverify')}, {now:%Y-%m-%d %H:%M:%S} UTC",
            f"Python {platform.python_version()}, {platform.platform()}",
            f"arguments: {sys.argv[1:]}",
            "".join(traceback.format_exception(exc)).rstrip(),
            "```",
            "",
        ]
    )
    name = f"bug-{now:%Y%m%d-%H%M%S}-{os.getpid()}.log"
    folders = [Path(tempfile.gettempdir())]
    with suppress(ConfigError):
        folders.insert(0, state_dir() / "logs")
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Only a new file: in /tmp another user may have put a link there.
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            continue
        return folder / name
    sys.stderr.write(make_printable(text))
    return Path("what is printed above")
