"""
Print the digests that ship: run with ``python -m tests.checks.cpu_units.universal``.

On good hardware, with every package installed; a test holds that this machine gives them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from hpcverify_checks.cpu_units.digests import SHIPPED_DRAWS
from hpcverify_checks.cpu_units.units import compute_digest, list_units
from hpcverify_checks.cpu_units.vectors import list_vector_units


def list_digests() -> Iterator[tuple[tuple[str, str], str]]:
    for unit in (*list_units(), *list_vector_units()):
        for number in range(SHIPPED_DRAWS) if unit.universal else ():
            seed = f"shipped {number}"
            yield (unit.name, seed), compute_digest(unit.answer(unit.draw(seed)))


if __name__ == "__main__":
    for key, digest in list_digests():
        sys.stdout.write(f'    {key}: "{digest}",\n'.replace("'", '"'))
