"""Writes values as TOML has them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date
from typing import Any


def write_value(value: Any) -> str:
    """Write *value* on one line; a number keeps 15 digits."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{write_key(key)} = {write_value(v)}" for key, v in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(write_value, value))}]"
    if isinstance(value, str):
        # TOML and JSON escape alike; what a terminal would act on is escaped too.
        quoted = json.dumps(value, ensure_ascii=False)
        return "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in quoted)
    if isinstance(value, float):
        return f"{value:.15g}"
    return value.isoformat() if isinstance(value, date) else str(value).lower()


def write_key(*names: str) -> str:
    """Write the key of a value, or of a table in tables."""
    bare = re.compile(r"[A-Za-z0-9_-]+")
    return ".".join(name if bare.fullmatch(name) else write_value(name) for name in names)
