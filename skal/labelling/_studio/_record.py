# SPDX-License-Identifier: BSD-3-Clause
"""Every annotation that was ever seen in Label Studio, in ``annotations.jsonl`` beside the journal.

Lines are only ever added. The last line of an annotation holds; one that is "gone" has been deleted over there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skal._files.json_text import format_json, parse_json
from skal.exceptions import CheckpointError
from skal.labelling._studio._annotations import Answer

FILE = "annotations.jsonl"


class AnnotationRecord:
    """What Label Studio has said so far.

    Parameters
    ----------
    folder : path

    Attributes
    ----------
    known : dict from number to entry
        The last entry of every annotation that is still there.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.known: dict[int, dict[str, Any]] = {}
        data = self.path.read_bytes() if self.path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]  # what a broken write leaves is still in Label Studio
        self._whole = len(whole)
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                self._fold(parse_json(line))
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"Every line of {self.path} must be as it was written. Got {error} in line {number}. Move the file "
                    "away: the annotations are in Label Studio, and will be written anew."
                ) from error

    def update(self, answers: Iterable[Answer]) -> int:
        """Write down what is new, changed or gone; how many lines that took. On the disk when this returns."""
        now = {answer.annotation: asdict(answer) for answer in answers if answer.annotation is not None}
        rows = [
            {name: cell for name, cell in entry.items() if name != "touched"}
            | {"choices": list(entry["choices"]), "gone": False}
            for entry in now.values()
        ]
        lines = [row for row in rows if self.known.get(row["annotation"]) != row]
        lines += [entry | {"gone": True} for number, entry in self.known.items() if number not in now]
        if lines:
            self._write("".join(format_json(line) + "\n" for line in lines).encode("utf-8", "surrogatepass"))
        for line in lines:
            self._fold(line)
        return len(lines)

    def _fold(self, line: dict[str, Any]) -> None:
        if line["gone"]:
            self.known.pop(line["annotation"], None)
        else:
            self.known[line["annotation"]] = line

    def _write(self, data: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.ftruncate(descriptor, self._whole)
            os.lseek(descriptor, self._whole, os.SEEK_SET)
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        except OSError as error:
            raise CheckpointError(
                f"Annotations must be written to {self.path}. Got {error.strerror or error}. Make room on the disk."
            ) from error
        finally:
            os.close(descriptor)
        self._whole += len(data)
