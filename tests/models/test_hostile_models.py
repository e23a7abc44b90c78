"""Files that were made to do harm: refused and named, before anything of them is imported, made or run."""

import hashlib
import io
import json
import os
import pickle
import sys
import zipfile

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from skops.io import dumps
from skorch import NeuralNetClassifier

import skal
from skal import ActiveLearningClassifier
from skal.exceptions import CheckpointError
from skal.features import PretrainedFeatures


@pytest.fixture
def folder(flat_data, tmp_path):
    """A model that is in order."""
    loop = ActiveLearningClassifier(LogisticRegression(), n_initial=24, n_rounds=0, random_state=0)
    loop.fit(*flat_data).save_model(tmp_path / "model")
    return tmp_path / "model"


def plant(folder, data):
    """Put another estimator into a model, with names and digests that are right."""
    for path in folder.glob("estimator-*"):
        path.unlink()
    name = f"estimator-{hashlib.blake2b(data, digest_size=16).hexdigest()}.skops"
    (folder / name).write_bytes(data)
    card = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(card | {"files": [name, *card["files"][1:]]}))


def content(folder):
    """The files within the estimator's archive."""
    (path,) = folder.glob("estimator-*")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive(files, compression=zipfile.ZIP_STORED):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as out:
        for name, data in files.items():
            out.writestr(name, data)
    return target.getvalue()


def with_part(folder, node):
    """The archive, with a node in the place of the loop's attributes."""
    files = content(folder)
    schema = json.loads(files["schema.json"])
    schema["content"]["seen"] = node
    return archive(files | {"schema.json": json.dumps(schema)})


def node(loader, name, **more):
    module, _, attribute = name.rpartition(".")
    return {"__loader__": loader, "__module__": module, "__class__": attribute, **more}


def value(thing):
    """What skops writes for a plain value."""
    with zipfile.ZipFile(io.BytesIO(dumps(thing))) as dumped:
        return json.loads(dumped.read("schema.json"))


def commands(marker):
    """Ways to run a command that would leave a file behind."""
    words = ["touch", str(marker)]
    attributes = value({"args": 1})
    return {
        "constructor": (
            "subprocess.Popen",
            node("ConstructorFromReduceNode", "subprocess.Popen", content=value((words,))),
        ),
        "object": ("subprocess.Popen", node("ObjectNode", "subprocess.Popen", content=attributes)),
        "class": ("subprocess.Popen", node("TypeNode", "subprocess.Popen")),
        "function": ("posix.system", node("FunctionNode", "posix.system")),
        "partial": (
            "posix.system",
            node(
                "PartialNode",
                "functools.partial",
                content={
                    "func": node("FunctionNode", "posix.system"),
                    "args": value((f"touch {marker}",)),
                    "kwds": value({}),
                    "namespace": value(None),
                },
            ),
        ),
        "keys": (
            "subprocess.Popen",
            node(
                "DictNode",
                "builtins.dict",
                content={f"touch {marker}": value(1)},
                key_types=node("ListNode", "builtins.list", content=[node("TypeNode", "subprocess.Popen")]),
            ),
        ),
        "loss": (
            "subprocess.Popen",
            node("LossNode", "subprocess.Popen", content=value({}), __reduce__={"args": value((words,))}),
        ),
        "attribute of a module on the list": (
            "skorch.net.pickle.loads",
            node("ConstructorFromReduceNode", "skorch.net.pickle.loads", content=value(("",))),
        ),
        "function of skal that runs files": (
            "skal.cli.main",
            node("ConstructorFromReduceNode", "skal.cli.main", content=value((["demo"],))),
        ),
    }


@pytest.mark.parametrize("way", commands(""))
def test_commands_are_refused_and_named(way, folder, tmp_path):
    name, part = commands(tmp_path / "ran")[way]
    plant(folder, with_part(folder, part))
    with pytest.raises(CheckpointError, match=rf"Got .*{name}.* in .*trusted=\[.*{name}"):
        skal.load_model(folder)
    assert not (tmp_path / "ran").exists()


def test_a_module_that_nobody_allowed_is_not_even_imported(folder, tmp_path, monkeypatch):
    (tmp_path / "skal_test_trap.py").write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    for loader in ("TypeNode", "ObjectNode", "FunctionNode"):
        plant(folder, with_part(folder, node(loader, "skal_test_trap.Thing")))
        with pytest.raises(CheckpointError, match="skal_test_trap"):
            skal.load_model(folder)
    assert "skal_test_trap" not in sys.modules
    assert not (tmp_path / "ran").exists()


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("trusted", [(), ("skorch.classifier.NeuralNetClassifier",)], ids=["plain", "trusted"])
def test_a_net_that_brings_a_pickle_is_refused_even_if_its_class_is_allowed(trusted, folder, tmp_path):
    payload = pickle.dumps({"module_": Touch(str(tmp_path / "ran"))})
    state = {"device": "cpu", "__cuda_dependent_attributes__": payload}
    with zipfile.ZipFile(io.BytesIO(dumps(state))) as dumped:
        files = {name: dumped.read(name) for name in dumped.namelist()}
    attributes = json.loads(files.pop("schema.json"))
    bad = node("ObjectNode", "skorch.classifier.NeuralNetClassifier", content=attributes)
    ours = content(folder)
    schema = json.loads(ours["schema.json"])
    schema["content"]["seen"] = bad
    plant(folder, archive(ours | files | {"schema.json": json.dumps(schema)}))
    with pytest.raises(CheckpointError, match=r"an object of skorch\.classifier\.NeuralNetClassifier.*unpickled"):
        skal.load_model(folder, trusted=trusted)
    assert not (tmp_path / "ran").exists()
    NeuralNetClassifier.__new__(NeuralNetClassifier).__setstate__(state)  # this is what it would have done
    assert (tmp_path / "ran").exists()


def test_changed_files_are_refused(flat_data, make_net, tmp_path):
    loop = ActiveLearningClassifier(make_net(), n_initial=24, n_rounds=0, random_state=0).fit(*flat_data)
    loop.save_model(tmp_path)
    for kind in ("network", "estimator"):
        (path,) = tmp_path.glob(f"{kind}-*")
        data = path.read_bytes()
        where = len(data) - 5 if kind == "network" else data.index(b"\x93NUMPY") + 140
        path.write_bytes(data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :])
        with pytest.raises(CheckpointError, match=rf"{kind}-.*whose content has changed"):
            skal.load_model(tmp_path)
        path.write_bytes(data)
    (path,) = tmp_path.glob("network-*")
    path.unlink()
    with pytest.raises(CheckpointError, match="must have the file network-"):
        skal.load_model(tmp_path)


def test_bombs_are_refused(folder):
    files = content(folder)
    plant(folder, archive(files | {"zeros.npy": bytes(10**7)}, zipfile.ZIP_DEFLATED))
    with pytest.raises(CheckpointError, match=r"no larger in memory.*compressed parts"):
        skal.load_model(folder)
    schema = json.loads(files["schema.json"])
    array = next(name for name in files if name.endswith(".npy"))
    again = node("NdArrayNode", "numpy.ndarray", type="numpy", file=array)
    schema["content"]["seen"] = node("ListNode", "builtins.list", content=[again] * 5000)
    array_data = files[array] + bytes(10**6)
    plant(folder, archive(files | {array: array_data, "schema.json": json.dumps(schema)}))
    with pytest.raises(CheckpointError, match="no larger in memory"):
        skal.load_model(folder)
    text = json.dumps(schema)[:-1] + ', "deep": ' + "[" * 50_000 + "]" * 50_000 + "}"
    plant(folder, archive(files | {"schema.json": text}))
    with pytest.raises(CheckpointError, match="RecursionError"):
        skal.load_model(folder)


@pytest.mark.parametrize(
    "estimator",
    [RandomForestClassifier(2, random_state=0), HistGradientBoostingClassifier(max_iter=2, min_samples_leaf=3)],
    ids=["forest", "histogram"],
)
@pytest.mark.parametrize("field", ["left", "right", "feature"])
def test_trees_that_lead_out_of_their_arrays_are_refused(estimator, field, flat_data, tmp_path):
    loop = ActiveLearningClassifier(estimator, n_initial=40, n_rounds=0, initial="random", random_state=0)
    loop.fit(*flat_data).save_model(tmp_path)
    files = content(tmp_path)
    changed = 0
    for name, data in files.items():
        nodes = np.load(io.BytesIO(data)) if name.endswith(".npy") else np.zeros(1)
        columns = [column for column in nodes.dtype.names or () if column.startswith(field)]
        if columns:
            nodes[columns[0]][0] = 0 if field == "left" else 10**6
            target = io.BytesIO()
            np.save(target, nodes)
            files[name], changed = target.getvalue(), changed + 1
    assert changed
    plant(tmp_path, archive(files))
    with pytest.raises(CheckpointError, match="branches and columns that are there"):
        skal.load_model(tmp_path)


def test_a_class_in_the_place_of_a_network_is_refused(flat_data, make_net, tmp_path):
    loop = ActiveLearningClassifier(make_net(), n_initial=24, n_rounds=0, random_state=0).fit(*flat_data)
    loop.save_model(tmp_path)
    files = content(tmp_path)
    text = files["schema.json"].decode()
    assert "NeuralNetClassifier" in text
    text = text.replace("skorch.classifier", "torch.nn.modules.linear").replace("NeuralNetClassifier", "Linear")
    plant(tmp_path, archive(files | {"schema.json": text}))
    with pytest.raises(CheckpointError, match="must be a skorch net"):
        skal.load_model(tmp_path)


def test_a_network_that_would_be_downloaded_must_be_trusted(flat_data, tmp_path):
    loop = ActiveLearningClassifier(LogisticRegression(), n_initial=24, n_rounds=0).fit(*flat_data)
    loop.save_model(tmp_path, features=PretrainedFeatures("efficientnet-lite0"))
    assert skal.load_model(tmp_path).card_["features"]["size"] == 224
    files, name = content(tmp_path), "timm:hf-hub:somebody/something"
    schema = files["schema.json"].replace(b"efficientnet-lite0", name.encode())
    plant(tmp_path, archive(files | {"schema.json": schema}))
    with pytest.raises(CheckpointError, match=rf"Got {name}, which would be downloaded.*trusted=\['{name}'\]"):
        skal.load_model(tmp_path)
    assert skal.load_model(tmp_path, trusted=[name]).features_.name == name
