"""``skal label`` in a process of its own, and calls to its page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit


class Served:
    """A command that serves the page until the end of a ``with``, which kills it.

    Parameters
    ----------
    *arguments : of ``skal label``
    through : list of str
        A command that starts it, such as ``ip netns exec``.
    """

    def __init__(self, *arguments: object, through: Sequence[str] = ()) -> None:
        code = "import sys; from skal.cli import main; sys.exit(main())"
        command = [*through, sys.executable, "-c", code, "label", *map(str, arguments), "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = next(match[0] for line in self.process.stdout if (match := re.search(r"https?://\S+", line)))
        self.url = urlsplit(self.address)

    def call(self, method: str, **given: object) -> dict:
        """One call of the page."""
        status, data = self._request("POST", f"api/{method}", json.dumps(given))
        if status != 200:
            raise RuntimeError(json.loads(data)["error"])
        return json.loads(data)

    def picture(self, key: str, size: int) -> int:
        """Ask for a picture; gives the status of the answer."""
        return self._request("GET", "picture?" + urlencode({"id": key, "size": size}))[0]

    def peak_memory(self) -> float:
        """Megabytes that the process has had at most, on Linux."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) / 1024  # type: ignore[index]

    def kill(self) -> None:
        """As kill -9 does."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def _request(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.url.port, timeout=600)
        connection.request(method, self.url.path + path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, data
