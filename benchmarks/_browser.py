"""Pages in a headless Chromium, at the width of a desktop and of a phone."""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["WIDTHS", "browser_path", "find_browser", "measure", "parser", "screenshot"]

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
    "--disable-renderer-backgrounding",  # it would be the last to get a busy processor
    "--disable-backgrounding-occluded-windows",
    "--disable-background-timer-throttling",
    "--hide-scrollbars",
]


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The arguments that all checks of pages have."""
    found = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    found.add_argument("folder", nargs="?", type=Path)
    found.add_argument("--screenshots", type=Path, metavar="FOLDER")
    found.add_argument("--browser", metavar="PATH")
    return found


def browser_path(given: str | None) -> str | None:
    """The browser to use, None if there is none."""
    return shutil.which(given) if given else next(filter(None, map(shutil.which, BROWSERS)), None)


def find_browser(args: argparse.Namespace) -> str | None:
    """The browser to use; None, and a word about it, if there is none."""
    browser = browser_path(args.browser)
    if browser is None:
        print(f"no browser found (looked for {', '.join(BROWSERS)}): nothing was checked", file=sys.stderr)
    return browser


def measure(browser: str, address: str, width: int) -> dict:
    """What a page writes as JSON into its element ``found``, in a window of a width."""
    dom = _run(browser, width, 900, "--virtual-time-budget=20000", "--dump-dom", address)
    match = re.search(r'<pre id="found">(.+?)</pre>', dom)
    if match is None:
        raise RuntimeError("the page did not load")
    return json.loads(html.unescape(match[1]))


def screenshot(browser: str, address: str, width: int, height: int, path: Path) -> None:
    """A picture of a page; a window has a least width, so that a narrow page belongs into a frame."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _run(browser, max(width, 500), height, "--virtual-time-budget=20000", f"--screenshot={path.resolve()}", address)


def _run(browser: str, width: int, height: int, *arguments: str) -> str:
    with tempfile.TemporaryDirectory() as profile:
        size = [f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        command = [browser, *FLAGS, *size, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
