"""Load test of `serve.py`: throughput, latency, lost requests and memory.

`python benchmarks/serve_load.py --model=exported/detector.onnx --images='photos/*.jpg' [--clients=8] [--minutes=2]`.

Starts `serve.py` on a free port with the flags after `--`. Each client has one connection and sends one image after the
other as a form. A broken connection, a status other than 200, and a response to another image (compared by size) count
as lost. Memory is the server's resident memory from /metrics.
"""

import argparse
import glob
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from dataset.files.image_files import stored_size
from program_support.processor import available_cores

ROOT = Path(__file__).resolve().parent.parent
_BOUNDARY = "frontier"


class Sent(NamedTuple):
    """Request that is sent repeatedly."""

    body: bytes
    size: list[int]  # width, height


class Client(threading.Thread):
    """Send requests over one connection until a deadline."""

    def __init__(self, port: int, requests: list[Sent], *, first: int, end: float):
        super().__init__()
        self._port, self._requests, self._first, self._end = port, requests, first, end
        self.seconds: list[float] = []
        self.lost: list[str] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        number = self._first
        while time.perf_counter() < self._end:
            sent, start = self._requests[number % len(self._requests)], time.perf_counter()
            number += 1
            try:
                connection.request(
                    "POST", "/v1/detect", sent.body, {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"}
                )
                reply = connection.getresponse()
                content = json.loads(reply.read())
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.lost.append(repr(error))
                connection.close()
                continue
            if reply.status == 200 and [[one["width"], one["height"]] for one in content["images"]] == [sent.size]:
                self.seconds.append(time.perf_counter() - start)
            else:
                self.lost.append(f"{reply.status} {content.get('error')}")
        connection.close()


def form(path: str) -> Sent:
    """Return an image file as a form. Its EXIF orientation is ignored."""
    content = Path(path).read_bytes()
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="image"\r\n\r\n'
    height, width = stored_size(content)
    return Sent(head.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode(), [width, height])


def metric(port: int, name: str) -> float:
    """Return a sample of /metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])


def main() -> None:
    """Run the load test and print its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--images", required=True, help="Glob of images.")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=2)
    arguments, flags = parser.parse_known_args()
    requests = [form(path) for path in sorted(glob.glob(arguments.images))]
    command = [sys.executable, ROOT / "serve.py", f"--model={arguments.model}", "--port=0"]
    server = subprocess.Popen(command + [flag for flag in flags if flag != "--"], stdout=subprocess.PIPE, text=True)
    address = next(line for line in server.stdout if line.startswith("serving at "))
    port = int(address.rsplit(":", 1)[1].strip("/\n"))
    megabytes = [metric(port, "process_resident_memory_bytes") / 1e6]
    start = time.perf_counter()
    clients = [
        Client(port, requests, first=number, end=start + 60 * arguments.minutes) for number in range(arguments.clients)
    ]
    for client in clients:
        client.start()
    while time.perf_counter() < start + 60 * arguments.minutes:
        time.sleep(min(10, 6 * arguments.minutes))
        megabytes.append(metric(port, "process_resident_memory_bytes") / 1e6)
    for client in clients:
        client.join()
    wall = time.perf_counter() - start
    batches, images = (metric(port, f"efficientdet_batch_images_{what}") for what in ("count", "sum"))
    server.send_signal(signal.SIGTERM)
    status = server.wait(timeout=120)
    seconds = sorted(value for client in clients for value in client.seconds)
    lost = [reason for client in clients for reason in client.lost]
    p50, p99 = (1000 * statistics.quantiles(seconds, n=100)[place] for place in (49, 98))
    print(
        f"{len(seconds)} answered in {wall:.0f} s by {arguments.clients} clients: {len(seconds) / wall:.2f} images/s, "
        f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {1000 * seconds[-1]:.0f} ms; {images / batches:.1f} images per batch"
    )
    print(f"lost: {len(lost)} {sorted(set(lost))[:5]}; the server exited with {status}")
    print(
        f"memory of the server: {megabytes[0]:.0f} MB before, {', '.join(f'{value:.0f}' for value in megabytes[1:])} MB"
    )
    print(f"{available_cores()} cores, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
