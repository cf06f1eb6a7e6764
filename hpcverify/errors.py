"""
Errors that an operator can act on, each with the exit status of the CLI.

HpcverifyError          2
├── ConfigError         2   a file or an argument is wrong
│   └── UnknownNameError    nothing is called so; says what is near
├── StoreError          2   what is stored cannot be used
├── OutputClosedError   2   whoever read our output has gone
└── UnverifiedError     3   the node could not be judged, as when another run is on
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HpcverifyError(Exception):
    """Base class, one line that names the thing and the fix; all else is a bug."""

    exit_code = 2


class ConfigError(HpcverifyError):
    """A file or an argument is wrong."""


class UnknownNameError(ConfigError):
    """Nothing of *kind* is called *name*."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """Say what was asked for and what was meant, or else what there is."""
        known = sorted(known)
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        super().__init__(f"no {kind} is called {name!r}; {hint}")


class StoreError(HpcverifyError):
    """What is stored cannot be read or written."""


class OutputClosedError(HpcverifyError):
    """Whoever read our output has gone."""

    def __init__(self) -> None:
        """Say that what was found is kept all the same."""
        super().__init__(
            "standard output was closed before all was written; nothing is lost, see: "
            "hpcverify history"
        )


class UnverifiedError(HpcverifyError):
    """The node could not be judged."""

    exit_code = 3
