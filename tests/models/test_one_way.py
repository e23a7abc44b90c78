"""A checkpoint, the page and save_model keep what was learnt in one way."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skal
from skal.models._network_file import unpack_network
from tests.labelling.conftest import digits_page, truth, wait_for_training

SKAL = Path(skal.__file__).parent
# what would be another way, and where it may stand: benchmarks and data sets keep no models
WAYS = {
    r"safetensors\.torch": ["models/_network_file.py"],
    r"skops\.io": ["models/_allowed.py", "models/_persist.py"],
    r"\bwrite_model\(": ["loop/_active_loop.py", "models/_saved_model.py"],
    r"\.save_model\(": ["labelling/_worker.py"],
    r"torch\.save|pickle\.dump\(|joblib\.dump|save_params|\.save_pretrained": [],
    r"torch\.load\(": ["features/_zoo.py"],  # weights of others, and weights_only
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_one_place(way):
    code = {path.relative_to(SKAL).as_posix(): path.read_text("utf-8") for path in SKAL.rglob("*.py")}
    without_examples = {name: re.sub(r'"""(.|\n)*?"""', "", text) for name, text in code.items()}
    assert [name for name, text in sorted(without_examples.items()) if re.search(way, text)] == WAYS[way]


def network_in(folder):
    (path,) = folder.glob("network-*.safetensors")
    return unpack_network(path.name, path.read_bytes())


def test_a_checkpoint_and_a_model_have_the_same_kind_of_network(make_net, flat_data, tmp_path):
    X, y = flat_data
    estimator = make_pipeline(StandardScaler(), make_net())
    loop = skal.ActiveLearningClassifier(estimator, n_initial=24, n_rounds=1, checkpoint=tmp_path, random_state=0)
    loop.fit(X, y).save_model(tmp_path / "model")
    checkpoint, model = network_in(tmp_path / "cache"), network_in(tmp_path / "model")
    assert checkpoint.keys() == model.keys()
    assert checkpoint["modules"].keys() == model["modules"].keys()
    for name, weights in checkpoint["modules"].items():
        assert all(torch.equal(weights[key], model["modules"][name][key]) for key in weights)
    assert checkpoint["optimizers"]["optimizer"]["param_groups"]
    assert model["optimizers"] == {}  # for training alone


@pytest.mark.parametrize("model", ["network", "linear"])
def test_the_page_saves_what_save_model_saves(model, tmp_path):
    with digits_page(tmp_path / "out", n=60, model=model, share=0) as client:
        wait_for_training(client, rounds=0)
        for _ in range(10):
            (item,) = client.call("next", n=1)["items"]
            client.call("answer", id=item["id"], label=truth(item["id"]))
        wait_for_training(client, rounds=1)
    kept = skal.load_model(tmp_path / "out")
    client.result.model.save_model(tmp_path / "again", features=kept.features_)
    again = skal.load_model(tmp_path / "again")
    networks = [[name for name in each.card_["files"] if name.startswith("network-")] for each in (kept, again)]
    assert networks[0] == networks[1]  # their names have the digests of their contents
    assert len(networks[0]) == (model == "network")
    assert {**kept.card_, "saved": None, "files": None} == {**again.card_, "saved": None, "files": None}
    samples = np.zeros((1, 8, 8))
    np.testing.assert_array_equal(kept.predict_proba(samples), again.predict_proba(samples))
