"""Servers as processes of their own, and requests to them."""

import contextlib
import http.client
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
BOUNDARY = "frontier"


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    content: Any  # of JSON what it says, else text


class RunningServer:
    """A process that said at which port it listens."""

    def __init__(self, process: subprocess.Popen, errors: Path):
        self.process, self.errors = process, errors
        told, self.threshold = process.stdout.readline(), ""
        if told.startswith("score threshold"):
            self.threshold, told = told, process.stdout.readline()
        match = re.fullmatch(r"serving at http://127\.0\.0\.1:(\d+)/\n", told)
        assert match, (told, errors.read_text()[-2000:])
        self.port = int(match[1])

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """A request on a connection of its own; header names with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            return reply_of(connection.getresponse())

    def get(self, path: str) -> Reply:
        return self.call("GET", path)

    def detect(self, images: Sequence[bytes], query: str = "", **fields: str) -> Reply:
        return self.call("POST", f"/v1/detect{query}", form(images, **fields), content_type=FORM)

    def connect(self, sent: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(sent)
        return connection

    def metric(self, name: str) -> float:
        return float(re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics").content, re.MULTILINE)[1])


FORM = f"multipart/form-data; boundary={BOUNDARY}"


def form(images: Sequence[bytes], *, name: str = "../../etc/passwd", **fields: str) -> bytes:
    """The body of a form with files `image` and other fields."""
    parts = [(f'name="image"; filename="{name}"', image) for image in images]
    parts += [(f'name="{field}"', value.encode()) for field, value in fields.items()]
    lines = [
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"
        for head, content in parts
    ]
    return b"".join(lines) + f"--{BOUNDARY}--\r\n".encode()


def request_bytes(body: bytes, *, kind: str = FORM, length: int | None = None) -> bytes:
    """A whole POST to /v1/detect as it goes over the wire."""
    return (
        f"POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    ).encode() + body


def received(connection: socket.socket) -> Reply:
    """The reply on a raw connection."""
    reply = http.client.HTTPResponse(connection)
    reply.begin()
    return reply_of(reply)


def reply_of(response: http.client.HTTPResponse) -> Reply:
    content = response.read()
    headers = {name.lower(): value for name, value in response.getheaders()}
    is_json = headers.get("content-type", "").startswith("application/json")
    return Reply(response.status, headers, json.loads(content) if is_json else content.decode())


def encoded(
    color: tuple[int, int, int] = (200, 100, 50),
    *,
    size: tuple[int, int] = (64, 64),
    kind: str = "PNG",
    **settings: Any,
) -> bytes:
    """A file with an image of one color; `size` (width, height)."""
    stream = io.BytesIO()
    Image.new("RGB", size, color).save(stream, kind, **settings)
    return stream.getvalue()


@contextlib.contextmanager
def running(folder: Path, *arguments: object, **variables: str) -> Iterator[RunningServer]:
    """A server of `python ARGUMENTS` in the repository, which has ended at the end."""
    folder.mkdir(exist_ok=True)
    errors = folder / "errors.txt"
    with errors.open("w") as told:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        )
    try:
        yield RunningServer(process, errors)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_until(met, *, seconds: float = 60) -> None:
    """Ask until it is so."""
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)
