"""
How the files of a site make one configuration, and which of them decides a setting.

Tables merge key by key. Lists of tables add up, those of the stronger file first: where the
first that fits counts, that is the stronger file's. So do limits, and each stays as it is:
`hpcverify.check` ranks them by their file. All else the strongest file decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

LIMITS = "limits"
LIMIT_DEPTH = 3
"""``limits.CHECK.MEASUREMENT`` is one limit, or a list of limits."""


def merge_files(raws: Sequence[Mapping[str, Any]]) -> Any:
    """Merge the content of files, the strongest last."""
    return reduce(_merge, raws, {})


def find_file(files: Sequence[tuple[str, Any]], place: Sequence[str | int]) -> str | None:
    """Find the file, of *files* from weak to strong, that sets *place*; None if none does."""
    values = list(reversed(files))
    for key in place:
        if isinstance(key, str):
            inner = ((path, value) for path, value in values if isinstance(value, Mapping))
            values = [(path, value[key]) for path, value in inner if key in value]
        else:
            tables = [(path, table) for path, value in values for table in list_tables(value)]
            values = tables[key : key + 1]
    return next((path for path, _ in values), None)


def _merge(weaker: Any, stronger: Any, place: tuple[str, ...] = ()) -> Any:
    if place[:1] == (LIMITS,) and len(place) == LIMIT_DEPTH:
        return [*list_tables(stronger), *list_tables(weaker)]
    if isinstance(stronger, Mapping) and (weaker is None or isinstance(weaker, Mapping)):
        weaker = weaker or {}
        kept = {key: value for key, value in weaker.items() if key not in stronger}
        return kept | {
            key: _merge(weaker.get(key), value, (*place, key)) for key, value in stronger.items()
        }
    if is_list_of_tables(weaker) and is_list_of_tables(stronger):
        return [*stronger, *weaker]
    return stronger


def is_list_of_tables(value: Any) -> bool:
    """Whether *value* is a list that holds nothing but tables."""
    return isinstance(value, list) and len(list_tables(value)) == len(value)


def list_tables(value: Any) -> list[Any]:
    """List the tables of *value*: a limit is one, or a list of them."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, Mapping)]
