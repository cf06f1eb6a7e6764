"""Follow what ``hpcverify setup slurm`` prints, as an administrator does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hpcverify.slurm.requirements import Place

INDENT = " " * 6
"""The indent of the lines below a heading."""


@dataclass(frozen=True)
class Line:
    """One line to add or to run."""

    stage: int
    place: Place
    text: str


def read_plan(printed: str) -> Iterator[Line]:
    """Read the lines of every stage, each with where its heading says that it goes."""
    stage, place = 0, None
    for line in printed.splitlines():
        heading = line.strip().removesuffix(":")
        if line[:1].isdigit():
            stage, place = int(line[0]), None
        elif heading in set(Place):
            place = Place(heading)
        elif place is not None and line.startswith(INDENT):
            yield Line(stage, place, line.strip())
        else:
            place = None


def edit_conf(conf: str, lines: Iterable[Line]) -> str:
    """Write into the text of slurm.conf what goes there."""
    rows = conf.splitlines()
    for line in lines:
        match line.place:
            case Place.ABOVE:
                first = next(i for i, row in enumerate(rows) if row.startswith("PartitionName="))
                rows.insert(first, line.text)
            case Place.REPLACE:
                name = line.text.partition("=")[0]
                rows = [*(row for row in rows if not row.startswith(f"{name}=")), line.text]
            case Place.END:
                rows.append(line.text)
            case _:
                pass
    return "\n".join([*rows, ""])
