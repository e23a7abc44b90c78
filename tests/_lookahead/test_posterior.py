"""The closed form of linearised retraining against solving every augmented system, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skal._lookahead.blocks import BlockLookahead
from skal._lookahead.criteria import emoc_terms, expected_entropy_terms, mlmoc_terms, terms_of_outputs
from skal._lookahead.posterior import (
    Lookahead,
    MatrixCovariance,
    Outputs,
    Reading,
    RidgeSolver,
    copies_of_labelled,
    lookahead_from_kernels,
)

CRITERIA = ["mlmoc", "emoc", "eer"]
REFERENCES = ["network", "linearized"]


class Problem:
    """A random kernel among n labelled samples and N candidates, (n + N) blocks of size B, and random outputs."""

    def __init__(self, n=5, N=8, C=3, B=1, seed=0, interpolating=False, squared_loss=True, ridge=1e-3):
        rng = np.random.default_rng(seed)
        self.n, self.N, self.C, self.B = n, N, C, B
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

    def lookahead(self, evaluation=None, keep=False):
        n, N, B = self.n, self.N, self.B
        K, f, link = (torch.as_tensor(x) for x in (self.K, self.f, self.link))
        outputs = Outputs(f[n:], link[n:], torch.softmax(f[n:], 1), f[n:].argmax(1))
        every = torch.arange(N) if evaluation is None else torch.as_tensor(evaluation)
        residuals = torch.eye(self.C).double()[torch.as_tensor(self.y)] - link[:n]
        if B == 1:
            K_CC = K[n:, n:] if keep or evaluation is None else K[n:, n:][:, every]
            prior = K[n:, n:].diagonal()
            arguments = (K[:n, :n], K[:n, n:], K_CC.clone(), prior, residuals, outputs, every, self.ridge)
            return lookahead_from_kernels(*arguments, keep=keep)
        solver = RidgeSolver(K[: n * B, : n * B], self.ridge)
        alpha = solver(K[: n * B, n * B :])
        S = K[n * B :, n * B :] - K[n * B :, : n * B] @ alpha
        linearized = f[n:] + (alpha.T @ residuals.reshape(-1, 1)).reshape(N, self.C)
        blocks = torch.stack([S[j * B : (j + 1) * B, j * B : (j + 1) * B] for j in range(N)])
        prior = K[n * B :, n * B :].diagonal().reshape(N, B).mean(1)
        epsilon = torch.finfo(torch.float64).eps
        traces = K[: n * B, n * B :].reshape(n, B, N, B).diagonal(dim1=1, dim2=3).mean(2)
        copies = copies_of_labelled(traces, K[: n * B, : n * B].diagonal().reshape(n, B).mean(1), prior, epsilon)
        return BlockLookahead(
            S.clone(), blocks, prior, outputs, linearized, solver.rho, every, copies, epsilon=epsilon, n_total=None
        )


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
    got = problem.lookahead().scores(criterion, reference)
    np.testing.assert_allclose(got, problem.scores(criterion, reference), rtol=1e-8)


def test_the_misprinted_v_does_not():
    problem = Problem()
    n = problem.n
    K = torch.as_tensor(problem.K)
    outputs = problem.lookahead().outputs
    wrong = K[n:, n:] - K[n:, :n] @ K[:n, n:]  # v = k', without the inverse
    covariance = MatrixCovariance(wrong, wrong.diagonal(), K[n:, n:].diagonal())
    every, no_copies = torch.arange(problem.N), torch.zeros(problem.N, dtype=torch.bool)
    misprinted = Lookahead(covariance, outputs, problem.lookahead().linearized, problem.rho, every, no_copies)
    expected = problem.scores("mlmoc", "network")
    assert np.abs(misprinted.scores("mlmoc", "network").numpy() / expected - 1).max() > 1e-2


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_an_evaluation_set_stands_for_all_others_and_counts_the_candidate_itself_once(criterion, B):
    problem = Problem(B=B)
    evaluation = [1, 4, 6]
    got = problem.lookahead(evaluation).scores(criterion, "network")
    np.testing.assert_allclose(got, problem.scores(criterion, "network", evaluation), rtol=1e-8)


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("squared_loss", [True, False], ids=["squared", "cross-entropy"])
def test_conditioning_equals_a_larger_labelled_set(squared_loss, keep, B):
    problem = Problem(B=B, squared_loss=squared_loss)
    evaluation = [0, 2, 3, 5, 7]
    lookahead = problem.lookahead(evaluation, keep) if keep else problem.lookahead()
    evaluation = evaluation if keep else None
    taught = {}
    for j, label in [(3, 1), (0, 2), (6, 0)]:
        lookahead.condition(j, label)
        taught[j] = label
        np.testing.assert_allclose(lookahead.linearized, problem.retrained(taught), rtol=1e-8)
        for criterion in CRITERIA:
            got = lookahead.scores(criterion, "linearized")
            expected = problem.scores(criterion, "linearized", evaluation, taught)
            np.testing.assert_allclose(got, expected, rtol=1e-8)


def test_without_the_matrix_blocks_are_downdated_as_they_are_made():
    problem = Problem()
    kept, made = problem.lookahead(keep=True), problem.lookahead()
    for lookahead in (kept, made):
        lookahead.condition(2, 1)
        lookahead.condition(5, 0)
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
    scores = problem.lookahead().scores(criterion, reference).numpy()
    assert np.isfinite(scores).all()
    assert (scores <= 0).all() if criterion == "eer" else (scores >= 0).all()
    np.testing.assert_allclose(scores, problem.scores(criterion, reference), rtol=1e-7)
    order = np.random.default_rng(seed).permutation(N)
    moved = Problem(n, N, C, seed=seed)
    rows = np.r_[:n, n + order]
    moved.K, moved.f, moved.link = problem.K[np.ix_(rows, rows)], problem.f[rows], problem.link[rows]
    np.testing.assert_allclose(moved.lookahead().scores(criterion, reference), scores[order], rtol=1e-8)
    scaled = Problem(n, N, C, seed=seed)
    scaled.K = problem.K * 10**log_scale  # the ridge is relative
    np.testing.assert_allclose(scaled.lookahead().scores(criterion, reference), scores, rtol=1e-7)


def with_copies(ridge, seed=0, B=1):
    """Candidate 2 is a copy of labelled sample 1, candidate 5 one of candidate 4."""
    problem = Problem(seed=seed, B=B, ridge=ridge)
    n = problem.n
    samples = np.arange(n + problem.N)
    samples[n + 2], samples[n + 5] = 1, n + 4
    rows = (samples[:, None] * B + np.arange(B)).ravel()
    problem.K, problem.f, problem.link = problem.K[np.ix_(rows, rows)], problem.f[samples], problem.link[samples]
    return problem


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
@pytest.mark.parametrize("ridge", [0.0, 1e-6, 1e-2])
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_copy_of_a_labelled_sample_changes_nothing(criterion, reference, ridge, B):
    for seed in range(5):
        scores = with_copies(ridge, seed, B).lookahead().scores(criterion, reference).numpy()
        assert np.isfinite(scores).all()
        assert scores[2] == scores.min()
        assert criterion == "eer" or scores[2] == 0
        assert scores[4] == pytest.approx(scores[5], rel=1e-6)


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
@pytest.mark.parametrize("ridge", [0.0, 1e-4])
def test_a_copy_of_what_has_been_labelled_since_changes_nothing(ridge, B):
    lookahead = with_copies(ridge, B=B).lookahead()
    lookahead.condition(4, 0)
    scores = lookahead.scores("emoc", "network").numpy()
    assert scores[4] == 0  # candidate 5, now that 4 is gone


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
def test_a_second_label_for_the_same_sample_counts(B):
    problem = with_copies(1e-3, B=B)
    lookahead = problem.lookahead()
    taught = {4: 0, 5: 1, 2: 2}
    for j, label in taught.items():
        lookahead.condition(j, label)
    np.testing.assert_allclose(lookahead.linearized, problem.retrained(taught), rtol=1e-7)


@pytest.mark.parametrize("B", [1, 3], ids=["scalar", "matrix"])
def test_a_second_label_does_no_harm_without_a_ridge(B):
    lookahead = with_copies(0.0, B=B).lookahead()
    lookahead.condition(4, 0)
    before = lookahead.linearized.clone()
    lookahead.condition(5, 1)
    torch.testing.assert_close(lookahead.linearized, before, rtol=1e-6, atol=1e-6)


def test_a_kernel_of_zeros_gives_zeros():
    problem = Problem()
    problem.K = np.zeros_like(problem.K)
    for criterion in ("mlmoc", "emoc"):
        assert not problem.lookahead().scores(criterion, "linearized").any()
    assert torch.isfinite(problem.lookahead().scores("eer", "network")).all()


def test_a_singular_kernel_is_solved_all_the_same():
    K = torch.ones(4, 4).double()
    solution = RidgeSolver(K, 0.0)(torch.ones(4, 1).double())
    torch.testing.assert_close(K @ solution, torch.ones(4, 1).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("own", [False, True], ids=["shared", "one each"])
def test_terms_from_the_formula(criterion, own):
    generator = torch.Generator().manual_seed(0)
    r, e, C = 4, 1 if own else 6, 5

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    s, F, b, G = 2 * draw(r, e), draw(r, e, C), draw(r, e, C), draw(r, C)
    if not own:
        F, b = F[:1].expand(r, e, C), b[:1].expand(r, e, C)
    points = (F, b) if own else (F[0], b[0])
    proba = torch.softmax(draw(r, C), 1)
    new = F[:, None] + s[:, None, :, None] * (torch.eye(C).double()[:, None] - G[:, None, None])  # (r, y, e, C)
    start = (F - b)[:, None]
    terms = terms_of_outputs(criterion, new, start)
    if criterion == "mlmoc":
        labels = torch.arange(r) % C
        torch.testing.assert_close(mlmoc_terms(s, points[1], G, labels), terms[torch.arange(r), labels])
        return
    expected = (terms * proba[..., None]).sum(1)
    got = emoc_terms(s, points[1], G, proba) if criterion == "emoc" else expected_entropy_terms(s, points[0], G, proba)
    torch.testing.assert_close(got, expected)
    if criterion == "eer":
        sharper = lambda f: torch.softmax(2 * f, -1)  # noqa: E731
        expected = (terms_of_outputs("eer", new, start, sharper) * proba[..., None]).sum(1)
        torch.testing.assert_close(expected_entropy_terms(s, points[0], G, proba, sharper), expected)


def test_large_outputs_keep_their_entropy():
    s = torch.tensor([[1.0, -30.0]]).double()
    F = torch.tensor([[800.0, 0.0], [-900.0, -900.0]]).double()
    G, proba = torch.zeros(1, 2).double(), torch.tensor([[0.5, 0.5]]).double()
    new = F + s[0, :, None] * torch.eye(2).double()[:, None]
    expected = terms_of_outputs("eer", new, F).mean(0)
    torch.testing.assert_close(expected_entropy_terms(s, F, G, proba)[0], expected)


def test_what_outputs_mean():
    logits = torch.tensor([[2.0, 0.0, -1.0]])
    f = logits.double()
    squared, cross_entropy = Reading(True).read(logits), Reading(False).read(logits)
    assert torch.equal(squared.link, f)
    assert torch.equal(cross_entropy.link, torch.softmax(f, 1))
    assert torch.equal(squared.proba, torch.softmax(f, 1))
    assert squared.labels.tolist() == [0]
    own = Reading(True, lambda f: torch.softmax(2 * f, 1)).read(logits)
    assert torch.equal(own.proba, torch.softmax(2 * f, 1))
    assert torch.equal(own.link, f)
