# SPDX-License-Identifier: BSD-3-Clause
"""Pairs of a weak and a strong augmentation, for images and for tables.

Each is a callable from a batch to a batch of the same shape, on the batch's device. Their random draws come from
torch's global generator, as those of dropout do.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.semi_supervised._randaugment import cutout, randaugment
from skal.validation import Constrained, Constraint, Integer, Real


class WeakImage(Constrained, BaseEstimator):
    """Shift, and mirror if asked to.

    Parameters
    ----------
    flip : bool, default=False
        Whether to mirror half of the images, left to right. Right for photographs, wrong for digits and letters.
    shift : float, default=0.125
        Largest shift in both directions, as a share of the sides; the edges are filled by reflection.

    Examples
    --------
    >>> import torch
    >>> from skal.semi_supervised import WeakImage
    >>> WeakImage(flip=True)(torch.rand(5, 3, 32, 32)).shape
    torch.Size([5, 3, 32, 32])
    """

    constraints: ClassVar[dict[str, Constraint]] = {"shift": Real(0, 0.5)}

    def __init__(self, *, flip: bool = False, shift: float = 0.125) -> None:
        self.flip = flip
        self.shift = shift

    def __call__(self, x: Tensor) -> Tensor:
        """(n, C, H, W) images, augmented."""
        _check_batch(type(self).__name__, x, 4, "images of shape (n, channels, height, width)")
        self.check_params()
        n, channels, height, width = x.shape
        rows, columns = (
            _shift_positions(n, height, self.shift, x.device),
            _shift_positions(n, width, self.shift, x.device),
        )
        if self.flip:
            mirrored = torch.randint(0, 2, (n, 1), device=x.device).bool()
            columns = torch.where(mirrored, width - 1 - columns, columns)
        number, channel = torch.arange(n, device=x.device), torch.arange(channels, device=x.device)
        return x[number[:, None, None, None], channel[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]


def _shift_positions(n: int, side: int, share: float, device: torch.device) -> Tensor:
    """(n, side) positions to read from, each row shifted by a random number of pixels and reflected at the ends."""
    largest = min(round(share * side), side - 1)
    positions = torch.arange(side, device=device) + torch.randint(-largest, largest + 1, (n, 1), device=device)
    positions = positions.abs()
    return torch.where(positions >= side, 2 * (side - 1) - positions, positions)


class StrongImage(WeakImage):
    """Shift (and mirror), then random operations of RandAugment, then cutout.

    The operations: autocontrast, brightness, color, contrast, equalize, identity, posterize, rotate, sharpness, shear
    and translate in both directions, solarize. Images are taken to lie in [0, 1].

    Parameters
    ----------
    flip : bool, default=False
        Whether to mirror images at random; as in :class:`WeakImage`.
    shift : float, default=0.125
        How far images are moved; as in :class:`WeakImage`.
    n_ops : int, default=2
        Operations per image; each is left out half of the time.
    cutout : float, default=0.5
        Side of the square that is covered, as a share of the image's.
    fill : float, default=0.5
        What it is covered with.

    Examples
    --------
    >>> import torch
    >>> from skal.semi_supervised import StrongImage
    >>> StrongImage(n_ops=3)(torch.rand(5, 1, 28, 28)).shape
    torch.Size([5, 1, 28, 28])
    """

    constraints: ClassVar[dict[str, Constraint]] = {"n_ops": Integer(0, 1000), "cutout": Real(0, 1), "fill": Real()}

    def __init__(
        self, *, flip: bool = False, shift: float = 0.125, n_ops: int = 2, cutout: float = 0.5, fill: float = 0.5
    ) -> None:
        super().__init__(flip=flip, shift=shift)
        self.n_ops = n_ops
        self.cutout = cutout
        self.fill = fill

    def __call__(self, x: Tensor) -> Tensor:
        """(n, C, H, W) images, augmented."""
        x = randaugment(super().__call__(x), self.n_ops)
        return cutout(x, self.cutout, self.fill) if self.cutout > 0 else x


class WeakJitter(Constrained, BaseEstimator):
    """Gaussian noise on the columns of a table.

    The counterpart of shifting and mirroring images: it assumes only that a sample's neighbours belong to its class.
    Columns that are codes of categories should not be jittered; write a callable of your own for them.

    Parameters
    ----------
    noise : float, default=0.1
        Standard deviation, as a multiple of each column's in the batch.

    Examples
    --------
    >>> import torch
    >>> from skal.semi_supervised import WeakJitter
    >>> WeakJitter()(torch.rand(5, 7)).shape
    torch.Size([5, 7])
    """

    constraints: ClassVar[dict[str, Constraint]] = {"noise": Real(0)}

    def __init__(self, *, noise: float = 0.1) -> None:
        self.noise = noise

    def __call__(self, x: Tensor) -> Tensor:
        """(n, d) rows, augmented."""
        _check_batch(type(self).__name__, x, 2, "rows of shape (n, features)")
        self.check_params()
        return x + self.noise * x.std(dim=0, correction=0) * torch.randn_like(x)


class StrongJitter(WeakJitter):
    """Gaussian noise, then some entries replaced by entries of other rows of the batch.

    Parameters
    ----------
    noise : float, default=0.3
        As in :class:`WeakJitter`.
    swap : float, default=0.2
        Share of the entries that are replaced by the same column's of a random row.

    Examples
    --------
    >>> import torch
    >>> from skal.semi_supervised import StrongJitter
    >>> StrongJitter(swap=0.5)(torch.rand(5, 7)).shape
    torch.Size([5, 7])
    """

    constraints: ClassVar[dict[str, Constraint]] = {"swap": Real(0, 1)}

    def __init__(self, *, noise: float = 0.3, swap: float = 0.2) -> None:
        super().__init__(noise=noise)
        self.swap = swap

    def __call__(self, x: Tensor) -> Tensor:
        """(n, d) rows, augmented."""
        self.check_params()
        other = torch.randint(len(x), x.shape, device=x.device)
        chosen = torch.rand(x.shape, device=x.device) < self.swap
        return torch.where(chosen, x.gather(0, other), super().__call__(x))


def _check_batch(owner: str, x: Any, ndim: int, expected: str) -> None:
    if not isinstance(x, Tensor) or x.ndim != ndim or not x.is_floating_point():
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InvalidTypeError(
            f"The input of {owner} must be floating-point {expected}. Got {got} instead. "
            "Set augment of FixMatchClassifier to 'image', 'tabular', or a pair of callables (weak, strong)."
        )


def make_pair(owner: str, augment: Any) -> tuple[Any, Any]:
    """The weak and the strong augmentation that an ``augment`` parameter stands for."""
    pairs = {"image": (WeakImage(), StrongImage()), "tabular": (WeakJitter(), StrongJitter())}
    if isinstance(augment, str) and augment in pairs:
        return pairs[augment]
    if isinstance(augment, (tuple, list)) and len(augment) == 2 and all(map(callable, augment)):
        return augment[0], augment[1]
    expected = "'image', 'tabular' or a pair of callables (weak, strong)"
    remedy = "For photographs pass (WeakImage(flip=True), StrongImage(flip=True))."
    raise InvalidParameterError.for_parameter(owner, "augment", expected, augment, remedy)
