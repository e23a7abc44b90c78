# SPDX-License-Identifier: BSD-3-Clause
"""Where a session stands, for the eye: in one line, as a table of HTML, and the asked samples as pictures."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import Dataset

from skal._core.containers import dataset_input, take_rows
from skal.exceptions import InvalidTypeError

if TYPE_CHECKING:
    from skal.loop._state import LoopState

_SCORES = ("eval_score", "valid_score", "train_score")


def summary(state: LoopState) -> dict[str, str]:
    """What there is to say of a session.

    Examples
    --------
    >>> from skal.loop._state import LoopState
    >>> summary(LoopState(seed=0, labelled=[4, 2], labels=["cat", "dog"], heldout=[False] * 2))
    {'labelled': '2', 'open': '0', 'declined': '0', 'rounds': '0', 'classes': 'cat 1, dog 1', 'last score': 'none'}
    """
    told = [value for _, value in state.told] if state.phase == "answer" else []
    labels = state.labels + [value for value in told if value is not None]
    counts = sorted(Counter(labels).items(), key=lambda item: (-item[1], str(item[0])))
    shown = [f"{label} {n}" for label, n in counts[:10]] + (["…"] if len(counts) > 10 else [])
    scores = [f"{name} {row[name]:.3f}" for row in state.history for name in _SCORES if row.get(name) is not None]
    last = next((text for name in _SCORES for text in scores[::-1] if text.startswith(name)), "none")
    result = {
        "labelled": str(len(labels)),
        "open": str(len(state.unanswered())),
        "declined": str(len(state.declined) + told.count(None)),
        "rounds": str(len(state.history)),
        "classes": ", ".join(shown) or "none",
        "last score": last.replace("_", " "),
    }
    return result | ({"stopped": state.stop_reason} if state.stop_reason else {})


def as_html(parts: dict[str, str], title: str) -> str:
    """A small table."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in parts.items()
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"


def draw_samples(X: Any, positions: np.ndarray, titles: list[str]) -> Any:
    """A matplotlib figure with these samples: images as such, text and rows of numbers as a table."""
    import matplotlib.pyplot as plt

    samples = [_sample(X, int(i)) for i in positions]
    pictures = [_picture(sample) for sample in samples]
    if not samples or any(picture is None for picture in pictures):
        texts = [" ".join(str(sample).split()) for sample in samples]
        figure, ax = plt.subplots(figsize=(8, 0.4 + 0.3 * max(1, len(texts))))
        ax.axis("off")
        cells = [
            [title, text if len(text) <= 100 else f"{text[:97]}..."] for title, text in zip(titles, texts, strict=True)
        ]
        table = ax.table(cells or [["", "nothing is asked for"]], colWidths=[0.2, 0.8], cellLoc="left", loc="center")
        table.auto_set_font_size(False)
        table.set_fontsize(8)
        return figure
    n_columns = min(5, len(pictures))
    n_rows = -(-len(pictures) // n_columns)
    figure, axes = plt.subplots(n_rows, n_columns, figsize=(1.6 * n_columns, 1.9 * n_rows), squeeze=False)
    for ax in axes.flat:
        ax.axis("off")
    for ax, picture, title in zip(axes.flat, pictures, titles, strict=False):
        ax.imshow(picture, cmap="gray")
        ax.set_title(title, fontsize=8)
    figure.tight_layout()
    return figure


def _sample(X: Any, i: int) -> Any:
    if isinstance(X, Dataset):
        return dataset_input(X[i])
    row = take_rows(X, np.array([i]))
    if isinstance(row, dict):
        return {name: value[0] for name, value in row.items()}
    return row.iloc[0].to_dict() if isinstance(row, pd.DataFrame) else row.iloc[0] if hasattr(row, "iloc") else row[0]


def _picture(sample: Any) -> np.ndarray | None:
    """H×W or H×W×3 in [0, 1], None if the sample is no image."""
    if hasattr(sample, "convert") and hasattr(sample, "size"):  # of pillow
        sample = np.asarray(sample)
    if isinstance(sample, torch.Tensor):
        sample = sample.detach().cpu().float().numpy()
    if not isinstance(sample, np.ndarray) or sample.dtype.kind not in "biuf" or sample.ndim not in (2, 3):
        return None
    if sample.ndim == 3 and sample.shape[0] in (1, 3) and sample.shape[2] not in (1, 3):
        sample = np.moveaxis(sample, 0, 2)
    if sample.ndim == 3 and sample.shape[2] not in (1, 3):
        return None
    low, high = float(sample.min()), float(sample.max())
    scaled: np.ndarray = np.squeeze((sample - low) / ((high - low) or 1.0))
    return scaled


def checked_figure_request(positions: Any, n_samples: int) -> np.ndarray:
    """Positions to draw."""
    array = np.asarray(positions).reshape(-1)
    if array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= n_samples):
        expected, remedy = f"positions in 0 … {n_samples - 1}", "Leave it out to see what is asked for."
        raise InvalidTypeError.for_parameter("show", "indices", expected, positions, remedy)
    return array.astype(np.int64)
