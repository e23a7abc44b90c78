"""Every strategy × every check, and every check × a strategy that it must catch."""

import inspect
import random

import numpy as np
import pytest
import torch
from skorch import NeuralNet

import skal.strategies
from skal._core.network import preserved_rng
from skal._core.samples import Samples
from skal.base import QueryStrategy, ScoreStrategy
from skal.checks import CHECKS, CheckFailure, check_strategy, make_learner
from skal.checks._state import snapshot
from skal.exceptions import EmptyPoolError, NotFittedError
from skal.loss_prediction import LossPredictionClassifier
from skal.strategies import Entropy, RandomSampling

from .support.learners import learner_of

# the checks' network is trained with cross-entropy, which NTKLookahead names
pytestmark = pytest.mark.filterwarnings("ignore::skal.exceptions.CrossEntropyWarning")

EXPORTED = [getattr(skal.strategies, name) for name in skal.strategies.__all__]
CLASSES = [thing for thing in EXPORTED if inspect.isclass(thing)]
FUNCTIONS = [thing for thing in EXPORTED if not inspect.isclass(thing)]

# Parameters to check a strategy with, where the defaults alone are not enough: more than one case, or arguments that it
# cannot do without. A strategy that is not listed is checked as ``Class()``.
CASES: dict[str, list[dict]] = {
    "ALBL": [{}, {"uniform": True, "reward": "paper"}],
    "BALD": [{}, {"n_passes": 3}],
    "EGL": [{}, {"layers": "last"}],
    "Entropy": [{}, {"batch_size": 3}],
    "NTKLookahead": [{}, {"criterion": "eer", "kernel": "logit", "n_features": None, "reference": "linearized"}],
    "NPC": [{}, {"search": "greedy"}, {"kernel": "logit", "n_features": 512, "n_candidates": 20}],
}
STRATEGIES = [cls(**params) for cls in CLASSES for params in CASES.get(cls.__name__, [{}])]


@pytest.fixture(scope="module")
def learner_for(learner_and_pool):
    """The learner to check a strategy with: the plain one, or one that predicts its own loss."""
    learner = learner_and_pool[0]
    params = learner.estimator.get_params(deep=False)
    with preserved_rng():
        torch.manual_seed(0)
        net = LossPredictionClassifier(**params).fit(learner.X_training, learner.y_training)
    predicts_loss = learner_of(net, learner.X_training, learner.y_training)
    return lambda cls: predicts_loss if cls is skal.strategies.LearningLoss else learner


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_strategy(strategy, check, learner_for, X_pool):
    check(strategy, learner_for(type(strategy)), X_pool)


def test_every_case_belongs_to_a_strategy():
    assert set(CASES) <= {cls.__name__ for cls in CLASSES}


def test_every_strategy_is_a_class_and_all_but_the_stateful_ones_a_function():
    assert all(issubclass(cls, QueryStrategy) for cls in CLASSES)
    with_function = {function.strategy for function in FUNCTIONS}
    assert with_function == {cls for cls in CLASSES if cls.__name__ != "ALBL"}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_exported_function_is_its_class(function, learner_for, X_pool):
    learner = learner_for(function.strategy)
    own = inspect.signature(function.strategy).parameters
    params = {"random_state": 0} if "random_state" in own else {}
    expected = function.strategy(**params)(learner, X_pool, 4)
    assert function(learner, X_pool, 4, **params).tolist() == expected.tolist()
    names = ["learner", "X_pool", "n_instances", *own]
    assert list(inspect.signature(function).parameters) == names
    assert function.__name__ in skal.strategies.__all__


def test_checks_leave_the_learner_as_it_was():
    learner, X_pool = make_learner()
    before, pool = snapshot(learner), X_pool.copy()
    check_strategy(Entropy(), learner, X_pool)
    after = snapshot(learner)
    assert [name for name in before if before[name] != after[name]] == []
    assert np.array_equal(X_pool, pool)


def test_every_check_is_exported():
    import skal.checks

    written = {name for name in dir(skal.checks) if name.startswith("check_")} - {"check_strategy"}
    assert {check.__name__ for check in CHECKS} == written
    assert written <= set(skal.checks.__all__)
    assert all(check.__doc__ for check in CHECKS)


# --- strategies as a third party would write them: the checks must let them pass ---------------------------------


class FarthestFirst(QueryStrategy):
    """A batch strategy on the last layer's inputs that needs labels and has a parameter of its own."""

    needs_labels = True

    def __init__(self, *, batch_size=256, n_jobs=None):
        self.batch_size = batch_size
        self.n_jobs = n_jobs

    def _check_params(self):
        super()._check_params()
        if self.n_jobs not in (None, 1, 2):
            from skal.exceptions import InvalidParameterError, parameter_message

            raise InvalidParameterError(parameter_message("FarthestFirst", "n_jobs", "1 or 2", self.n_jobs, "Use 1."))

    def _select(self, context, n_instances):
        pool, _ = context.embeddings()
        labelled, _ = context.embeddings(context.labelled)
        distances = torch.cdist(pool.double(), labelled.double()).min(dim=1).values
        chosen, metrics = [], []
        for _ in range(n_instances):
            self._mask(distances, chosen)
            best = int(distances.argmax())
            chosen.append(best)
            metrics.append(float(distances[best]))
            new = torch.cdist(pool.double(), pool[best : best + 1].double())[:, 0]
            distances = torch.minimum(distances, new)
        return np.array(chosen), np.array(metrics)

    def _mask(self, distances, chosen):
        distances[chosen] = -1.0


class RandomBatch(QueryStrategy):
    """A batch strategy that draws."""

    needs_network = False
    reads_outputs = False
    draws_from_pool = True

    def __init__(self, *, random_state=None):
        self.random_state = random_state

    def _select(self, context, n_instances):
        from skal.validation import make_generator

        indices = make_generator("RandomBatch", self.random_state).choice(context.n_pool, n_instances, replace=False)
        return indices, np.zeros(n_instances)


@pytest.mark.parametrize("strategy", [FarthestFirst(), RandomBatch()], ids=repr)
def test_good_strategies_from_elsewhere_pass(strategy):
    check_strategy(strategy)


def test_the_learner_can_be_ones_own(flat_learner, flat_data):
    check_strategy(Entropy(), flat_learner, flat_data[0][15:])


# --- broken strategies, each with the check that must catch it and what it must say -------------------------------


def raw_scores(context):
    """Entropy of the module's outputs in eval mode, written without skal's checks of them."""
    module = context.network.module
    flags = {submodule: submodule.training for submodule in module.modules()}
    module.eval()
    with torch.no_grad():
        outputs = torch.cat([module(batch) for batch in context.network.batches(context.pool, 64)])
    for submodule, flag in flags.items():
        submodule.training = flag
    return torch.distributions.Categorical(logits=outputs.nan_to_num()).entropy().numpy()


class Base(ScoreStrategy):
    """A score strategy to break."""

    def __init__(self, *, batch_size=256):
        self.batch_size = batch_size

    def _score(self, context):
        proba = context.predict_proba()
        return -(proba**2).sum(axis=1)


class RepeatedIndices(Base):
    def _select(self, context, n_instances):
        return np.zeros(n_instances, dtype=np.int64), np.zeros(n_instances)


class PositionsFromEnd(Base):
    def _select(self, context, n_instances):
        return -1 - np.arange(n_instances), np.zeros(n_instances)


class NoMetrics(Base):
    def _select(self, context, n_instances):
        return np.arange(n_instances), None


class WorstFirst(Base):
    def _select(self, context, n_instances):
        indices, metrics = super()._select(context, n_instances)
        return indices[::-1], metrics[::-1]


class LowestScores(Base):
    def _select(self, context, n_instances):
        scores = self._scores(context)
        indices = np.argsort(scores)[:n_instances][::-1]
        return indices, scores[indices]


class Float32Scores(Base):
    def scores(self, learner, X_pool):
        return super().scores(learner, X_pool).astype(np.float32)


class ForgetsSubset(Entropy):
    def subset_rows(self, n_pool):
        return None


class SameSubset(Entropy):
    def subset_rows(self, n_pool):
        return None if self.subset is None or self.subset >= n_pool else np.arange(self.subset)


class ForgetsChoices(FarthestFirst):
    def _mask(self, distances, chosen):
        pass


class CountsSeenClasses(Base):
    needs_labels = True

    def _score(self, context):
        n_classes = len(np.unique(context.y_labelled))
        ordered = np.sort(context.predict_proba()[:, :n_classes], axis=1)
        return ordered[:, -2] - ordered[:, -1]


class AlwaysTuple(Base):
    def __call__(self, learner, X_pool, n_instances=1):
        return self.select(learner, X_pool, n_instances)


class AsksAgain(Base):
    asking = False

    def __call__(self, learner, X_pool, n_instances=1):
        if hasattr(learner, "query") and not AsksAgain.asking:
            AsksAgain.asking = True
            try:
                learner.query(X_pool, n_instances=n_instances)
            finally:
                AsksAgain.asking = False
        return super().__call__(learner, X_pool, n_instances)


class Restless(Base):
    queries = 0

    def _score(self, context):
        Restless.queries += 1
        return np.roll(np.arange(context.n_pool, dtype=float), Restless.queries)


class Nameless(Base):
    def __repr__(self):
        return "strategy"


class HidesParameter(Base):
    def set_params(self, **params):
        super().set_params(**params)


class ChecksInInit(Base):
    def __init__(self, *, batch_size=256):
        if not isinstance(batch_size, int):
            raise TypeError("batch_size")
        self.batch_size = batch_size


class WorksInInit(Base):
    def __init__(self, *, batch_size=256):
        self.batch_size = batch_size
        self.cache = {}


class Signed(Base):
    def __init__(self, *, sign=1, batch_size=256):
        self.sign = sign
        self.batch_size = batch_size

    def _score(self, context):
        return super()._score(context) * (-1 if self.sign == -1 else 1)


class LosesSign(Signed):
    def __getstate__(self):
        return super().__getstate__() | {"sign": -1}


class BareError(Base):
    def _check_params(self):
        if self.batch_size != 256 and not (isinstance(self.batch_size, int) and self.batch_size > 0):
            raise ValueError("wrong batch_size")


class GlobalDraws(Base):
    def _score(self, context):
        return np.random.rand(context.n_pool)


class PerBatch(Base):
    def _score(self, context):
        return super()._score(context) + np.arange(context.n_pool) // context.batch_size


class PerJob(FarthestFirst):
    def _select(self, context, n_instances):
        indices, metrics = super()._select(context, n_instances)
        return (indices[::-1], metrics) if self.n_jobs == 2 else (indices, metrics)


class ByPosition(Base):
    def _score(self, context):
        return super()._score(context) + np.linspace(0, 1, context.n_pool)


class AsFound(Base):
    def _score(self, context):
        with torch.no_grad():
            outputs = torch.cat([context.network.module(batch) for batch in context.network.batches(context.pool, 64)])
        return outputs.max(dim=1).values.numpy()


class OnlyArrays(Base):
    def _score(self, context):
        X = context.pool.X
        return super()._score(context) if isinstance(X, np.ndarray) else np.zeros(context.n_pool)


class OnlyBareNet(Base):
    def _score(self, context):
        bare = isinstance(context.estimator, NeuralNet)
        return super()._score(context) if bare else np.zeros(context.n_pool)


class IgnoresSteps(Base):
    def _score(self, context):
        part = context.restrict(np.arange(context.n_pool))
        part.pool = Samples(context.pool.X, rows=context.pool.rows)
        return super()._score(part)


class TakesOutputsForLogits(Base):
    def _score(self, context):
        return raw_scores(context)


class AnswersEmptyPool(Base):
    def select(self, learner, X_pool, n_instances=1):
        try:
            return super().select(learner, X_pool, n_instances)
        except EmptyPoolError:
            return np.empty(0, dtype=np.int64), np.empty(0)


class ClipsInstances(Base):
    def _check_n_instances(self, n_instances, n_pool):
        pass

    def _select(self, context, n_instances):
        return super()._select(context, min(max(n_instances, 1), context.n_pool))


class MendsPool(Base):
    def select(self, learner, X_pool, n_instances=1):
        return super().select(learner, np.nan_to_num(X_pool, posinf=0, neginf=0), n_instances)


class FirstIfUnfitted(Base):
    def select(self, learner, X_pool, n_instances=1):
        try:
            return super().select(learner, X_pool, n_instances)
        except NotFittedError:
            return np.arange(n_instances), np.zeros(n_instances)


class NotUnlessNetwork(Base):
    needs_network = False

    def _score(self, context):
        context.require_network()
        return super()._score(context)


class TakesAnything(Base):
    def prepare(self, learner, X_pool):
        return RandomSampling().prepare(learner, X_pool)


class TouchesClassifier(Base):
    needs_network = False

    def _score(self, context):
        if not context.has_network:
            context.inner_estimator.var_smoothing = 0.2
        return super()._score(context)


class NeedsNoLabels(Base):
    needs_labels = True

    def prepare(self, learner, X_pool):
        return RandomSampling().prepare(learner, X_pool)


class NeedsLabelsSilently(Base):
    def _score(self, context):
        return super()._score(context) + len(context.labelled)


BROKEN = [
    ("check_indices", RepeatedIndices(), "must be distinct"),
    ("check_indices", PositionsFromEnd(), "must lie in 0 … 39"),
    ("check_indices", NoMetrics(), "one metric for each"),
    ("check_scores", WorstFirst(), "best first"),
    ("check_scores", LowestScores(), "largest scores"),
    ("check_scores", Float32Scores(), "float64"),
    ("check_subset", ForgetsSubset(), "score -inf"),
    ("check_subset", SameSubset(), "another subset"),
    ("check_duplicates", ForgetsChoices(), "must be distinct"),
    ("check_duplicates", ByPosition(), "second copy"),
    ("check_one_class", CountsSeenClasses(), "index -2 is out of bounds"),
    ("check_convention", AlwaysTuple(), "must get an index array"),
    ("check_called_once", AsksAgain(), "Got 2 calls"),
    ("check_function", Restless(), "as the class does"),
    ("check_parameters", Nameless(), "must name the class"),
    ("check_parameters", HidesParameter(), "must return the strategy itself"),
    ("check_init", ChecksInInit(), "must only assign"),
    ("check_init", WorksInInit(), "nothing but its parameters"),
    ("check_invalid_parameters", Signed(), "sign=.* must raise ValueError or TypeError"),
    ("check_invalid_parameters", BareError(), "must raise a SkalError"),
    ("check_pickle", LosesSign(), "Pickling must give the same scores"),
    ("check_seed", GlobalDraws(), "from random_state alone"),
    ("check_batch_size", PerBatch(), "batch_size=1 must give the same scores"),
    ("check_n_jobs", PerJob(), "n_jobs=2 must give the same batch"),
    ("check_pool_order", ByPosition(), "reordered pool must give the same scores"),
    ("check_train_mode", AsFound(), "before the query must give the same scores"),
    ("check_containers", OnlyArrays(), "X as torch tensors must give the same scores"),
    ("check_multi_input", OnlyArrays(), "X as a dict of arrays must give the same scores"),
    ("check_pipeline", OnlyBareNet(), "Pipeline around the net must"),
    ("check_pipeline", IgnoresSteps(), "Pipeline around the net must"),
    ("check_search", OnlyBareNet(), "GridSearchCV around the net must"),
    ("check_nll_loss", TakesOutputsForLogits(), "with NLLLoss, must give the same scores"),
    ("check_empty_pool", AnswersEmptyPool(), "must raise EmptyPoolError"),
    ("check_n_instances", ClipsInstances(), "must raise InvalidParameterError"),
    ("check_nonfinite_pool", MendsPool(), "must raise NonFiniteError"),
    ("check_nonfinite_outputs", TakesOutputsForLogits(), "must raise NonFiniteError"),
    ("check_not_fitted", FirstIfUnfitted(), "must raise NotFittedError"),
    ("check_no_network", TakesAnything(), "must raise NoNetworkError"),
    ("check_no_network", NotUnlessNetwork(), "must be a skorch net"),
    ("check_no_network", TouchesClassifier(), "classifier as it was"),
    ("check_probabilities", TakesOutputsForLogits(), "must raise OutputError"),
    ("check_no_labels", NeedsNoLabels(), "must raise NoLabelledDataError"),
    ("check_no_labels", NeedsLabelsSilently(), "needs labelled data"),
]


def named(name):
    return next(check for check in CHECKS if check.__name__ == name)


@pytest.mark.parametrize(("name", "strategy", "message"), BROKEN, ids=lambda value: getattr(value, "message", None))
def test_check_catches(name, strategy, message, learner, X_pool):
    # a strategy that breaks down, rather than answering wrongly, shows its own error
    with pytest.raises(Exception, match=message):
        named(name)(strategy, learner, X_pool)


def train_mode(module):
    module.train()


def eval_mode(module):
    module.eval()


def forward_in_train_mode(module):
    flags = {submodule: submodule.training for submodule in module.modules()}
    module.train()
    module(torch.zeros(2, 1, 8, 8))
    for submodule, flag in flags.items():
        submodule.training = flag


def backward(module):
    module(torch.zeros(2, 1, 8, 8)).sum().backward()


def zero_grad(module):
    module.zero_grad()


def forward_hook(module):
    module.hidden.register_forward_hook(lambda *_: None)


def no_hooks(module):
    for submodule in module.modules():
        submodule._forward_hooks.clear()


def tensor_hook(module):
    module.hidden.weight.register_hook(lambda grad: grad)


def new_attribute(module):
    module.hidden.seen = 1


def parameter_attribute(module):
    module.hidden.weight.batch_gradient = 1


def replaced_forward(module):
    module.forward = module.forward


def last_bit(module):
    weight = module.head.weight.data
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))


def frozen(module):
    module.conv.weight.requires_grad_(False)


def replaced_weights(module):
    module.head.weight = torch.nn.Parameter(module.head.weight.detach().clone())


def default_dtype(module):
    torch.set_default_dtype(torch.float64)


DISTURBED = {
    train_mode: "training flag",
    eval_mode: "training flag",
    forward_in_train_mode: "buffer norm.running_mean",
    backward: "gradient of",
    zero_grad: "gradient of",
    forward_hook: "_forward_hooks of module 'hidden'",
    no_hooks: "_forward_hooks of module 'head'",
    tensor_hook: "tensor hooks of hidden.weight",
    new_attribute: "attributes of module 'hidden'",
    parameter_attribute: "attributes of hidden.weight",
    replaced_forward: "attributes of module 'SmallNet'",
    last_bit: "parameter head.weight",
    frozen: "requires_grad of conv.weight",
    replaced_weights: "identity of head.weight",
    default_dtype: "torch's settings",
}


class Disturbing(Base):
    def __init__(self, *, disturb=None, batch_size=256):
        self.disturb = disturb
        self.batch_size = batch_size

    def _score(self, context):
        scores = super()._score(context)
        self.disturb(context)
        return scores


@pytest.mark.parametrize("disturb", DISTURBED, ids=lambda disturb: disturb.__name__)
def test_untouched_catches_changes_of_the_module(disturb, learner, X_pool):
    try:
        with pytest.raises(CheckFailure, match=DISTURBED[disturb]):
            named("check_untouched")(Disturbing(disturb=lambda c: disturb(c.network.module)), learner, X_pool)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("disturb", "message"),
    [
        (lambda c: c.net.optimizer_.param_groups[0].update(lr=9.0), "optimizer state"),
        (lambda c: c.net.optimizer_.state.clear(), "optimizer state"),
        (lambda c: c.net.history.clear(), "training history"),
        (lambda c: setattr(c.net, "cache", 1), "attributes of the net"),
        (lambda c: setattr(c.learner, "cache", 1), "attributes of the learner"),
        (lambda c: c.learner.X_training.fill(0), "X_training"),
        (lambda c: c.pool.X.fill(0), "X_pool"),
    ],
)
def test_untouched_catches_changes_of_net_and_data(disturb, message, learner, X_pool):
    with pytest.raises(CheckFailure, match=message):
        named("check_untouched")(Disturbing(disturb=disturb), learner, X_pool)


class Reseeding(Base):
    """Leaves a global generator elsewhere. The base class restores them around ``_select``, not around this."""

    def __init__(self, *, seed=None, batch_size=256):
        self.seed = seed
        self.batch_size = batch_size

    def select(self, learner, X_pool, n_instances=1):
        self.seed()
        return super().select(learner, X_pool, n_instances)


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (lambda: torch.manual_seed(99), "torch's generator"),
        (lambda: np.random.rand(), "numpy's global generator"),
        (random.random, "random's generator"),
    ],
)
def test_untouched_catches_random_draws(seed, message, learner, X_pool):
    with pytest.raises(CheckFailure, match=message):
        named("check_untouched")(Reseeding(seed=seed), learner, X_pool)


def test_every_check_has_a_broken_strategy():
    caught = {name for name, _, _ in BROKEN} | {"check_untouched"}
    assert caught == {check.__name__ for check in CHECKS}


def test_check_strategy_names_every_failing_check():
    with pytest.raises(CheckFailure, match=r"fails \d of \d+ checks") as caught:
        check_strategy(ByPosition())
    failed = {line.split(":")[0] for line in str(caught.value).splitlines()[1:]}
    assert failed == {"check_pool_order", "check_duplicates"}


def test_check_strategy_takes_learner_and_pool_together(learner, X_pool):
    with pytest.raises(CheckFailure, match="both or neither"):
        check_strategy(Entropy(), learner)
    with pytest.raises(CheckFailure, match="both or neither"):
        check_strategy(Entropy(), X_pool=X_pool)


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        ("batch_size is wrong", "what it got"),
        ("batch_size must be larger. Got 0.", "what to do"),
        ("It must be larger. Got 0 instead. Raise it.", "must name"),
    ],
)
def test_error_messages_must_be_complete(message, missing, learner, X_pool):
    from skal.exceptions import InvalidParameterError

    class Terse(Base):
        def _check_params(self):
            if self.batch_size != 256:
                raise InvalidParameterError(message)

    with pytest.raises(CheckFailure, match=missing):
        named("check_invalid_parameters")(Terse(), learner, X_pool)
