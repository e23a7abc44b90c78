"""The closed form of linearised retraining against solving every augmented system, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skal._lookahead.posterior import Outputs, RidgeSolver, diagonal_blocks, places
from skal._lookahead.sequential import KernelBlocks
from skal.exceptions import NonFiniteError, OutputError

CRITERIA = ["mlmoc", "emoc", "eer"]
REFERENCES = ["network", "linearized"]


class Problem:
    """A random kernel among n labelled samples and N candidates, (n + N) blocks of size B, and random outputs."""

    def __init__(self, n=5, N=8, C=3, B=1, seed=0, interpolating=False, squared_loss=True, ridge=1e-3):
        rng = np.random.default_rng(seed)
        self.n, self.N, self.C, self.B, self.groups = n, N, C, B, None
        factors = rng.normal(size=((n + N) * B, 2 * (n + N) * B))
        self.K = factors @ factors.T
        self.f = rng.normal(size=(n + N, C))
        self.y = rng.integers(0, C, n)
        self.link = self.f if squared_loss else softmax(self.f)
        if interpolating:
            self.link = self.link.copy()
            self.link[:n] = np.eye(C)[self.y]
        self.rho = ridge * self.K[: n * B, : n * B].diagonal().mean()
        self.ridge = ridge

    def retrained(self, labels):
        """(N, C) outputs at the candidates after solving for all labelled samples and candidates {j: label}."""
        n, C, B = self.n, self.C, self.B
        samples = [*range(n), *(n + j for j in labels)]
        targets = np.eye(C)[[*self.y, *labels.values()]]
        rows = np.concatenate([np.arange(i * B, (i + 1) * B) for i in samples])
        system = self.K[np.ix_(rows, rows)] + self.rho * np.eye(len(rows))
        residuals = targets - self.link[samples]
        solved = np.linalg.solve(system, residuals.reshape(-1, 1) if B > 1 else residuals)
        moved = self.K[n * B :][:, rows] @ solved
        return self.f[n:] + moved.reshape(self.N, C)

    def scores(self, criterion, reference, evaluation=None, taught=None):
        """From the definitions, a candidate, a label and a solve at a time."""
        taught = taught or {}
        free = [j for j in range(self.N) if j not in taught]
        evaluation = range(self.N) if evaluation is None else evaluation
        start = self.f[self.n :] if reference == "network" else self.retrained(taught)
        result = []
        for j in free:
            p = softmax(self.f[self.n + j])
            label = int(self.f[self.n + j].argmax())
            weights = {label: 1.0} if criterion == "mlmoc" else dict(enumerate(p))
            total = 0.0
            for y, weight in weights.items():
                new = self.retrained({**taught, j: y})
                if criterion == "eer":
                    q = softmax(new)
                    terms = (q * np.log(q)).sum(1)
                else:
                    terms = np.linalg.norm(new - start, axis=1)
                others = [x for x in evaluation if x != j and x in free]
                total += weight * (terms[j] + terms[others].sum() * (len(free) - 1) / max(1, len(others)))
            result.append(total)
        return np.array(result)

    def blocks(self, evaluation=None, among=True):
        n, N, B = self.n, self.N, self.B
        K, f, link = (torch.as_tensor(x) for x in (self.K, self.f, self.link))
        outputs = Outputs(f[n:], link[n:], torch.softmax(f[n:], 1))
        every = torch.arange(N) if evaluation is None else torch.as_tensor(evaluation)
        residuals = torch.eye(self.C).double()[torch.as_tensor(self.y)] - link[:n]
        K_LL, K_LC, K_CC = K[: n * B, : n * B], K[: n * B, n * B :], K[n * B :, n * B :]
        K_CE, own = K_CC[:, places(every, B)], diagonal_blocks(K_CC, B)

        def block(rows, columns):
            return K_CC[places(rows, B)][:, places(columns, B)]

        block, epsilon = block if among else None, 64 * torch.finfo(torch.float64).eps
        groups = torch.arange(N) if self.groups is None else self.groups
        return KernelBlocks(K_LL, K_LC, K_CE, own, residuals, outputs, every, self.ridge, groups, epsilon, block)

    def posterior(self, evaluation=None, keep=True):
        posterior = self.blocks(evaluation).posterior()
        return posterior if keep else replace(posterior, S=None)


def softmax(f):
    e = np.exp(f - f.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
@pytest.mark.parametrize("interpolating", [True, False])
@pytest.mark.parametrize("squared_loss", [True, False], ids=["squared", "cross-entropy"])
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("criterion", CRITERIA)
def test_equals_the_augmented_solve(criterion, reference, squared_loss, interpolating, B):
    problem = Problem(B=B, interpolating=interpolating, squared_loss=squared_loss)
    got = problem.posterior().scores(criterion, reference)
    np.testing.assert_allclose(got, problem.scores(criterion, reference), rtol=1e-8)


def test_the_misprinted_v_does_not():
    problem = Problem()
    n = problem.n
    K = torch.as_tensor(problem.K)
    wrong = K[n:, n:] - K[n:, :n] @ K[:n, :n] @ K[:n, n:]  # v = K k', without the inverse
    misprinted = replace(problem.posterior(), S=wrong, own=diagonal_blocks(wrong, 1))
    expected = problem.scores("mlmoc", "network")
    assert np.abs(misprinted.scores("mlmoc", "network").numpy() / expected - 1).max() > 1e-2


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_an_evaluation_set_stands_for_all_others_and_counts_the_candidate_itself_once(criterion, B):
    problem = Problem(B=B)
    evaluation = [1, 4, 6]
    got = problem.posterior(evaluation).scores(criterion, "network")
    np.testing.assert_allclose(got, problem.scores(criterion, "network", evaluation), rtol=1e-8)


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("squared_loss", [True, False], ids=["squared", "cross-entropy"])
def test_conditioning_equals_a_larger_labelled_set(squared_loss, keep, B):
    problem = Problem(B=B, squared_loss=squared_loss)
    evaluation = [0, 2, 3, 5, 7]
    posterior = problem.posterior(evaluation, keep)
    taught = {}
    for j, label in [(3, 1), (0, 2), (6, 0)]:
        posterior.condition(j, label)
        taught[j] = label
        np.testing.assert_allclose(posterior.linearized, problem.retrained(taught), rtol=1e-8)
        for criterion in CRITERIA:
            got = posterior.scores(criterion, "linearized")
            expected = problem.scores(criterion, "linearized", evaluation, taught)
            np.testing.assert_allclose(got, expected, rtol=1e-8)


def test_without_the_matrix_blocks_are_downdated_as_they_are_made():
    problem = Problem()
    kept, made = problem.posterior(keep=True), problem.posterior(keep=False)
    for posterior in (kept, made):
        posterior.condition(2, 1)
        posterior.condition(5, 0)
    torch.testing.assert_close(kept.scores("emoc", "network"), made.scores("emoc", "network"), rtol=1e-10, atol=0)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    n=st.integers(1, 6),
    N=st.integers(1, 7),
    C=st.integers(2, 4),
    log_scale=st.floats(-6, 6),
    criterion=st.sampled_from(CRITERIA),
    reference=st.sampled_from(REFERENCES),
)
def test_properties(seed, n, N, C, log_scale, criterion, reference):
    problem = Problem(n, N, C, seed=seed)
    scores = problem.posterior().scores(criterion, reference).numpy()
    assert np.isfinite(scores).all()
    assert (scores <= 0).all() if criterion == "eer" else (scores >= 0).all()
    np.testing.assert_allclose(scores, problem.scores(criterion, reference), rtol=1e-7)
    order = np.random.default_rng(seed).permutation(N)
    moved = Problem(n, N, C, seed=seed)
    rows = np.r_[:n, n + order]
    moved.K, moved.f, moved.link = problem.K[np.ix_(rows, rows)], problem.f[rows], problem.link[rows]
    np.testing.assert_allclose(moved.posterior().scores(criterion, reference), scores[order], rtol=1e-8)
    scaled = Problem(n, N, C, seed=seed)
    scaled.K = problem.K * 10**log_scale  # the ridge is relative
    np.testing.assert_allclose(scaled.posterior().scores(criterion, reference), scores, rtol=1e-7)


def with_copies(ridge, seed=0, B=1):
    """Candidate 2 is a copy of labelled sample 1, candidate 5 one of candidate 4."""
    problem = Problem(seed=seed, B=B, ridge=ridge)
    n = problem.n
    samples = np.arange(n + problem.N)
    samples[n + 2], samples[n + 5] = 1, n + 4
    rows = (samples[:, None] * B + np.arange(B)).ravel()
    problem.K, problem.f, problem.link = problem.K[np.ix_(rows, rows)], problem.f[samples], problem.link[samples]
    problem.groups = torch.as_tensor(np.where(samples < n, -1, samples)[n:])
    return problem


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
@pytest.mark.parametrize("ridge", [0.0, 1e-6, 1e-2])
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_copy_of_a_labelled_sample_changes_nothing(criterion, reference, ridge, B):
    for seed in range(5):
        scores = with_copies(ridge, seed, B).posterior().scores(criterion, reference).numpy()
        assert np.isfinite(scores).all()
        assert scores[2] == scores.min()
        assert criterion == "eer" or scores[2] == 0
        assert scores[4] == pytest.approx(scores[5], rel=1e-6)


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
@pytest.mark.parametrize("ridge", [0.0, 1e-4])
def test_a_copy_of_what_has_been_labelled_since_changes_nothing(ridge, B):
    posterior = with_copies(ridge, B=B).posterior()
    posterior.condition(4, 0)
    scores = posterior.scores("emoc", "network").numpy()
    assert scores[4] == 0  # candidate 5, now that 4 is gone


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
def test_a_second_label_for_the_same_sample_counts(B):
    problem = with_copies(1e-3, B=B)
    posterior = problem.posterior()
    taught = {4: 0, 5: 1, 2: 2}
    for j, label in taught.items():
        posterior.condition(j, label)
    np.testing.assert_allclose(posterior.linearized, problem.retrained(taught), rtol=1e-7)


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
def test_a_second_label_does_no_harm_without_a_ridge(B):
    posterior = with_copies(0.0, B=B).posterior()
    posterior.condition(4, 0)
    before = posterior.linearized.clone()
    posterior.condition(5, 1)
    torch.testing.assert_close(posterior.linearized, before, rtol=1e-6, atol=1e-6)


def test_a_kernel_of_zeros_is_refused_by_name():
    problem = Problem()
    problem.K = np.zeros_like(problem.K)
    for criterion in ("mlmoc", "emoc", "eer"):
        with pytest.raises(OutputError, match="gradients must not all be zero"):
            problem.posterior().scores(criterion, "linearized")


def test_a_singular_kernel_is_solved_all_the_same():
    K = torch.ones(4, 4).double()
    solution = RidgeSolver(K, 0.0)(torch.ones(4, 1).double())
    torch.testing.assert_close(K @ solution, torch.ones(4, 1).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_kernel_that_is_not_finite_is_refused(value):
    with pytest.raises(NonFiniteError, match="diverged"):
        RidgeSolver(torch.full((3, 3), value).double(), 1e-4)


def test_labels_are_appended_to_the_kernel():
    problem = Problem(ridge=1e-2)
    blocks = problem.blocks([1, 2, 5])
    blocks.append(3, 1)
    blocks.append(0, 2)
    n, rows = problem.n, np.r_[: problem.n, problem.n + 3, problem.n]
    assert torch.equal(blocks.K_LL, torch.as_tensor(problem.K[np.ix_(rows, rows)]))
    problem.rho = problem.ridge * problem.K[rows, rows].mean()  # the ridge follows the labels
    posterior = blocks.posterior()
    np.testing.assert_allclose(posterior.linearized, problem.retrained({3: 1, 0: 2}), rtol=1e-8)
    posterior.free[[0, 3]] = False
    expected = problem.scores("emoc", "linearized", [1, 2, 5], {3: 1, 0: 2})
    np.testing.assert_allclose(posterior.scores("emoc", "linearized"), expected, rtol=1e-8)
    assert n + 2 == len(blocks.residuals)
