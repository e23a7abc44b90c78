# SPDX-License-Identifier: BSD-3-Clause
"""What the page may ask for: the same calls over HTTP and from a cell of a notebook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skal.exceptions import InvalidParameterError
from skal.labelling._project import Project

MOST_AT_ONCE = 200
_LONGEST = 4096  # names of classes, tabs and orders; an id may be as long as a request


def call(project: Project, method: str, given: Any, finish: Callable[[], None], person: str | None = None) -> Any:
    """Answer one call of the page.

    Parameters
    ----------
    project : Project
    method : str
    given : dict
        Of JSON.
    finish : callable
        What "finish" does.
    person : str or None, default=None
        Who calls, in a team.

    Returns
    -------
    What JSON can hold.
    """
    if not isinstance(given, dict):
        raise InvalidParameterError.for_parameter("call", "body", "a JSON object", type(given).__name__, "Send {}.")
    if method in ("next", "answer", "undo"):
        client = _text(given, "client") if person is None else f"{person}/{_text(given, 'client')}"
    if method == "next":
        shown = _texts(given, "shown", None) if given.get("shown") else []
        return {"items": project.next(client, _number(given, "n", 5), person=person, shown=shown)}
    if method == "status":
        return project.status(person)
    if method == "gallery":
        label, cell = given.get("label"), given.get("cell")
        if cell is not None and len(_texts(given, "cell")) != 2:
            expected, remedy = "a label and what the model takes it for", "Reload the page."
            raise InvalidParameterError.for_parameter("call", "cell", expected, cell, remedy)
        return project.gallery(
            label=None if label is None else _text(given, "label"),
            order=_text({"order": "new"} | given, "order"),
            cell=cell,
            offset=_number(given, "offset", 0, 10**9),
            limit=_number(given, "limit", 60),
            person=person,
        )
    if method in ("answer", "decide"):
        label = given.get("label")
        declined = label is None and bool(given.get("declined"))
        if method == "decide":
            project.decide(_text(given, "id", None), label, declined=declined, person=person)
            return {}
        keys = _texts(given, "ids", None) if "ids" in given else [_text(given, "id", None)]
        project.answer(keys, label, client=client, declined=declined, person=person)
        return {}
    if method == "undo":
        return {"item": project.undo(client, person=person)}
    if method == "add_class":
        return {"classes": project.add_class(_text(given, "name"))}
    if method in ("certify", "resume", "finish"):
        project.check_decides(person)
    if method == "certify":
        project.ending.begin()
        return {}
    if method == "resume":
        project.ending.cancel()
        return {}
    if method == "finish":
        finish()
        return {}
    known = "next, status, gallery, answer, decide, undo, add_class, certify, resume, finish"
    raise InvalidParameterError.for_parameter("call", "method", f"one of {known}", method, "Reload the page.")


def _text(given: dict[str, Any], name: str, most: int | None = _LONGEST) -> str:
    value = given.get(name)
    if not isinstance(value, str) or (most is not None and len(value) > most):
        expected = "a text" if most is None else f"a text of at most {most} characters"
        raise InvalidParameterError.for_parameter("call", name, expected, value, "Reload the page.")
    return value


def _number(given: dict[str, Any], name: str, default: int, most: int = MOST_AT_ONCE) -> int:
    value = given.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise InvalidParameterError.for_parameter("call", name, f"an integer in 0 … {most}", value, "Reload the page.")
    return value


def _texts(given: dict[str, Any], name: str, most: int | None = _LONGEST) -> list[str]:
    value = given.get(name)
    if not isinstance(value, list) or not 0 < len(value) <= MOST_AT_ONCE:
        raise InvalidParameterError.for_parameter(
            "call", name, f"a list of 1 … {MOST_AT_ONCE} texts", value, "Reload the page."
        )
    return [_text({name: each}, name, most) for each in value]
