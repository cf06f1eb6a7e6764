"""Stopping on Ctrl-C, or when a scheduler wants the node back."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopFlag:
    """Remembers the first signal."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.signal is not None

    def remember(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal: whoever waits polls this flag."""
        self.signal = self.signal or signal.Signals(number)


@contextmanager
def stop_on_signals() -> Generator[StopFlag]:
    """Catch the stop signals in a flag that the block can poll."""
    stop = StopFlag()
    before = {
        number: signal.signal(number, stop.remember)
        for number in STOP_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN  # as under nohup
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
