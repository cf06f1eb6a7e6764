"""Writes the table of docs/explanation/design.md: ``python -m tests.fleet.states_page``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from hpcverify.fleet.states import HOLD_BY_STATE, OTHERS_STATE, Hold, State
from hpcverify.fleet.transitions import TRANSITIONS, Effect, StateRule

PAGE = Path(__file__).parents[2] / "docs/explanation/design.md"
BEGIN, END = "<!-- states -->\n", "<!-- /states -->"
HOLD_TEXTS = {
    Hold.NONE: "in service",
    Hold.RESERVATION: "reserved: only our verification runs",
    Hold.DRAIN: "drained",
}


def write_table() -> str:
    """Write what stands between the marks: the states, then the transitions."""
    return "\n".join([*_write_states(), "", *_write_transitions(), ""])


def replace_table(page: str) -> str:
    """Put the table into *page*, in place of the one that it has."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{write_table()}{END}{tail}"


def _write_states() -> Iterator[str]:
    for hold, text in HOLD_TEXTS.items():
        states = [state for state in State if HOLD_BY_STATE[state] is hold]
        yield f"- {', '.join(f'**{state}**' for state in states)}: {text}"
    yield f"- **{OTHERS_STATE}**: shown for a node that another person or program holds"


def _write_transitions() -> Iterator[str]:
    yield "| event | in the state | becomes | the node is then |"
    yield "|---|---|---|---|"
    for event, rule in TRANSITIONS.items():
        after = rule.after or "the same"
        yield f"| {event} | {_write_set(rule.before)} | {after} | {_write_hold(rule)} |"


def _write_set(states: Collection[State]) -> str:
    others = [state for state in State if state not in states]
    if not others:
        return "any"
    if len(others) <= 2:
        return f"any but {', '.join(others)}"
    return ", ".join(state for state in State if state in states)


def _write_hold(rule: StateRule) -> str:
    if rule.effect is Effect.FREE or rule.after is None:
        return HOLD_TEXTS[Hold.NONE]
    held = {Hold.RESERVATION: "reserved", Hold.DRAIN: "drained"}[HOLD_BY_STATE[rule.after]]
    return f"{held}, if the site enforces the check" if rule.effect is Effect.SITE else held


if __name__ == "__main__":
    PAGE.write_text(replace_table(PAGE.read_text()))
