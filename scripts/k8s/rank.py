"""Run one rank of a distributed training without mpirun or ssh, for example as a pod of an indexed Kubernetes job.

    python scripts/k8s/rank.py --size=4 --meet_at=HOST:PORT -- python train.py ...

The rank of a process is --rank, else JOB_COMPLETION_INDEX, which Kubernetes sets. Rank 0 runs Horovod's rendezvous
server on PORT. Every rank waits for the others, then runs the program under Horovod with Gloo (with NCCL for all-reduce
where Horovod was built with it). Signals are forwarded to the program, and its exit code is returned.
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
from collections.abc import Callable, Iterator

_SECONDS_BETWEEN_POLLS = 0.5
_ARRIVED, _LEFT = "arrived", "left"  # scopes of the rendezvous server in which the ranks are counted


def environment_of(rank: int, size: int, host: str, port: int) -> dict[str, str]:
    """Return the variables that horovodrun would set, for one process per machine."""
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": str(rank),
        "HOROVOD_CROSS_SIZE": str(size),
        "HOROVOD_HOSTNAME": f"rank-{rank}",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "PYTHONUNBUFFERED": "1",
    }


@contextlib.contextmanager
def rendezvous_server(size: int, port: int) -> Iterator[None]:
    """Serve Horovod's rendezvous (a key-value server) on a fixed port; horovodrun would choose a free one."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer(("", port), RendezvousHandler, 0)
    server.init(
        [
            SlotInfo(
                hostname=f"rank-{rank}",
                rank=rank,
                local_rank=0,
                cross_rank=rank,
                size=size,
                local_size=1,
                cross_size=size,
            )
            for rank in range(size)
        ]
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def wait_for_all_ranks(rank: int, size: int, place: str, *, seconds: float) -> None:
    """Wait until every rank has registered.

    Horovod itself waits for half a minute only, and pulling images takes minutes.

    Raises:
        TimeoutError: a rank does not answer in time.
    """
    ends = time.monotonic() + seconds

    def poll(is_done: Callable[[], bool], problem: Callable[[], str]) -> None:
        while True:
            with contextlib.suppress(OSError):
                if is_done():
                    return
            if time.monotonic() > ends:
                raise TimeoutError(f"{problem()}: timed out (--wait)")
            time.sleep(_SECONDS_BETWEEN_POLLS)

    def register(scope: str) -> None:
        address = f"http://{place}/{scope}/{rank}"
        poll(lambda: _answers(address, method="PUT", data=b"yes"), lambda: f"{address}: no answer")

    def wait_for_others(scope: str) -> None:
        missing = list(range(size))

        def all_are_there() -> bool:
            missing[:] = [other for other in missing if not _answers(f"http://{place}/{scope}/{other}")]
            return not missing

        poll(all_are_there, lambda: f"{place}: waiting for ranks {_listed(missing)}")

    register(_ARRIVED)
    wait_for_others(_ARRIVED)
    register(_LEFT)
    if rank == 0:  # The rendezvous server ends with the program of rank 0, possibly at once.
        wait_for_others(_LEFT)


def _answers(address: str, **options) -> bool:
    """Request an address; return False if it does not exist.

    Raises:
        OSError: the connection fails.
    """
    try:
        with urllib.request.urlopen(urllib.request.Request(address, **options), timeout=5):
            return True
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return False


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")


def run(command: list[str], environment: dict[str, str]) -> int:
    """Run the program as a rank and return its exit code, or 128 + N if signal N ended it.

    SIGTERM and SIGINT are forwarded to it.
    """
    child = subprocess.Popen(command, env={**os.environ, **environment})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: child.send_signal(received))
    code = child.wait()
    return code if code >= 0 else 128 - code


def main() -> None:
    """Parse the arguments and run the program."""
    arguments = sys.argv[1:]
    own_arguments, command = (
        (arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :])
        if "--" in arguments
        else (arguments, [])
    )
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--rank",
        default=os.environ.get("JOB_COMPLETION_INDEX"),
        help="Rank of this process. Default: the variable JOB_COMPLETION_INDEX.",
    )
    parser.add_argument("--size", type=int, required=True, help="Number of ranks.")
    parser.add_argument(
        "--meet_at", required=True, metavar="HOST:PORT", help="Address of the rendezvous server on rank 0."
    )
    parser.add_argument("--wait", type=float, default=1800.0, metavar="SECONDS", help="Timeout. Default: 1800.")
    options = parser.parse_args(own_arguments)
    try:
        sys.exit(_start(options, command))
    except (ValueError, TimeoutError, OSError) as error:
        print(f"rank.py: error: {error}", file=sys.stderr)
        sys.exit(2)


def _start(options: argparse.Namespace, command: list[str]) -> int:
    host, _, port = options.meet_at.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"--meet_at={options.meet_at}: expected HOST:PORT")
    if not command:
        raise ValueError("no program given; expected a command after --")
    if options.size < 1 or not str(options.rank).isdigit() or int(options.rank) >= options.size:
        raise ValueError(
            f"--rank={options.rank} --size={options.size}: expected a rank from 0 to size - 1 (JOB_COMPLETION_INDEX)"
        )
    rank = int(options.rank)
    if options.size == 1:
        return run(command, {})
    with rendezvous_server(options.size, int(port)) if rank == 0 else contextlib.nullcontext():
        wait_for_all_ranks(rank, options.size, options.meet_at if rank else f"127.0.0.1:{port}", seconds=options.wait)
        # Gloo needs an address. A host name in the cluster resolves only once its pod runs.
        address = socket.gethostbyname(host) if rank else "127.0.0.1"
        return run(command, environment_of(rank, options.size, address, int(port)))


if __name__ == "__main__":
    main()
