"""The HTML report in a headless Chromium: images there, nothing fetched from outside, no sideways scrolling.

``python -m benchmarks.check_report [FOLDER] [--screenshots FOLDER] [--browser PATH]``; FOLDER is one of ``skal bench``,
and a small benchmark is run where none is given.
"""

from __future__ import annotations

import html
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks._browser import WIDTHS, find_browser, measure, parser, screenshot
from skal.bench import BenchmarkResult, html_report, run_benchmark

# the page goes into a frame of the wanted width, since a window has a least width; the outer page measures it
FRAME = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe id="page" width="{width}" height="{height}" style="border:0" srcdoc="{page}"></iframe><pre id="found"></pre>
<script>
onload = () => {{
  const page = document.getElementById("page").contentDocument, root = page.documentElement;
  const images = [...page.images].map(image => [image.alt, image.complete && image.naturalWidth > 0]);
  // what the page itself asked for; the browser has errands of its own, which its network log would mix in
  const outside = page.defaultView.performance.getEntriesByType("resource").map(entry => entry.name)
    .filter(name => !name.startsWith("data:"));
  const size = parseFloat(page.defaultView.getComputedStyle(page.querySelector("td")).fontSize);
  document.getElementById("found").textContent = JSON.stringify(
    {{images, size, outside, overflow: root.scrollWidth - root.clientWidth, height: root.scrollHeight}});
}};
</script>"""


def look(browser: str, page: str, width: int, picture: Path | None) -> dict:
    """What the browser finds at a width: images, overflow, size of the text in tables, addresses it asked for."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(FRAME.format(width=width, height=900, page=html.escape(page)), encoding="utf-8")
        found = measure(browser, file.as_uri(), width)
        if picture is not None:
            file.write_text(FRAME.format(width=width, height=found["height"], page=html.escape(page)), encoding="utf-8")
            screenshot(browser, file.as_uri(), width, found["height"], picture)
    return found


def faults(found: dict) -> list[str]:
    """What is wrong with what was found."""
    wrong = [f"the image {alt!r} is missing" for alt, there in found["images"] if not there]
    wrong += [] if len(found["images"]) == 5 else [f"{len(found['images'])} images instead of 5"]
    wrong += [f"the page is {found['overflow']} pixels too wide"] if found["overflow"] > 0 else []
    wrong += [f"asks for {url}" for url in found["outside"]]
    return wrong + ([f"text of {found['size']} pixels"] if found["size"] < 12 else [])


def main(argv: Sequence[str] | None = None) -> int:
    """Check a report, and return 1 if something is wrong with it."""
    args = parser("check_report", __doc__).parse_args(argv)
    browser = find_browser(args)
    if browser is None:
        return int(args.folder is not None or args.browser is not None)  # as one of all benchmarks, do without
    if args.folder is None:
        result = run_benchmark(
            ["random", "entropy", "badge"], net="mlp", n_rounds=2, seeds=3, n_pool=200, max_epochs=10
        )
    else:
        result = BenchmarkResult.load(args.folder)
    page, status = html_report(result), 0
    for name, width in WIDTHS.items():
        picture = None if args.screenshots is None else args.screenshots / f"{name}.png"
        found = look(browser, page, width, picture)
        wrong = faults(found)
        status |= bool(wrong)
        images = len(found["images"])
        print(f"{name}, {width} pixels: {'; '.join(wrong) or f'{images} images, no request, nothing too wide'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
