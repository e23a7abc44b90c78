# SPDX-License-Identifier: BSD-3-Clause
"""JSON from anywhere, and JSON that anybody can read."""

from __future__ import annotations

import json
from typing import Any


def parse_json(data: bytes | str) -> Any:
    """What some JSON says; whatever is wrong with it is a ValueError.

    Examples
    --------
    >>> parse_json(b'{"a": [1, null]}')
    {'a': [1, None]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def format_json(value: Any, indent: int | None = None) -> str:
    """JSON with its letters as they are; where UTF-8 has none for them, all are escaped.

    Examples
    --------
    >>> format_json(["naïve"]), format_json(["naïve", "\\ud800"])
    ('["naïve"]', '["na\\\\u00efve", "\\\\ud800"]')
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if is_utf8(text) else json.dumps(value, indent=indent)


def is_utf8(text: str) -> bool:
    """Whether a text can be written in UTF-8; half of a surrogate pair cannot.

    Examples
    --------
    >>> is_utf8("naïve"), is_utf8("\\ud800")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
