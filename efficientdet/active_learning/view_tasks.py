"""A detector on a Ray cluster that looks at many images.

A task is a number of whole batches, so that what is seen of an image is the same as on one machine.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np

from dataset.files.image_files import read_stored_image
from dataset.records.record_index import RecordIndex
from efficientdet.active_learning.image_views import BATCH, SeenImage, Viewer
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.inference.detect import Detector
from program_support.errors import InputError
from program_support.fatal_inputs import fatal_inputs, run_without_fatal
from program_support.ray_tasks import RayCluster
from program_support.remote_files import copy_missing

_IMAGES_OF_TASK = 8 * BATCH


@dataclass(frozen=True, kw_only=True)
class ViewTask:
    """Images to look at. Tasks of a run are equal: their model is the same, and a process keeps it."""

    run: str
    model: ModelConfig = field(compare=False)
    weights: Mapping[int, float] = field(default_factory=dict, compare=False)
    paths: Sequence[str] = field(default=(), compare=False)
    fatal: frozenset[str] = field(default=frozenset(), compare=False)  # end every process that decodes them


class ViewTasks:
    """The images of a run; the methods and the attribute are those of `Viewer`."""

    def __init__(self, cluster: RayCluster, model: ModelConfig):
        """Load the model on a node, and print what is to be said of it.

        Raises:
            InputError: as `load_model` does, or the process dies.
        """
        self._cluster, self._task = cluster, ViewTask(run=os.urandom(8).hex(), model=model)
        self.detector: Detector = cluster.result(_load, self._task, failure=f"{model.ckpt_path}: cannot be loaded")

    def seen(self, paths: Sequence[str], weights: Mapping[int, float]) -> Iterator[SeenImage | InputError]:
        """Yield the part that the choice needs of each image, in any order, or why it cannot be decoded."""
        starts = range(0, len(paths), _IMAGES_OF_TASK)
        parts = (paths[start : start + _IMAGES_OF_TASK] for start in starts)
        tasks = [replace(self._task, weights=weights, paths=part) for part in parts]
        for done in run_without_fatal(
            self._cluster,
            _seen,
            tasks,
            without_fatal=self._without_fatal,
            place=lambda task: f"{task.paths[0]} and the next images",
        ):
            yield from done.result

    def features(self, index: RecordIndex) -> np.ndarray:
        """Return the features of the images in records, [n, F]."""
        starts = range(0, len(index), _IMAGES_OF_TASK)
        parts = [index.part(start, start + _IMAGES_OF_TASK) for start in starts]
        failure = f"{index.path(0)}: the features of the labeled images cannot be computed"
        return np.concatenate(self._cluster.results(partial(_features, self._task), parts, failure=failure))

    def _without_fatal(self, task: ViewTask) -> ViewTask:
        fatal = fatal_inputs(self._cluster, _decode, task.paths)
        return replace(task, fatal=frozenset(task.paths[number] for number in fatal))


@lru_cache(1)
def _viewer_of(task: ViewTask) -> Viewer:
    prepare_environment()
    return Viewer(task.model)


def _load(task: ViewTask) -> Detector:
    return _viewer_of(task).detector.without_functions()


def _seen(task: ViewTask) -> list[SeenImage | InputError]:
    copy_missing(task.paths)
    fatal = [InputError(f"{path}: ends the process that decodes it") for path in task.paths if path in task.fatal]
    return [*_viewer_of(task).seen([path for path in task.paths if path not in task.fatal], task.weights), *fatal]


def _features(task: ViewTask, index: RecordIndex) -> np.ndarray:
    copy_missing(index.paths)
    return _viewer_of(task).features(index)


def _decode(paths: Sequence[str]) -> None:
    copy_missing(paths)
    for path in paths:
        with contextlib.suppress(InputError):
            read_stored_image(path)
