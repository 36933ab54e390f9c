"""Annotation of images on a cluster, which can be interrupted and continued.

A part is a fixed number of consecutive images, whole batches of them. What is done is stored in the output folder.
"""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

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
from efficientdet.prediction.inputs import Inputs
from program_support.atomic_files import report_write_errors
from program_support.engines import Cluster
from program_support.file_patterns import paths_beginning_with
from program_support.installation import canonical_json, installation
from program_support.remote_addresses import storage

_IMAGES_OF_TASK = 16
_JOURNAL = ".images_done.jsonl"


class ImageTasks:
    """The images of a run on a cluster."""

    def __init__(self, cluster: Cluster, config: AnnotationConfig, *, once: bool):
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
        [detector] = self._cluster.results(_load, [self._task], failure=failure)
        return detector

    def results(self, images: Sequence[InputImage]) -> Generator[list[ImageResult], None, None]:
        """Yield the results of the images in their order; one that ends the process which decodes it has none.

        Raises:
            InputError: an output cannot be written.
        """
        done = self._journal.read(replace(self._task, images=images))
        if done:
            print(f"{len(done)} of {len(images)} images are done and reused")
        remaining = [number for number in range(len(images)) if number not in done]
        batch_size, following = self._task.config.batch_size, 0
        finished = self._cluster.run(
            partial(_annotate, self._task),
            [images[number] for number in remaining],
            size=-(-_IMAGES_OF_TASK // batch_size) * batch_size,
        )
        with contextlib.closing(self._journal):
            for part in itertools.chain([None], finished):
                if part is not None:
                    numbers = remaining[part.start : part.stop]
                    fatal = f"{images[numbers[0]].path}: ends the process that decodes it"
                    results = [ImageResult(failure=fatal)] if part.crash else part.result
                    done |= zip(numbers, results, strict=True)
                    self._journal.add(numbers, results)
                ready = list(itertools.takewhile(done.__contains__, range(following, len(images))))
                following += len(ready)
                if ready:
                    yield [done.pop(number) for number in ready]
        print(self._cluster.summary())

    def end(self) -> None:
        """Forget what is done, after all files are written."""
        self._journal.path.unlink(missing_ok=True)


class _Journal:
    """File of the results of images, a line of JSON each, for a run that continues an interrupted one."""

    def __init__(self, path: Path):
        self.path = path

    def read(self, task: ImageTask) -> dict[int, ImageResult]:
        """Return the results of images that are done and whose outputs exist, and open the file for further ones.

        The file is emptied if it is of a run with other inputs, model, settings or versions.
        """
        made_from = json.dumps({"made_from": _digest(task)}).encode() + b"\n"
        done: dict[int, ImageResult] = {}
        with report_write_errors(self.path):
            self._file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
            end = len(made_from)
            if self._file.readline() == made_from:
                for line in self._file:
                    try:
                        number, result = json.loads(line)
                    except ValueError:  # the line that was being written
                        break
                    end += len(line)
                    done[number] = ImageResult(*result)
            else:
                self._file.seek(0)
                self._file.write(made_from)
            self._file.seek(end)
            self._file.truncate()
        return {
            number: result
            for number, result in done.items()
            if result.failure or os.path.exists(task.images[number].output)
        }

    def add(self, numbers: Sequence[int], results: Sequence[ImageResult]) -> None:
        """Add the results of images.

        Raises:
            InputError: the disk is full.
        """
        with report_write_errors(self.path):
            for line in zip(numbers, results, strict=True):
                self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _digest(task: ImageTask) -> str:
    """Return a digest of what determines the results: images, model, settings and versions."""
    digest = hashlib.sha256(canonical_json([task.config, task.once, installation()]).encode())
    model = task.config.model_config.ckpt_path or ""
    for path in [*paths_beginning_with(model), *(image.path for image in task.images)]:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _load(task: ImageTask) -> Detector:
    return _model_of(task).without_functions()


def _annotate(task: ImageTask, images: Sequence[InputImage]) -> list[ImageResult]:
    storage().copy_missing(image.path for image in images)
    batches = annotated_batches(replace(task, images=images), _model_of(task))
    return [result for batch in batches for result in batch]


@lru_cache(1)
def _model_of(task: ImageTask) -> Detector:
    exported = format_of(task.config.model_config.ckpt_path)
    if exported is None or not exported.runtimes:
        prepare_environment()
    return open_detector(task.config, once=task.once)
