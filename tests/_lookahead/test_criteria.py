"""The criteria's terms against their definitions, label by label."""

import pytest
import torch

from skal._lookahead.criteria import criterion_terms, terms_of_outputs

CRITERIA = ["mlmoc", "emoc", "eer"]


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
    F_points, moved = (F, b) if own else (F[0], b[0])
    proba = torch.softmax(draw(r, C), 1)
    new = F[:, None] + s[:, None, :, None] * (torch.eye(C).double()[:, None] - G[:, None, None])  # (r, y, e, C)
    terms = terms_of_outputs(criterion, new, new - (F - b)[:, None])
    if criterion == "mlmoc":
        proba = torch.eye(C).double()[torch.arange(r) % C]
    expected = (terms * proba[..., None]).sum(1)
    torch.testing.assert_close(criterion_terms(criterion, s, F_points, moved, G, proba, None), expected)
    A = s[:, None, :, None] * torch.eye(C).double()[:, None]  # the same as a matrix kernel: (r, C, e, C)
    torch.testing.assert_close(criterion_terms(criterion, A, F_points, moved, G, proba, None), expected)
    if criterion == "eer":
        sharper = lambda f: torch.softmax(2 * f, -1)  # noqa: E731
        expected = (terms_of_outputs("eer", new, new, sharper) * proba[..., None]).sum(1)
        torch.testing.assert_close(criterion_terms("eer", s, F_points, None, G, proba, sharper), expected)


def test_large_outputs_keep_their_entropy():
    s = torch.tensor([[1.0, -30.0]]).double()
    F = torch.tensor([[800.0, 0.0], [-900.0, -900.0]]).double()
    G, proba = torch.zeros(1, 2).double(), torch.tensor([[0.5, 0.5]]).double()
    new = F + s[0, :, None] * torch.eye(2).double()[:, None]
    expected = terms_of_outputs("eer", new, F).mean(0)
    torch.testing.assert_close(criterion_terms("eer", s, F, None, G, proba, None)[0], expected)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("moves", [None, 1e-8, 1.0])
def test_expected_change_of_a_certain_label_is_that_of_the_label(own, moves):
    """With all probability on one label the two criteria are one, however small the residual of that label is."""
    r, e, c = 3, 4, 5
    torch.manual_seed(0)
    labels = torch.tensor([2, 0, 4])
    p = torch.nn.functional.one_hot(labels, c).double()
    G = p + 1e-8 * torch.randn(r, c).double()
    A = torch.rand(r, 1 if own else e).double()
    F = torch.randn(*((r, 1, c) if own else (e, c))).double()
    moved = None if moves is None else moves * torch.randn_like(F)
    emoc = criterion_terms("emoc", A, F, moved, G, p, None)
    mlmoc = criterion_terms("mlmoc", A, F, moved, G, p, None)
    torch.testing.assert_close(emoc, mlmoc, rtol=1e-7, atol=0)
    move = A[..., None] * (p - G)[:, None]
    truth = torch.linalg.vector_norm(move if moved is None else moved + move, dim=-1)
    torch.testing.assert_close(emoc, truth, rtol=1e-7, atol=0)
    matrix = A[:, None, :, None] * torch.eye(c).double()[:, None]  # the same as a matrix kernel: (r, C, e, C)
    torch.testing.assert_close(criterion_terms("emoc", matrix, F, moved, G, p, None), truth, rtol=1e-7, atol=0)
