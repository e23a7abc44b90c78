# SPDX-License-Identifier: BSD-3-Clause
"""Whether an audit is what its plan says: complete, and drawn by the probabilities that are given for it."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from skal.audit._bounds import log_wealth
from skal.audit._checksum import read_checksum
from skal.audit._design import draw_shares, inclusion_probabilities
from skal.exceptions import BiasedAuditWarning, InvalidParameterError

Floats = NDArray[np.float64]
Positions = NDArray[np.int64]

ALARM = 1e-4  # the chance of a warning, at each side, about an audit that is as it should be


def check_draw(
    owner: str,
    confidences: Floats | None,
    n: int,
    positions: Positions,
    given: Floats,
    *,
    stacklevel: int = 4,
) -> Floats | None:
    """Inclusion probabilities of all n samples, or None if another model made the plan.

    A plan of which some samples are missing is refused, and there is a warning where nothing shows that chance has
    drawn the samples: a strategy's choice can look like a random sample.
    """
    everyone = find_probabilities(owner, confidences, n, positions, given)
    check_origin(owner, confidences, n, positions, given, "plan", stacklevel=stacklevel)
    return everyone


def check_origin(
    owner: str,
    confidences: Floats | None,
    n: int,
    positions: Positions,
    given: Floats,
    function: str,
    *,
    stacklevel: int = 3,
) -> None:
    """Refuse a part of what a function has drawn, and warn of samples that it has not drawn, or not by chance."""
    in_order, m = function == "plan_sequence", len(positions)
    known, complete = read_checksum(positions, given, n, in_order)
    if known and not complete:
        expected = f"all samples that {function} drew" + (", in the order in which they were drawn" if in_order else "")
        got = f"{m} samples, with the checksum of other ones"
        remedy = "Leave none out: samples that people leave out are seldom the easy ones."
        raise InvalidParameterError.for_parameter(owner, "positions", expected, got, remedy)
    chance = np.minimum(given * m, 1 - 1e-12) if in_order else given
    word = None if confidences is None else find_bias(confidences, positions, chance)
    if known and word is None:
        return
    if word is None:
        text = (
            f"Nothing shows that chance drew the {m} samples given to {owner}: their probabilities are not those that "
            f"skal.audit.{function} returned for them, with all digits. If you drew a random sample in another way, "
            "the result holds; ignore warnings with these first words then. "
        )
    else:
        text = (
            f"The {m} audited samples given to {owner} are {word} confident than a draw by their probabilities can "
            "explain, so the result is likely to be wrong. "
        )
    text += (
        f"Audit what skal.audit.{function} draws: samples that a strategy queried, or that the model was trained on, "
        "are no audit."
    )
    warnings.warn(text, BiasedAuditWarning, stacklevel=stacklevel)


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


def is_uniform(probabilities: Floats) -> bool:
    """Whether all samples were equally probable."""
    return bool(np.ptp(probabilities) <= 1e-9 * probabilities.max())


def find_bias(confidences: Floats, positions: Positions, probabilities: Floats) -> str | None:
    """Whether the audited samples are "more" or "less" confident than chance can explain; None if they are not.

    The mean rank of all confidences is known. Who could win much by betting that it is another was not playing a fair
    game: the samples were not drawn by these probabilities, or the model was trained on them.
    """
    open_units = probabilities < 1
    if not open_units.any():
        return None
    rank = (rankdata(confidences) - 0.5) / len(confidences)
    known = rank[positions[~open_units]]
    chosen, chance = rank[positions[open_units]], probabilities[open_units]
    scale = len(chosen) / (len(rank) * chance)
    for value, mean, word in ((chosen, known, "more"), (1 - chosen, 1 - known, "less")):
        left = (len(rank) / 2 - mean.sum()) / len(rank)
        if log_wealth(scale * value / left) >= -np.log(ALARM):
            return word
    return None
