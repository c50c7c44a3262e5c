"""Links of a built site, without asking other sites: each leads to a file, each anchor to an element with its id."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name == "id":
                self.ids.add(value)
            elif value and ((name == "href" and tag in ("a", "link")) or name == "src"):
                self.links.add(value)


@cache
def _page(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


def broken_links(folder: Path) -> list[str]:
    """Return a line for each link in the HTML files below a folder that leads nowhere in it."""
    return [f"{page.relative_to(folder)}: {link}" for page in sorted(folder.rglob("*.html")) for link in _broken(page)]


def _broken(page: Path) -> Iterator[str]:
    if page.name == "404.html":  # is served at any address, with absolute links
        return
    for link in sorted(_page(page).links):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc or link.startswith(("/", "data:")):
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if target.is_dir():
            target /= "index.html"
        if not target.is_file() or (
            parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in _page(target).ids
        ):
            yield link
