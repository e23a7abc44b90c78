"""The labelling page under axe-core, in Chromium: no serious finding in any view, light and dark.

``python -m benchmarks.check_accessibility`` fetches axe-core with ``npm pack`` (or takes ``--axe FILE``, an
``axe.min.js``), opens every view of a team's project, and prints what axe finds. It ends with status 1 if a finding is
serious or critical.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.datasets import load_digits

from skal.labelling._answer_form import AnswerForm
from skal.labelling._label import as_source
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._server import LabelServer
from skal.labelling._team import Team

if TYPE_CHECKING:
    from benchmarks._label_page import Page

PACKAGE = "axe-core@4.14.0"
RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then((found) => done(found.violations.map(
  (each) => ({id: each.id, impact: each.impact, help: each.help,
              nodes: each.nodes.map((node) => node.target.join(" "))}))));
"""


def fetch_axe(folder: Path) -> Path:
    """axe.min.js from npm."""
    subprocess.run(["npm", "pack", PACKAGE, "--pack-destination", folder], check=True, capture_output=True)
    with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as archive:
        data = archive.extractfile("package/axe.min.js")
        assert data is not None
        (folder / "axe.min.js").write_bytes(data.read())
    return folder / "axe.min.js"


def make_project(folder: Path) -> Project:
    """A team's project of digits, with labels, disputes, doubts and confusions."""
    digits = load_digits()
    ids = [f"digit-{i:04d}-{digits.target[i]}" for i in range(500)]
    noise = np.random.default_rng(0).normal(0, 0.25, size=(500, 8, 8))
    source = as_source(np.clip(digits.images[:500] / 16 + noise, 0, 1), ids, None)
    names = [f"digit {k}" for k in range(10)] + ["not a digit"]
    team = Team(["ann", "ben"], 0.3)
    project = Project(source, names, choose_model(source, model="linear"), folder, query_size=60, team=team).start()
    rng = np.random.default_rng(0)
    for turn in range(240):
        who = team.people[turn % 2]
        (item,) = project.next(f"{who}/tab", 1, person=who)
        true = int(item["id"][-1])
        said = true if rng.random() < 0.85 else int(rng.integers(10))
        project.answer(item["id"], names[said], client=f"{who}/tab", person=who)
    project.worker.wait_until_idle(120)
    return project


def make_other(folder: Path, form: AnswerForm) -> Project:
    """A project of numbers or of several classes at once, with two answers."""
    X = np.random.default_rng(0).normal(size=(40, 3))
    source, names = as_source(X, [f"row-{i}" for i in range(40)], None), ["red", "green", "blue"]
    several = form.task == "multilabel"
    model = choose_model(source, model="linear", task=form.task)
    project = Project(source, names if several else [], model, folder, query_size=1000, form=form).start()
    for item in project.next("tab", 2):
        project.answer(item["id"], ["red", "blue"] if several else 12.5, client="tab")
    return project


def make_many(folder: Path, n_classes: int = 20) -> Project:
    """A project of many classes, of which the first two look the same."""
    rng, names = np.random.default_rng(0), [f"class {k}" for k in range(n_classes)]
    codes = rng.permutation(400) % n_classes
    X = 4 * np.eye(n_classes)[np.maximum(codes, 1)] + rng.normal(size=(400, n_classes))
    source = as_source(X, [str(i) for i in range(400)], None)
    project = Project(source, names, choose_model(source, model="linear"), folder, query_size=60, share=0.4).start()
    for _ in range(200):
        (item,) = project.next("tab", 1)
        project.answer(item["id"], names[codes[int(item["id"])]], client="tab")
    project.worker.wait_until_idle(120)
    return project


def many_views(page: Page) -> Any:
    """Mistakes and a figure for each of many classes, and the samples behind a mistake."""
    page.wait_for(lambda: page.find(".recalls li"))
    yield "many classes"
    page.click(".confusions button")
    page.wait_for(lambda: page.find(".judged"))
    yield "behind a mistake"


def other_views(page: Page) -> Any:
    """Where numbers, or several classes, are answered and corrected."""
    page.wait_for(lambda: page.find(".confirm"))
    page.press("1")
    yield "answer"
    page.click(".tab[data-view=gallery]")
    page.click(".card")
    page.wait_for(lambda: page.find("dialog.correct"))
    yield "correction"
    page.run("document.querySelector('dialog.correct').close()")


def views(page: Page) -> Any:
    """Every view, one after the other: gives its name when it is there."""
    page.wait_for(lambda: page.find(".confusion button"))
    yield "one sample"
    page.click("[data-option=suggestions]")
    yield "suggestions"
    page.click("[data-option=grid]")
    page.wait_for(lambda: page.find(".cell"))
    page.press("a")
    yield "grid, all selected"
    page.click("[data-option=grid]")
    page.wait_for(page.current)
    page.press("?")
    yield "help"
    page.run("document.querySelector('dialog.help').close()")
    page.press("z")
    page.wait_for(lambda: page.find(".zoom-dialog"))
    yield "zoom"
    page.press("z")
    page.click(".tab[data-view=gallery]")
    page.wait_for(lambda: page.find(".card"))
    yield "gallery"
    page.click(".tab[data-view=label]")
    page.click(".disputes")
    page.wait_for(lambda: page.find(".card"))
    yield "disputes"
    page.click(".card")
    page.wait_for(lambda: page.find("dialog.correct"))
    yield "decision"
    page.run("document.querySelector('dialog.correct').close()")


def check(axe: str, address: str, page: Page, views: Callable[[Page], Any] = views) -> list[dict[str, Any]]:
    """What axe finds, in both schemes and at two widths."""
    found = []
    for scheme, width in [("light", 1180), ("dark", 1180), ("light", 390)]:
        page.resize(width, 900, scheme=scheme)
        page.open(address)
        page.run(axe)
        for name in views(page):
            result = page.driver.execute_async_script(RUN)
            found += [finding | {"view": name, "scheme": scheme, "width": width} for finding in result]
            print(f"{name}, {scheme}, {width} pixels: {len(result)} findings", flush=True)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.check_accessibility", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--axe", type=Path, metavar="FILE", help="axe.min.js, if it is there already")
    options = parser.parse_args(arguments)
    from benchmarks._label_page import MISSING, WHY, Page

    if MISSING:
        print(WHY, file=sys.stderr)
        sys.exit(2)
    work = Path(tempfile.mkdtemp())
    axe = (options.axe or fetch_axe(work)).read_text(encoding="utf-8")
    page, found = Page(work / "profile"), []
    forms = [AnswerForm("regression", "m²", 0, 100), AnswerForm("multilabel")]
    projects = [(partial(make_other, work / form.task, form), other_views) for form in forms]
    projects.append((partial(make_many, work / "many"), many_views))
    for make, shown in [*projects, (partial(make_project, work / "out"), views)]:
        with make() as project:
            server = LabelServer(project)
            thread = server.start()
            found += check(axe, server.address, page, shown)
            page.driver.get("about:blank")
            server.stop()
            thread.join(20)
    page.close()
    for finding in found:
        print(f"{finding['impact']}: {finding['help']} ({finding['id']}) in {finding['view']}: {finding['nodes'][:3]}")
    serious = [finding for finding in found if finding["impact"] in ("serious", "critical")]
    print(f"{len(found)} findings, {len(serious)} of them serious or critical.")
    sys.exit(1 if serious else 0)


if __name__ == "__main__":
    main()
