# SPDX-License-Identifier: BSD-3-Clause
"""Every setting of a benchmark, by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from skal._vocabulary import NETS, OTHER_NETS, SCORES, parse_strategy
from skal.exceptions import InvalidParameterError, InvalidTypeError, SkalError
from skal.validation import Choice, Constraint, Integer, Real

_STRATEGIES = {
    "classification": ("random", "entropy", "badge", "dynamic_al", "ntk_lookahead", "npc"),
    "regression": ("random", "lcmd", "max_det", "ntk_lookahead", "uherding"),
    "multilabel": ("random", "margin", "badge", "ntk_lookahead", "uherding"),
}
_INITIAL = ("random", "balanced", "zero_shot")  # and any strategy
MOST_SEEDS = 10**5  # a few dozen tell strategies apart
_CONSTRAINTS: dict[str, Constraint] = {
    **dict.fromkeys(("n_initial", "query_size", "batch_size"), Integer(1)),
    "seeds": Integer(1, MOST_SEEDS),
    "max_epochs": Integer(1, 10**6),
    **dict.fromkeys(("n_pool", "n_test"), Integer(1, optional=True)),
    "n_rounds": Integer(0),
    **dict.fromkeys(("lr", "weight_decay"), Real(0)),
    **dict.fromkeys(("momentum", "dropout", "duplicates"), Real(0, 1)),
    "imbalance": Real(1),
    "task": Choice("classification", "regression", "multilabel"),
    "stop_accuracy": Real(0, 1, optional=True),
    "inputs": Choice("signed", "unit", "standardized", "normalized"),
    "criterion": Choice("cross_entropy", "squared"),
    "optimizer": Choice("adam", "sgd", "heavy_ball"),
    "schedule": Choice("constant", "one_cycle", "one_cycle_momentum"),
    "warm_start": Choice(True, False),
}


@dataclass(frozen=True)
class Protocol:
    """The settings of a benchmark: data, network, training, labels and strategies.

    Parameters
    ----------
    name : str
        For the report's title.
    title : str
        Of the report, the figures and the LaTeX table, in the place of one made of name, data, network and labels.
    data : str
        A data set of :func:`skal.datasets.load`.
    data_params : dict
        Options of ``load``, such as ``image_size``.
    inputs : {"signed", "unit", "standardized", "normalized"}
        Pixels in [−1, 1]; as they come, which for images is in [0, 1]; with mean 0 and variance 1 per channel of the
        training images, or per feature; every sample scaled to length 1.
    n_pool, n_test : int or None
        Use only this many training samples (a new draw for each seed, including the first labels) and test samples
        (the same for all seeds). None uses all of them.
    imbalance : float
        How many times as large as the smallest class of the pool the largest is; the others lie between, evenly on a
        log scale. Which class is which is drawn for each seed. 1 leaves the classes as they are.
    duplicates : float
        Share of the pool that is replaced by copies of other samples in it, five of each, every second one with noise
        of a tenth of each input's standard deviation.
    task : {"classification", "regression", "multilabel"}
        What the labels are: classes, numbers (one or a row of them for each sample), or an indicator matrix. Numbers
        are scaled to a deviation of 1 over the training set.
    scoring : str
        On the test set. ``accuracy`` or ``balanced_accuracy``, the mean over the classes; for a regression ``rmse``,
        ``mae`` or ``r2``; for several labels ``f1_micro``, ``f1_macro`` or ``average_precision``. More is better
        everywhere: of errors the negative is kept and shown, in units of the targets' deviation. Where the default does
        not suit the task, it is the first that does.
    strategies : tuple of str
        Names of functions in :mod:`skal.strategies`, ``random`` or ``albl``; parameters that differ from the defaults
        stand in parentheses: ``dynamic_al(gamma=0)``. The default is another one for each task.
    reference : str
        The strategy that the others are compared with. If it is not among them, the first one is.
    n_initial, query_size, n_rounds, seeds : int
        Labels at the start, labels per query, queries, repetitions.
    initial : {"random", "balanced", "zero_shot"} or str
        How the first labels are drawn: uniformly; the same number from each class, which reads all labels of the pool;
        or by the strategy itself, with a network of random weights. Any other name is that of a strategy that chooses
        them for all: ``max_herding``, or ``auto``.
    net : str
        ``mlp``, ``cnn``, ``convnet``, ``vgg11``, ``resnet18`` or ``wide_resnet``; or ``logistic``, for features:
        scikit-learn's logistic regression, and a network with the same weights for strategies that need one. The
        settings from ``criterion`` to ``warm_start`` are not used then. For numbers and several labels also ``forest``,
        and ``linear`` or ``logistic``; networks then have the loss that suits the task.
    net_params : dict
        Parameters of the network, without the sizes that follow from the data.
    dropout : float
        Rate for strategies that need dropout (BALD, EPIG), unless ``net_params`` has one.
    criterion : {"cross_entropy", "squared"}
    optimizer : {"adam", "sgd", "heavy_ball"}
        ``sgd`` has Nesterov's momentum, ``heavy_ball`` is SGD with PyTorch's plain one.
    lr, momentum, weight_decay : float
        Momentum is not for ``adam``.
    schedule : {"constant", "one_cycle", "one_cycle_momentum"}
        ``one_cycle`` rises to ``lr`` and falls again over the ``max_epochs`` of every round. ``one_cycle_momentum``
        also lets the momentum fall from 0.95 to 0.85 and rise again, as PyTorch's scheduler does by default.
    batch_size, max_epochs : int
        Of training: samples per step, and epochs in every round.
    stop_accuracy : float or None
        Stop training when the accuracy on the labelled set reaches this value. None always trains ``max_epochs``.
    warm_start : bool
        Continue from the weights of the previous round, with a fresh optimiser. False starts every round from new
        weights.
    semi_supervised : dict or None
        Parameters of :class:`skal.semi_supervised.FixMatchClassifier`, which then replaces the supervised network and
        trains on the whole pool for ``max_epochs``; ``flip=True`` lets augmentation mirror images. The settings from
        ``criterion`` to ``stop_accuracy`` are not used then, and ``inputs`` must be ``"unit"``.
    notes : str
        Notes for the report; for a paper's protocol, the settings that the paper leaves open.

    Examples
    --------
    >>> from skal.bench import Protocol
    >>> Protocol(data="digits", strategies=("random", "margin"), n_rounds=3).n_labels
    [20, 40, 60, 80]
    """

    name: str = "benchmark"
    title: str = ""
    data: str = "digits"
    data_params: Mapping[str, Any] = field(default_factory=dict)
    inputs: str = "signed"
    n_pool: int | None = None
    n_test: int | None = None
    imbalance: float = 1.0
    duplicates: float = 0.0
    task: str = "classification"
    scoring: str = "accuracy"
    strategies: tuple[str, ...] = _STRATEGIES["classification"]
    reference: str = "random"
    n_initial: int = 20
    query_size: int = 20
    n_rounds: int = 5
    seeds: int = 3
    initial: str = "random"
    net: str = "cnn"
    net_params: Mapping[str, Any] = field(default_factory=dict)
    dropout: float = 0.25
    criterion: str = "cross_entropy"
    optimizer: str = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    batch_size: int = 64
    max_epochs: int = 200
    stop_accuracy: float | None = 0.99
    warm_start: bool = True
    semi_supervised: Mapping[str, Any] | None = None
    notes: str = ""

    @property
    def heading(self) -> str:
        """The title; without one, the data and the network."""
        return self.title or f"{self.data}, {self.net}"

    def settle(self) -> Protocol:
        """The protocol with a score and strategies that suit its task, in the place of defaults that do not.

        Returns
        -------
        Protocol
            A copy; that of a classification is the same.
        """
        Choice(*SCORES).check("Protocol", "task", self.task)
        scoring, strategies = self.scoring, self.strategies
        if self.task != "classification":
            scoring = next(iter(SCORES[self.task])) if scoring == "accuracy" else scoring
            standard = strategies == _STRATEGIES["classification"]
            strategies = _STRATEGIES[self.task] if standard else strategies
        return replace(self, scoring=scoring, strategies=strategies)

    @property
    def n_labels(self) -> list[int]:
        """The budgets: labels at the start and after every query."""
        return [self.n_initial + k * self.query_size for k in range(self.n_rounds + 1)]

    def with_settings(self, **settings: Any) -> Protocol:
        """A protocol with some settings replaced.

        Parameters
        ----------
        **settings
            Fields by name.

        Returns
        -------
        Protocol
            A copy; this one stays as it is.
        """
        known = {entry.name for entry in fields(self)}
        if unknown := sorted(set(settings) - known):
            raise InvalidTypeError(
                f"The settings of a benchmark must be among {', '.join(sorted(known))}. Got {', '.join(unknown)}. "
                "See skal.bench.Protocol."
            )
        return replace(self, **settings)

    def check(self) -> Protocol:
        """Refuse values that cannot be run, before anything runs.

        Returns
        -------
        Protocol
            Itself, if all is well.
        """
        owner = "Protocol"
        for name, constraint in _CONSTRAINTS.items():
            constraint.check(owner, name, getattr(self, name))
        Choice(*SCORES[self.task]).check(owner, "scoring", self.scoring)
        if self.initial not in _INITIAL:
            parse_strategy(self.initial)
        if self.task != "classification" and (self.initial == "balanced" or self.imbalance != 1):
            expected, remedy = f"'random', 'zero_shot' or a strategy with task={self.task!r}", "There are no classes."
            raise InvalidParameterError.for_parameter(owner, "initial", expected, self.initial, remedy)
        if self.semi_supervised is not None and self.inputs != "unit":
            expected, remedy = "'unit' where images are augmented", "Set inputs='unit'."
            raise InvalidParameterError.for_parameter(owner, "inputs", expected, self.inputs, remedy)
        if len(set(self.strategies)) != len(self.strategies) or not self.strategies:
            expected = "one or more different strategies"
            remedy = "Name each once; tell copies apart by their names in a mapping."
            raise InvalidParameterError.for_parameter(owner, "strategies", expected, tuple(self.strategies), remedy)
        return self

    def as_dict(self) -> dict[str, Any]:
        """All settings, as JSON takes them.

        Returns
        -------
        dict
            By field; tuples are lists.
        """
        settings = asdict(self) | {"strategies": list(self.strategies)}
        if self.task == "classification":  # as results have it that are older than other tasks
            del settings["task"]
        return settings

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Protocol:
        """The protocol that :meth:`as_dict` describes."""
        return cls().with_settings(**{**settings, "strategies": tuple(settings["strategies"])})


class StoreError(SkalError, ValueError):
    """A folder does not hold a benchmark, or a damaged one."""


def check_net(name: str, task: str) -> None:
    """Refuse a network that is not known, or not for this task."""
    remedy = "Pass a skorch net to run one of your own."
    Choice(*NETS, *OTHER_NETS[task], remedy=remedy).check("run_benchmark", "net", name)


def find_rows(data: str, data_home: Any) -> Path:
    """The npz file of numbers or several labels; one that is not there is refused."""
    home = Path(data_home or os.environ.get("SKAL_DATA_HOME", "."))
    path = Path(data) if data.endswith(".npz") else home / f"{data}.npz"
    if not path.is_file():
        expected = "the path of an npz file, or its name in data_home without .npz"
        remedy = "Give the file X_train, y_train, X_test and y_test; 'diabetes' needs no file."
        raise InvalidParameterError.for_parameter("run_benchmark", "data", expected, str(data), remedy)
    return path


def find_settings(folder: Path) -> Path:
    """The settings of a benchmark; a folder without them is refused."""
    path = folder / "settings.json"
    if not path.exists():
        raise StoreError(f"{folder} holds no benchmark: settings.json is missing. Pass skal bench's --out folder.")
    return path
