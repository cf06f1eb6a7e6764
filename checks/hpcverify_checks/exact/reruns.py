"""Three reruns of what was wrong: is it wrong each time, or now and then?"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

RERUN_COUNT = 3


class Reruns(Struct, frozen=True):
    """How many of *total* reruns were wrong again."""

    wrong: int = 0
    total: int = RERUN_COUNT
    error: str = ""
    """What ended them early, if anything."""

    @property
    def persistent(self) -> bool:
        """Whether every rerun was wrong."""
        return not self.error and self.wrong == self.total

    def describe(self) -> str:
        """Put it in words: ``persistent: 3 of 3 reruns wrong``."""
        if self.error:
            return f"no reruns: {self.error}"
        kind = "persistent" if self.persistent else "intermittent"
        return f"{kind}: {self.wrong} of {self.total} reruns wrong"


def rerun(is_wrong: Callable[[], bool]) -> Reruns:
    """Repeat *is_wrong* three times; an error of the part ends it early."""
    wrong = 0
    try:
        for _ in range(RERUN_COUNT):
            wrong += is_wrong()
    except RuntimeError as exc:  # as CUDA's: it must not hide what was found
        return Reruns(wrong, error=str(exc))
    return Reruns(wrong)
