"""Augmentations against plain numpy, image by image."""

import numpy as np
import pytest
import torch

from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.semi_supervised import StrongImage, StrongJitter, WeakImage, WeakJitter
from skal.semi_supervised import _randaugment as ops
from skal.semi_supervised._augment import make_pair


@pytest.fixture(autouse=True)
def _seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def images():
    return torch.rand(12, 3, 10, 8)


def one(*values):
    return torch.tensor(values, dtype=torch.float32)


@pytest.mark.parametrize("operation", ops.OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("channels", [1, 3])
def test_operations_keep_shape_and_range_and_see_each_image_alone(operation, channels):
    x, m = torch.rand(6, channels, 9, 7), torch.rand(6)
    torch.manual_seed(1)
    result = operation(x, m)
    assert result.shape == x.shape
    assert result.min() >= 0
    assert result.max() <= 1 + 1e-6
    changed = x.clone()
    changed[3:] = torch.rand(3, channels, 9, 7)
    torch.manual_seed(1)
    torch.testing.assert_close(operation(changed, m)[:3], result[:3])


def test_there_are_fourteen_operations_and_only_identity_keeps_everything(images):
    assert len(ops.OPERATIONS) == 14
    same = [op.__name__ for op in ops.OPERATIONS if torch.equal(op(images, torch.full((12,), 0.7)), images)]
    assert same == ["identity"]


def test_photometric_operations(images):
    x, m = images[:1], one(0.5)
    factor = 0.05 + 0.9 * 0.5
    grey = 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]
    torch.testing.assert_close(ops.brightness(x, m), factor * x)
    torch.testing.assert_close(ops.color(x, m), grey + factor * (x - grey))
    torch.testing.assert_close(ops.contrast(x, m), grey.mean() + factor * (x - grey.mean()))
    torch.testing.assert_close(ops.solarize(x, m), torch.where(x >= 0.5, 1 - x, x))
    levels = (x * 255).floor().int()
    torch.testing.assert_close(ops.posterize(levels / 255, one(0.0)) * 255, (levels & 0b11110000).float())
    torch.testing.assert_close(ops.posterize(levels / 255, one(0.99)) * 255, (levels & 0b11111110).float())
    stretched = ops.autocontrast(x, m)
    assert stretched.amin(dim=(2, 3)).tolist() == [[0, 0, 0]]
    assert stretched.amax(dim=(2, 3)).tolist() == [[1, 1, 1]]


def test_sharpness_smooths_the_inside():
    x = torch.zeros(1, 1, 5, 5)
    x[0, 0, 2, 2] = 1
    result = ops.sharpness(x, one(0.0))  # factor 0.05
    assert result[0, 0, 2, 2].item() == pytest.approx(0.05 + 0.95 * 5 / 13)
    assert result[0, 0, 1, 2].item() == pytest.approx(0.95 / 13)
    assert result[0, 0, 0].sum() == 0


def test_equalize_makes_histograms_even():
    x = (torch.arange(256) / 255).pow(2)
    x = (x * 255).round().div(255).reshape(1, 1, 16, 16)
    values = x.flatten().numpy()
    below = np.array([(values < value - 1e-4).sum() for value in values])
    expected = below / below.max()
    np.testing.assert_allclose(ops.equalize(x, one(0.0)).flatten(), expected, atol=1e-6)
    constant = torch.full((1, 1, 4, 4), 0.3)
    torch.testing.assert_close(ops.equalize(constant, one(0.0)), constant)


def test_geometric_operations_move_what_they_should():
    x = torch.zeros(40, 1, 21, 21)
    x[:, :, 10, 10] = 1
    m = torch.full((40,), 1.0)
    for operation, axis in [(ops.translate_x, 3), (ops.translate_y, 2)]:
        moved = operation(x, m).sum(dim=5 - axis).flatten(1)  # (n, 21) along the axis
        centre = (moved * torch.arange(21)).sum(dim=1) / moved.sum(dim=1)
        np.testing.assert_allclose((centre - 10).abs(), 6.3, atol=0.05)
        assert len(set((centre > 10).tolist())) == 2  # both directions
    for operation in (ops.rotate, ops.shear_x, ops.shear_y):
        torch.testing.assert_close(operation(x, m)[:, :, 10, 10], torch.ones(40, 1), atol=1e-4, rtol=0)
    off = torch.zeros(1, 1, 21, 21)
    off[:, :, 10, 18] = 1
    rotated = ops.rotate(off, one(1.0))[0, 0]
    row, column = (int(i) for i in divmod(int(rotated.argmax()), 21))
    assert (abs(row - 10), column) == (4, 17)  # 8 pixels at 30 degrees: 4 up or down, 6.9 to the right
    torch.testing.assert_close(ops.rotate(x, one(*[0.0] * 40)), x)


def test_weak_shifts_by_whole_pixels_and_reflects():
    x = torch.arange(8.0).reshape(1, 1, 1, 8).expand(200, 1, 8, 8).contiguous() / 8
    rows = {tuple((row * 8).int().tolist()) for row in WeakImage(shift=0.25)(x)[:, 0, 0]}
    assert rows == {
        (2, 1, 0, 1, 2, 3, 4, 5),
        (1, 0, 1, 2, 3, 4, 5, 6),
        (0, 1, 2, 3, 4, 5, 6, 7),
        (1, 2, 3, 4, 5, 6, 7, 6),
        (2, 3, 4, 5, 6, 7, 6, 5),
    }
    flipped = {tuple((row * 8).int().tolist()) for row in WeakImage(flip=True, shift=0)(x)[:, 0, 0]}
    assert flipped == {tuple(range(8)), tuple(range(7, -1, -1))}


def test_cutout_covers_a_square():
    x = torch.zeros(300, 1, 16, 16)
    covered = ops.cutout(x, 0.5, fill=1.0).sum(dim=(1, 2, 3))
    assert covered.max() <= 9 * 9
    assert 64 * 0.5 < covered.mean() < 64
    torch.testing.assert_close(ops.cutout(x, 0.5, fill=0.0), x)


def test_strong_differs_from_image_to_image_and_repeats_with_the_seed(images):
    x = images[:1].expand(50, -1, -1, -1)
    torch.manual_seed(3)
    first = StrongImage(cutout=0)(x)
    torch.manual_seed(3)
    torch.testing.assert_close(StrongImage(cutout=0)(x), first)
    assert len(torch.unique(first.flatten(1), dim=0)) > 30
    torch.manual_seed(3)
    assert torch.equal(StrongImage(n_ops=0, cutout=0, shift=0)(x), x)


def test_jitter():
    x = torch.randn(4000, 3) * torch.tensor([1.0, 10.0, 0.0])
    weak = WeakJitter(noise=0.1)(x) - x
    np.testing.assert_allclose(weak.std(dim=0), [0.1, 1.0, 0.0], rtol=0.1)
    strong = StrongJitter(noise=0.0, swap=0.25)(x)
    assert (strong[:, 0] != x[:, 0]).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert set(strong[:, 0].tolist()) <= set(x[:, 0].tolist())


def test_pairs_and_bad_input():
    assert [type(part) for part in make_pair("F", "image")] == [WeakImage, StrongImage]
    assert [type(part) for part in make_pair("F", "tabular")] == [WeakJitter, StrongJitter]
    assert make_pair("F", (abs, round)) == (abs, round)
    for augment in ("images", None, (abs,), (abs, 3)):
        with pytest.raises(InvalidParameterError, match="'augment' parameter of F"):
            make_pair("F", augment)
    for augmentation, x in [
        (WeakImage(), torch.rand(3, 4)),
        (WeakJitter(), torch.rand(3, 4, 4, 4)),
        (WeakJitter(), [1]),
    ]:
        with pytest.raises(InvalidTypeError, match="Set augment"):
            augmentation(x)
    with pytest.raises(InvalidParameterError, match="'shift'"):
        WeakImage(shift=2.0)(torch.rand(1, 1, 4, 4))
