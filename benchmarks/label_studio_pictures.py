"""Pictures of Label Studio with skal beside it, for the documentation.

``python -m benchmarks.label_studio_pictures FOLDER`` uploads scikit-learn's digits as pictures to a real
Label Studio (``$SKAL_LABEL_STUDIO``), starts ``skal label-studio``, presses buttons in Chromium, and writes PNG
files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._label_studio import OWNER, PASSWORD, SERVER, TOKEN, WHY, StudioServer, picture_config
from benchmarks.label_pictures import shoot, truth, write_digits
from skal.labelling._studio._client import StudioClient
from skal.labelling._studio._studio_project import VIEW, StudioProject
from skal.labelling._studio._sync import StudioSync

if TYPE_CHECKING:  # selenium is not for every benchmark
    from benchmarks._label_page import Page

SIZE = (1180, 760)
MENU, SHOWN = "Label All Tasks", "Label Tasks As Displayed"


def sign_in(page: Page, server: StudioServer) -> None:
    """Sign in as the owner."""
    page.driver.get(f"{server.url}/user/login/")
    script = "const f = document.querySelector('form'); f.email.value = arguments[0]; f.password.value = arguments[1]; "
    page.run(f"{script} f.submit()", OWNER, PASSWORD)
    page.wait_for(lambda: "/login" not in page.driver.current_url)


def open_view(page: Page, server: StudioServer, project: int) -> None:
    """Open our tab of the data manager."""
    views = server.call("GET", f"/api/dm/views/?project={project}")
    (view,) = [each for each in views if each["data"].get("title") == VIEW]
    page.driver.get(f"{server.url}/projects/{project}/data?tab={view['id']}")
    page.wait_for(lambda: _button(page, MENU))


def open_menu(page: Page) -> None:
    """Open the menu beside "Label All Tasks"."""
    page.click("[aria-label='Toggle open']")
    page.wait_for(lambda: _item(page))


def press_label(page: Page, *, as_displayed: bool) -> int:
    """Press one of the two buttons that begin to label; gives the number of the task that comes."""
    if as_displayed:
        open_menu(page)
        _item(page)[0].click()
    else:
        _button(page, MENU)[0].click()
    return current_task(page)


def current_task(page: Page) -> int:
    """The number of the task that is shown."""
    script = "return document.querySelector('.lsf-current-task__task-id')?.firstChild?.textContent"
    return int(page.wait_for(lambda: page.run(script)))


def submit(page: Page, label: str) -> int:
    """Choose a label by its name, submit it, and give the next task's number."""
    before = current_task(page)
    page.wait_for(lambda: _choice(page, label))[0].click()
    page.click("[data-testid=bottombar-submit-button]")
    page.wait_for(lambda: page.find(".lsf-current-task__task-id") and current_task(page) != before)
    return current_task(page)


def _button(page: Page, text: str) -> list[Any]:
    return [each for each in page.find("button") if each.text == text]


def _item(page: Page) -> list[Any]:
    return [each for each in page.find("li") if each.text == SHOWN]


def _choice(page: Page, label: str) -> list[Any]:
    return [each for each in page.find("label") if each.text.split("[")[0].strip() == label]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.label_studio_pictures", description=__doc__.split("\n")[0]
    )
    parser.add_argument("out", type=Path, nargs="?", default=Path("skal-label-studio-pictures"))
    options = parser.parse_args(arguments)
    from benchmarks._label_page import MISSING, Page
    from benchmarks._label_page import WHY as WHY_NOT

    if MISSING or not SERVER:
        print(WHY_NOT if MISSING else WHY, file=sys.stderr)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        work = Path(place)
        (work / "server").mkdir()
        (work / "scans").mkdir()
        write_digits(work / "scans", 60)
        server = StudioServer(work / "server")
        number = server.make_project(picture_config("digit", map(str, range(10)), "200px"), [], title="Digits")
        server.upload(number, {path.name: path.read_bytes() for path in sorted((work / "scans").iterdir())})
        sync = StudioSync(
            StudioProject(StudioClient(server.url, TOKEN), number), work / "out", model="linear", predictions=True
        )
        thread = threading.Thread(target=sync.run, args=(1.0,))
        thread.start()
        page = Page(work / "profile")
        try:
            for _ in range(24):
                task = server.next_task(number)
                server.annotate(task["id"], "digit", str(truth(task["data"]["image"])))
            path = f"/api/predictions/?project={number}"
            while not any(each["result"] for each in server.call("GET", path)):
                time.sleep(1)
            time.sleep(5)
            sign_in(page, server)
            page.resize(*SIZE)
            open_view(page, server, number)
            time.sleep(3)  # its pictures
            shoot(page, options.out, "studio_tab", *SIZE)
            press_label(page, as_displayed=False)
            time.sleep(2)
            shoot(page, options.out, "studio_label", *SIZE)
        finally:
            page.close()
            sync.stop()
            thread.join()
            sync.close()
            server.stop()


if __name__ == "__main__":
    main()
