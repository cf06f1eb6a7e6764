"""A page taken apart by the standard library's parser, which is none of ours."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

BLOCKS = {"h1", "h2", "h3", "h4", "p", "li", "tr", "dt", "details", "summary", "figure", "text"}
BLOCKS |= {"article", "section", "title"}
"""Elements that begin a line of a page's text."""


class Dom(HTMLParser):
    """The elements of a page with their attributes, its text, and the rows of its tables."""

    def __init__(self, page: str) -> None:
        """Parse *page*."""
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        """The cells of each row of a table, as texts."""
        self._text: list[str] = []
        self._muted = 0
        self._is_adjacent = False
        self._spans: list[bool] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the element; what is in a style is no text; a wbr and a nowrap are no space."""
        self.elements.append((tag, dict(attrs)))
        is_nowrap = tag == "span" and dict(attrs).get("class") == "nowrap"
        if tag == "span":
            self._spans.append(is_nowrap)
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")
        self._is_adjacent &= is_nowrap or tag == "wbr"
        if tag in BLOCKS:
            self._text.append("\n")
        self._muted += tag == "style"

    def handle_endtag(self, tag: str) -> None:
        """Listen again after a style."""
        is_nowrap = tag == "span" and self._spans.pop()
        self._is_adjacent &= is_nowrap
        self._muted -= tag == "style"

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        if self._muted:
            return
        if self._is_adjacent:
            self._text[-1] += data
        else:
            self._text.append(data)
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data
        self._is_adjacent = True

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        return " ".join(" ".join(self._text).split())

    @property
    def lines(self) -> str:
        """All text, a line for each of `BLOCKS`."""
        lines = (" ".join(line.split()) for line in " ".join(self._text).split("\n"))
        return "".join(f"{line}\n" for line in lines if line)

    def find_row(self, head: str) -> list[str]:
        """Find the first row whose head is *head*, and return its other cells."""
        rows = ([" ".join(cell.split()) for cell in row] for row in self.rows)
        return next(row[1:] for row in rows if row[:1] == [head])

    def tags(self) -> set[str]:
        """Name every kind of element."""
        return {tag for tag, _ in self.elements}

    def every(self, tag: str) -> list[dict[str, str | None]]:
        """List the attributes of every element called *tag*."""
        return [attributes for name, attributes in self.elements if name == tag]

    def values(self, attribute: str) -> Iterator[str]:
        """Yield the values of *attribute*, of every element."""
        for _, attributes in self.elements:
            value = attributes.get(attribute)
            if value is not None:
                yield value

    def tags_in_order(self, *wanted: str) -> list[str]:
        """List the elements that are one of *wanted*, as they come."""
        return [tag for tag, _ in self.elements if tag in wanted]
