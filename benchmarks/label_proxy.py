"""The ways in which a team reaches the page, tried for real: nginx in front of it, and another machine's network.

``python -m benchmarks.label_proxy`` needs nginx, curl and, for the second part, ``ip netns`` and the rights to use it.
A part that cannot be tried says why.

1. nginx with the configuration that the guide prints, and TLS. Two people answer through it, other names and plain
   HTTP are refused, no secret is in its log; Chromium labels through it, says that nothing answers when nginx or the
   server behind it is gone, and goes on by itself.
2. Two network namespaces stand for two machines: from the other one the page is reached by ``--host`` with a
   certificate, not in clear text, and not at all without ``--host``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks._label_command import Served

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guide" / "labelling.md"
NAME = "label.example.org"
HERE, THERE = "192.0.2.7", "192.0.2.8"  # addresses of two machines,
SERVER, OTHER = "skal-server", "skal-other"  # which are network namespaces
PEOPLE = ("ann", "ben")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def make_certificate(work: Path) -> tuple[Path, Path]:
    """A certificate of a name and an address, which signs itself, and its key."""
    files = work / "cert.pem", work / "key.pem"
    subject = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME},IP:{HERE}"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*make, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


def curl(url: str, *options: object, body: dict | None = None, far: bool = False) -> tuple[int, bytes]:
    """Status and content of an answer, 0 if there is none; ``far`` asks from the other machine."""
    sent = [] if body is None else ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    command = ["curl", "-sS", "-m", "20", "-w", "%{http_code}", *map(str, options), *sent, url]
    done = subprocess.run([*(["ip", "netns", "exec", OTHER] if far else []), *command], capture_output=True)
    return int(done.stdout[-3:] or 0), done.stdout[:-3]


def check(what: str, holds: bool) -> None:
    print(f"{'yes' if holds else 'NO'}: {what}", flush=True)
    if not holds:
        raise SystemExit(1)


class Proxy:
    """nginx with the guide's configuration."""

    def __init__(self, work: Path, port: int, upstream: int) -> None:
        (block,) = re.findall(r"```nginx\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
        certificate, key = make_certificate(work)
        for before, after in [
            ("listen 443 ssl", f"listen {port} ssl"),
            ("/etc/ssl/label.pem", str(certificate)),
            ("/etc/ssl/label.key", str(key)),
            ("127.0.0.1:8400", f"127.0.0.1:{upstream}"),
        ]:
            assert before in block, before
            block = block.replace(before, after)
        paths = "".join(f"{name}_temp_path {work};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        self.log = work / "access.log"
        self.log.touch()
        text = f"daemon off; pid {work}/nginx.pid; error_log {work}/error.log; events {{}}\n"
        text += f"http {{ {paths} access_log {self.log};\n{block}}}\n"
        self._file = work / "nginx.conf"
        self._file.write_text(text)
        self.certificate = certificate
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(["nginx", "-e", self._file.parent / "error.log", "-c", self._file])
        time.sleep(1)
        assert self._process.poll() is None, (self._file.parent / "error.log").read_text()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def serve(out: Path, *arguments: object, through: Sequence[str] = ()) -> tuple[Served, dict[str, str]]:
    """``skal label`` for a team, and everybody's secret."""
    served = Served("--demo", "--out", out, "--team", ",".join(PEOPLE), *arguments, through=through)
    return served, json.loads((out / "access.json").read_text())["people"]


def answers(out: Path) -> list[tuple[str, str, str]]:
    """(person, id, label) in the journal."""
    path = out / "labels.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(event["annotator"], event["id"], event["label"]) for event in events]


def try_proxy(work: Path) -> None:
    """Two people through nginx, and what must be refused."""
    port, upstream, out = free_port(), free_port(), work / "out"
    url, arguments = f"https://{NAME}:{port}", ("--port", upstream)
    served, people = serve(out, *arguments, "--url", url)
    proxy = Proxy(work, port, upstream)
    to = ["--cacert", proxy.certificate, "--resolve", f"{NAME}:{port}:127.0.0.1"]
    try:
        check("the links that are printed are the proxy's", served.address.startswith(f"{url}/"))
        said = []
        for person, label in zip(PEOPLE, "12", strict=True):
            root = f"{url}/{people[person]}/"
            status, page = curl(root, *to)
            check(f"{person} gets the page through nginx", status == 200 and b"skal label" in page)
            status, data = curl(f"{root}api/next", *to, body={"client": "a", "n": 1})
            key = json.loads(data)["items"][0]["id"]
            status, _ = curl(f"{root}api/answer", *to, body={"client": "a", "id": key, "label": label})
            said.append((person, key, label))
        check("both answers are in the journal, with their authors", answers(out) == said)
        root = f"/{people['ann']}/"
        check("a wrong secret is refused", curl(f"{url}/{'x' * 32}/", *to)[0] == 403)
        check("another name is refused", curl(f"{url}{root}", *to, "-H", "Host: evil.example.org")[0] == 403)
        check("another site's request is refused", curl(f"{url}{root}", *to, "-H", "Origin: https://a.org")[0] == 403)
        check("plain HTTP is refused", curl(f"http://{NAME}:{port}{root}", *to)[0] == 400)
        check("the way around nginx is refused", curl(f"http://127.0.0.1:{upstream}{root}")[0] == 403)
        check("no secret is in nginx's log", people["ann"] not in proxy.log.read_text())
        served = try_browser(work, proxy, served, f"{url}{root}", port, out, (*arguments, "--url", url))
    finally:
        proxy.stop()
        served.kill()


def try_browser(
    work: Path, proxy: Proxy, served: Served, address: str, port: int, out: Path, arguments: tuple[object, ...]
) -> Served:
    """Label in Chromium, through nginx; gives the last server."""
    try:
        from benchmarks._label_page import MISSING, WHY, Page
    except ImportError as error:
        print(f"not tried in a browser: {error}")
        return served
    if MISSING:
        print(f"not tried in a browser: {WHY}")
        return served
    rules = [f"--host-resolver-rules=MAP {NAME} 127.0.0.1", "--ignore-certificate-errors"]
    page = Page(work / "profile", *rules)

    def lost() -> bool:
        return bool(page.find(".banner")) and "does not answer" in page.text(".banner")

    def seconds_to_tell(end: Callable[[], None]) -> float:
        began = time.monotonic()
        end()
        page.wait_for(lost)
        return time.monotonic() - began

    page.open(address)
    before = len(answers(out))
    shown = [page.label(key) for key in "345"]
    found = answers(out)[before:]
    check("Chromium labels through nginx", found == [("ann", k, x) for k, x in zip(shown, "345", strict=True)])
    shown = page.current()
    print(f"   nginx is gone: the page says so after {seconds_to_tell(proxy.stop):.1f} s")
    proxy.start()
    page.wait_for(lambda: not page.find(".banner"))
    check("it goes on by itself when nginx is back, with the same sample", page.current() == shown)
    print(f"   the server behind nginx is gone: the page says so after {seconds_to_tell(served.kill):.1f} s")
    page.press("6")  # is lost, and the page says so
    served, _ = serve(out, *arguments)
    page.wait_for(lambda: not page.find(".banner"))
    check("it goes on by itself when the server is back, with the same sample", page.current() == shown)
    page.label("7")
    check("the label that is given then is in the journal", answers(out)[-1] == ("ann", shown, "7"))
    page.close()
    return served


def try_network(work: Path) -> None:
    """Another machine's network: with a certificate, in clear text, and without ``--host``."""

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        ip("netns", "add", SERVER)
        ip("netns", "add", OTHER)
        ip("link", "add", "skal-here", "netns", SERVER, "type", "veth", "peer", "name", "skal-there", "netns", OTHER)
        for space, name, address in [(SERVER, "skal-here", HERE), (OTHER, "skal-there", THERE)]:
            ip("-n", space, "address", "add", f"{address}/24", "dev", name)
            ip("-n", space, "link", "set", name, "up")
            ip("-n", space, "link", "set", "lo", "up")
        there = ["ip", "netns", "exec", SERVER]
        certificate, key = make_certificate(work)
        served, people = serve(work / "far", "--host", HERE, "--certificate", certificate, "--key", key, through=there)
        try:
            root, port = f"/{people['ben']}/", served.url.port
            check("the link has the address", served.address.startswith(f"https://{HERE}:{port}/"))
            url, trust = f"https://{HERE}:{port}", ["--cacert", certificate]
            check("another machine gets the page", curl(f"{url}{root}", *trust, far=True)[0] == 200)
            status, _ = curl(f"{url}{root}api/status", *trust, body={}, far=True)
            check("and its calls are answered", status == 200)
            check("a wrong secret is refused", curl(f"{url}/{'x' * 32}/", *trust, far=True)[0] == 403)
            check("clear text gets no answer", curl(f"http://{HERE}:{port}{root}", far=True)[0] == 0)
        finally:
            served.kill()
        served, people = serve(work / "near", through=there)
        try:
            address = f"http://{HERE}:{served.url.port}/{people['ben']}/"
            check("without --host another machine gets no connection", curl(address, far=True)[0] == 0)
        finally:
            served.kill()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"not tried from another network: {error}")
    finally:
        for space in (SERVER, OTHER):
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


def main(arguments: list[str] | None = None) -> None:
    argparse.ArgumentParser(prog="python -m benchmarks.label_proxy", description=__doc__.split("\n")[0]).parse_args(
        arguments
    )
    work = Path(tempfile.mkdtemp())
    os.chmod(work, 0o755)  # nginx's workers are another user
    missing = [name for name in ("nginx", "curl", "openssl") if shutil.which(name) is None]
    if missing:
        print(f"not tried behind a proxy: no {' and no '.join(missing)}")
    else:
        try_proxy(work)
    if shutil.which("ip") is None:
        print("not tried from another network: no ip")
    else:
        try_network(work)


if __name__ == "__main__":
    main()
