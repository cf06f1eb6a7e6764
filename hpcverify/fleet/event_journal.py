"""Events in the journal of systemd: one more reader of the ledger, with a cursor of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from hpcverify.events.event import Event
from hpcverify.events.journal import JOURNAL_SOCKET, send_events
from hpcverify.fleet.ledger import Ledger
from hpcverify.plan.config import Events

JOURNAL_READER = "journal"
"""The name of the cursor."""
BATCH_EVENTS = 500
"""Events after which the cursor is moved: after a kill, so many at most are sent again."""


@dataclass(frozen=True)
class JournalStream:
    """Sends journald the events of the *ledger*, from the day on which the site asks for it."""

    settings: Events
    ledger: Ledger
    address: Path = JOURNAL_SOCKET

    def drain(self) -> None:
        """
        Send the events that journald lacks.

        Raises:
            JournalError: it did not take one; the next time goes on from there.

        """
        if not self.settings.journal:
            self.ledger.remove_cursor(JOURNAL_READER)
            return
        cursor = self.ledger.read_cursors().get(JOURNAL_READER)
        if cursor is None:  # rules of the site must not fire for what is long over
            self.ledger.move_cursor(JOURNAL_READER, self.ledger.read_chain_end().number)
            return
        while lines := self.ledger.read_lines(cursor, BATCH_EVENTS):
            events = (msgspec.json.decode(line, type=Event) for _, line in lines)
            try:
                for number in send_events(events, self.address):
                    cursor = number
            finally:
                self.ledger.move_cursor(JOURNAL_READER, cursor)
