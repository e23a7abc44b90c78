# SPDX-License-Identifier: BSD-3-Clause
"""Sentences for the page and the terminal: how long it takes, what guessing gives, what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

FORMATS = ("csv", "tsv", "jsonl", "label-studio", "coco-classification")  # of exports as text


def say_seconds(seconds: float) -> str:
    """A duration as people say it.

    Examples
    --------
    >>> say_seconds(0.2), say_seconds(42.4), say_seconds(200)
    ('1 second', '42 seconds', '3 minutes')
    """
    number, unit = (seconds, "second") if seconds < 90 else (seconds / 60, "minute")
    rounded = max(1, round(number))
    return f"{rounded} {unit}{'' if rounded == 1 else 's'}"


def say_time_left(left: int, per_minute: float) -> str:
    """Say how long the rest takes at a pace; "" if nobody knows.

    Examples
    --------
    >>> say_time_left(1200, 20.0), say_time_left(30, 20.0), say_time_left(12000, 0.0)
    ('about 1 hour for the 1,200 left at today’s pace', 'about 2 minutes for the 30 left at today’s pace', '')
    """
    if per_minute <= 0 or left <= 0:
        return ""
    minutes = left / per_minute
    hours = max(1, round(minutes / 60))
    words = say_seconds(60 * minutes) if minutes < 60 else f"{hours:,} hour{'' if hours == 1 else 's'}"
    return f"about {words} for the {left:,} left at today’s pace"


def say_numbers(numbers: Sequence[float], unit: str) -> str:
    """Say which numbers have been answered so far.

    Examples
    --------
    >>> say_numbers([3.0, 1.5, 2.0], "m"), say_numbers([], "m")
    ('Answers from 1.5 to 3 m, half of them at most 2.', '')
    """
    if not numbers:
        return ""
    middle = sorted(numbers)[(len(numbers) - 1) // 2]
    ends = f"{min(numbers):g} to {max(numbers):g} {unit}".strip()
    return f"Answers from {ends}, half of them at most {middle:g}."


def guessing(heldout: Sequence[Any], n_classes: int) -> dict[str, Any]:
    """The accuracy of somebody who does not look, beside which an accuracy means something.

    Parameters
    ----------
    heldout : sequence of labels
        Those that accuracy is measured on; the answer is then always their largest class.
    n_classes : int
        How many classes there are: without held-out labels, the level is that of guessing among them.

    Returns
    -------
    dict
        ``level``, and ``words`` that say which of the two it is.

    Examples
    --------
    >>> guessing(["cat", "dog", "cat"], 5)["words"]
    'Guessing gives 67 %: 2 of the 3 held-out labels are “cat”, the largest class.'
    >>> guessing([], 5)
    {'level': 0.2, 'words': 'Guessing gives 20 %: one of 5 classes.'}
    """
    if not heldout:
        level = 1 / n_classes
        return {"level": level, "words": f"Guessing gives {level:.0%}: one of {n_classes} classes.".replace("%", " %")}
    (largest, number), *_ = Counter(map(str, heldout)).most_common(1)
    level, n = number / len(heldout), len(heldout)
    share = f"{100 * level:.0f} %"
    return {
        "level": level,
        "words": f"Guessing gives {share}: {number} of the {n} held-out labels are “{largest}”, the largest class.",
    }


def say_certificate(certificate: dict[str, Any], left: int) -> str:
    """Say what a certificate promises, and what people still have to do for it.

    Examples
    --------
    >>> say_certificate({"max_error": 0.05, "confidence": 0.95, "n_accepted": 41200}, left=310)
    'The model labels 41,200 samples. Label the 310 that are left: at most 5 % will be wrong, 95 % sure.'
    """
    model = f"The model labels {certificate['n_accepted']:,} samples."
    promise = f"at most {100 * certificate['max_error']:g} %"
    sure = f"{100 * certificate['confidence']:g} % sure"
    if left:
        return f"{model} Label the {left:,} that are left: {promise} will be wrong, {sure}."
    return f"{model} People have labelled all others: {promise} of the whole data set are wrong, {sure}."


def say_refusal(max_error: float) -> str:
    """Say that a last check grants nothing; with few samples this may happen to a good model, too.

    Examples
    --------
    >>> say_refusal(0.05)
    'The last check does not allow a promise of at most 5 %. The model learns from it; go on labelling.'
    """
    promise = f"a promise of at most {100 * max_error:g} %"
    return f"The last check does not allow {promise}. The model learns from it; go on labelling."


def say_left_out(names: Sequence[str]) -> str | None:
    """Say which files of a folder are left out; None if none are.

    Examples
    --------
    >>> say_left_out(["a.heic", "b.HEIC", "c.mp4"])
    '3 files are left out, which are no images of a kind we read (2 heic, 1 mp4): a.heic, b.HEIC, c.mp4.'
    """
    if not names:
        return None
    kinds = Counter(PurePath(name).suffix[1:].lower() or "without a suffix" for name in names)
    counts = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common(5))
    shown = ", ".join(names[:10]).encode("utf-8", "backslashreplace").decode() + (" …" if len(names) > 10 else "")
    one, several = "1 file is left out, which is no image", f"{len(names)} files are left out, which are no images"
    files = one if len(names) == 1 else several
    return f"{files} of a kind we read ({counts}): {shown}."
