"""The dashboards as JSON, in Grafana's classic schema (v1)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from dashboards.boards import ANNOTATIONS
from dashboards.checks import make_check_board
from dashboards.fleet import make_fleet_board
from dashboards.node import make_node_board


def write_boards() -> Mapping[str, str]:
    """Write each dashboard; by the name of its file."""
    boards = (make_fleet_board(), make_node_board(), make_check_board())
    return {f"{board.uid}.json": _write(board) for board in boards}


def _write(board: dashboard.Dashboard) -> str:
    content = json.loads(JSONEncoder().encode(board))
    content["annotations"] = {"list": list(_list_annotations(str(board.uid)))}
    return json.dumps(content, indent=1) + "\n"


def _list_annotations(uid: str) -> Iterator[Mapping[str, Any]]:
    """
    Yield the events that are drawn into all panels.

    The SDK has no fields for what the datasource makes of them:
    https://grafana.com/docs/grafana/latest/datasources/prometheus/ (annotations)
    """
    for name, color, expression, is_time, text in ANNOTATIONS[uid]:
        yield {
            "name": name,
            "enable": True,
            "iconColor": color,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "target": {"expr": expression, "refId": "Annotation"},
            "titleFormat": text,
            "useValueForTime": is_time,
        }
