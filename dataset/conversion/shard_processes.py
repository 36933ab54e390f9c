"""Convert shards in this process, in worker processes or on a cluster, with a progress bar.

This module does not import TensorFlow; the workers do.
"""

import contextlib
import multiprocessing
import multiprocessing.util
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from typing import Any

from dataset.conversion.annotations import AnnotatedImage
from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.shard_files import CONTINUE, ShardTask, remove_partial_files
from program_support.engines import LOCAL, Cluster, connected
from program_support.errors import InputError, silenced_stderr
from program_support.progress import Progress
from program_support.signals import DeferredSignals

_POLL_SECONDS = 0.2
_SECONDS_OF_A_START = 2.0
_SECONDS_OF_A_GROUP = 2.0  # maximum delay between the arrivals of a signal at the processes of a group


def convert_shards(tasks: list[ShardTask], config: ConversionConfig) -> None:
    """Convert shards where the configuration says. A signal ends it after cleanup, a second one immediately.

    Raises Interrupted for a signal, InputError for rejected input and if a worker dies, OSError for failed writes.
    """
    if not tasks:
        return
    processes = config.processes
    if config.engine == LOCAL and processes == 1:
        _start_tensorflow()  # takes seconds; no work has started, so signals need not be deferred
    total = sum(len(task.images) for task in tasks)
    with (
        Progress("convert", total=total, noun="image", slow_start=True) as progress,
        DeferredSignals(on_second_signal=_kill_children) as signals,
    ):
        if config.engine != LOCAL:
            convert_on_cluster(tasks, config.engine, progress=progress, check=signals.check)
        elif processes == 1:
            _convert_here(tasks, progress, signals)
        else:
            _convert_in_processes(tasks, min(processes, len(tasks)), progress=progress, signals=signals)


def _start_tensorflow() -> None:
    """Start TensorFlow without its messages, which would disturb the progress bar."""
    with silenced_stderr():
        import tensorflow as tf

        tf.constant(0)  # the messages of its devices appear with the first operation


def _convert_here(tasks: list[ShardTask], progress: Progress, signals: DeferredSignals) -> None:
    from dataset.conversion.convert import convert_shard

    def image_done() -> None:
        progress.advance(images=1)
        signals.check()

    for task in tasks:
        convert_shard(task, image_done=image_done)


def _convert_in_processes(
    tasks: list[ShardTask], processes: int, *, progress: Progress, signals: DeferredSignals
) -> None:
    done = multiprocessing.get_context("spawn").Value("q", 0)
    waiting, reported = deque(tasks), 0
    running: set[Future] = set()
    try:
        with _worker_processes(processes, done) as executor:
            while waiting or running:
                # Submit only a few tasks in advance, because every task is sent with its annotations.
                while waiting and len(running) < processes + 2:
                    signals.check()
                    with _starting_children():
                        running.add(executor.submit(_work, waiting.popleft()))
                ready, running = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                signals.check()
                count = done.get_obj().value  # its lock may be held by a dead process
                progress.advance(count - reported, images=count - reported)
                reported = count
                for future in ready:
                    future.result()
    except BrokenProcessPool as error:
        signals.check(seconds=_SECONDS_OF_A_GROUP)
        raise InputError(
            f"a worker process died (killed or out of memory); {CONTINUE}, if needed with a smaller --num_threads"
        ) from error
    finally:
        remove_partial_files(tasks[0].config)


@contextlib.contextmanager
def _worker_processes(processes: int, done: Any) -> Iterator[ProcessPoolExecutor]:
    """Provide worker processes that end with the block; after an error they are killed."""
    unrelated = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker, initargs=(done,)
    )
    try:
        yield executor
    except BaseException:
        for child in set(multiprocessing.active_children()) - unrelated:
            child.kill()  # otherwise they would finish their shards first
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _kill_children() -> None:
    """Kill the workers and unlink semaphores before this process ends, so that no warnings follow."""
    _starting.acquire(timeout=_SECONDS_OF_A_START)  # a child still waiting for its first data would print a traceback
    for child in multiprocessing.active_children():
        child.kill()
    # As at a normal exit; finalizers that wait have priorities below 0.
    multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]  # private


_starting = threading.Lock()  # held while a child is started, which `active_children` lists only afterwards


@contextlib.contextmanager
def _starting_children() -> Iterator[None]:
    """Start children with SIGINT blocked, so that only the parent handles Ctrl-C, which reaches the process group.

    A signal that arrives meanwhile is delivered to another thread, or to this one afterwards.
    """
    with _starting:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_worker: dict[str, Any] = {}


def _begin_worker(done: Any) -> None:
    """Set up a worker process: no output, CPU only, ends with its parent."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    _start_tensorflow()
    _worker["done"] = done


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker
    parent.join()
    os._exit(1)


def _work(task: ShardTask) -> None:
    from dataset.conversion.convert import convert_shard

    def image_done() -> None:
        with _worker["done"].get_lock():
            _worker["done"].value += 1

    convert_shard(task, image_done=image_done)


def convert_on_cluster(
    tasks: Sequence[ShardTask], engine: str, *, progress: Progress, check: Callable[[], None]
) -> None:
    """Convert shards; a shard is a function of its task alone, so its bytes are those of one machine.

    check: see `Cluster.run`.

    Raises:
        InputError: a shard cannot be written, or its process dies whatever images are left out.
        OSError: for failed writes.
    """
    try:
        with connected(engine) as cluster:
            fatal = []
            for done in cluster.run(_convert, tasks, check=check):
                if done.crash:
                    fatal.append(_without_fatal(cluster, tasks[done.start]))
                else:
                    images = len(tasks[done.start].images)
                    progress.advance(images, images=images)
            for done in cluster.run(_convert, fatal, check=check):
                if done.crash:
                    path = fatal[done.start].finished_path
                    raise InputError(f"{path}: cannot be processed, each time {done.crash}")
            print(cluster.summary())
    finally:
        remove_partial_files(tasks[0].config)


def _without_fatal(cluster: Cluster, task: ShardTask) -> ShardTask:
    images = [*task.images]
    decoded = cluster.run(partial(_decode, replace(task, images=())), images, size=max(1, len(images)))
    return replace(task, fatal=frozenset(images[done.start].file_name for done in decoded if done.crash))


def _convert(tasks: Sequence[ShardTask]) -> None:
    from dataset.conversion.convert import convert_shard

    for task in tasks:
        convert_shard(task, image_done=lambda: None)


def _decode(task: ShardTask, images: Sequence[AnnotatedImage]) -> None:
    from dataset.conversion.convert import decode_images

    decode_images(task, images)
