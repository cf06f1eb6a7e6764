"""
Make text safe to print, on a terminal and on a page.

Names of nodes, GPUs and drivers, and the output of other programs, were written by others:
a control character in them could clear the screen, set its title, or forge a line.
"""

from __future__ import annotations

import re

import msgspec

# As text: hardly any line needs it compiled.
UNPRINTABLE = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufffe\uffff]"
)
"""Controls, bidirectional overrides, and what neither XML nor UTF-8 can hold."""
_CONTROL_PICTURES = 0x2400
_DELETE = 0x7F


def make_printable(value: object) -> str:
    """Replace unprintable characters by control pictures or the replacement character."""
    text = str(value)
    if text.isprintable():
        return text
    return re.sub(UNPRINTABLE, lambda found: _substitute(ord(found[0])), text)


def _substitute(code: int) -> str:
    if code < 0x20:  # noqa: PLR2004 - the first printable character, a space
        return chr(_CONTROL_PICTURES + code)
    return "\u2421" if code == _DELETE else "\ufffd"


def format_json(value: object) -> bytes:
    """Format *value* as JSON that a person can read; a number that is not finite is null."""
    return escape_json(msgspec.json.format(msgspec.json.encode(value), indent=1))


def escape_json(text: bytes) -> bytes:
    """Escape unprintable characters of *text*, which is JSON: they are within strings."""
    if text.isascii() and b"\x7f" not in text:
        return text
    escaped = re.sub(UNPRINTABLE, lambda found: f"\\u{ord(found[0]):04x}", text.decode())
    return escaped.encode()
