"""The documentation in a headless Chromium: formulas set, images there, one row of header, a search that works.

``python -m benchmarks.check_site [FOLDER] [--screenshots FOLDER] [--browser PATH]``; FOLDER is what `make docs` built,
``docs/_build/html`` if none is given. The site is served on this machine's own address, and may fetch nothing from
elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlencode, urlsplit

from benchmarks._browser import WIDTHS, find_browser, measure, parser, screenshot

SITE = Path("docs/_build/html")
SEARCH = "search.html?q=badge"
DESKTOP = "desktop"
SITE_WIDTHS = WIDTHS | {DESKTOP: 1280}
# the page goes into a frame of the wanted width; what scripts do to it takes a moment
FRAME = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe id="page" width="{width}" height="{height}" style="border:0" src="/{page}"></iframe><pre id="found"></pre>
<script>
onload = () => setTimeout(() => {{
  const page = document.getElementById("page").contentDocument, root = page.documentElement;
  const lazy = image => image.loading === "lazy";
  const missing = [...page.images].filter(image => !lazy(image) && !(image.complete && image.naturalWidth > 0));
  const outside = page.defaultView.performance.getEntriesByType("resource").map(entry => entry.name)
    .filter(name => !name.startsWith(location.origin) && !name.startsWith("data:"));
  const formulas = [...page.querySelectorAll("span.math, div.math")];
  // what the header shows, from the top: an item that begins below all before it begins a row
  const header = page.querySelector(".bd-header");
  const shown = [...(header?.querySelectorAll(".navbar-brand, .navbar-nav > li, .navbar-item button") ?? [])]
    .map(item => item.getBoundingClientRect()).filter(box => box.height > 0).sort((a, b) => a.top - b.top);
  let rows = 0, bottom = -1;
  for (const box of shown) {{
    if (box.top >= bottom) rows += 1;
    bottom = Math.max(bottom, box.bottom);
  }}
  const unset = formulas.filter(formula => !formula.querySelector("mjx-container"));
  document.getElementById("found").textContent = JSON.stringify({{
    outside, missing: missing.map(image => image.src), formulas: formulas.length, unset: unset.length,
    results: page.querySelectorAll("#search-results li").length, images: page.images.length,
    rows, header: header?.offsetHeight ?? 0,
    overflow: root.scrollWidth - root.clientWidth, height: root.scrollHeight}});
}}, 4000);
</script>"""


class Handler(SimpleHTTPRequestHandler):
    """Serves the site, and frames of any width for its pages."""

    def do_GET(self) -> None:
        """Called by the server."""
        address = urlsplit(self.path)
        if address.path != "/frame":
            super().do_GET()
            return
        asked = {name: values[0] for name, values in parse_qs(address.query).items()}
        body = FRAME.format(**asked).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address under which a folder is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def pages(folder: Path) -> list[str]:
    """Home, guide and evidence, the tutorials, a page of the API, and a search."""
    written = [path for part in ("guide", "evidence") for path in sorted((folder / part).glob("*.html"))]
    guide = [path.relative_to(folder).as_posix() for path in written]
    tutorials = sorted(path.relative_to(folder).as_posix() for path in (folder / "auto_tutorials").glob("*.html"))
    return ["index.html", *guide, *tutorials, "api/generated/skal.strategies.DynamicAL.html", SEARCH]


def faults(page: str, width: str, found: dict) -> list[str]:
    """What is wrong with what was found at a width."""
    wrong = [f"the image {name} is missing" for name in found["missing"]]
    wrong += [f"asks for {url}" for url in found["outside"]]
    wrong += [f"the page is {found['overflow']} pixels too wide"] if found["overflow"] > 0 else []
    one_row = width != DESKTOP or found["rows"] == 1
    wrong += [] if one_row else [f"the header has {found['rows']} rows, and {found['header']} pixels"]
    wrong += [f"{found['unset']} of {found['formulas']} formulas are not set"] if found["unset"] else []
    return wrong + (["the search finds nothing"] if page == SEARCH and not found["results"] else [])


def main(argv: Sequence[str] | None = None) -> int:
    """Check a site, and return 1 if something is wrong with it."""
    arguments = parser("check_site", __doc__)
    arguments.add_argument("--pages", nargs="*", metavar="PAGE", help="such as guide/npc.html; all kinds by default")
    args = arguments.parse_args(argv)
    browser, folder = find_browser(args), args.folder or SITE
    if browser is None or not (folder / "index.html").exists():
        asked_for = args.folder is not None or args.browser is not None
        if browser is not None:
            print(f"no site in {folder}: run make docs first", file=sys.stderr)
        return int(asked_for)  # as one of all benchmarks, do without
    status = 0
    with served(folder) as address:
        for page in args.pages or pages(folder):
            for name, width in SITE_WIDTHS.items():

                def frame(height: int, page: str = page, width: int = width) -> str:
                    return f"{address}/frame?{urlencode({'page': page, 'width': width, 'height': height})}"

                found = measure(browser, frame(900), width)
                wrong = faults(page, name, found)
                status |= bool(wrong)
                facts = f"{found['images']} images, {found['formulas']} formulas"
                print(f"{page}, {name}: {'; '.join(wrong) or facts}", flush=True)
                if args.screenshots is not None:
                    stem = urlsplit(page).path.removesuffix(".html").replace("/", "-")
                    picture = args.screenshots / f"{stem}-{name}.png"
                    screenshot(browser, frame(found["height"]), width, found["height"], picture)
    return status


if __name__ == "__main__":
    sys.exit(main())
