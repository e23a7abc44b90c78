# SPDX-License-Identifier: BSD-3-Clause
"""ALBL: a bandit over query strategies (Hsu & Lin 2015)."""

from __future__ import annotations

import numbers
from copy import deepcopy
from math import log, sqrt
from typing import Any, ClassVar

import numpy as np

from skal.base import QueryStrategy
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.strategies._names import named_strategy
from skal.validation import Choice, Integer, Real, make_generator


def _of_an_arm(name: str) -> Any:
    return property(lambda self: any(getattr(arm, name) for arm in self._arms()), doc="True if one of the arms does.")


class ALBL(QueryStrategy):
    """Active learning by learning: let a bandit find out which strategy serves best.

    Every arm names its favourite sample, an arm is drawn by EXP4.P's probabilities, and after the labels have come the
    arms are rewarded by the importance-weighted accuracy of the new network on all samples queried so far.

    The object keeps state from query to query: use one object for a whole run, and teach the learner each batch, as it
    was returned, before the next query. A batch that was not taught gives no reward.

    Parameters
    ----------
    arms : list of strategies or None, default=None
        Objects, or names of their functions. None is least confidence and CoreSet.
    uniform : bool, default=False
        Add an arm that draws uniformly from the pool. Only then can every sample be queried, as the paper's estimate of
        the accuracy supposes.
    horizon : int, default=1000
        How many labels will be queried in all. It sets how fast the bandit learns and how much it explores.
    delta : float, default=0.1
        EXP4.P's bound on the regret holds with probability 1 − δ.
    reward : {"normalized", "paper"}, default="normalized"
        Sum of the importance weights of the samples predicted right, divided by the sum of all weights, or by the
        paper's pool size × horizon. The latter is so small without a uniform arm that the weights hardly move.
    subset : int or None, default=None
        Let the arms choose among only this many random samples of the pool, others in every round.
    random_state : None, int, Generator or RandomState, default=None
        For the draws among the arms and the choice of the subset; an integer gives other draws in every round.

    Attributes
    ----------
    weights_ : (K,) array
        Of the arms, summing to 1, the uniform one last; there after the first query.
    n_rounds_ : int
        Queries so far.

    See Also
    --------
    LeastConfidence, CoreSet : The default arms.

    Notes
    -----
    Within a batch samples are drawn one after the other, each arm offering its best sample that is still free, with the
    weights of the last round. With a batch of one this is the paper's algorithm. K in EXP4.P's floor and bonus counts
    the arms, not the samples, as in the authors' library libact. The metrics are the probabilities with which the
    samples were drawn. :meth:`get_state` and :meth:`set_state` save and restore the run.

    References
    ----------
    W.-N. Hsu and H.-T. Lin (2015). Active learning by learning. AAAI.

    A. Beygelzimer, J. Langford, L. Li, L. Reyzin and R. E. Schapire (2011). Contextual bandit algorithms with
    supervised learning guarantees. AISTATS.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.nets import MLP
    >>> from skal.strategies import ALBL
    >>> digits = load("digits")
    >>> net = NeuralNetClassifier(MLP(64, 10), criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> strategy = ALBL(horizon=100, random_state=0)
    >>> learner = ActiveLearner(net, strategy, X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> for _ in range(2):
    ...     indices, samples = learner.query(digits.X_train[50:], n_instances=5)
    ...     learner.teach(samples, digits.y_train[50:][indices])
    >>> strategy.n_rounds_, strategy.weights_.shape
    (2, (2,))
    """

    constraints: ClassVar = {
        "uniform": Choice(True, False),
        "horizon": Integer(1),
        "delta": Real(1e-12, 1),
        "reward": Choice("normalized", "paper"),
    }

    # set by the package: strategies do not import one another
    default_arms: ClassVar[tuple[type[QueryStrategy], ...]] = ()

    def __init__(
        self,
        *,
        arms: Any = None,
        uniform: bool = False,
        horizon: int = 1000,
        delta: float = 0.1,
        reward: str = "normalized",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.arms = arms
        self.uniform = uniform
        self.horizon = horizon
        self.delta = delta
        self.reward = reward
        self.subset = subset
        self.random_state = random_state

    needs_fitted = _of_an_arm("needs_fitted")
    needs_network = _of_an_arm("needs_network")
    needs_labels = _of_an_arm("needs_labels")
    reads_outputs = _of_an_arm("reads_outputs")

    @property
    def draws_from_pool(self) -> bool:  # type: ignore[override]
        """True if an arm draws from the pool, or the mixture of ALBL does."""
        return self.uniform or any(arm.draws_from_pool for arm in self._arms())

    @property
    def weights_(self) -> np.ndarray:
        """(K,) weights of the arms, summing to 1."""
        return np.array(self.state_["weights"])

    @property
    def n_rounds_(self) -> int:
        """Queries so far."""
        n_rounds: int = self.state_["n_rounds"]
        return n_rounds

    def _arms(self) -> list[QueryStrategy]:
        if self.arms is None:
            return [arm() for arm in self.default_arms]
        return [named_strategy(type(self).__name__, "arms", arm) for arm in self.arms]

    def check_params(self) -> None:
        """Refuse parameters that are not what was declared, and arms that are no strategies."""
        super().check_params()
        owner = type(self).__name__
        listed = isinstance(self.arms, (list, tuple)) and len(self.arms) > 0
        if self.arms is not None and not (listed and all(isinstance(arm, (QueryStrategy, str)) for arm in self.arms)):
            expected = "a list of strategies, or None"
            remedy = "Write for example [Margin(), CoreSet()], or ['margin', 'coreset']."
            raise InvalidTypeError.for_parameter(owner, "arms", expected, self.arms, remedy)

    def get_state(self) -> dict[str, Any]:
        """The state that the strategy has learnt.

        Returns
        -------
        dict
            Which ``json.dumps`` takes; empty before the first query.
        """
        return deepcopy(self.__dict__.get("state_", {}))

    def set_state(self, state: dict[str, Any]) -> ALBL:
        """Go on from what :meth:`get_state` gave, here or in another process.

        Parameters
        ----------
        state : dict
            An empty one starts anew.

        Returns
        -------
        ALBL
            Itself.
        """
        if not state:
            self.__dict__.pop("state_", None)
            return self
        n_arms = len(self._arms()) + bool(self.uniform)
        if set(state) != set(_new_state(n_arms, 0)) or len(state["weights"]) != n_arms:
            raise InvalidParameterError(
                f"The state given to {type(self).__name__} must come from get_state of one with {n_arms} arms. "
                f"Got the entries {sorted(state)} with {len(state.get('weights', []))} weights. "
                "Give the object the parameters of the run that it goes on with."
            )
        self.state_ = deepcopy(state)
        return self

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        arms = self._arms()
        n_arms = len(arms) + self.uniform
        state = self.get_state() or _new_state(n_arms, context.n_pool)
        if len(state["weights"]) != n_arms:
            raise InvalidParameterError(
                f"The arms of {type(self).__name__} must stay the same during a run. Got {n_arms} arms and a state "
                f"with {len(state['weights'])} weights. Call set_state({{}}) to start again."
            )
        weights = self._reward(context, state)
        common, lists = context.for_arms(), {}
        # first those that may read features: the pass that gives these gives outputs, too
        for number in sorted(range(len(arms)), key=lambda number: not hasattr(arms[number], "features")):
            lists[number] = arms[number].select_as_arm(common, n_instances)[0]
        generator, floor = self._generator(), smallest_probability(n_arms, self.horizon)
        n_uniform = context.n_pool if self.uniform else 0
        indices, records = draw_batch(
            weights, [lists[number] for number in range(len(arms))], n_uniform, n_instances, floor, generator
        )
        pending = {"first_row": context.n_labelled, "records": records}
        self.state_ = state | {"weights": weights.tolist(), "n_rounds": state["n_rounds"] + 1, "pending": pending}
        return indices, np.array([record["probability"] for record in records])

    def _generator(self, *purpose: int) -> np.random.Generator:
        """A generator for one purpose in this round."""
        if isinstance(self.random_state, numbers.Integral):
            n_rounds = self.__dict__.get("state_", {}).get("n_rounds", 0)
            return np.random.default_rng([int(self.random_state), n_rounds, *purpose])
        return make_generator(type(self).__name__, self.random_state)

    def _subset_generator(self) -> np.random.Generator:
        return self._generator(1)

    def _reward(self, context: QueryContext, state: dict[str, Any]) -> np.ndarray:
        """The weights after the last batch's reward; its samples join those that count for the next one."""
        weights, pending = np.array(state["weights"]), state["pending"]
        if pending is None or context.n_labelled < pending["first_row"] + len(pending["records"]):
            return weights
        rows = range(pending["first_row"], pending["first_row"] + len(pending["records"]))
        new = [[row, 1 / record["probability"]] for row, record in zip(rows, pending["records"], strict=True)]
        state["queried"] = [*state["queried"], *new]
        right = self._is_right(context, np.array([row for row, _ in state["queried"]]))
        importance = np.array([weight for _, weight in state["queried"]])
        scale = importance.sum() if self.reward == "normalized" else state["pool_size"] * self.horizon
        reward = float(importance @ right / scale)
        for record in pending["records"]:
            weights = update_weights(weights, reward, record, self.horizon, self.delta)
        return weights

    def _is_right(self, context: QueryContext, rows: np.ndarray) -> np.ndarray:
        predicted = context.predict_proba(context.labelled.take(rows)).argmax(axis=1)
        if not context.has_network:
            predicted = np.asarray(context.estimator.classes_)[predicted]
        right: np.ndarray = predicted == context.labels[rows]
        return right


def _new_state(n_arms: int, pool_size: int) -> dict[str, Any]:
    """The state before a run begins; all of it fits into JSON."""
    weights = [1 / n_arms] * n_arms
    return {"weights": weights, "n_rounds": 0, "pool_size": pool_size, "queried": [], "pending": None}


def smallest_probability(n_arms: int, horizon: int) -> float:
    """EXP4.P's floor ``√(ln K / (K T))``, at most 1/K."""
    return min(sqrt(log(n_arms) / (n_arms * horizon)), 1 / n_arms)


def update_weights(
    weights: np.ndarray, reward: float, record: dict[str, Any], horizon: int, delta: float
) -> np.ndarray:
    """``w_k exp(p_min / 2 (r̂_k + v̂_k √(ln(K/δ) / (K T))))``, normalised to sum 1.

    Parameters
    ----------
    weights : (K,) array
    reward : float
    record : dict
        Of one draw: its ``probability`` q, the ``advice`` ξ_k of every arm for the sample drawn, so that
        ``r̂_k = reward ξ_k / q``, and the ``variance`` bounds v̂_k.
    horizon : int
    delta : float
    """
    n_arms = len(weights)
    estimate = reward * np.array(record["advice"]) / record["probability"]
    bonus = np.array(record["variance"]) * sqrt(log(n_arms / delta) / (n_arms * horizon))
    exponent = smallest_probability(n_arms, horizon) / 2 * (estimate + bonus)
    weights = weights * np.exp(exponent - exponent.max())
    shares: np.ndarray = weights / weights.sum()
    return shares


def draw_batch(
    weights: np.ndarray,
    lists: list[np.ndarray],
    n_uniform: int,
    n_instances: int,
    floor: float,
    generator: np.random.Generator,
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Draw samples one after the other, each arm offering the best of its list that is still free.

    Parameters
    ----------
    weights : (K,) array
        Of the arms; the uniform one last, if there is one.
    lists : list of (n_instances,) arrays
        What each arm would query, best first.
    n_uniform : int
        Size of the pool from which the uniform arm draws; 0 without such an arm.
    n_instances : int
    floor : float
        Smallest probability of an arm.
    generator : numpy Generator

    Returns
    -------
    picked : (n_instances,) array of distinct indices
    records : list of dict
        What :func:`update_weights` needs to know about each.
    """
    n_arms = len(weights)
    arms = (1 - n_arms * floor) * weights / weights.sum() + floor
    picked: list[int] = []
    records = []
    free = np.ones(n_uniform, dtype=bool)
    for _ in range(n_instances):
        offers = [int(next(i for i in ranked if i not in picked)) for ranked in lists]
        n_free = n_uniform - len(picked)
        advice = {j: [float(offer == j) for offer in offers] for j in dict.fromkeys(offers)}
        arm = min(int(np.searchsorted(arms.cumsum(), generator.random() * arms.sum(), side="right")), n_arms - 1)
        chosen = offers[arm] if arm < len(lists) else int(generator.choice(np.flatnonzero(free)))
        if n_uniform:
            advice.setdefault(chosen, [0.0] * len(lists))
            advice = {j: [*named, 1 / n_free] for j, named in advice.items()}
        q = {j: float(arms @ named) for j, named in advice.items()}
        variance = [1 / q[offer] for offer in offers]
        if n_uniform:  # Σ_j (1/n) / q_j, in which samples that no other arm offers have q_j = p / n
            others = n_free - len(set(offers))
            variance.append(sum(1 / q[j] for j in set(offers)) / n_free + others / arms[-1])
        records.append({"probability": q[chosen], "advice": advice[chosen], "variance": [float(v) for v in variance]})
        picked.append(chosen)
        free[chosen : chosen + 1] = False
    return np.array(picked), records
