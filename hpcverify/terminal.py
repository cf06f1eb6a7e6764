"""
What may be shown on a terminal.

Names of nodes, GPUs and drivers, and what other programs say, were written by others: a
control character in them could clear the screen, set its title, or forge a line.
"""

from __future__ import annotations

REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"


def make_printable(text: str) -> str:
    """Put a sign for each character of *text*, of any lines, that gives an order."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else REPLACEMENT_CHARACTER for c in text)
