"""One rank of a training whose processes a user else has started, such as an indexed job: without mpirun, without ssh.

    python scripts/k8s/rank.py --size=4 --meet_at=HOST:PORT -- python train.py ...

Each process says which one it is (--rank, else JOB_COMPLETION_INDEX, which Kubernetes sets). The first one serves Horovod's
meeting place on PORT; all wait until all are there, then run the program under Horovod with Gloo (NCCL carries the sums where
Horovod was built with it). A signal is handed on, and the program's exit code is this one's.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator

_SECONDS_BETWEEN_LOOKS = 0.5
_ARRIVED, _LEFT = "arrived", "left"  # scopes of the meeting place in which the ranks are counted


def environment_of(rank: int, size: int, host: str, port: int) -> dict[str, str]:
    """What Horovod reads where horovodrun started it: one process on each machine."""
    return {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size), "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1",
            "HOROVOD_CROSS_RANK": str(rank), "HOROVOD_CROSS_SIZE": str(size), "HOROVOD_HOSTNAME": f"rank-{rank}",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": host, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port), "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo", "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def meeting_place(size: int, port: int) -> Iterator[None]:
    """Horovod's own server of names and values, on a port that all know beforehand; horovodrun takes any."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer(("", port), RendezvousHandler, 0)
    server.init([SlotInfo(hostname=f"rank-{rank}", rank=rank, local_rank=0, cross_rank=rank, size=size, local_size=1,
                          cross_size=size) for rank in range(size)])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def meet(rank: int, size: int, place: str, *, seconds: float) -> None:
    """Wait until every rank has said that it is there: Horovod itself waits for half a minute only, and images take minutes
    to be pulled. Raises TimeoutError."""
    ends = time.monotonic() + seconds
    _say(f"http://{place}/{_ARRIVED}/{rank}", ends=ends)
    _see(place, _ARRIVED, range(size), ends=ends)
    _say(f"http://{place}/{_LEFT}/{rank}", ends=ends)
    if rank == 0:  # which takes the meeting place away when its program ends, perhaps at once
        _see(place, _LEFT, range(size), ends=ends)


def _say(address: str, *, ends: float) -> None:
    while True:
        with contextlib.suppress(OSError):
            return _request(address, method="PUT", data=b"yes")
        _wait(f"{address}: no one answers", ends=ends)


def _see(place: str, scope: str, ranks: Iterable[int], *, ends: float) -> None:
    missing = list(ranks)
    while True:
        with contextlib.suppress(OSError):
            missing = [rank for rank in missing if not _is_there(f"http://{place}/{scope}/{rank}")]
        if not missing:
            return
        _wait(f"{place}: waits for the processes {_some(missing)}", ends=ends)


def _wait(what: str, *, ends: float) -> None:
    if time.monotonic() > ends:
        raise TimeoutError(f"{what}, for too long (--wait)")
    time.sleep(_SECONDS_BETWEEN_LOOKS)


def _is_there(address: str) -> bool:
    try:
        _request(address)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return False
    return True


def _request(address: str, **options) -> None:
    with urllib.request.urlopen(urllib.request.Request(address, **options), timeout=5):
        pass


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")


def run(command: list[str], environment: dict[str, str]) -> int:
    """Run the program as a rank; SIGTERM and Ctrl-C reach it. Its exit code, 128 and the number of a signal that ended it."""
    child = subprocess.Popen(command, env={**os.environ, **environment})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: child.send_signal(received))
    code = child.wait()
    return code if code >= 0 else 128 - code


def main() -> None:
    """Words to environment to program."""
    arguments = sys.argv[1:]
    own, command = (arguments[:arguments.index("--")], arguments[arguments.index("--") + 1:]) if "--" in arguments else (
        arguments, [])
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rank", default=os.environ.get("JOB_COMPLETION_INDEX"))
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--meet_at", required=True, metavar="HOST:PORT")
    parser.add_argument("--wait", type=float, default=1800.0, metavar="SECONDS", help="for the last one to come")
    asked = parser.parse_args(own)
    try:
        sys.exit(_start(asked, command))
    except (ValueError, TimeoutError, OSError) as error:
        print(f"rank.py: error: {error}", file=sys.stderr)
        sys.exit(2)


def _start(asked: argparse.Namespace, command: list[str]) -> int:
    host, _, port = asked.meet_at.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"--meet_at={asked.meet_at}: expected HOST:PORT")
    if not command:
        raise ValueError("there is no program; expected its words behind --")
    if asked.size < 1 or not str(asked.rank).isdigit() or int(asked.rank) >= asked.size:
        raise ValueError(f"--rank={asked.rank} --size={asked.size}: expected a rank from 0 to size - 1 (JOB_COMPLETION_INDEX)")
    rank = int(asked.rank)
    if asked.size == 1:
        return run(command, {})
    with meeting_place(asked.size, int(port)) if rank == 0 else contextlib.nullcontext():
        meet(rank, asked.size, asked.meet_at if rank else f"127.0.0.1:{port}", seconds=asked.wait)
        # Gloo wants an address, and a name in the cluster's network is one only once its pod runs.
        address = socket.gethostbyname(host) if rank else "127.0.0.1"
        return run(command, environment_of(rank, asked.size, address, int(port)))


if __name__ == "__main__":
    main()
