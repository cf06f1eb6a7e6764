"""The pages of the book, and what the code writes into them: ``python -m tests.docs.pages``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.docs.alerts_page import write_alerts
from tests.docs.checks_page import (
    write_check_pages,
    write_checks,
    write_gpu_problems,
    write_suites,
)
from tests.docs.commands_page import write_commands
from tests.docs.coverage_page import write_coverage, write_injections, write_rules
from tests.docs.events_page import write_event_activities, write_event_kinds, write_event_severities
from tests.docs.metrics_page import write_metrics
from tests.docs.settings_page import write_settings

ROOT = Path(__file__).parents[2]
PATTERNS = ("*.md", "docs/**/*.md", "packaging/*/README.md", "tests/rehearsal/README.md")
PAGES = tuple(sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern)))
"""Every page of the project; those for developers are not rendered."""
WRITERS: Mapping[str, Callable[[], Iterable[str]]] = {
    "alerts": write_alerts,
    "checks": write_checks,
    "commands": write_commands,
    "gpu_problems": write_gpu_problems,
    "coverage": write_coverage,
    "injections": write_injections,
    "rules": write_rules,
    "metrics": write_metrics,
    "event_activities": write_event_activities,
    "event_kinds": write_event_kinds,
    "event_severities": write_event_severities,
    "settings": write_settings,
    "suites": write_suites,
}
"""What writes the lines between the marks of a name, as ``<!-- written: checks -->``."""
WRITTEN = re.compile(r"(?s)(<!-- written: (\w+) -->\n).*?(<!-- end of \2 -->)")


def list_written_pages() -> list[Path]:
    """List the pages with lines that the code writes."""
    return [page for page in PAGES if WRITTEN.search(page.read_text())]


def write_page(text: str) -> str:
    """Give the page *text* with the lines that the code writes today."""
    return WRITTEN.sub(_write_part, text)


def _write_part(part: re.Match[str]) -> str:
    begin, name, end = part.groups()
    return "\n".join((begin, *WRITERS[name](), end))


if __name__ == "__main__":
    for page, text in write_check_pages().items():
        page.write_text(text)
    for page in list_written_pages():
        page.write_text(write_page(page.read_text()))
