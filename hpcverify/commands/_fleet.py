"""The fleet as the ledger and the store have it, for commands that show it."""

from __future__ import annotations

import time
from datetime import datetime

from hpcverify.config import load_site
from hpcverify.fleet.overview import Overview, overview
from hpcverify.quarantine.ledger import Ledger
from hpcverify.store import Store


def read(ledger: Ledger, store: Store, since: datetime | None = None) -> Overview:
    """Put together what is known of every node, with what checks said from *since*."""
    return overview(
        ledger.nodes(),
        store.newest(since),
        store.said(since),
        now=time.time(),
        tripped=ledger.tripped(),
        overdue_days=load_site().fleet.overdue_days,
    )
