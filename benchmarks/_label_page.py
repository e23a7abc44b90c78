"""The labelling page in a real browser: Chromium and its driver, as Debian's packages provide them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys

from benchmarks._browser import FLAGS

BINARIES = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
MISSING = [name for name, path in BINARIES.items() if path is None]
WHY = f"no {' and no '.join(MISSING)}: install Debian's packages chromium and chromium-driver"
PATIENCE = 600.0  # on a busy machine; nothing waits longer than it must
SEEN = """
return [...document.querySelectorAll(arguments[0])].filter((each) => each.checkVisibility({ checkVisibilityCSS: true })
  && each.getClientRects().length > 0);
"""
# a page without a sample is ready for anything, and so is one whose samples are behind another view
READY = """
const stage = document.querySelector('.stage');
return !stage?.querySelector('.sample') || (stage.dataset.ready ?? '').split(' ').includes(arguments[0]);
"""


class Page:
    """A window with the labelling page."""

    def __init__(self, profile: Any, *flags: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = BINARIES["chromium"]
        for flag in [*FLAGS, *flags, f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(BINARIES["chromedriver"]))
        self.driver.set_script_timeout(PATIENCE)
        self.resize(1280, 900)

    def open(self, address: str) -> None:
        """Open an address, and wait for a sample."""
        self.driver.get("about:blank")  # a page of an earlier server would go on asking
        self.complaints()
        self.driver.get(address)
        self.wait_for(lambda: self.current() or self.find(".cell"))

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition holds; gives what it gave."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                if found := condition():
                    return found
            except StaleElementReferenceException:
                pass
            assert time.monotonic() < end, "the page did not get there"
            time.sleep(0.01)

    def resize(self, width: int, height: int, *, scheme: str = "light") -> None:
        """Be so large, and light or dark."""
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> list[Any]:
        """Elements that can be seen."""
        return self.run(SEEN, selector)

    def text(self, selector: str) -> str:
        """The text of the first element."""
        return self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def current(self) -> str | None:
        """The id of the sample that is shown alone."""
        return self.run("return document.querySelector('figure.sample')?.dataset.id")

    def ready(self, what: str) -> None:
        """Wait until answers by ``"press"`` or ``"click"`` count for what is on the screen."""
        self.wait_for(lambda: self.run(READY, what))

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        self.ready("press")
        ActionChains(self.driver).send_keys(*keys).perform()

    def label(self, key: str) -> str | None:
        """Press a key, and wait for the next sample."""
        before = self.current()
        self.press(key)
        self.wait_for(lambda: self.current() != before)
        return before

    def click(self, selector: str, place: int = 0) -> None:
        """Click an element as soon as it is there."""

        self.ready("click")

        def clicked() -> bool:
            found = self.find(selector)
            if len(found) > place:
                found[place].click()
            return len(found) > place

        self.wait_for(clicked)

    def complaints(self) -> list[dict]:
        """What the browser has to say of errors."""
        return [line for line in self.driver.get_log("browser") if line["level"] == "SEVERE"]

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()


__all__ = ["MISSING", "WHY", "Keys", "Page"]
