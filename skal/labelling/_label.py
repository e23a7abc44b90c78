# SPDX-License-Identifier: BSD-3-Clause
"""Labelling from Python: the page for a script, a cell for a notebook."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from skal._core.containers import refuse_hidden
from skal._core.tasks import CLASSIFICATION
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.labelling._answer_form import AnswerForm
from skal.labelling._ending import Labelled
from skal.labelling._models import aim_model, choose_model
from skal.labelling._options import LIMITS, Door
from skal.labelling._project import Project
from skal.labelling._server import LabelServer
from skal.labelling._sources import ArraySource, Source, TableRows, TextTable, open_source
from skal.labelling._team import Team
from skal.loop._row_labels import read_rows
from skal.stopping import StoppingCriterion
from skal.validation import as_list


def label(
    X: Any,
    classes: Sequence[str] = (),
    *,
    task: str = "classification",
    unit: str = "",
    bounds: tuple[float | None, float | None] | None = None,
    y: Any = None,
    ids: Sequence[Any] | None = None,
    folder: Any = "skal-labels",
    model: Any = None,
    features: Any = None,
    backbone: str | None = None,
    strategy: Any = "auto",
    target: Any = None,
    query_size: int = 20,
    share: float = 0.2,
    stop: StoppingCriterion | None = None,
    max_error: float = 0.05,
    annotator: str | None = None,
    team: Sequence[str] = (),
    overlap: float = 0.1,
    decider: str | None = None,
    port: int = 0,
    browser: bool | Callable[[str], Any] = True,
    notebook: bool | None = None,
) -> Any:
    """Label samples in the browser, while a model learns which ones to ask for.

    Parameters
    ----------
    X : array, list of str, data frame, or path
        Images ((n, h, w), (n, c, h, w) or (n, h, w, c)), rows of numbers, texts, rows of a table; or a folder of
        images, a CSV or JSONL file of texts or rows, an npz file.
    classes : list of str
        More can be added on the page, if each sample has one. Numbers have none.
    task : {"classification", "multilabel", "regression"}, default="classification"
        Whether a sample has one class, several at once, or a number. Accuracy is measured, and labels are doubted, for
        single classes alone.
    unit : str, default=""
        Of numbers; shown beside them.
    bounds : (low, high), optional
        Between which numbers are, None where there is no bound; with both the page has a slider.
    y : array-like, optional
        Labels that are known already, None where there is none.
    ids : sequence, optional
        By what the samples are known; by default file names, or a hash of the content.
    folder : path, default="skal-labels"
        Labels, settings and the model. The same call goes on there.
    model : None, "network", "linear", "FILE.py:NAME", classifier or callable, default=None
        None is a linear classifier, on features of a pre-trained network if the extra ``backbones`` is installed;
        without it, a small network for images. A function may take ``n_classes``.
    features : path or (n, d) array, optional
        Features of the samples, for a linear classifier.
    backbone : str, optional
        Another frozen network that computes features: a name of :func:`skal.features.pretrained`, or "FILE.py:NAME".
    strategy : str, strategy or None, default="auto"
        What chooses the samples to ask for; "auto" and None are the recommended default.
    target : array, list of str, data frame, or path, optional
        The samples that the model will be used on, given as X is: what is asked for serves them.
    query_size : int, default=20
        New labels before the next training.
    share : float, default=0.2
        Share of the samples that is drawn at random and held out, to measure accuracy. "Finish" trains on them, too.
    stop : StoppingCriterion, optional
        When the page advises to stop; by default :class:`skal.stopping.StablePredictions`.
    max_error : float, default=0.05
        The page says what it takes to finish with at most this share of errors in the whole data set.
    annotator : str, optional
        Written beside every label.
    team : list of str, default=()
        Several people, each with a link of their own; ``browser`` is given the link of the person who decides.
        The others are printed. For links that other machines can open, use ``skal label --team``.
    overlap : float, default=0.1
        Share of the samples that two people of a team label.
    decider : str, optional
        Who decides where people differ; by default the first of the team.
    port : int, default=0
        0 takes the last one of the folder if it is free, or else any.
    browser : bool or callable, default=True
        Open the page; a callable is given the address instead.
    notebook : bool, optional
        Whether to give a cell of a notebook in the place of a page; by default in a notebook.

    Returns
    -------
    Labelled
        When somebody has pressed "Finish", or Ctrl-C. In a notebook a widget, at once, whose ``result()`` is this.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from urllib.request import Request, urlopen
    >>> import skal
    >>> def visit(address):  # in the place of a person
    ...     headers = {"Content-Type": "application/json"}
    ...     urlopen(Request(address + "api/finish", data=b"{}", headers=headers)).close()
    >>> found = skal.label(np.zeros((5, 8, 8)), ["cat", "dog"], folder=tempfile.mkdtemp(), browser=visit)
    >>> len(found.labels)
    0
    """
    LIMITS["port"].check("label", "port", port)
    settings = {"strategy": strategy, "query_size": query_size, "share": share, "stop": stop, "annotator": annotator}
    settings |= {"max_error": max_error, "team": Team(team, overlap, decider)}
    settings["form"] = AnswerForm(task, unit, *((None, None) if bounds is None else bounds))
    source = as_source(X, ids, Path(folder))
    given = {} if y is None else _read_labels(source, y, task)
    given = dict(source.folder_labels) if y is None and isinstance(source, TableRows) else given
    how = {"model": model, "features": features, "backbone": backbone, "cache": Path(folder), "task": task}
    chosen = choose_model(source, **how)
    if target is not None:
        chosen = aim_model(chosen, source, as_source(target, None, Path(folder)), **how)
    name = str(Path(X).resolve()) if isinstance(X, (str, Path)) else None
    project = Project(source, classes, chosen, folder, labels=given, source_name=name, **settings)
    if _in_notebook() if notebook is None else notebook:
        from skal.labelling._notebook import cell

        return cell(project.start())
    return serve(project, port, browser, print_links if project.team else None)


def print_links(server: LabelServer) -> None:
    """Say who labels where."""
    for name, link in server.links.items():
        print(f"{name}: {link}", flush=True)


def serve(
    project: Project,
    port: int,
    browser: bool | Callable[[str], Any],
    announce: Callable[[LabelServer], None] | None = None,
    door: Door | None = None,
) -> Labelled:
    """Serve the page until somebody has finished, and give what has come out."""
    try:
        server = LabelServer(project, port, door=door)
        project.start()
        if announce is not None:
            announce(server)
        if callable(browser):
            thread = server.start()
            browser(server.address)
            thread.join()
        else:
            if browser and _has_screen():
                webbrowser.open(server.address)
            server.run()
        if server.finished:  # otherwise the same call goes on another time
            project.finish()
    except KeyboardInterrupt:
        pass
    finally:
        project.close()
    return project.result()


def as_source(X: Any, ids: Sequence[Any] | None, cache: Path | None) -> Source:
    """Whatever a user calls samples, as a source."""
    if isinstance(X, Source):
        return X
    if isinstance(X, (str, Path)):
        source = open_source(X, cache=cache)
        source.check_readable()
        return source
    refuse_hidden(X, "X")
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu().numpy()
    if isinstance(X, pd.DataFrame):
        return TableRows.from_frame(X, ids)
    if isinstance(X, pd.Series):
        ids = X.index.tolist() if ids is None and X.index.is_unique else ids
        X = X.tolist()
    if isinstance(X, (list, tuple)) and X and all(isinstance(text, str) for text in X):
        return TextTable(X, ids)
    if isinstance(X, np.ndarray) and X.dtype.kind in "UO" and X.ndim == 1:
        return TextTable(X.tolist(), ids)
    if hasattr(X, "__array__") or isinstance(X, list):
        return ArraySource(X, ids)
    expected = "an array, a list of texts, a data frame, or the path of a folder or file"
    remedy = "Convert it with numpy.asarray."
    raise InvalidTypeError.for_parameter("label", "X", expected, X, remedy)


def _read_labels(source: Source, y: Any, task: str) -> dict[str, Any]:
    expected, remedy = f"a list of {len(source)} labels, None where there is none", "Pass one for each sample."
    if task == CLASSIFICATION:
        values = as_list("label", "y", y, expected=expected, remedy=remedy)
        is_wrong = any(isinstance(value, (list, tuple, dict, set, np.ndarray)) for value in values)
        values = [None if is_wrong or pd.isna(value) else str(value) for value in values]
    else:
        values, is_wrong = read_rows("label", y, task)[0], False
    if len(values) != len(source) or is_wrong:
        raise InvalidParameterError.for_parameter("label", "y", expected, y, remedy)
    return {key: value for key, value in zip(source.ids, values, strict=True) if value is not None}


def _has_screen() -> bool:
    """True if a browser could open a window; without one Python may start a text browser, which would wait."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _in_notebook() -> bool:
    """True if this runs in a kernel that shows widgets."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and hasattr(shell, "kernel")
