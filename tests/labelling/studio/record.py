"""Record exports of a real Label Studio: ``python -m tests.labelling.studio.record URL TOKEN``.

The files beside this one are what version 1.23.2 wrote. Names of hosts and users are those of a test server.
"""

import io
import json
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from PIL import Image

FOLDER = Path(__file__).parent / "recorded_1_23_2"
CONFIG = """<View>
  <Image name="image" value="$image"/>
  <Choices name="animal" toName="image" choice="single"><Choice value="cat"/><Choice value="dog"/></Choices>
  <Choices name="colours" toName="image" choice="multiple"><Choice value="red"/><Choice value="blue"/></Choices>
</View>"""
TEXTS = """<View>
  <Text name="words" value="$text"/>
  <Choices name="mood" toName="words"><Choice value="good"/><Choice value="bad"/></Choices>
</View>"""


def picture(colour):
    target = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(target, "PNG")
    return target.getvalue()


def make_call(url, token):
    def call(method, path, body=None, raw=False, kind="application/json"):
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Token {token}", "Content-Type": kind}
        try:
            with urlopen(Request(url + path, data, headers, method=method), timeout=120) as answer:
                content = answer.read()
        except HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code} {error.read()[:500]}") from error
        return content if raw else json.loads(content or b"null")

    return call


def upload(call, project, name, data):
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n' % name.encode()
    body += b"Content-Type: image/png\r\n\r\n" + data + b"\r\n--x--\r\n"
    return call("POST", f"/api/projects/{project}/import", body, kind="multipart/form-data; boundary=x")


def choice(control, to_name, *choices):
    return {"from_name": control, "to_name": to_name, "type": "choices", "value": {"choices": list(choices)}}


def export(call, project, name):
    for kind, suffix in (("JSON", "json"), ("JSON_MIN", "min.json"), ("CSV", "csv"), ("TSV", "tsv")):
        data = call("GET", f"/api/projects/{project}/export?exportType={kind}&download_all_tasks=true", raw=True)
        (FOLDER / f"{name}.{suffix}").write_bytes(data)


def main(url, token):
    call = make_call(url, token)
    users = {user["email"]: user["id"] for user in call("GET", "/api/users")}
    if "two@skal.test" not in users:
        call("POST", "/api/users", {"email": "two@skal.test", "username": "two", "password": "skal-test-2"})
        users = {user["email"]: user["id"] for user in call("GET", "/api/users")}
    one, two = users["one@skal.test"], users["two@skal.test"]
    project = call("POST", "/api/projects", {"title": "recorded pictures", "label_config": CONFIG})["id"]
    local = [{"data": {"image": f"/data/local-files/?d=a{i}.png"}} for i in range(2)]
    away = [{"data": {"image": f"https://pictures.skal.test/b{i}.png"}} for i in range(2)]
    call("POST", f"/api/projects/{project}/import", [*local, *away])
    upload(call, project, "up0.png", picture("red"))
    upload(call, project, "up1.png", picture("blue"))
    tasks = [task["id"] for task in call("GET", f"/api/tasks?project={project}&page_size=100")["tasks"]]

    def annotate(task, who, *parts, **more):
        body = {"result": list(parts), "completed_by": who, "lead_time": 2.5} | more
        call("POST", f"/api/tasks/{task}/annotations/", body)

    annotate(tasks[0], one, choice("animal", "image", "cat"), choice("colours", "image", "red", "blue"))
    annotate(tasks[1], one, choice("animal", "image", "cat"))
    annotate(tasks[1], two, choice("animal", "image", "dog"))
    annotate(tasks[2], one, was_cancelled=True)
    annotate(tasks[3], one, choice("colours", "image", "red"))
    annotate(tasks[4], two, choice("animal", "image", "dog"))
    said = {"task": tasks[5], "result": [choice("animal", "image", "cat")], "score": 0.9, "model_version": "other"}
    call("POST", "/api/predictions/", said)
    export(call, project, "pictures")
    project = call("POST", "/api/projects", {"title": "recorded texts", "label_config": TEXTS})["id"]
    call("POST", f"/api/projects/{project}/import", [{"text": f'text, {i}\tof "these"'} for i in range(4)])
    tasks = [task["id"] for task in call("GET", f"/api/tasks?project={project}&page_size=100")["tasks"]]
    annotate(tasks[0], one, choice("mood", "words", "good"))
    annotate(tasks[1], two, choice("mood", "words", "bad"))
    annotate(tasks[2], one, choice("mood", "words", "good"))
    export(call, project, "texts")


if __name__ == "__main__":
    main(*sys.argv[1:3])
