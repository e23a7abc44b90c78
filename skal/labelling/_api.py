# SPDX-License-Identifier: BSD-3-Clause
"""What the page may ask for: the same calls over HTTP and from a cell of a notebook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skal.exceptions import InvalidParameterError
from skal.labelling._project import Project

MOST_AT_ONCE = 200


def call(project: Project, method: str, given: Any, finish: Callable[[], None]) -> Any:
    """Answer one call of the page.

    Parameters
    ----------
    project : Project
    method : str
    given : dict
        Of JSON.
    finish : callable
        What "finish" does.

    Returns
    -------
    What JSON can hold.
    """
    if not isinstance(given, dict):
        raise InvalidParameterError.for_parameter("call", "body", "a JSON object", type(given).__name__, "Send {}.")
    if method == "next":
        return {"items": project.next(_text(given, "client"), _number(given, "n", 5))}
    if method == "status":
        return project.status()
    if method == "gallery":
        label = given.get("label")
        return project.gallery(
            label=None if label is None else _text(given, "label"),
            disagreements=bool(given.get("disagreements")),
            offset=_number(given, "offset", 0, 10**9),
            limit=_number(given, "limit", 60),
        )
    if method == "answer":
        label = None if given.get("label") is None else _text(given, "label")
        key, client = _text(given, "id"), _text(given, "client")
        project.answer(key, label, client=client, declined=label is None and bool(given.get("declined")))
        return {}
    if method == "undo":
        return {"item": project.undo(_text(given, "client"))}
    if method == "add_class":
        return {"classes": project.add_class(_text(given, "name"))}
    if method == "certify":
        project.ending.begin()
        return {}
    if method == "resume":
        project.ending.cancel()
        return {}
    if method == "finish":
        finish()
        return {}
    known = "next, status, gallery, answer, undo, add_class, certify, resume, finish"
    raise InvalidParameterError.for_parameter("call", "method", f"one of {known}", method, "Reload the page.")


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or len(value) > 4096:
        raise InvalidParameterError.for_parameter("call", name, "a text", value, "Reload the page.")
    return value


def _number(given: dict[str, Any], name: str, default: int, most: int = MOST_AT_ONCE) -> int:
    value = given.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise InvalidParameterError.for_parameter("call", name, f"an integer in 0 … {most}", value, "Reload the page.")
    return value
