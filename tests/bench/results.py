"""Results without runs: whatever is computed from scores can be tested on scores that are made up."""

import numpy as np

from skal.bench import BenchmarkResult, Protocol, Run


def make_result(scores, names=None, *, query_size=20, **settings):
    """A result from (strategy, seed, budget) scores; strategy k queries the positions k, k + 1, … after the start."""
    scores = np.asarray(scores, dtype=float)
    names = names or ["random", *(f"s{k}" for k in range(1, len(scores)))]
    protocol = Protocol(
        strategies=tuple(names), seeds=scores.shape[1], n_rounds=scores.shape[2] - 1, query_size=query_size, **settings
    )
    runs = [
        Run(
            strategy=name,
            seed=seed,
            n_labels=protocol.n_labels,
            scores=scores[k, seed].tolist(),
            train_scores=[1.0] * scores.shape[2],
            initial=list(range(1000, 1020)),
            queried=[list(range(k + r * query_size, k + (r + 1) * query_size)) for r in range(protocol.n_rounds)],
            seconds_fit=[0.5] * scores.shape[2],
            seconds_query=[0.1 * (k + 1)] * protocol.n_rounds,
            warnings=[],
            record={"strategy": f"{name}()", "versions": {"skal": "0"}},
        )
        for k, name in enumerate(names)
        for seed in range(scores.shape[1])
    ]
    return BenchmarkResult(protocol, runs, {"n_classes": 10})
