"""Write the dashboards into ``monitoring/``."""

from __future__ import annotations

from pathlib import Path

from dashboards.writing import write_boards

if __name__ == "__main__":
    for name, text in write_boards().items():
        (Path(__file__).parents[2] / "monitoring" / name).write_text(text)
