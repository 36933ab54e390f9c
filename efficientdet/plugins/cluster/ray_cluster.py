"""The engine `ray`: a function of a module is called for parts of many items on the nodes of a Ray cluster.

Function and part are sent to a node, where the same version of this program must be installed, or lie in the same
folder. Ray: https://docs.ray.io.
"""

import contextlib
import io
import logging
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from efficientdet.plugins.cluster.remote_files import CACHE_VARIABLE, cache_folder
from program_support.engines import Finished, Items
from program_support.errors import InputError
from program_support.installation import ROOT, installation

_ADDRESS = "RAY_ADDRESS"  # Ray's own variable
_TOKEN = os.path.expanduser("~/.ray/auth_token")  # where `ray start` stores the secret of a cluster
_BACKEND = "KERAS_BACKEND"
_SECONDS_UNTIL_AN_ANSWER = 15
_CONNECT = "import ray, sys; ray._raylet.GcsClient(address=sys.argv[1])"  # `ray health-check` imports for two seconds
_POLL_SECONDS = 0.2
_MOST_ATTEMPTS = 3  # of a part whose process dies
_WAITING_PARTS = 8  # beyond two for each core: every part is sent with its items, which may be large


class _Part(NamedTuple):
    """Items start to stop, not yet done."""

    start: int
    stop: int
    cores: int = 1
    deaths: int = 0


class _Origin(NamedTuple):
    """Folders, backend and versions of the process that asks for results."""

    folder: str  # relative paths are relative to it
    cache: str  # of remote files
    backend: str | None  # Keras's
    fingerprint: dict[str, str]


class _Outcome(NamedTuple):
    """Answer of a node: the result and its CPU seconds, or in which ways its installation differs."""

    node: str
    result: Any
    cpu_seconds: float
    printed: str = ""
    differences: str = ""


@contextlib.contextmanager
def ray_cluster() -> Iterator["RayCluster"]:
    """Connect to the cluster of RAY_ADDRESS, else to the one of this machine, else start one of this machine's cores.

    Raises:
        InputError: Ray is not installed, or the cluster does not answer or has other versions.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & {*os.environ} or os.path.exists(_TOKEN):
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray's own default only where it finds the cluster itself
    try:
        import ray
        import ray._private.worker
    except ImportError as error:
        raise InputError("--engine=ray needs the package ray: pip install -e '.[ray]'") from error
    if ray.is_initialized():  # by the caller, who also ends it
        yield RayCluster()
        return
    ray._private.worker._worker_logs_enabled = False  # otherwise a paragraph for each process that dies
    address = os.environ.get(_ADDRESS, "")
    if address not in ("", "auto", "local"):
        _check_answer(address)
    try:
        # Nodes look for this program here before they take what they have installed
        job = ray.job_config.JobConfig(code_search_path=[str(ROOT)])
        ray.init(log_to_driver=False, logging_level=logging.CRITICAL, job_config=job)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        at = f"{_ADDRESS}={address}" if address else "the cluster of this machine"
        raise InputError(f"{at}: no connection to Ray: {' '.join(str(error).split())}") from error
    try:
        nodes = sum(node["Alive"] for node in ray.nodes())
        print(f"ray: {nodes} node{'s' * (nodes != 1)} with {_cores()} cores", flush=True)  # they may be busy for long
        yield RayCluster()
    finally:
        ray.shutdown()


def _check_answer(address: str) -> None:
    """Raise InputError if no cluster answers: Ray itself would try for up to a quarter of an hour."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise InputError(f"{_ADDRESS}={address}: expected HOST:PORT, the address that `ray start --head` prints")
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_UNTIL_AN_ANSWER).close()
        command = [sys.executable, "-c", _CONNECT, address]  # in another process, because it cannot be interrupted
        check = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_UNTIL_AN_ANSWER)
        said = (check.stderr.strip() or "no reason given").splitlines()[-1]
        reason = said.partition(". ")[0] if check.returncode else ""
    except OSError as error:
        reason = error.strerror or str(error)
    except subprocess.TimeoutExpired:
        reason = f"what listens there is no Ray cluster, or is busy for {_SECONDS_UNTIL_AN_ANSWER} s"
    if reason:
        raise InputError(
            f"{_ADDRESS}={address}: no Ray cluster answers ({reason}); start one with `ray start --head`, or unset "
            f"{_ADDRESS} for a cluster of this machine"
        )


class RayCluster:
    """A connected cluster, and what it has done so far; see `program_support.engines.Cluster`."""

    def __init__(self) -> None:
        self._nodes: set[str] = set()
        self._done = self._repeated = 0
        self._cpu_seconds = 0.0
        self._start = time.monotonic()

    def run(
        self,
        function: Callable[[Any], Any],
        items: Items,
        *,
        size: int = 1,
        check: Callable[[], None] = lambda: None,
    ) -> Generator[Finished, None, None]:
        """Yield the parts as they end; closing the iterator cancels the rest.

        A part whose process dies is repeated, after a lack of memory with twice the cores, so that fewer run beside it;
        after its last attempt it is halved, and a single item is yielded with the reason.
        """
        import ray

        remote = ray.remote(_run_part)
        origin = _Origin(os.getcwd(), str(cache_folder()), os.environ.get(_BACKEND), installation())
        starts = range(0, len(items), size)
        waiting = deque(_Part(start, min(start + size, len(items))) for start in starts)
        running: dict[Any, _Part] = {}
        try:
            while waiting or running:
                check()
                while waiting and len(running) < 2 * _cores() + _WAITING_PARTS:
                    part = waiting.popleft()
                    options = remote.options(num_cpus=part.cores, max_retries=0, scheduling_strategy="SPREAD")
                    running[options.remote(origin, function, items[part.start : part.stop])] = part
                ready, _ = ray.wait([*running], timeout=_POLL_SECONDS)
                for reference in ready:
                    part = running.pop(reference)
                    try:
                        outcome = ray.get(reference)
                    except ray.exceptions.RayTaskError as error:
                        raise _error_of_part(error) from error
                    except ray.exceptions.RayError as error:
                        self._repeated += 1
                        if isinstance(error, ray.exceptions.OutOfMemoryError):
                            part = part._replace(cores=max(part.cores, min(2 * part.cores, _most_cores_of_a_node())))
                        again = _after_death(part)
                        waiting += again
                        if not again:
                            yield Finished(part.start, part.stop, None, _reason(error))
                        continue
                    if outcome.differences:
                        raise InputError(
                            f"node {outcome.node} has another installation than this machine: {outcome.differences}"
                        )
                    self._nodes.add(outcome.node)
                    self._done += 1
                    self._cpu_seconds += outcome.cpu_seconds
                    yield Finished(part.start, part.stop, outcome.result, printed=outcome.printed)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def summary(self) -> str:
        """Return what was done, in words: tasks, nodes, CPU time and repetitions."""
        nodes = f"{len(self._nodes)} node{'s' * (len(self._nodes) != 1)}"
        again = f", {self._repeated} repeated because a process or node died" if self._repeated else ""
        return (
            f"ray: {self._done} tasks on {nodes}{again}; {self._cpu_seconds:.0f} CPU seconds in "
            f"{time.monotonic() - self._start:.0f} s"
        )


def _after_death(part: _Part) -> list[_Part]:
    """Return the parts to do next after the process of one died; none after the last attempt of a single item."""
    if part.deaths + 1 < _MOST_ATTEMPTS:
        return [part._replace(deaths=part.deaths + 1)]
    if part.stop - part.start == 1:
        return []
    middle = (part.start + part.stop) // 2
    halves = part._replace(stop=middle), part._replace(start=middle)
    return [half._replace(deaths=0 if half.stop - half.start == 1 else _MOST_ATTEMPTS - 1) for half in halves]


def _run_part(origin: _Origin, function: Callable[[Any], Any], items: Any) -> _Outcome:
    """Call the function on a node."""
    import ray

    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would allocate the memory of every GPU
    if origin.backend is not None:
        os.environ[_BACKEND] = origin.backend
    os.environ[CACHE_VARIABLE] = origin.cache  # where an item names a file of it
    with contextlib.suppress(OSError):  # a node without it can do items with absolute paths
        os.chdir(origin.folder)
    found, node = installation(), platform.node()
    if found != origin.fingerprint:
        differences = [
            f"{name} {found[name]}, not {value}" for name, value in origin.fingerprint.items() if found[name] != value
        ]
        return _Outcome(node, None, 0.0, differences="; ".join(differences))
    start = time.process_time()
    printed = io.StringIO()
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(nothing):
        result = function(items)
    seconds = time.process_time() - start
    return _Outcome(ray.get_runtime_context().get_node_id(), result, seconds, printed.getvalue())


def _cores() -> int:
    import ray

    return int(ray.cluster_resources().get("CPU", 0))


def _most_cores_of_a_node() -> int:
    import ray

    return max((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=1)


def _error_of_part(error: Any) -> Exception:
    """Return the exception that a task raised, or one line for a node without this program or room on its disk."""
    from ray.exceptions import ObjectStoreFullError, OutOfDiskError

    if missing := re.search(r"No module named '[^']+'", str(error.cause)):  # while it reads function and argument
        return InputError(f"a node of the cluster has another installation than this machine: {missing[0]}")
    if isinstance(error.cause, OutOfDiskError | ObjectStoreFullError):
        return InputError(
            "the disk of a node is full: Ray writes results there that its memory does not hold, and stops at 95 %; "
            "free space below /tmp/ray or name another folder with `ray start --temp-dir`, and run this again"
        )
    return error.cause if isinstance(error.cause, InputError | OSError) else error


def _reason(error: Exception) -> str:
    from ray.exceptions import NodeDiedError, OutOfMemoryError

    if isinstance(error, OutOfMemoryError):
        return "the memory of its node does not suffice"
    return "its node was lost" if isinstance(error, NodeDiedError) else "its process died"
