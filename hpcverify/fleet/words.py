"""The controller's word for each node, which its prolog goes by: left in the spool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpcverify import standing
from hpcverify.config import Site
from hpcverify.errors import StoreError
from hpcverify.fleet.intake import HOUR
from hpcverify.quarantine.life import Hold, Node, State
from hpcverify.quarantine.policy import may_refuse


def tell(nodes: Mapping[str, Node], site: Site, tripped: str, now: float) -> None:
    """
    Leave a word for each of *nodes*, at *now*; *tripped* says why the breaker is.

    One that says the same is written anew once half of its time is over.

    Raises:
        StoreError: the spool cannot be written.

    """
    folder = Path(site.fleet.spool) / standing.FILE
    until = int(now + site.fleet.word_hours * HOUR)
    for name, node in nodes.items():
        old = standing.read(folder / name, now)
        if old is None or old != word(node, site, tripped, _lasting(old, now, until)):
            _leave(folder / name, word(node, site, tripped, until))


def _leave(path: Path, said: standing.Word) -> None:
    try:
        standing.write(path, said)
    except OSError as exc:
        raise StoreError(f"{path} cannot be written: {exc.strerror}") from exc


def _lasting(old: standing.Word, now: float, until: int) -> int:
    """Say until when a word may stand as it is, if it says the same."""
    # One that stands for longer than any of now was left by a clock that was ahead.
    return old.until if (now + until) / 2 <= old.until <= until else until


def word(node: Node, site: Site, tripped: str, until: int) -> standing.Word:
    """Make the word for *node*: with the breaker *tripped* it refuses nobody."""
    if tripped:
        return standing.Word(standing.OK, until, f"the breaker tripped: {tripped}")
    checks = may_refuse(site)
    if node.wanted is not Hold.DRAIN:
        return standing.Word(standing.OK, until, "", checks)
    verdict = standing.HOLD if node.state is State.HELD else standing.QUARANTINED
    return standing.Word(verdict, until, node.reason, checks)
