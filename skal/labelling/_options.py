# SPDX-License-Identifier: BSD-3-Clause
"""Rules for what ``skal label`` and its relatives may be given, which the command line asks before torch is loaded."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skal.exceptions import CheckpointError, InvalidParameterError, SampleError
from skal.labelling._settings import JOURNAL, read_settings
from skal.validation import MOST_PIXELS, Constraint, Integer, Real

LIMITS: dict[str, Constraint] = {
    "query_size": Integer(1),
    "share": Real(0, 0.9, remedy="Pass a share of the samples, such as 0.2, or 0."),
    "max_error": Real(0.0001, 0.5, remedy="Pass 0.05 for at most 5 % errors."),
    "overlap": Real(0.0, 1.0, remedy="Pass a share of the samples, such as 0.1."),
    "size": Integer(8, MOST_PIXELS, remedy="Pass the pixels a side that the model sees, such as 32."),
    "port": Integer(0, 65_535, remedy="Pass 0 for any port that is free."),
}
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")


def find_source(path: Any) -> Path:
    """A folder, a table or an npz file that is there; anything else is refused."""
    place = Path(path)
    if not place.exists():
        raise SampleError(f"The source must be a folder or a file. Got {place}, which is not there. Check the path.")
    if not (place.is_dir() or place.suffix.lower() in (*TABLES, ".npz")):
        raise SampleError(
            f"The source must be a folder of images, a table ({', '.join(TABLES)}) or an npz file. Got {place}. "
            "Convert it to one of these."
        )
    return place


def find_file(path: Any) -> None:
    """Refuse a file that is not there."""
    if not Path(path).exists():  # what is no regular file is refused by who reads it
        raise SampleError(f"There is no file {path}. Pass the path of a file that can be read.")


def find_labels(folder: Path) -> None:
    """Refuse a folder that nobody has labelled in; one that was only opened will do."""
    if not any((folder / name).exists() for name in (JOURNAL, "lock", "cache")) and not read_settings(folder):
        raise CheckpointError(
            f"{folder} must be a folder with labels. Got one without {JOURNAL}. Name the --out folder of skal label."
        )


def find_model(folder: Any) -> Path:
    """The folder of a model, or of a project that has one; anything else is refused."""
    place = Path(folder)
    if not any((inside / "model.json").is_file() for inside in (place, place / "model")):
        raise CheckpointError(
            f"{place} must be the folder of a model, or of skal label with one. Got one without model.json. Label at "
            "least one sample of two classes, and wait until a model has been trained."
        )
    return place


@dataclass(frozen=True)
class Door:
    """The address at which the server listens, and the one that people open. A secret must not travel in clear text.

    Attributes
    ----------
    host : str
        An address of this machine; only this machine itself reaches 127.0.0.1.
    url : str or None
        The address in people's browsers, if it is another one: of a proxy that encrypts.
    certificate, key : path or None
        Files of TLS, in the PEM format.
    """

    host: str = "127.0.0.1"
    url: str | None = None
    certificate: Any = None
    key: Any = None

    def check(self) -> None:
        """Refuse a door that is open to others and not encrypted."""
        if (self.certificate is None) != (self.key is None):
            expected, remedy = "two files, the certificate and its key", "Pass both --certificate and --key."
            raise InvalidParameterError.for_parameter("label", "certificate", expected, "one of them", remedy)
        url = urlsplit(self.url or "")
        if self.url is not None and (url.scheme not in ("http", "https") or not url.netloc or url.path.strip("/")):
            expected, remedy = "scheme and host, without a path", "Pass for example --url https://label.example.org."
            raise InvalidParameterError.for_parameter("label", "url", expected, self.url, remedy)
        if not _is_here(self.host) and self.certificate is None and url.scheme != "https":
            raise InvalidParameterError(
                f"A page that others can reach must be encrypted. Got host={self.host!r} without a certificate. Pass "
                "--certificate and --key; or leave --host out, put a proxy with TLS in front, and pass its address "
                "as --url https://…"
            )
        if self.url is None and self.host in ("0.0.0.0", "::"):
            expected, remedy = "given where the host is every address", "Pass the address that people open."
            raise InvalidParameterError.for_parameter("label", "url", expected, None, remedy)

    def origins(self, port: int) -> list[str]:
        """Scheme, host and port of the page, the one to print first."""
        self.check()
        if self.url is not None:
            return [self.url.rstrip("/")]
        scheme = "http" if self.certificate is None else "https"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return [f"{scheme}://{host}:{port}", *([f"{scheme}://localhost:{port}"] if _is_here(self.host) else [])]


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
