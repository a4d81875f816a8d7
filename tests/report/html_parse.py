"""A page as its elements: for the tests that need no browser."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from eagletrace.diff import diff
from eagletrace.report.html import Origin, Shown, TokenNames, gather, render
from eagletrace.store import open_run

VOID = {"meta", "link", "br", "wbr", "input", "img"}


class Page(HTMLParser):
    """Tags with their attributes in order, the text outside scripts and styles, and the content of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            (self.scripts if tag == "script" else self.styles).append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside in ("script", "style"):
            (self.scripts if inside == "script" else self.styles)[-1] += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        """What can be read, white space made one space."""
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(path: Path, names: TokenNames | None = None) -> str:
    """The page of one run."""
    with open_run(path) as run:
        return render([Shown(gather(run, names), Origin(str(path)))])


def page_of_two(a: Path, b: Path) -> str:
    """The page of two runs and what differs."""
    with open_run(a) as one, open_run(b) as other:
        reports = [gather(run) for run in (one, other)]
        found = diff(one, other)
    names = zip(reports, (a, b), "AB", strict=True)
    return render([Shown(r, Origin(str(p)), f"{n.lower()}-", f"Run {n}") for r, p, n in names], found)
