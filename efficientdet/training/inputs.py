"""The records of a training, and its batches."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import keras
import numpy as np

from dataset.input.input_config import InputConfig
from dataset.input.pipeline import epoch_length, training_dataset
from dataset.input.record_batches import RecordBatches
from dataset.input.tiling import Tiling, tiles_per_epoch
from dataset.records.labeled_records import labeled_records
from dataset.records.record_index import RecordIndex, index_records
from dataset.records.verify import verify_records
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.agreement import require_agreement
from efficientdet.devices.device import device_prefetch
from efficientdet.devices.distributed import World
from efficientdet.devices.runtime import Runtime, accelerator_count
from efficientdet.families.inputs import input_config
from object_detection.structures import Batch
from program_support.processor import available_cores

# Paths on the machine of a process; options: those that set the other fields, with these paths
OWN_SETTINGS = ("records", "val_records", "model_dir", "options")


class TrainingInputs:
    """The records of a training, and the batches of this rank."""

    def __init__(self, config: TrainingConfig, runtime: Runtime, world: World, *, log: Callable[[str], None]):
        """Find and, if requested, verify the records.

        Raises:
            InputError: a record cannot be used, or the processes have different records.
        """
        self._config, self._runtime, self._world = config, runtime, world
        self.index = verify_records(
            index_records(config.records),
            when=config.verify_records,
            max_bad_fraction=config.max_bad_fraction,
            log=log,
            category_ids=config.class_names.category_ids,
        )
        require_agreement(config, world, rank_fields=OWN_SETTINGS, index=self.index)
        self._factors = _repeat_factors(config, self.index, log=log)
        self._calibration: dict[bool, RecordBatches] = {}

    @property
    def images_per_epoch(self) -> int:
        """Number of images or tiles of an epoch."""
        records = len(self.index) if self._factors is None else epoch_length(self._factors)
        return self._config.num_examples_per_epoch or records

    def config(self, batch_size: int, *, composes: bool = True) -> InputConfig:
        """Return the configuration of the input pipeline; `composes`: with images composed of several, if any are."""
        config, local_size = self._config, self._world.local_size
        # The ranks of a machine share its cores, unless the launcher has bound each to its own.
        cores = min(available_cores(), (os.cpu_count() or 4) // local_size)
        spare = 2 if accelerator_count() > 0 and config.set_num_threads else 0
        threads = max(2, cores - spare) if spare or local_size > 1 else 0
        inputs = input_config(
            config.hparams,
            class_names=config.class_names,
            batch_size=batch_size,
            seed=config.seed,
            pad_to_batch_maximum=not self._runtime.use_xla and keras.backend.backend() == "tensorflow",
            use_fake_data=config.use_fake_data,
            num_threads=threads if config.enable_map_parallelization else 1,
        )
        return inputs if composes else replace(inputs, copy_paste=None)

    def batches(self, batch_size: int, *, first_position: int, composes: bool) -> Iterator[Batch]:
        """Return the batches of this rank from an image of the stream on."""
        world = self._world
        batches = self._dataset(
            self.config(batch_size, composes=composes),
            first_position=first_position,
            rank=world.rank,
            world_size=world.size,
        )
        return device_prefetch(iter(batches), devices=world.devices, processes=world.size)

    def calibration_batches(self, batch_size: int, *, composes: bool) -> RecordBatches:
        """Return the batches of the stream from its beginning, on all ranks the same, always of the first size."""
        if composes not in self._calibration:  # a pipeline that is made again is traced again
            inputs = replace(self.config(batch_size, composes=composes), use_fake_data=False)
            self._calibration[composes] = self._dataset(inputs)
        return self._calibration[composes]

    def _dataset(self, inputs: InputConfig, **place: int) -> RecordBatches:
        return training_dataset(self.index, inputs, factors=self._factors, **place)


def _repeat_factors(config: TrainingConfig, index: RecordIndex, *, log: Callable[[str], None]) -> np.ndarray | None:
    """Return how many tiles of each record an epoch shows; None for complete images."""
    tiling = Tiling.of_hyperparameters(vars(config.hparams))
    if tiling is None:
        return None
    images = labeled_records(index, config.class_names)
    factors = tiles_per_epoch(images, tiling)
    height, width = tiling.size
    log(f"an epoch has {int(factors.sum())} tiles of {width}x{height} pixels, of {len(images)} images")
    return factors
