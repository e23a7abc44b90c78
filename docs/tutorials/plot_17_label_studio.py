"""
Label Studio: labels in, what to label next out
===============================================

A team labels in Label Studio, and skal chooses what it labels next. With a server, ``skal label-studio`` does that live
(:doc:`/guide/label_studio`). Here we do it without one, by files, as you would with a server that skal cannot reach:
take the export, train on it, choose, and write the tasks to import. No server runs while this page is built, so a
function plays the team: it writes files of the form in which Label Studio exports annotations.
"""

# %%
# Tasks
# -----
# Label Studio knows a picture by its address. skal knows a sample by its id, so the address is the id here.

import json
import shutil
import tempfile
from pathlib import Path
from pprint import pprint

import matplotlib.pyplot as plt
from sklearn.linear_model import LogisticRegression

from skal import ActiveLearningClassifier
from skal.datasets import load
from skal.labelling import export_labels, import_labels

digits = load("digits")
X, X_test = (images.reshape(len(images), -1) for images in (digits.X_train, digits.X_test))
ids = [f"/data/local-files/?d=digits/{i:04d}.png" for i in range(len(X))]
place = Path(tempfile.mkdtemp())  # in a project: a folder of yours
project, exported = place / "digits", place / "export.json"

# %%
# The team
# --------
# An export is a list of tasks. Each has its ``data``, and ``annotations``: who said what, and when. This team annotates
# what it is given, and the export always holds everything that has been annotated so far. A real one has more fields,
# which skal does not need.

tasks = []


def annotate(keys):
    for key in keys:
        choice = str(digits.y_train[ids.index(key)])
        result = {"from_name": "digit", "to_name": "image", "type": "choices", "value": {"choices": [choice]}}
        said = {"completed_by": 1, "result": [result], "was_cancelled": False, "lead_time": 2.5}
        tasks.append({"id": len(tasks) + 1, "data": {"image": key}, "annotations": [said]})
    exported.write_text(json.dumps(tasks))


annotate(ids[:20])
pprint(tasks[0], width=80, sort_dicts=False)

# %%
# Labels in
# ---------
# :func:`skal.labelling.import_labels` puts the annotations into a folder, and says how many are new. ``skal import`` is
# the same on the command line. The file may be imported again at any time: labels that are there are not counted twice.

print(import_labels(project, exported))
print(import_labels(project, exported))

# %%
# What to label next, out
# -----------------------
# A loop that is started with this folder finds the labels by their ids, and trains on them. ``ask`` chooses.


def make_loop():
    model = LogisticRegression(C=100, max_iter=1000)
    return ActiveLearningClassifier(model, n_rounds=None, query_size=20, checkpoint=project, random_state=0)


loop = make_loop()
with loop.start(X, ids=ids) as session:
    chosen = [ids[i] for i in session.ask()]
print(f"{len(loop.queried_)} labels, accuracy {loop.score(X_test, digits.y_test.astype(str)):.3f}")

# %%
# Label Studio imports the choice as a file of tasks. A prediction shows what the model takes a picture for. Its score
# is the place in our order: a project whose sampling is *uncertainty sampling* hands out the lowest score first.


def write_tasks(keys):
    guesses = loop.predict(X[[ids.index(key) for key in keys]])
    new = []
    for position, (key, guess) in enumerate(zip(keys, guesses, strict=True)):
        result = {"from_name": "digit", "to_name": "image", "type": "choices", "value": {"choices": [str(guess)]}}
        prediction = {"model_version": "skal", "score": position / len(keys), "result": [result]}
        new.append({"data": {"image": key}, "predictions": [prediction]})
    (place / "next.json").write_text(json.dumps(new))
    return new


pprint(write_tasks(chosen)[0], width=80, sort_dicts=False)

# %%
# Round after round
# -----------------
# The team annotates what it was given, and the next export has that too. Between the rounds nothing of ours has to run:
# everything is in the folder.

counts, scores = [], []
for _ in range(5):
    annotate(chosen)
    import_labels(project, exported)
    loop = make_loop()
    with loop.start(X, ids=ids) as session:
        chosen = [ids[i] for i in session.ask()]
    write_tasks(chosen)
    counts.append(len(loop.queried_))
    scores.append(loop.score(X_test, digits.y_test.astype(str)))
    print(f"{counts[-1]} labels, accuracy {scores[-1]:.3f}")

figure, axes = plt.subplots(figsize=(6, 3.5))
axes.plot(counts, scores, marker="o")
axes.set(xlabel="annotations in Label Studio", ylabel="accuracy on test images")
figure.tight_layout()

# %%
# And back again
# --------------
# :func:`skal.labelling.export_labels` writes all labels as tasks with annotations, which Label Studio imports, too.

back = json.loads(export_labels(project, "label-studio"))
print(len(back), "tasks")
print(back[0]["data"], back[0]["annotations"][0]["result"][0]["value"])
shutil.rmtree(place)

# %%
# With a server that skal can reach, one command replaces all of this, and asks nobody to carry files:
# ``skal label-studio --url http://localhost:8080 --project 1 --out pets``. :doc:`/guide/label_studio` says what it
# does, which button hands out what skal has chosen, and when the page of ``skal label`` is the better choice.
