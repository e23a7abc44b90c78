"""Crowds with known errors: which prior of the reliabilities finds the right label where people differ."""

from __future__ import annotations

import numpy as np

from benchmarks._measure import markdown
from skal.loop._consensus import dawid_skene

PRIORS = (0.0, 1.0, 5.0, 20.0, 80.0, 1e9)
# (people, classes, common samples, answers to each): those that the prior is chosen on, and those that judge it
DEVELOP = [(p, c, n, 2) for p in (2, 4) for c in (2, 8) for n in (20, 200)]
JUDGE = [(p, c, n, a) for p, a in ((3, 2), (3, 3), (6, 2)) for c in (3, 20) for n in (30, 500)]
KINDS = ("even", "by class", "two careless")


def draw_crowd(kind: str, n_people: int, n_classes: int, rng: np.random.Generator) -> np.ndarray:
    """(p, C, C) how often each person says what of each true class.

    "even": errors are spread over all classes. "by class": each person knows some classes well and takes others for one
    neighbour. "two careless": all are careful but two, or one of two.
    """
    right = rng.uniform(0.6, 0.98, size=(n_people, n_classes) if kind == "by class" else (n_people, 1))
    if kind == "two careless":
        right = np.full((n_people, 1), 0.95)
        right[: max(1, min(2, n_people - 1))] = rng.uniform(0.4, 0.7)
    right = np.broadcast_to(right, (n_people, n_classes))
    other = (1 - np.eye(n_classes)) / (n_classes - 1)
    if kind == "by class":
        shift = rng.integers(1, n_classes, size=n_people)
        other = np.stack([np.roll(np.eye(n_classes), k, axis=1) for k in shift])
    found: np.ndarray = np.eye(n_classes) * right[:, :, None] + other * (1 - right)[:, :, None]
    return found


def draw_answers(
    confusion: np.ndarray, n: int, n_answers: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(n, p) answers of some people to each sample, −1 for none, and the (n,) true classes."""
    n_people, n_classes, _ = confusion.shape
    truth = rng.choice(n_classes, size=n, p=rng.dirichlet(np.full(n_classes, 5.0)))
    chosen = np.argsort(rng.random((n, n_people)), axis=1) < n_answers
    shares = confusion[:, truth].cumsum(axis=2)  # (p, n, C)
    said = (rng.random((n_people, n, 1)) > shares).sum(axis=2).clip(max=n_classes - 1)
    answers = np.where(chosen, said.T, -1)
    return answers, truth


def count_right(answers: np.ndarray, truth: np.ndarray, n_classes: int, prior: float | None) -> tuple[int, int]:
    """How many labels are right among the samples on which people differ, and how many of these there are.

    With None the answer of the majority is taken, the lowest class of equals.
    """
    said = (answers[:, :, None] == np.arange(n_classes)).sum(axis=1)
    differ = (said > 0).sum(axis=1) > 1
    weights = said.astype(float) if prior is None else dawid_skene(answers, n_classes, prior=prior)[0]
    found = np.where(said > 0, weights, -1).argmax(axis=1)
    return int((found == truth)[differ].sum()), int(differ.sum())


def measure(cells: list[tuple[int, int, int, int]], seeds: int, first: int) -> np.ndarray:
    """(kind, cell, prior) share of the disputed labels that are right, the majority last."""
    shares = np.zeros((len(KINDS), len(cells), len(PRIORS) + 1))
    for i, kind in enumerate(KINDS):
        for j, (n_people, n_classes, n, n_answers) in enumerate(cells):
            counts = np.zeros((len(PRIORS) + 1, 2))
            for seed in range(seeds):
                rng = np.random.default_rng([first, i, j, seed])
                answers, truth = draw_answers(draw_crowd(kind, n_people, n_classes, rng), n, n_answers, rng)
                counts += [count_right(answers, truth, n_classes, prior) for prior in (*PRIORS, None)]
            shares[i, j] = counts[:, 0] / counts[:, 1]
    return shares


def choose_prior(seeds: int) -> str:
    """A table: the share of right labels among those disputed, in the crowds of development and in the others."""
    head = ["crowds", "errors", *(f"{prior:g}" for prior in PRIORS), "majority"]
    rows: list[list[object]] = []
    for name, cells, first in [("chosen on", DEVELOP, 0), ("judged on", JUDGE, 1)]:
        shares = 100 * measure(cells, seeds, first)
        for kind, by_cell in zip((*KINDS, "all"), (*shares, shares.reshape(-1, shares.shape[2])), strict=True):
            rows.append([name, kind, *(f"{share:.1f}" for share in by_cell.mean(axis=0))])
    return markdown(head, rows)
