"""Which weights and noise the look-ahead's variance criterion should have for kernels on features.

``python -m benchmarks.variance_forms run --out FOLDER [--seeds N] [--quick]`` runs what is not in the folder yet;
``python -m benchmarks.variance_forms table --out FOLDER`` prints the tables. Two forms are compared, each with two
radii of the rbf kernel, on development seeds that no other study uses. ``$SKAL_DATA_HOME`` says where the data sets
are; those that are not there are left out.

- ``newton``: weights ``g = 1 − ‖p‖²`` on both sides, noise ρ = 0.01 in the conditioning, 1/τ in the denominator;
- ``margin``: weights ``m = 1 − (p₁ − p₂)``, noise ``ρ/h`` with ``h = max(m, 0.01)`` and ρ = 0.1 in both places.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._measure import markdown
from skal.datasets import available, load
from skal.strategies import Margin, UHerding
from skal.strategies._similarity import nearest_distances

FIRST_SEED = 1000  # development seeds: the studies count from 0
CANDIDATES, EVALUATION = 3000, 1500
# name -> (first labels, labels per round, rounds)
SETTINGS = {
    "digits": (20, 20, 8),
    "cifar10_features": (20, 20, 8),
    "banking77": (77, 77, 6),
    "mnist": (20, 20, 8),
    "clusters": (10, 10, 8),
}
FORMS = {
    f"{form}, {radius}": (form, radius) for form in ("newton", "margin") for radius in ("radius 1", "median radius")
}
METHODS = ["random", "margin", "uherding", *FORMS]


def variance_batch(K: np.ndarray, n: int, evaluation: np.ndarray, p: np.ndarray, b: int, form: str) -> np.ndarray:
    """Greedy batch from the dense kernel of n labelled samples and N candidates after them; p is (N, C)."""
    first, second = np.sort(p, axis=1)[:, :-3:-1].T
    if form == "newton":
        logits = np.log(np.maximum(p, 1e-300))
        tau = np.square(logits - logits.mean(1, keepdims=True)).mean()
        weight = h = 1 - np.square(p).sum(1)
        start, noise, denominator = 0.01, np.full(len(p), 0.01), lambda own: 1 + tau * h * own
    else:
        weight = 1 - (first - second)
        h = np.maximum(weight, 0.01)
        start, noise, denominator = 0.1, 0.1 / h, lambda own: 0.1 + h * own
    S = K[n:, n:] - K[n:, :n] @ np.linalg.solve(K[:n, :n] + start * np.eye(n), K[:n, n:])
    picked: list[int] = []
    for _ in range(b):
        scores = h * (np.square(S[:, evaluation]) @ weight[evaluation]) / denominator(S.diagonal())
        scores[picked] = -np.inf
        j = int(scores.argmax())
        picked.append(j)
        S -= np.outer(S[:, j], S[:, j]) / (S[j, j] + noise[j])
    return np.array(picked)


def rbf(X: np.ndarray, n: int, radius: str) -> np.ndarray:
    """Kernel of all rows, scaled to length 1; the radius may depend on the first n, the labelled ones."""
    X = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-300)
    sigma = float(nearest_distances(torch.as_tensor(X[:n])).median()) if radius == "median radius" else 1.0
    squares = np.square(X).sum(1)
    return np.exp(-np.maximum(squares[:, None] + squares - 2 * X @ X.T, 0) / sigma**2)


def make_data(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(X_train, y_train, X_test, y_test) with rows that are vectors."""
    if name == "clusters":
        rng = np.random.default_rng(0)
        weights = rng.dirichlet(np.ones(30))  # clusters of very different sizes, three for each of ten classes
        part = rng.choice(30, size=6000, p=weights)
        X = rng.normal(size=(30, 20))[part] + 0.6 * rng.normal(size=(6000, 20))
        return X[:4000], part[:4000] % 10, X[4000:], part[4000:] % 10
    bunch = load(name)
    X, test = (array.reshape(len(array), -1).astype(np.float64) for array in (bunch.X_train, bunch.X_test))
    return X, bunch.y_train, test, bunch.y_test


def choose(method: str, learner: Any, X: np.ndarray, b: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of the candidates X."""
    if method == "random":
        return rng.choice(len(X), size=b, replace=False)
    if method in ("margin", "uherding"):
        return (Margin() if method == "margin" else UHerding(random_state=0)).select(learner, X, b)[0]
    form, radius = FORMS[method]
    n = len(learner.X_training)
    K = rbf(np.concatenate([learner.X_training, X]), n, radius)
    evaluation = rng.permutation(len(X))[:EVALUATION]
    return variance_batch(K, n, evaluation, learner.estimator.predict_proba(X), b, form)


def run(name: str, method: str, seed: int, quick: bool) -> list[float]:
    """Test accuracies, one for each round."""
    X, y, X_test, y_test = make_data(name)
    n, b, rounds = SETTINGS[name]
    rounds = 1 if quick else rounds
    order = np.random.default_rng(seed).permutation(len(X))
    labelled, rng, scores = order[:n].tolist(), np.random.default_rng([seed, 1]), []
    for number in range(rounds + 1):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=300))
        model.fit(X[labelled], y[labelled])
        scores.append(float(model.score(X_test, y_test)))
        if number == rounds:
            break
        others = np.setdiff1d(order, labelled)
        rows = rng.permutation(others)[: 300 if quick else CANDIDATES]
        learner = SimpleNamespace(estimator=model, X_training=X[labelled], y_training=y[labelled])
        labelled += rows[choose(method, learner, X[rows], b, rng)].tolist()
    return scores


def run_all(folder: Path, seeds: int, quick: bool) -> None:
    """One file per run; those that exist are not run again."""
    folder.mkdir(parents=True, exist_ok=True)
    known = set(available())
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for name in SETTINGS:
            if name != "clusters" and name not in known:
                print(f"{name} is not in $SKAL_DATA_HOME", file=sys.stderr)
                continue
            for method in METHODS:
                path = folder / f"{name}-{method.replace(', ', '-').replace(' ', '_')}-{seed}.json"
                if not path.exists():
                    result = {"setting": name, "method": method, "seed": seed, "scores": run(name, method, seed, quick)}
                    path.write_text(json.dumps(result))


def table(folder: Path) -> str:
    """Mean accuracy after the first labels: differences to Random in points, mean ± standard deviation over seeds."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    means = {(r["setting"], r["method"], r["seed"]): 100 * float(np.mean(r["scores"][1:])) for r in results}
    rows: list[list[object]] = []
    for name in SETTINGS:
        seeds = sorted({s for setting, _, s in means if setting == name})
        seeds = [s for s in seeds if all((name, method, s) in means for method in METHODS)]
        if not seeds:
            continue
        row: list[object] = [f"{name} ({len(seeds)} seeds)"]
        for method in METHODS[1:]:
            gaps = [means[name, method, s] - means[name, "random", s] for s in seeds]
            row.append(f"{np.mean(gaps):+.1f} ± {np.std(gaps, ddof=1) if len(gaps) > 1 else 0:.1f}")
        rows.append(row)
    return markdown(["difference to Random, points", *METHODS[1:]], rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["run", "table"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.task == "run":
        run_all(arguments.out, arguments.seeds, arguments.quick)
    print(table(arguments.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
