# SPDX-License-Identifier: BSD-3-Clause
"""The page as a cell of a notebook: the same modules, in one piece, with the kernel in the place of the server."""

from __future__ import annotations

import re
from typing import Any

from skal.exceptions import SampleError, SkalError, how_to_install
from skal.labelling._api import call
from skal.labelling._project import Project
from skal.labelling._server import PAGE

# in the order in which they need one another
_MODULES = (
    "dom",
    "finish",
    "curve",
    "confusion",
    "team",
    "classes",
    "answers",
    "gallery",
    "labelling",
    "app",
    "notebook",
)
_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?(function|const))", re.MULTILINE)


def pack_modules() -> str:
    """The modules as one: a widget cannot import files that lie beside it.

    Examples
    --------
    >>> import re
    >>> re.findall("^(?:import|export).*", pack_modules(), re.MULTILINE)
    ['export default { render };']
    """
    texts = [(PAGE / f"{name}.js").read_text(encoding="utf-8") for name in _MODULES]
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)


def reply(project: Project, message: Any) -> tuple[dict[str, Any], list[bytes]]:
    """The answer to a message of the cell, with bytes if there are any."""
    number = message.get("number")
    try:
        if "picture" in message:
            data, kind = project.picture(str(message["picture"]), message.get("size"))
            return {"number": number, "kind": kind}, [data]
        answer = call(project, message.get("method"), message.get("given"), project.finish)
        return {"number": number, "answer": answer}, []
    except (SampleError, SkalError) as error:
        return {"number": number, "error": str(error)}, []


def cell(project: Project) -> Any:
    """A widget for a project that has been started; its ``result()`` has the labels and the model so far."""
    try:
        import anywidget
    except ImportError as error:
        raise SkalError(
            f"A cell in a notebook needs anywidget. Got {error}. {how_to_install('notebook')}; or pass "
            "notebook=False for a page in the browser."
        ) from error

    class LabelCell(anywidget.AnyWidget):
        _esm = pack_modules()
        _css = (PAGE / "style.css").read_text(encoding="utf-8")

        def __init__(self) -> None:
            super().__init__()
            self.project = project
            self.on_msg(self._answer)

        def result(self) -> Any:
            """The result of labelling so far, as a script gets it at the end."""
            return project.result()

        def _answer(self, widget: Any, message: Any, buffers: Any) -> None:
            content, data = reply(project, message)
            self.send(content, data)

    return LabelCell()
