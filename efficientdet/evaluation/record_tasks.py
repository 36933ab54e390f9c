"""Detection in records on a Ray cluster.

A task is a range of consecutive records that fills whole batches, so its batches and detections are one machine's.
"""

import os
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from dataset.class_names import ClassNames
from dataset.records.record_index import RecordIndex
from efficientdet.checkpoints.description import Description
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.families.hyperparameters import Hyperparameters
from object_detection.coco.results import CocoResults, DetectionRows
from program_support.errors import InputError
from program_support.progress import Progress
from program_support.ray_tasks import RayCluster
from program_support.remote_files import copy_missing

if TYPE_CHECKING:
    from efficientdet.evaluation.evaluated_model import EvaluatedModel

_BATCHES_OF_TASK = 8


class ModelFacts(NamedTuple):
    """Hyperparameters, classes and description of a model that was loaded."""

    hparams: Hyperparameters
    class_names: ClassNames
    description: Description


@dataclass(frozen=True, kw_only=True)
class RecordTask:
    """Records to detect in. Tasks of a run are equal: their model is the same, and a process keeps it."""

    run: str
    model: ModelConfig = field(compare=False)
    batch_size: int = field(compare=False)
    in_parallel: bool = field(compare=False)
    index: RecordIndex | None = field(default=None, compare=False)


class RecordTasks:
    """An evaluated model on a cluster."""

    def __init__(self, cluster: RayCluster, model: ModelConfig, *, batch_size: int, in_parallel: bool):
        self._cluster = cluster
        self._task = RecordTask(run=os.urandom(8).hex(), model=model, batch_size=batch_size, in_parallel=in_parallel)

    def load(self) -> ModelFacts:
        """Load the model on a node, and print what is to be said of it.

        Raises:
            InputError: as `load_model` does, or the process dies.
        """
        failure = f"{self._task.model.ckpt_path}: cannot be loaded"
        return self._cluster.result(_load_model, self._task, failure=failure)

    def detect(self, index: RecordIndex, *, samples: int) -> DetectionRows:
        """Return the rows of the first `samples` records (0: all), in their order.

        Raises:
            InputError: for an unusable record, and for records whose detection ends every process.
        """
        count, size = min(samples or len(index), len(index)), self._task.batch_size * _BATCHES_OF_TASK
        starts = range(0, count, size)
        parts = [index.part(start, min(start + size, count)) for start in starts]
        results: dict[int, DetectionRows] = {}
        with Progress("eval", total=count, noun="image") as progress:
            for done in self._cluster.run(_detect, [replace(self._task, index=part) for part in parts]):
                part = parts[done.number]
                if done.crash:
                    where = (
                        f"{part.path(0)}: no detection is possible in the {len(part)} records from byte {part.start(0)}"
                    )
                    raise InputError(f"{where}: each time {done.crash}")
                results[done.number] = done.result
                progress.advance(len(part), images=len(part))
        everything = CocoResults()
        for number in range(len(parts)):
            everything.add_rows(results[number])
        return everything.rows()


def _load_model(task: RecordTask) -> ModelFacts:
    restored = _model_of(task).restored
    return ModelFacts(restored.hparams, restored.class_names, restored.description)


def _detect(task: RecordTask) -> DetectionRows:
    model = _model_of(task)
    from dataset.input.pipeline import evaluation_dataset
    from efficientdet.evaluation.data_set_evaluator import detect_all

    assert task.index is not None
    copy_missing(task.index.paths)
    return detect_all(
        model.predict,
        evaluation_dataset(task.index, model.inputs),
        class_names=model.restored.class_names,
        masks_in_whole_pixels=model.restored.hparams.masks_in_whole_pixels,
    )


@lru_cache(1)
def _model_of(task: RecordTask) -> "EvaluatedModel":
    prepare_environment()
    from efficientdet.evaluation.evaluated_model import open_evaluated
    from efficientdet.inference.checkpoint_model import load_model

    return open_evaluated(task.model, *load_model(task.model), batch_size=task.batch_size, in_parallel=task.in_parallel)
