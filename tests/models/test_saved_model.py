"""A model goes out by skops and safetensors, and says the same when it comes back."""

import json
import os
import pickletools
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import TensorDataset

import skal
from skal import ActiveLearningClassifier
from skal.callbacks import FreshOptimizer
from skal.exceptions import CheckpointError, InvalidTypeError, SkalWarning
from skal.features import TableFeatures, TextFeatures
from skal.loss_prediction import LossPredictionClassifier
from skal.nets import MLP, SquaredLoss
from skal.semi_supervised import FixMatchClassifier
from skal.stopping import HoldOut

from ..support.small_disk import files_up_to

NAMES = np.array(["cow", "ant", "bee"])
ESTIMATORS = {
    "network": lambda make: make(),
    "spare outputs": lambda make: make(n_classes=5),
    "callback": lambda make: make(callbacks=[FreshOptimizer()], optimizer=torch.optim.Adam),
    "class weights": lambda make: make(criterion__weight=torch.tensor([1.0, 2.0, 3.0])),
    "squared loss": lambda make: make(criterion=SquaredLoss),
    "pipeline": lambda make: make_pipeline(StandardScaler(), PCA(3), make(n_features=3)),
    "voting": lambda make: VotingClassifier([("net", make()), ("linear", LogisticRegression())], voting="soft"),
    "linear": lambda make: LogisticRegression(),
    "linear pipeline": lambda make: make_pipeline(KNNImputer(), StandardScaler(), LogisticRegression()),
    "forest": lambda make: RandomForestClassifier(5),
    "histogram": lambda make: HistGradientBoostingClassifier(max_iter=5),
    "boosting": lambda make: GradientBoostingClassifier(n_estimators=3),
    "ada": lambda make: AdaBoostClassifier(n_estimators=3),
    "vectors": lambda make: SVC(),
    "calibrated": lambda make: CalibratedClassifierCV(SVC(), cv=2, ensemble=False),
    "bayes": lambda make: GaussianNB(),
    "sgd": lambda make: SGDClassifier(loss="log_loss"),
    "perceptron": lambda make: MLPClassifier((4,), max_iter=5),
}


def fit(estimator, X, y, **settings):
    settings = {"n_initial": 24, "n_rounds": 0, "initial": "random", "random_state": 0} | settings
    return ActiveLearningClassifier(estimator, **settings).fit(X, y)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_what_is_loaded_says_the_same(kind, make_net, flat_data, tmp_path):
    X, y = flat_data
    y = y if kind in ("network", "linear") else NAMES[y]
    loop = fit(ESTIMATORS[kind](make_net), X, y)
    loop.save_model(tmp_path / "model")
    model = skal.load_model(tmp_path / "model")
    if hasattr(loop.estimator_, "predict_proba"):
        np.testing.assert_array_equal(model.predict_proba(X), loop.predict_proba(X))
    np.testing.assert_array_equal(model.predict(X), loop.predict(X))
    assert model.classes_.tolist() == loop.classes_.tolist()
    assert model.classes_.dtype == loop.classes_.dtype
    assert is_classifier(model)
    assert clone(model).fit(X, y).score(X, y) == loop.score(X, y)
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, :2])


def test_tables_keep_their_columns(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(50, 15, 90), "job": rng.choice(["nurse", "clerk", "smith"], 90)})
    table.loc[::9, "age"] = np.nan
    answers = np.where((table["age"].fillna(50) > 50) ^ (table["job"] == "smith"), "yes", "no")
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = make_column_transformer((numbers, ["age"]), (OneHotEncoder(handle_unknown="ignore"), ["job"]))
    for head in (LogisticRegression(), RandomForestClassifier(5)):
        loop = fit(make_pipeline(columns, head), table, answers)
        loop.save_model(tmp_path)
        model = skal.load_model(tmp_path)
        np.testing.assert_array_equal(model.predict_proba(table[["age", "job"]]), loop.predict_proba(table))
        assert model.card_["takes"] == "a data frame with the columns age, job"
        assert model.feature_names_in_.tolist() == ["age", "job"]
        with pytest.raises(ValueError, match="feature names"):
            model.predict(table.rename(columns={"age": "years"}))


def test_raw_tables_and_texts(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(50, 15, 90), "job": rng.choice(["nurse", "clerk", "smith"], 90)})
    table["day"] = pd.date_range("2020", periods=90, freq="D")
    table.loc[::9, "age"] = np.nan
    answers = np.where(table["age"].fillna(50) > 50, "yes", "no")
    texts = [f"{'good' if answer == 'yes' else 'bad'} film {i}" for i, answer in enumerate(answers)]
    for features, X in ((TableFeatures(), table), (TextFeatures(model="tfidf"), texts)):
        loop = fit(make_pipeline(features, LogisticRegression()), X, answers)
        loop.save_model(tmp_path)
        np.testing.assert_array_equal(skal.load_model(tmp_path).predict_proba(X), loop.predict_proba(X))


def test_datasets_texts_and_networks_that_must_see_samples(flat_data, make_net, tmp_path):
    X, y = flat_data
    data = TensorDataset(torch.from_numpy(X))
    loop = fit(make_net(), data, y)
    loop.save_model(tmp_path)
    np.testing.assert_array_equal(skal.load_model(tmp_path).predict(X), loop.predict(data))
    texts = np.array([f"word{label} thing{i % 7}" for i, label in enumerate(y)])
    loop = fit(make_pipeline(TfidfVectorizer(), LogisticRegression()), texts, y)
    loop.save_model(tmp_path)
    np.testing.assert_array_equal(skal.load_model(tmp_path).predict_proba(texts), loop.predict_proba(texts))
    settings = {"module__n_features": 5, "module__n_classes": 3, "max_epochs": 2, "train_split": None, "verbose": 0}
    for kind in (LossPredictionClassifier, FixMatchClassifier):
        own = {"augment": "tabular"} if kind is FixMatchClassifier else {}
        loop = fit(kind(MLP, criterion=nn.CrossEntropyLoss, **settings, **own), X, y)
        loop.save_model(tmp_path)
        np.testing.assert_array_equal(skal.load_model(tmp_path).predict_proba(X), loop.predict_proba(X))


def test_what_computed_the_features_is_saved_in_front(flat_data, tmp_path):
    texts = [f"word{label} thing{i % 7}" for i, label in enumerate(flat_data[1])]
    words = TfidfVectorizer().fit(texts)
    loop = fit(LogisticRegression(), words.transform(texts).toarray(), NAMES[flat_data[1]])
    loop.save_model(tmp_path, features=make_pipeline(words, FunctionTransformer(np.asarray)))
    with pytest.raises(CheckpointError, match=r"numpy.*asarray"):  # harmless, but nobody has allowed it
        skal.load_model(tmp_path)
    with pytest.raises(InvalidTypeError, match="'features' parameter of save_model"):
        loop.save_model(tmp_path, features=len)
    loop.save_model(tmp_path, features=words)
    model = skal.load_model(tmp_path)
    assert model.predict(["word0 thing1", "word2"]).tolist() == ["cow", "bee"]
    assert model.card_["features"] == "TfidfVectorizer"


def test_the_card_says_what_the_model_was_trained_on_and_how_good_it_is(flat_data, tmp_path):
    X, y = flat_data
    loop = fit(LogisticRegression(), X, NAMES[y], n_rounds=2, stop=HoldOut(0.3), query_size=10)
    loop.save_model(tmp_path)
    card = skal.load_model(tmp_path).card_
    n_heldout = card["found"]["heldout"]["labels"]
    assert card["trained_on"]["labels"] == len(loop.queried_) - n_heldout
    assert sum(card["trained_on"]["by_class"].values()) == card["trained_on"]["labels"]
    assert card["found"]["heldout"]["accuracy"] == loop.history_[-1]["heldout_score"]
    assert card["found"]["heldout"]["low"] < card["found"]["heldout"]["accuracy"]
    assert card["takes"] == "an array of shape (n, 5) and type float32"
    assert set(card["versions"]) == {"skal", "scikit-learn", "skorch", "torch", "skops", "numpy"}
    assert card["versions"]["torch"] == torch.__version__
    assert json.loads((tmp_path / "model.json").read_text()) == card


def test_another_process_needs_nothing_but_the_folder(flat_data, make_net, tmp_path):
    X, y = flat_data
    loop = fit(make_pipeline(StandardScaler(), make_net()), X, NAMES[y])
    loop.save_model(tmp_path)
    np.save(tmp_path / "X.npy", X)
    script = (
        "import sys, numpy, skal\n"
        "for name in ('starlette', 'uvicorn', 'anywidget', 'PIL'): sys.modules[name] = None\n"
        "print(*skal.load_model(sys.argv[1]).predict(numpy.load(sys.argv[2])))\n"
        "assert not [name for name in sys.modules if name.startswith('skal.labelling')]"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path, tmp_path / "X.npy"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == loop.predict(X).tolist()
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it, it is no pickle
            list(pickletools.genops(path.read_bytes()))


class Own(nn.Linear):
    pass


class Outer:
    class Net(nn.Linear):
        pass


def own_net(module, **params):
    settings = {"criterion": nn.CrossEntropyLoss, "train_split": None, "verbose": 0, "max_epochs": 1}
    sizes = {} if isinstance(module, nn.Module) else {"module__in_features": 5, "module__out_features": 3}
    return NeuralNetClassifier(module, **(settings | sizes | params))


@pytest.mark.parametrize("kind", ["instance", "lambda", "local", "nested", "function"])
def test_what_cannot_be_saved_is_refused_by_name(kind, flat_data, tmp_path):
    X, y = flat_data

    class Local(nn.Linear):
        pass

    estimator, message = {
        "instance": (own_net(nn.Linear(5, 3)), r"module = .*Give the net the class"),
        "lambda": (own_net(nn.Linear, predict_nonlinearity=lambda x: x), r"<lambda>.*can be imported"),
        "local": (own_net(Local), r"test_saved_model\.Local\. Define it at the top"),
        "nested": (own_net(Outer.Net), r"test_saved_model\.Net\. Define it at the top"),
        "function": (
            make_pipeline(FunctionTransformer(lambda X: X), LogisticRegression()),
            r"<lambda>.*can be imported",
        ),
    }[kind]
    with pytest.raises(InvalidTypeError, match=message):
        fit(estimator, X, y).save_model(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_class_of_ones_own_must_be_trusted_by_name(flat_data, tmp_path, monkeypatch):
    X, y = flat_data
    package = tmp_path / "packages"
    package.mkdir()
    source = "import pathlib\nfrom torch import nn\npathlib.Path(__file__).with_name('ran').touch()\n"
    (package / "skal_test_own_net.py").write_text(f"{source}class OwnNet(nn.Linear): pass\n")
    monkeypatch.syspath_prepend(package)
    import skal_test_own_net

    loop = fit(own_net(skal_test_own_net.OwnNet), X, y)
    loop.save_model(tmp_path / "model")
    name = "skal_test_own_net.OwnNet"
    assert json.loads((tmp_path / "model" / "model.json").read_text())["needs_trust"] == [name]
    del sys.modules["skal_test_own_net"]
    (package / "ran").unlink()
    with pytest.raises(CheckpointError, match=rf"skal_test_own_net\.OwnNet.*trusted=\['{name}'\]"):
        skal.load_model(tmp_path / "model")
    assert not (package / "ran").exists()
    np.testing.assert_array_equal(skal.load_model(tmp_path / "model", trusted=[name]).predict(X), loop.predict(X))
    assert (package / "ran").exists()
    cls = sys.modules["skal_test_own_net"].OwnNet
    np.testing.assert_array_equal(skal.load_model(tmp_path / "model", trusted=[cls]).predict(X), loop.predict(X))
    for wrong in (3, [3], name):
        with pytest.raises(InvalidTypeError, match="'trusted' parameter of load_model"):
            skal.load_model(tmp_path / "model", trusted=wrong)


def test_neighbours_need_trust_because_their_trees_cannot_be_checked(flat_data, tmp_path):
    X, y = flat_data
    loop = fit(KNeighborsClassifier(3), X, y)
    loop.save_model(tmp_path)
    with pytest.raises(CheckpointError, match="KDTree"):
        skal.load_model(tmp_path)
    names = json.loads((tmp_path / "model.json").read_text())["needs_trust"]
    np.testing.assert_array_equal(skal.load_model(tmp_path, trusted=names).predict(X), loop.predict(X))


def test_a_model_is_replaced_as_a_whole(flat_data, tmp_path):
    X, y = flat_data
    fit(LogisticRegression(), X, y).save_model(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "model.json.new").symlink_to(victim)
    fit(LogisticRegression(C=0.1), X, y).save_model(tmp_path)
    after = {path.name for path in tmp_path.iterdir()} - {"victim"}
    assert victim.read_text() == "mine"
    assert before & after == {"model.json"}
    assert len(after) == 2
    assert skal.load_model(tmp_path).estimator_.C == 0.1


def test_a_model_that_the_disk_does_not_take_leaves_the_earlier_one_and_no_half(flat_data, tmp_path):
    """Half a model would take the last room of a disk, and labels need some."""
    X, y = flat_data
    fit(LogisticRegression(), X, y).save_model(tmp_path)
    before = sorted(tmp_path.iterdir())
    with files_up_to(2000), pytest.raises(CheckpointError, match=r"must be written to .* File too large\. Make room"):
        fit(LogisticRegression(C=0.1), X, y).save_model(tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    assert skal.load_model(tmp_path).estimator_.C == 1


def test_a_model_that_is_being_replaced_can_be_read(flat_data, tmp_path):
    loops = [fit(LogisticRegression(C=strength), *flat_data) for strength in (0.1, 1.0)]
    loops[0].save_model(tmp_path)
    done = threading.Event()

    def replace():
        while not done.is_set():
            for loop in loops:
                loop.save_model(tmp_path)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        found = {skal.load_model(tmp_path).estimator_.C for _ in range(20)}
    finally:
        done.set()
        thread.join()
    assert found <= {0.1, 1.0}


def test_folders_that_are_no_models(tmp_path, flat_data):
    with pytest.raises(CheckpointError, match="written by save_model"):
        skal.load_model(tmp_path)
    loop = fit(LogisticRegression(), *flat_data)
    loop.save_model(tmp_path)
    text = (tmp_path / "model.json").read_text()
    for old, new, message in [
        ('"format": 3', '"format": 9', "of format 3. Got 9"),
        ('"estimator-', '"../estimator-', "must have the file"),
        ('"files": [', '"files": ["', "JSONDecodeError"),
        (text, "[" * 100_000, "RecursionError"),
        (text, json.dumps(json.loads(text) | {"versions": 3}), "written by save_model. Got TypeError"),
        (text, json.dumps(json.loads(text) | {"versions": "1.0"}), "written by save_model. Got ValueError"),
    ]:
        (tmp_path / "model.json").write_text(text.replace(old, new))
        with pytest.raises(CheckpointError, match=message):
            skal.load_model(tmp_path)
    (tmp_path / "model.json").unlink()
    os.mkfifo(tmp_path / "model.json")
    with pytest.raises(CheckpointError, match="no regular file"):
        skal.load_model(tmp_path)
    (tmp_path / "model.json").unlink()
    (tmp_path / "model.json").write_text(text)
    (part,) = tmp_path.glob("estimator-*")
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(CheckpointError, match="must have the file estimator-"):
        skal.load_model(tmp_path)
    with pytest.raises(ValueError, match="not fitted"):
        ActiveLearningClassifier(LogisticRegression()).save_model(tmp_path)


PEER = Path(sys.prefix) / "peers" / "scikit-learn-1.6"


@pytest.mark.skipif(not PEER.exists(), reason="make test installs an older scikit-learn beside the environment")
def test_a_model_of_an_older_scikit_learn_is_loaded_with_a_warning(flat_data, tmp_path):
    X, y = flat_data
    np.savez(tmp_path / "data.npz", X=X, y=NAMES[y])
    script = (
        "import sys, numpy as np, skal, sklearn\n"
        "from sklearn.linear_model import LogisticRegression\n"
        "data = np.load(sys.argv[1] + '/data.npz')\n"
        "loop = skal.ActiveLearningClassifier(LogisticRegression(), n_initial=24, n_rounds=0, random_state=0)\n"
        "loop.fit(data['X'], data['y']).save_model(sys.argv[1] + '/model')\n"
        "print(sklearn.__version__, *loop.predict(data['X']))"
    )
    path = os.pathsep.join([str(PEER), str(Path(skal.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    version, *predictions = done.stdout.split()
    assert version.startswith("1.6")
    import sklearn

    with pytest.warns(SkalWarning, match=rf"scikit-learn {version} \(installed: {sklearn.__version__}\)") as warned:
        model = skal.load_model(tmp_path / "model")
    assert len(warned) == 1
    assert model.predict(X).tolist() == predictions
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    card["versions"] |= {"skorch": "0.9.0", "scikit-learn": sklearn.__version__}
    (tmp_path / "model" / "model.json").write_text(json.dumps(card))
    with pytest.warns(SkalWarning, match=r"skorch 0\.9\.0 \(installed: 1"):
        skal.load_model(tmp_path / "model")
