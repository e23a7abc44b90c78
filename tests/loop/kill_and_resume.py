"""Kill a run at 12 random moments, resume it each time, and compare it with one that nobody disturbed.

Run it in a process of its own: it forks, so that a resumed run does not have to import everything again, and a process
that has started threads must not fork.
"""

import os
import random
import signal
import sys
import tempfile
import time
import warnings

import numpy as np
import torch
from skorch import NeuralNetClassifier

from skal import ActiveLearningClassifier
from skal.nets import MLP
from skal.strategies import ALBL

N_KILLS = 12


def data():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 3
    X = rng.normal(size=(200, 5)).astype(np.float32)
    X[np.arange(200), y] += 1.5
    return X, y


def fit(folder=None):
    net = NeuralNetClassifier(
        MLP,
        module__n_features=5,
        module__n_classes=3,
        module__hidden=(16,),
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        max_epochs=3,
        batch_size=8,
        train_split=None,
        verbose=0,
    )
    loop = ActiveLearningClassifier(
        net, ALBL(uniform=True), n_initial=6, query_size=2, n_rounds=20, checkpoint=folder, random_state=0
    )
    return loop.fit(*data())


def result(loop):
    """Everything but the times."""
    history = [{name: value for name, value in row.items() if "seconds" not in name} for row in loop.history_]
    net = loop.estimator_
    tensors = [net.module_.state_dict(), net.optimizer_.state_dict()]
    return loop.queried_.tolist(), history, loop.query_strategy_.get_state(), exact(tensors)


def exact(tree):
    if isinstance(tree, dict):
        return [exact(value) for value in tree.values()]
    if isinstance(tree, (list, tuple)):
        return [exact(value) for value in tree]
    return tree.numpy().tobytes() if isinstance(tree, torch.Tensor) else tree


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    moments = random.Random(0)
    whole = result(fit())  # the first one imports what torch puts off
    started = time.perf_counter()
    assert result(fit()) == whole
    duration = time.perf_counter() - started
    kills = runs = 0
    with tempfile.TemporaryDirectory() as parent:
        while kills < N_KILLS:
            folder = os.path.join(parent, str(runs))
            child = os.fork()
            if child == 0:
                fit(folder)
                os._exit(0)
            time.sleep(moments.uniform(0, 2 * duration / N_KILLS))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            kills += os.WIFSIGNALED(status)
            if not os.WIFSIGNALED(status):  # it was done already: kill another one
                assert result(fit(folder)) == whole
                runs += 1
        resumed = result(fit(folder))
    if resumed != whole:
        sys.exit("the resumed run differs")
    print(f"equal after {kills} kills in a run of {duration:.1f} s")


if __name__ == "__main__":
    main()
