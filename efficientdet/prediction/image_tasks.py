"""Annotation of images on a Ray cluster, which can be interrupted and continued.

A task is a fixed number of consecutive images, whole batches of them. What is done is stored in the output folder.
"""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from dataset.files.pixel_values import FULL_RANGE
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import format_of
from efficientdet.inference.detect import Detector
from efficientdet.prediction.image_annotation import (
    AnnotationConfig,
    ImageResult,
    ImageTask,
    InputImage,
    annotated_batches,
    open_detector,
)
from efficientdet.prediction.inputs import Inputs, read_input
from program_support.atomic_files import report_write_errors
from program_support.canonical_json import canonical_json
from program_support.errors import InputError
from program_support.fatal_inputs import fatal_inputs, run_without_fatal
from program_support.file_patterns import paths_beginning_with
from program_support.installation import installation
from program_support.ray_tasks import RayCluster
from program_support.remote_files import copy_missing

_IMAGES_OF_TASK = 16
_JOURNAL = ".images_done.jsonl"


class ImageTasks:
    """The images of a run on a cluster."""

    def __init__(self, cluster: RayCluster, config: AnnotationConfig, *, once: bool):
        """Set the configuration, whose own inputs are not used. once: see `open_model`."""
        self._cluster = cluster
        self._task = ImageTask(run=os.urandom(8).hex(), config=replace(config, inputs=Inputs()), once=once, images=())
        self._journal = _Journal(Path(config.output_dir, _JOURNAL))

    def load(self) -> Detector:
        """Load the model on a node, print what is to be said of it, and return it without its functions.

        Raises:
            InputError: as `open_detector` does, or the process dies.
        """
        failure = f"{self._task.config.model_config.ckpt_path}: cannot be loaded"
        return self._cluster.result(_load, self._task, failure=failure)

    def results(self, images: Sequence[InputImage]) -> Generator[list[ImageResult], None, None]:
        """Yield the results of the images in their order, task by task.

        Images that end the process which decodes them are found, and the other images of their task repeated.

        Raises:
            InputError: an output cannot be written, or a task ends its process whatever images are left out.
        """
        batch_size = self._task.config.batch_size
        size = -(-_IMAGES_OF_TASK // batch_size) * batch_size
        tasks = [replace(self._task, images=images[start : start + size]) for start in range(0, len(images), size)]
        done = self._journal.read(tasks)
        if done:
            print(f"{sum(map(len, done.values()))} of {len(images)} images are done and reused")
        remaining = {number: task for number, task in enumerate(tasks) if number not in done}
        waiting: dict[int, list[ImageResult]] = {}
        following = 0
        with contextlib.closing(self._journal):
            for number, results in itertools.chain(done.items(), self._finished(remaining)):
                waiting[number] = results
                while following in waiting:
                    yield waiting.pop(following)
                    following += 1
        print(self._cluster.summary())

    def _finished(self, tasks: dict[int, ImageTask]) -> Iterator[tuple[int, list[ImageResult]]]:
        """Yield number and results of each task."""
        numbers, of_numbers = [*tasks], [*tasks.values()]
        for done in run_without_fatal(
            self._cluster,
            _annotate,
            of_numbers,
            without_fatal=self._without_fatal,
            place=lambda task: f"{task.images[0].path} and the next images",
        ):
            number = numbers[done.number]
            self._journal.add(number, done.result)
            yield number, done.result

    def end(self) -> None:
        """Forget what is done, after all files are written."""
        self._journal.remove()

    def _without_fatal(self, task: ImageTask) -> ImageTask:
        cluster = self._cluster
        fatal = fatal_inputs(cluster, _decode, task.images)  # the usual case, and without a model much faster
        fatal = fatal or fatal_inputs(cluster, partial(_annotate_alone, replace(task, images=())), task.images)
        images = [image._replace(is_fatal=number in fatal) for number, image in enumerate(task.images)]
        return replace(task, images=images)


class _Journal:
    """File of the results of finished tasks, a line of JSON each, for a run that continues an interrupted one."""

    def __init__(self, path: Path):
        self._path = path

    def read(self, tasks: Sequence[ImageTask]) -> dict[int, list[ImageResult]]:
        """Return the results of finished tasks whose outputs exist, and open the file for further ones.

        The file is emptied if it is of a run with other inputs, model, settings or versions.
        """
        made_from = json.dumps({"made_from": _digest(tasks)}).encode() + b"\n"
        finished: dict[int, list[ImageResult]] = {}
        with report_write_errors(self._path):
            self._file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
            end = len(made_from)
            if self._file.readline() == made_from:
                for line in self._file:
                    try:
                        number, results = json.loads(line)
                    except ValueError:  # the line that was being written
                        break
                    end += len(line)
                    finished[number] = [ImageResult(*result) for result in results]
            else:
                self._file.seek(0)
                self._file.write(made_from)
            self._file.seek(end)
            self._file.truncate()
        return {number: results for number, results in finished.items() if _is_complete(tasks[number], results)}

    def add(self, number: int, results: list[ImageResult]) -> None:
        """Add a finished task.

        Raises:
            InputError: the disk is full.
        """
        with report_write_errors(self._path):
            self._file.write(json.dumps([number, results]).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def remove(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)


def _is_complete(task: ImageTask, results: Sequence[ImageResult]) -> bool:
    pairs = zip(task.images, results, strict=True)
    return all(result.failure or os.path.exists(image.output) for image, result in pairs)


def _digest(tasks: Sequence[ImageTask]) -> str:
    """Return a digest of what determines the results: images, model, settings and versions."""
    digest = hashlib.sha256(canonical_json([tasks[0].config, tasks[0].once, installation()]).encode())
    model = tasks[0].config.model_config.ckpt_path or ""
    for path in [*paths_beginning_with(model), *(image.path for task in tasks for image in task.images)]:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _load(task: ImageTask) -> Detector:
    return _model_of(task).without_functions()


def _annotate(task: ImageTask) -> list[ImageResult]:
    copy_missing(image.path for image in task.images)
    return [result for batch in annotated_batches(task, _model_of(task)) for result in batch]


def _decode(images: Sequence[InputImage]) -> None:
    copy_missing(image.path for image in images)
    for image in images:
        with contextlib.suppress(InputError):
            read_input(image.path, value_range=FULL_RANGE)


def _annotate_alone(task: ImageTask, images: Sequence[InputImage]) -> None:
    _annotate(replace(task, images=images))


@lru_cache(1)
def _model_of(task: ImageTask) -> Detector:
    exported = format_of(task.config.model_config.ckpt_path)
    if exported is None or not exported.runtimes:
        prepare_environment()
    return open_detector(task.config, once=task.once)
