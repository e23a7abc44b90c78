"""Record exports of a real Label Studio: ``python -m tests.labelling.studio.record URL TOKEN [answers]``.

The files beside this one are what version 1.23.2 wrote. Names of hosts and users are those of a test server.
"""

import io
import json
import sys
import tempfile
from pathlib import Path

from PIL import Image

from benchmarks._label_studio import Person, choice
from skal.labelling import export_labels, import_labels

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
ANSWERS = """<View>
  <Image name="image" value="$image"/>
  <Choices name="label" toName="image" choice="multiple">
    <Choice value="red"/><Choice value="blue"/><Choice value="green"/>
  </Choices>
  <Number name="age" toName="image"/>
  <Rating name="stars" toName="image"/>
</View>"""
COLOURS = ["red", "blue", "green"]
ROWS = {"a0.png": [0, -1, 1], "a1.png": [1, 0, 1], "a2.png": [0, 0, 0], "a3.png": [-1, -1, 0]}


def colour_folder(folder):
    """A folder for several labels at once, without any."""
    folder.mkdir(parents=True)
    (folder / "project.json").write_text(json.dumps({"task": "multilabel", "classes": COLOURS, "kind": "image"}))
    return folder


def picture(colour):
    target = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(target, "PNG")
    return target.getvalue()


def export(call, project, name):
    for kind, suffix in (("JSON", "json"), ("JSON_MIN", "min.json"), ("CSV", "csv"), ("TSV", "tsv")):
        data = call("GET", f"/api/projects/{project}/export?exportType={kind}&download_all_tasks=true", raw=True)
        (FOLDER / f"{name}.{suffix}").write_bytes(data)


def our_tasks():
    """What we write for Label Studio of several labels at once, some of which nobody knows."""
    with tempfile.TemporaryDirectory() as place:
        folder, file = colour_folder(Path(place) / "out"), Path(place) / "rows.jsonl"
        file.write_text("".join(json.dumps({"id": key, "label": row}) + "\n" for key, row in ROWS.items()))
        import_labels(folder, file)
        return json.loads(export_labels(folder, "label-studio"))


def record_answers(call, one, two, annotate):
    """Numbers, ratings, several choices, tasks that all have skipped, and tasks that we have written."""
    project = call("POST", "/api/projects", {"title": "recorded answers", "label_config": ANSWERS})["id"]
    call("POST", f"/api/projects/{project}/import", our_tasks())
    call("POST", f"/api/projects/{project}/import", [{"image": f"b{i}.png"} for i in range(5)])
    found = call("GET", f"/api/projects/{project}/export?exportType=JSON&download_all_tasks=true")
    tasks = {task["data"]["image"]: task["id"] for task in found}
    age, stars = ({"from_name": name, "to_name": "image"} for name in ("age", "stars"))
    age, stars = age | {"type": "number"}, stars | {"type": "rating", "value": {"rating": 3}}
    annotate(tasks["b0.png"], one, age | {"value": {"number": 42}}, stars)
    annotate(tasks["b0.png"], two, age | {"value": {"number": 42}})
    annotate(tasks["b1.png"], one, age | {"value": {"number": 7.5}})
    annotate(tasks["b2.png"], one, was_cancelled=True)
    annotate(tasks["b2.png"], two, was_cancelled=True)
    annotate(tasks["b3.png"], one, choice("label", "image", "red", "blue"))
    annotate(tasks["b3.png"], two, choice("label", "image", "blue", "red"))
    annotate(tasks["b4.png"], one, stars)
    export(call, project, "answers")


def main(url, token, only=None):
    person = Person(url, token)
    call = person.call
    users = {user["email"]: user["id"] for user in call("GET", "/api/users")}
    if "two@skal.test" not in users:
        call("POST", "/api/users", {"email": "two@skal.test", "username": "two", "password": "skal-test-2"})
        users = {user["email"]: user["id"] for user in call("GET", "/api/users")}
    one, two = users["one@skal.test"], users["two@skal.test"]

    def annotate(task, who, *parts, **more):
        body = {"result": list(parts), "completed_by": who, "lead_time": 2.5} | more
        call("POST", f"/api/tasks/{task}/annotations/", body)

    if only in (None, "answers"):
        record_answers(call, one, two, annotate)
    if only == "answers":
        return
    project = call("POST", "/api/projects", {"title": "recorded pictures", "label_config": CONFIG})["id"]
    local = [{"data": {"image": f"/data/local-files/?d=a{i}.png"}} for i in range(2)]
    away = [{"data": {"image": f"https://pictures.skal.test/b{i}.png"}} for i in range(2)]
    call("POST", f"/api/projects/{project}/import", [*local, *away])
    person.upload(project, {"up0.png": picture("red")})
    person.upload(project, {"up1.png": picture("blue")})
    tasks = [task["id"] for task in call("GET", f"/api/tasks?project={project}&page_size=100")["tasks"]]

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
    main(*sys.argv[1:])
