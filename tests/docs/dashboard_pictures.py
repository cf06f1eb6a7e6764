"""
The pictures of docs/reference/dashboards.md: ``python -m tests.docs.dashboard_pictures``.

A Prometheus of Debian answers each panel's own query, over a history of sample data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

from tests.docs.dashboard_drawing import Picture, Series, draw_board
from tests.docs.dashboard_history import DAYS, END, SHOWN_NODE, STEP_S, History
from tests.metrics.promql import MONITORING
from tests.metrics.rules import expand_records
from tests.prometheus_lab.lab import fetch, start_prometheus
from tests.prometheus_lab.tools import run_promtool

PICTURES = Path(__file__).parents[2] / "docs/reference"
MAX_STEPS = 90
VARIABLES = {"$controller": ".*", "$check": ".*", "$node": SHOWN_NODE}
RECORD_WITH_MATCHERS = re.compile(r"(hpcverify:[\w:]+)\{[^}]*\}")


def name_picture(uid: str) -> str:
    """Name the file of the picture of the dashboard *uid*."""
    return f"dashboard-{uid.removeprefix('hpcverify-')}.svg"


def write_pictures(to: Path) -> None:
    """Write a picture of each dashboard into the folder *to*."""
    with TemporaryDirectory(prefix="hvprom-") as name:
        folder = Path(name)
        with (folder / "history").open("w") as file:
            file.writelines(History().write())
        command = ("tsdb", "create-blocks-from", f"--max-block-duration={DAYS * 48}h")
        done = run_promtool(*command, "openmetrics", folder / "history", folder / "data")
        assert done.returncode == 0, done.stderr
        with start_prometheus(folder) as address:
            for path in sorted(MONITORING.glob("*.json")):
                board = json.loads(path.read_text())
                begin = END - 86400 * int(re.sub(r"\D", "", board["time"]["from"]))
                marks = list(list_marks(board, begin, address))
                pictures = [make_picture(panel, begin, marks, address) for panel in board["panels"]]
                (to / name_picture(board["uid"])).write_text(draw_board(board["title"], pictures))


def make_picture(
    panel: Mapping[str, Any], begin: int, marks: Sequence[tuple[float, str]], address: str
) -> Picture:
    """Ask Prometheus at *address* what *panel* asks."""
    series = [
        Series(name_series(target, labels), labels, points)
        for target in panel.get("targets", ())
        for labels, points in list_answers(target, begin, address)
    ]
    return Picture(panel, series, begin, END, marks)


def list_marks(board: Mapping[str, Any], begin: int, address: str) -> Iterator[tuple[float, str]]:
    """Yield when something happened that *board* marks, and the colour of the mark."""
    for event in board["annotations"]["list"]:
        for _, points in list_answers(event["target"], begin, address):
            times = {value / 1000 if event["useValueForTime"] else at for at, value in points}
            yield from ((at, event["iconColor"]) for at in sorted(times) if begin <= at <= END)


def list_answers(
    target: Mapping[str, Any], begin: int, address: str
) -> Iterator[tuple[Mapping[str, str], list[tuple[float, float]]]]:
    """Yield the labels and the points of each series."""
    # Panels of Grafana set a variable; recorded series are put in as what they stand for.
    expression = expand_records(RECORD_WITH_MATCHERS.sub(r"\1", target["expr"]))
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    if target.get("instant"):
        path = "/api/v1/query?" + urlencode({"query": expression, "time": END})
    else:
        steps = (END - begin) // STEP_S
        step = STEP_S * -(-steps // MAX_STEPS)
        times = {"start": END - (END - begin) // step * step, "end": END, "step": step}
        path = "/api/v1/query_range?" + urlencode({"query": expression, **times})
    answer = json.loads(fetch(address, path))
    assert answer["status"] == "success", (expression, answer)
    for result in answer["data"]["result"]:
        points = result.get("values") or [result["value"]]
        finite = [(float(at), float(value)) for at, value in points if "N" not in value]
        if finite:
            yield result["metric"], finite


def name_series(target: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Name a series as its legend says."""
    legend = target.get("legendFormat", "")
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend)


if __name__ == "__main__":
    write_pictures(PICTURES)
