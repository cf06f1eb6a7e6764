"""A page taken apart by the standard library's parser, which is none of ours."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser


class Dom(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        """Parse *page*."""
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._text: list[str] = []
        self._muted = 0
        self._joined = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the element; what is in a style is no text, and a wbr is no space."""
        self.elements.append((tag, dict(attrs)))
        self._joined = tag == "wbr"
        self._muted += tag == "style"

    def handle_endtag(self, tag: str) -> None:
        """Listen again after a style."""
        self._muted -= tag == "style"

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        if self._joined and self._text:
            self._text[-1] += data
        elif not self._muted:
            self._text.append(data)
        self._joined = False

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        return " ".join(" ".join(self._text).split())

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
