"""The HTML report in a headless Chromium: images there, nothing fetched from outside, no sideways scrolling.

``python -m benchmarks.check_report [FOLDER] [--screenshots FOLDER] [--browser PATH]``; FOLDER is one of ``skal bench``,
and a small benchmark is run where none is given.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from skal.bench import BenchmarkResult, html_report, run_benchmark

WIDTHS = {"phone": 390, "desktop": 1200}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
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


def browser_path(given: str | None) -> str | None:
    """The browser to use, None if there is none."""
    return shutil.which(given) if given else next(filter(None, map(shutil.which, BROWSERS)), None)


def look(browser: str, page: str, width: int, screenshot: Path | None) -> dict:
    """What the browser finds at a width: images, overflow, size of the text in tables, addresses it asked for."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        common = [browser, *FLAGS, f"--user-data-dir={folder}/profile", f"--window-size={width},900"]
        file.write_text(FRAME.format(width=width, height=900, page=html.escape(page)), encoding="utf-8")
        dom = subprocess.run(
            [*common, "--virtual-time-budget=10000", "--dump-dom", file.as_uri()],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        match = re.search(r'<pre id="found">(.+?)</pre>', dom)
        if match is None:
            raise RuntimeError("the page did not load")
        found = json.loads(html.unescape(match[1]))
        if screenshot is not None:
            screenshot.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(FRAME.format(width=width, height=found["height"], page=html.escape(page)), encoding="utf-8")
            size = f"--window-size={max(width, 500)},{found['height']}"
            command = [*common[:-1], size, f"--screenshot={screenshot.resolve()}", file.as_uri()]
            subprocess.run(command, capture_output=True, check=True, timeout=120)
    return found


def faults(found: dict) -> list[str]:
    """What is wrong with what was found."""
    wrong = [f"the image {alt!r} is missing" for alt, there in found["images"] if not there]
    wrong += [] if len(found["images"]) == 4 else [f"{len(found['images'])} images instead of 4"]
    wrong += [f"the page is {found['overflow']} pixels too wide"] if found["overflow"] > 0 else []
    wrong += [f"asks for {url}" for url in found["outside"]]
    return wrong + ([f"text of {found['size']} pixels"] if found["size"] < 12 else [])


def main(argv: Sequence[str] | None = None) -> int:
    """Check a report, and return 1 if something is wrong with it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check_report", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER")
    parser.add_argument("--browser", metavar="PATH")
    args = parser.parse_args(argv)
    browser = browser_path(args.browser)
    if browser is None:
        print(f"no browser found (looked for {', '.join(BROWSERS)}): nothing was checked", file=sys.stderr)
        return int(args.folder is not None or args.browser is not None)  # as one of all benchmarks, do without
    if args.folder is None:
        result = run_benchmark(["random", "entropy", "badge"], net="mlp", rounds=2, seeds=3, n_pool=200, max_epochs=10)
    else:
        result = BenchmarkResult.load(args.folder)
    page, status = html_report(result), 0
    for name, width in WIDTHS.items():
        screenshot = None if args.screenshots is None else args.screenshots / f"{name}.png"
        found = look(browser, page, width, screenshot)
        wrong = faults(found)
        status |= bool(wrong)
        images = len(found["images"])
        print(f"{name}, {width} pixels: {'; '.join(wrong) or f'{images} images, no request, nothing too wide'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
