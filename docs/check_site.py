"""Look at the built site: every internal link leads somewhere, every page has a title, nothing comes from outside.

``python docs/check_site.py docs/_build/html``; `make docs` runs it.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# what a browser fetches by itself; a link that somebody may click on is another matter
_FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src")}
_STYLES = {"stylesheet", "icon", "preload", "prefetch"}


class Page(HTMLParser):
    """Title, targets and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.title, self.headings = "", 0
        self.targets: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self._in_title = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        values = {name: value or "" for name, value in attrs}
        self._in_title = self._in_title or (tag == "title" and not self.title)
        self.headings += tag == "h1"
        self.targets |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and _STYLES & set(values.get("rel", "").split()):
            self.fetched.append(values.get("href", ""))
        self.fetched += [values[name] for name in values if (tag, name) in _FETCHED]

    def handle_endtag(self, tag: str) -> None:
        """Called by the parser."""
        self._in_title = self._in_title and tag != "title"

    def handle_data(self, data: str) -> None:
        """Called by the parser."""
        if self._in_title:
            self.title += data


@cache
def read(path: Path) -> Page:
    """A page, parsed once."""
    return Page(path.read_text(encoding="utf-8"))


def faults(folder: Path) -> list[str]:
    """What is wrong with the site in a folder, one line each."""
    folder = folder.resolve()
    pages = sorted(path for path in folder.rglob("*.html") if "_static" not in path.relative_to(folder).parts)
    found = [] if pages else [f"{folder}: no page"]
    for path in pages:
        page, name = read(path), path.relative_to(folder)
        # search.html writes its heading by script
        if not page.title.strip() or (page.headings == 0 and path.name != "search.html"):
            found.append(f"{name}: no title")
        found += [f"{name}: {link}: {fault}" for link in page.links if (fault := _broken(path, link, folder))]
        for address in page.fetched:
            if _is_outside(address):
                found.append(f"{name}: {address}: fetched from outside")
            elif fault := _broken(path, address, folder):
                found.append(f"{name}: {address}: {fault}")
    return found + _search_faults(folder, pages)


def _is_outside(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme in {"http", "https"}


def _broken(path: Path, link: str, folder: Path) -> str:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
    if not target.is_relative_to(folder) or not target.is_file():
        return "no such file"
    fragment = unquote(parts.fragment)
    if fragment and target.suffix == ".html" and fragment not in read(target).targets:
        return "no such place on the page"
    return ""


def _search_faults(folder: Path, pages: list[Path]) -> list[str]:
    """The index is a file of the site, and knows the pages that have text of their own."""
    index = folder / "searchindex.js"
    if not index.is_file():
        return ["searchindex.js is missing: search would find nothing"]
    match = re.fullmatch(r"Search\.setIndex\((.*)\)", index.read_text(encoding="utf-8").strip(), re.DOTALL)
    if match is None:
        return ["searchindex.js: not understood"]
    known = set(json.loads(match[1])["docnames"])
    own = {path.relative_to(folder).with_suffix("").as_posix() for path in pages}
    own -= {name for name in own if name in {"search", "genindex", "py-modindex"} or name.startswith("_modules/")}
    return [f"{name}: not in the search index" for name in sorted(own - known)]


def main(arguments: list[str]) -> int:
    """Print what is wrong, and return 1 if anything is."""
    folder = Path(arguments[0])
    found = faults(folder)
    print("\n".join(found) or f"{len(list(folder.rglob('*.html')))} pages: titles, links and search index are there")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
