# SPDX-License-Identifier: BSD-3-Clause
"""Whether an audit is what its plan says: complete, and drawn by the probabilities that are given for it."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from skal.audit._bounds import log_wealth
from skal.audit._design import draw_shares, inclusion_probabilities
from skal.exceptions import BiasedAuditWarning, InvalidParameterError

Floats = NDArray[np.float64]
Positions = NDArray[np.int64]

ALARM = 1e-4  # the chance of a warning, at each side, about an audit that is as it should be


def find_probabilities(
    owner: str, confidences: Floats | None, n: int, positions: Positions, given: Floats
) -> Floats | None:
    """Inclusion probabilities of all n samples, or None if another model made the plan.

    A plan of which some samples are missing is refused: its probabilities are those of a larger audit.
    """
    m = len(positions)
    if confidences is not None:
        planned = inclusion_probabilities(confidences, m)
        if np.allclose(planned[positions], given, rtol=1e-6):
            return planned
        ratio = given / draw_shares(confidences)[positions]
        if m > 1 and np.ptp(given) > 1e-9 * given.max() and np.ptp(ratio) < 1e-6 * ratio.max():
            refuse_incomplete(owner, m, round(float(ratio[0])))
        if m > 1 and np.ptp(given) > 1e-9 * given.max() and are_among(given, planned):
            expected = "those of the positions, in the same order"
            got = "probabilities of this model's plan for other samples"
            remedy = "Keep what skal.audit.plan returned together: sort or select both arrays in the same way."
            raise InvalidParameterError.for_parameter(owner, "probabilities", expected, got, remedy)
    if m > 1 and np.ptp(given) <= 1e-9 * given.max():
        if abs(given[0] - m / n) > 1e-6 * given[0]:
            refuse_incomplete(owner, m, round(float(given[0] * n)))
        return np.full(n, m / n)
    return None


def are_among(given: Floats, planned: Floats) -> bool:
    """Whether every one of some numbers is one of others, up to rounding."""
    ordered = np.sort(planned)
    place = np.searchsorted(ordered, given).clip(1, len(ordered) - 1) if len(ordered) > 1 else np.zeros(len(given), int)
    nearest = np.minimum(np.abs(ordered[place] - given), np.abs(ordered[place - 1] - given))
    return bool((nearest <= 1e-9 * given).all())


def refuse_incomplete(owner: str, m: int, planned: int) -> None:
    """Say that the probabilities belong to an audit of another size."""
    expected = f"the whole plan, which has {planned} samples by its probabilities"
    remedy = "Give all samples of the plan, with the pool that it was drawn from: a part of them is no random sample."
    raise InvalidParameterError.for_parameter(owner, "positions", expected, f"{m} of them", remedy)


def check_sequence(owner: str, shares: Floats, chance: Floats) -> None:
    """Refuse draws, one after the other, that are given in another order, or without some of them.

    Parameters
    ----------
    owner : str
        For the message.
    shares : array of shape (m,)
        What each sample's probability would have been at the first draw.
    chance : array of shape (m,)
        What it was, given the draws before it.
    """
    rest = shares / chance  # what was left before each draw
    order = np.argsort(-rest, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(shares[order])[:-1]])
    ordered = np.allclose(rest[order], 1 - before, rtol=1e-6, atol=1e-9)
    places = (1 - rest) / shares[0]  # of draws with equal shares: how many came before
    whole = np.ptp(shares) <= 1e-9 * shares.max() and np.allclose(places, np.round(places), atol=1e-4)
    if ordered and (order == np.arange(len(order))).all():
        return
    if ordered or (whole and (places > -0.5).all()):
        expected = "all samples of plan_sequence, in the order in which they were drawn"
        got = "another order" if ordered else "some of them"
        remedy = "Label the samples in that order, and leave none out: a part of them is no random sample."
        raise InvalidParameterError.for_parameter(owner, "positions", expected, got, remedy)


def is_uniform(probabilities: Floats) -> bool:
    """Whether all samples were equally probable."""
    return bool(np.ptp(probabilities) <= 1e-9 * probabilities.max())


def warn_of_choice(owner: str, confidences: Floats, positions: Positions, probabilities: Floats) -> None:
    """Warn where the audited samples are more, or less, confident than chance can explain.

    The mean rank of all confidences is known. Who could win much by betting that it is another was not playing a fair
    game: the samples were not drawn by these probabilities, or the model was trained on them.
    """
    open_units = probabilities < 1
    if not open_units.any():
        return
    rank = (rankdata(confidences) - 0.5) / len(confidences)
    known = rank[positions[~open_units]]
    chosen, chance = rank[positions[open_units]], probabilities[open_units]
    scale = len(chosen) / (len(rank) * chance)
    for value, mean, word in ((chosen, known, "more"), (1 - chosen, 1 - known, "less")):
        left = (len(rank) / 2 - mean.sum()) / len(rank)
        if log_wealth(scale * value / left) >= -np.log(ALARM):
            text = (
                f"The {len(positions)} audited samples given to {owner} are {word} confident than a draw by their "
                "probabilities can explain, so the result is likely to be wrong. Audit what skal.audit.plan draws: "
                "samples that a strategy queried, or that the model was trained on, are no audit."
            )
            warnings.warn(text, BiasedAuditWarning, stacklevel=4)
