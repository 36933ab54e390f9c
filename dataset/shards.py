"""Writes a data set as sharded TFRecords in several processes, so that a run may end at any moment and be continued.

For shard i of n of the prefix DIR/train:

    DIR/.train-0000i-of-0000n.tfrecord.partial    being written
    DIR/.train-0000i-of-0000n.tfrecord.finished   whole and on the disk
    DIR/.train.conversion/0000i-of-0000n.json     what it was made from, and its part of the report
    DIR/train-0000i-of-0000n.tfrecord             its name once all shards are finished and the data set is accepted

This module does not import TensorFlow, which takes seconds: the processes do.
"""

import contextlib
import fcntl
import hashlib
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dataset.annotations import AnnotatedDataSet, AnnotatedImage, Finding
from dataset.report import Report, check_fractions, readable_report
from dataset.shard_task import ShardTask, write_atomically
from dataset.stderr_capture import captured_stderr
from object_detection.errors import InputError

CONVERTER_VERSION = 1  # raised whenever the same input gives other records
_CONTINUE = "finished shards are kept, the same command continues"
_POLL_SECONDS = 0.2
_SECONDS_BETWEEN_LINES = 10


@dataclass(frozen=True, kw_only=True)
class ConversionConfig:
    """Where to read images and how to write them; `processes` 1 means this very process."""

    image_folder: str
    output_prefix: str
    num_shards: int
    processes: int
    max_bad_fraction: float
    include_masks: bool = False
    keep_annotations: bool = False

    def __post_init__(self):
        if not 1 <= self.num_shards <= 99999:
            raise InputError(f"--num_shards={self.num_shards}: wanted 1 to 99999")
        if self.processes < 1:
            raise InputError(f"--num_threads={self.processes}: wanted at least 1")
        if not 0 <= self.max_bad_fraction <= 1:
            raise InputError(f"--max_bad_fraction={self.max_bad_fraction}: wanted 0 to 1")
        if not Path(self.output_prefix).name or self.output_prefix.endswith("/"):
            raise InputError(f"--output_file_prefix={self.output_prefix}: wanted FOLDER/name")
        if not Path(self.image_folder).is_dir():
            raise InputError(f"{self.image_folder or 'image folder'}: no such folder; wanted the one with the images")

    def shard_path(self, index: int) -> Path:
        """The final name of a shard."""
        return Path(f"{self.output_prefix}-{index:05d}-of-{self.num_shards:05d}.tfrecord")

    def beside(self, suffix: str) -> Path:
        """A file of the data set that `<prefix>-*` does not catch, such as .report.json."""
        return Path(f"{self.output_prefix}{suffix}")

    @property
    def state_folder(self) -> Path:
        """What is known of shards between runs."""
        prefix = Path(self.output_prefix)
        return prefix.with_name(f".{prefix.name}.conversion")


def convert(data: AnnotatedDataSet, config: ConversionConfig, *, say: Callable[[str], None] = print) -> Report:
    """Write records, class names and report of a data set.

    Raises InputError where something is refused, more than the allowed share of images or boxes would be skipped, or
    nothing can be written; no shard bears a final name then that did not before.
    """
    stats = _file_stats(data.images, config.image_folder)
    _check_what_is_known(data, stats, config)
    try:
        config.state_folder.mkdir(parents=True, exist_ok=True)
        with _sole_writer(config):
            _refuse_other_shards(config)
            _remove_leftovers(config)
            tasks = _shard_tasks(data, stats, config)
            _announce(data, tasks, config, say=say)
            _run([task for index, task in enumerate(tasks) if not _is_finished(task, config.shard_path(index))], config)
            states = [json.loads(task.state_path.read_text(encoding="utf-8")) for task in tasks]
            report = Report(skipped=list(data.skipped), noted=list(data.noted))
            for state in states:
                report.add(Report.from_json(state["report"]))
            check_fractions(report, listed_images=len(data.images), listed_boxes=data.listed_boxes,
                            max_bad_fraction=config.max_bad_fraction)
            _publish(data, report, tasks, config=config, kept=[entry for state in states for entry in state["kept"]])
    except OSError as error:
        raise InputError(f"cannot write {config.output_prefix}-*: {error}; {_CONTINUE}") from error
    return report


def _file_stats(images: list[AnnotatedImage], folder: str) -> list[tuple[int, int] | None]:
    """(bytes, time of the last change) of every image, None where there is no such file."""
    stats = []
    for image in images:
        try:
            found = os.stat(os.path.join(folder, image.file_name))
            stats.append((found.st_size, found.st_mtime_ns))
        except OSError:
            stats.append(None)
    return stats


def _check_what_is_known(
    data: AnnotatedDataSet, stats: list[tuple[int, int] | None], config: ConversionConfig
) -> None:
    """Refuse at once what could only be refused after hours of converting the rest."""
    absent = [image for image, found in zip(data.images, stats, strict=True) if found is None]
    if len(absent) == len(data.images):
        raise InputError(f"{config.image_folder}: none of the {len(absent)} images of {data.source} is in this folder, "
                         f"such as {absent[0].file_name}")
    preview = Report(
        images=len(data.images) - len(absent),
        boxes_of_skipped_images=sum(len(image.objects) for image in absent),
        skipped=[*data.skipped, *(Finding(kind="image", file=image.file_name, image_id=image.image_id,
                                          reason=f"no such file in {config.image_folder}") for image in absent)])
    check_fractions(preview, listed_images=len(data.images), listed_boxes=data.listed_boxes,
                    max_bad_fraction=config.max_bad_fraction)


@contextlib.contextmanager
def _sole_writer(config: ConversionConfig) -> Iterator[None]:
    with open(config.state_folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"{config.output_prefix}: another conversion is writing under this prefix") from error
        yield


def _refuse_other_shards(config: ConversionConfig) -> None:
    prefix = Path(config.output_prefix)
    pattern = re.compile(re.escape(prefix.name) + r"-\d{5}-of-(?P<total>\d{5})(\.tfrecord)?")
    for name in sorted(os.listdir(prefix.parent)):
        match = pattern.fullmatch(name)
        if match and int(match["total"]) != config.num_shards:
            raise InputError(
                f"{prefix.with_name(name)} is left from a conversion into {int(match['total'])} shards; readers of "
                f"{prefix.name}-* would mix it with the {config.num_shards} wanted: delete those shards or choose "
                "another --output_file_prefix")


def _remove_leftovers(config: ConversionConfig) -> None:
    """What an interrupted run has half written, or had finished for another number of shards."""
    prefix, total = Path(config.output_prefix), f"{config.num_shards:05d}"
    pattern = re.compile(re.escape(f".{prefix.name}-") + r"\d{5}-of-(\d{5})\.tfrecord\.(partial|finished)")
    for path in list(prefix.parent.iterdir()):
        match = pattern.fullmatch(path.name)
        if match and (match[2] == "partial" or match[1] != total):
            path.unlink()
    for path in list(config.state_folder.glob("*-of-*.json")):
        if not path.stem.endswith(f"-of-{total}"):
            path.unlink()


def _job_settings(data: AnnotatedDataSet, config: ConversionConfig) -> dict[str, Any]:
    """What decides about the content of every shard."""
    return {
        "annotations": data.fingerprint,
        "image folder": str(Path(config.image_folder).resolve()),
        "--include_masks": config.include_masks,
        "--num_shards": config.num_shards,
        "converter": CONVERTER_VERSION,
    }


def _shard_tasks(
    data: AnnotatedDataSet, stats: list[tuple[int, int] | None], config: ConversionConfig
) -> list[ShardTask]:
    """Image i goes to shard i mod num_shards."""
    names = dict(zip(data.class_names.category_ids, data.class_names.names, strict=True)) if data.class_names else {}
    settings = _job_settings(data, config)
    tasks = []
    for index in range(config.num_shards):
        images = data.images[index :: config.num_shards]
        made_from = json.dumps([settings, [image.file_name for image in images], stats[index :: config.num_shards]])
        path = config.shard_path(index)
        tasks.append(ShardTask(
            images=images, source=data.source, image_folder=config.image_folder, category_names=names,
            include_masks=config.include_masks, keep_annotations=config.keep_annotations,
            fingerprint=hashlib.sha256(made_from.encode()).hexdigest(),
            partial_path=path.with_name(f".{path.name}.partial"),
            finished_path=path.with_name(f".{path.name}.finished"),
            state_path=config.state_folder / f"{index:05d}-of-{config.num_shards:05d}.json"))
    return tasks


def _is_finished(task: ShardTask, final_path: Path) -> bool:
    """Whether this very shard lies there whole, under its final name or waiting for it."""
    try:
        state = json.loads(task.state_path.read_text(encoding="utf-8"))
        path = task.finished_path if task.finished_path.exists() else final_path
        return state["fingerprint"] == task.fingerprint and state["bytes"] == path.stat().st_size
    except (OSError, json.JSONDecodeError, KeyError):
        return False


def _announce(
    data: AnnotatedDataSet, tasks: list[ShardTask], config: ConversionConfig, *, say: Callable[[str], None]
) -> None:
    """Say what is reused and why not more; remember the settings for the next run."""
    settings, job_path = _job_settings(data, config), config.state_folder / "job.json"
    finished = sum(_is_finished(task, config.shard_path(index)) for index, task in enumerate(tasks))
    if job_path.exists():
        before = json.loads(job_path.read_text(encoding="utf-8"))
        changed = [name for name in settings if before.get(name) != settings[name]]
        if changed:
            say(f"changed since the last conversion to {config.output_prefix}: {', '.join(changed)}; converting anew")
        elif finished:
            say(f"{finished} of {len(tasks)} shards are finished and kept")
    elif config.shard_path(0).exists():
        say(f"replacing the shards {config.output_prefix}-*, of which nothing is known here")
    if config.num_shards > len(data.images):
        say(f"{config.num_shards - len(data.images)} of {config.num_shards} shards will be empty, for there are "
            f"{len(data.images)} images: choose a smaller --num_shards")
    job_path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def _run(tasks: list[ShardTask], config: ConversionConfig) -> None:
    total = sum(len(task.images) for task in tasks)
    if not tasks:
        return
    with _progress(total) as show:
        if config.processes == 1:
            _run_here(tasks, show)
        else:
            _run_in_processes(tasks, min(config.processes, len(tasks)), show)


def _start_tensorflow() -> None:
    """Import it without its greetings, which would cross the progress bar."""
    with captured_stderr():
        from dataset.check import prove_damage_is_seen

        prove_damage_is_seen()


def _run_here(tasks: list[ShardTask], show: Callable[[int], None]) -> None:
    _start_tensorflow()
    from dataset.convert import convert_shard

    done = 0

    def image_done() -> None:
        nonlocal done
        done += 1
        show(done)

    for task in tasks:
        convert_shard(task, image_done=image_done)


def _run_in_processes(tasks: list[ShardTask], processes: int, show: Callable[[int], None]) -> None:
    context = multiprocessing.get_context("spawn")
    done = context.Value("q", 0)
    waiting, running = deque(tasks), set()
    strangers = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin_worker, initargs=(done,))
    try:
        while waiting or running:
            # a little ahead and not all at once, for every task travels with its annotations
            while waiting and len(running) < processes + 2:
                with _interrupts_ignored_by_children():
                    running.add(executor.submit(_work, waiting.popleft()))
            ready, running = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            show(done.value)
            for future in ready:
                future.result()
    except BaseException as error:
        for child in set(multiprocessing.active_children()) - strangers:
            child.terminate()  # or they would end their shards first
        if isinstance(error, BrokenProcessPool):
            raise InputError(f"a converting process died, killed or out of memory; {_CONTINUE}, perhaps with a smaller "
                             "--num_threads") from error
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        for task in tasks:
            task.partial_path.unlink(missing_ok=True)


@contextlib.contextmanager
def _interrupts_ignored_by_children() -> Iterator[None]:
    """Ctrl-C reaches the whole process group: children started here leave it to the parent to stop them.

    They inherit that it is blocked. One that comes here meanwhile, perhaps to another thread, is put off.
    """
    noted: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: noted.append(number)) if in_main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if in_main:
            signal.signal(signal.SIGINT, handler)
    if noted:
        raise KeyboardInterrupt


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
    from dataset.convert import convert_shard

    def image_done() -> None:
        with _worker["done"].get_lock():
            _worker["done"].value += 1

    convert_shard(task, image_done=image_done)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar with the time left on a terminal, else now and then a line."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _PlainProgress(total).show
        return
    columns = (TextColumn("converting"), BarColumn(), MofNCompleteColumn(), TextColumn("images"), TimeElapsedColumn(),
               TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


class _PlainProgress:
    """Progress for logs."""

    def __init__(self, total: int):
        self._total, self._start = total, time.monotonic()
        self._next = self._start + _SECONDS_BETWEEN_LINES

    def show(self, done: int) -> None:
        """Print a line where the last is some time ago."""
        now = time.monotonic()
        if done and now >= self._next:
            self._next = now + _SECONDS_BETWEEN_LINES
            left = (now - self._start) / done * (self._total - done)
            print(f"converted {done} of {self._total} images in {now - self._start:.0f} s, about {left:.0f} s left",
                  file=sys.stderr, flush=True)


def _publish(
    data: AnnotatedDataSet, report: Report, tasks: list[ShardTask], *, config: ConversionConfig, kept: list[dict]
) -> None:
    """Give the finished shards their names; the report comes last, so that where it lies everything does."""
    report_path, class_path = config.beside(".report.json"), config.beside(".classes.json")
    report_path.unlink(missing_ok=True)
    class_path.unlink(missing_ok=True)
    categories = data.class_names.to_categories() if data.class_names else []
    if categories:
        write_atomically(class_path, json.dumps({"categories": categories}, indent=1) + "\n")
    for index, task in enumerate(tasks):
        if task.finished_path.exists():
            os.replace(task.finished_path, config.shard_path(index))
    if config.keep_annotations:
        write_atomically(config.beside(".instances.json"), json.dumps(_coco_content(kept, categories)))
    content = readable_report(report, data.class_names)
    content["made_from"] = {"source": data.source, **_job_settings(data, config),
                            "--max_bad_fraction": config.max_bad_fraction}
    write_atomically(report_path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _coco_content(kept: list[dict], categories: list[dict]) -> dict:
    kept = sorted(kept, key=lambda entry: entry["image"]["id"])
    annotations = [annotation for entry in kept for annotation in entry["annotations"]]
    return {
        "images": [entry["image"] for entry in kept],
        "annotations": [{"id": number, **annotation} for number, annotation in enumerate(annotations, start=1)],
        "categories": categories,
    }
