"""The cell: its messages in Python, and its one piece of JavaScript in a real browser."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from skal import label
from skal.labelling._notebook import cell, pack_modules, reply

from .conftest import CLASSES, DIGITS, make_project, truth

# what Jupyter does for a widget: an object that sends messages and passes on what comes back
HARNESS = b"""<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="cell.css"><div id="cell"></div>
<script type="module">
import widget from "./cell.js";
const listeners = [];
const model = {
  on: (name, listener) => listeners.push(listener),
  async send(content) {
    const response = await fetch("message", { method: "POST", body: JSON.stringify(content) });
    const { message, buffers } = await response.json();
    const bytes = buffers.map((text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer));
    for (const listener of listeners) listener(message, bytes);
  },
};
widget.render({ model, el: document.getElementById("cell") });
</script>"""


def test_a_notebook_gets_a_widget(tmp_path):
    found = label(DIGITS.images[:50] / 16, CLASSES, folder=tmp_path, model="linear", notebook=True)
    with found.project as project:
        heard = []
        found.send = lambda content, buffers=None: heard.append((content, buffers))
        found._handle_custom_msg({"number": "1", "method": "next", "given": {"client": "me", "n": 2}}, [])
        (content, _buffers) = heard[0]
        assert content["number"] == "1"
        key = content["answer"]["items"][0]["id"]
        found._handle_custom_msg({"number": "2", "picture": key, "size": None}, [])
        assert heard[1][0]["kind"] == "image/png"
        assert heard[1][1][0].startswith(b"\x89PNG")
        given = {"client": "me", "id": key, "label": "3"}
        found._handle_custom_msg({"number": "3", "method": "answer", "given": given}, [])
        assert heard[2][0] == {"number": "3", "answer": {}}
        assert project.labels()["label"].tolist() == ["3"]
        assert found.result().labels["id"].tolist() == [key]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"method": "explode", "given": {}}, "one of next"),
        ({"method": "next", "given": None}, "a JSON object"),
        ({"picture": "nobody"}, "must be of a sample"),
        ({}, "a JSON object"),
    ],
)
def test_bad_messages_get_a_sentence(message, error, project):
    content, data = reply(project, {"number": "1"} | message)
    assert error in content["error"]
    assert data == []


def test_a_finished_cell_lets_others_write(tmp_path):
    project = make_project(tmp_path)
    found = cell(project.start())
    found.send = lambda content, buffers=None: None
    found._handle_custom_msg({"number": "1", "method": "finish", "given": {}}, [])
    with make_project(tmp_path):
        pass


def test_the_cell_in_a_browser(page, project):
    from skal.labelling._server import PAGE

    style = (PAGE / "style.css").read_bytes()
    files = {
        "/": ("text/html", HARNESS),
        "/cell.js": ("text/javascript", pack_modules().encode()),
        "/cell.css": ("text/css", style),
    }

    class Jupyter(BaseHTTPRequestHandler):
        def do_GET(self):
            kind, data = files.get(self.path, ("text/plain", b""))
            self.answer(kind, data)

        def do_POST(self):
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content, buffers = reply(project, message)
            texts = [base64.b64encode(data).decode() for data in buffers]
            self.answer("application/json", json.dumps({"message": content, "buffers": texts}).encode())

        def answer(self, kind, data):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Jupyter) as jupyter:
        thread = threading.Thread(target=jupyter.serve_forever)
        thread.start()
        try:
            page.open(f"http://127.0.0.1:{jupyter.server_address[1]}/")
            page.wait_for(lambda: page.run("return document.querySelector('.sample img').naturalWidth") == 8)
            page.run("document.getElementById('cell').focus()")
            said = {}
            for _ in range(12):
                key = page.current()
                said[page.label(truth(key))] = truth(key)
            assert project.labels().set_index("id")["label"].to_dict() == said
        finally:
            page.driver.get("about:blank")
            jupyter.shutdown()
            thread.join()
