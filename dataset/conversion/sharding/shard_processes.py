"""Many shards made, here or in several processes, with progress told. Free of TensorFlow: the processes import it."""

import contextlib
import multiprocessing
import multiprocessing.util
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from dataset.conversion.sharding.shard_task import ShardTask
from program_support.deferred_signals import PutOffSignals
from program_support.errors import InputError
from program_support.progress import Progress
from program_support.stderr_capture import captured_stderr

CONTINUE = "finished shards are kept; run the same command to resume"
_POLL_SECONDS = 0.2
_SECONDS_OF_A_START = 2.0
_SECONDS_OF_A_GROUP = 2.0  # within which a signal sent to all processes has reached this one, if it ended another


def convert_shards(tasks: list[ShardTask], *, processes: int) -> None:
    """Make shards; 1 means this very process. A signal ends it with everything tidied, a second one at once.

    Raises Interrupted for a signal, InputError for what is refused and where a process dies, OSError for what cannot be
    written.
    """
    if not tasks:
        return
    if processes == 1:
        _start_tensorflow()  # for seconds; nothing has begun yet, so a signal need not be put off
    total = sum(len(task.images) for task in tasks)
    with (Progress("convert", total=total, noun="image", patient=True) as progress,
          PutOffSignals(at_the_second=_forget_children) as signals):
        if processes == 1:
            _convert_here(tasks, progress, signals)
        else:
            _convert_in_processes(tasks, min(processes, len(tasks)), progress=progress, signals=signals)


def _start_tensorflow() -> None:
    """Import it without its greetings, which would cross the progress bar."""
    with captured_stderr():
        from dataset.conversion.check import prove_damage_is_seen

        prove_damage_is_seen()


def _convert_here(tasks: list[ShardTask], progress: Progress, signals: PutOffSignals) -> None:
    from dataset.conversion.convert import convert_shard

    def image_done() -> None:
        progress.advance(images=1)
        signals.check()

    for task in tasks:
        convert_shard(task, image_done=image_done)


def _convert_in_processes(
    tasks: list[ShardTask], processes: int, *, progress: Progress, signals: PutOffSignals
) -> None:
    done = multiprocessing.get_context("spawn").Value("q", 0)
    waiting, running, told = deque(tasks), set(), 0
    try:
        with _worker_processes(processes, done) as executor:
            while waiting or running:
                # a little ahead and not all at once, for every task travels with its annotations
                while waiting and len(running) < processes + 2:
                    signals.check()
                    with _starting_children():
                        running.add(executor.submit(_work, waiting.popleft()))
                ready, running = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                signals.check()
                count = done.get_obj().value  # without its lock, which a process may have died with
                progress.advance(count - told, images=count - told)
                told = count
                for future in ready:
                    future.result()
    except BrokenProcessPool as error:
        signals.check(seconds=_SECONDS_OF_A_GROUP)
        raise InputError(f"a worker process died (killed or out of memory); {CONTINUE}, if needed with a "
                         "smaller --num_threads") from error
    finally:
        for task in tasks:
            task.partial_path.unlink(missing_ok=True)


@contextlib.contextmanager
def _worker_processes(processes: int, done: Any) -> Iterator[ProcessPoolExecutor]:
    """Processes that convert, gone at the end of the block; after an error at once."""
    strangers = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker,
                                   initargs=(done,))
    try:
        yield executor
    except BaseException:
        for child in set(multiprocessing.active_children()) - strangers:
            child.kill()  # or they would end their shards first
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _forget_children() -> None:
    """Before this process is gone: kill what would notice it late, unlink the semaphores that a user would warn of."""
    _starting.acquire(timeout=_SECONDS_OF_A_START)  # or one that waits for its first data would tell of their end
    for child in multiprocessing.active_children():
        child.kill()
    multiprocessing.util._run_finalizers(0)  # as at an ordinary end, whose waiting has priorities below 0


_starting = threading.Lock()  # held while a child is started, which `active_children` knows only afterwards


@contextlib.contextmanager
def _starting_children() -> Iterator[None]:
    """Ctrl-C reaches the whole process group: children started here leave it to the parent to stop them.

    They inherit that it is blocked. One that comes here meanwhile reaches another thread, or this one afterwards.
    """
    with _starting:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_worker: dict[str, Any] = {}


def _begin_worker(done: Any) -> None:
    """Set up a process that converts: quiet, on the CPU, gone when its parent is."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    _start_tensorflow()
    _worker["done"] = done


def _die_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(task: ShardTask) -> None:
    from dataset.conversion.convert import convert_shard

    def image_done() -> None:
        with _worker["done"].get_lock():
            _worker["done"].value += 1

    convert_shard(task, image_done=image_done)
