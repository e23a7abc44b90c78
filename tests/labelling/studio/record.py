"""Record exports of a real Label Studio: ``python -m tests.labelling.studio.record URL TOKEN``.

The files beside this one are what version 1.23.2 wrote. Names of hosts and users are those of a test server.
"""

import io
import sys
from pathlib import Path

from PIL import Image

from benchmarks._label_studio import Person, choice

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


def export(call, project, name):
    for kind, suffix in (("JSON", "json"), ("JSON_MIN", "min.json"), ("CSV", "csv"), ("TSV", "tsv")):
        data = call("GET", f"/api/projects/{project}/export?exportType={kind}&download_all_tasks=true", raw=True)
        (FOLDER / f"{name}.{suffix}").write_bytes(data)


def main(url, token):
    person = Person(url, token)
    call = person.call
    users = {user["email"]: user["id"] for user in call("GET", "/api/users")}
    if "two@skal.test" not in users:
        call("POST", "/api/users", {"email": "two@skal.test", "username": "two", "password": "skal-test-2"})
        users = {user["email"]: user["id"] for user in call("GET", "/api/users")}
    one, two = users["one@skal.test"], users["two@skal.test"]
    project = call("POST", "/api/projects", {"title": "recorded pictures", "label_config": CONFIG})["id"]
    local = [{"data": {"image": f"/data/local-files/?d=a{i}.png"}} for i in range(2)]
    away = [{"data": {"image": f"https://pictures.skal.test/b{i}.png"}} for i in range(2)]
    call("POST", f"/api/projects/{project}/import", [*local, *away])
    person.upload(project, {"up0.png": picture("red")})
    person.upload(project, {"up1.png": picture("blue")})
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
