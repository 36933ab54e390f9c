"""Batch statistics measured with large batches, for trainings whose batches are small.

The running statistics of a training are means over its batches. In batches of four images the later layers see less variety
than in all images together, as each batch's own brightness and contrast are subtracted before. The statistics become too
small, the more so the higher the learning rate: on the drawn data of scripts/demo.sh AP is 0.25 instead of 0.53 with one seed
of three, without a trace in the training loss (docs/measurements/performance.md). The weights are sound; statistics of 64
images at a time fix them. A forward pass keeps no activations, so eight times the batch of the training takes about its memory.
"""

from collections.abc import Iterable

import numpy as np

from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.device import compiled
from model.batch_norm import BatchNormalization
from model.detector import SEED_STATE, Detector
from object_detection.structures import Batch

SMALL_BATCH = 16
IMAGES = 512
_BATCH_SIZE = 64
_TIMES_TRAINING, _SMALL_PIXELS = 8, 16 * 512 * 512
_PIXELS = _BATCH_SIZE * 512 * 512  # of a batch: what 64 images of D0 have; larger ones come fewer at a time


def calibration_batch(image_size: tuple[int, int], images: int, *, training_batch: int) -> int:
    """Images at a time: 64, or as many as fit where the training fits; at least 1."""
    pixels = image_size[0] * image_size[1]
    fitting = min(_PIXELS, max(_SMALL_PIXELS, _TIMES_TRAINING * training_batch * pixels)) // pixels
    return max(1, min(_BATCH_SIZE, images, fitting))


def calibration_size(config: TrainingConfig, *, records: int) -> tuple[int, int]:
    """Return how many images to calibrate with and how many at a time; 0 images where larger batches would gain nothing."""
    images = config.calibration_images
    if images is None:
        images = min(IMAGES, records) if config.batch_size * config.bn_group < SMALL_BATCH else 0
    batch_size = calibration_batch(config.hparams.input_size, images, training_batch=config.batch_size)
    worthwhile = config.calibration_images is not None or batch_size >= 2 * config.batch_size
    return (images if worthwhile else 0), batch_size


class Calibration:
    """Of one detector, with the weights that it has at each call."""

    def __init__(self, detector: Detector, *, use_xla: bool):
        layers = [layer for layer in detector.network.layers if isinstance(layer, BatchNormalization) and layer.trainable]
        self._variables = [(layer.moving_mean, layer.moving_variance) for layer in layers]
        self._seeds = [variable for variable in detector.network.variables if variable.name == SEED_STATE]

        def statistics(images, sizes):
            before = [(layer.momentum, layer.mean_over_ranks) for layer in layers]
            try:
                for layer in layers:
                    layer.momentum = 0.0  # while this is traced: the running statistics become those of the batch
                    layer.mean_over_ranks = None  # the ranks look at the same images
                detector.outputs(images, sizes, training=True)
            finally:
                for layer, (momentum, mean_over_ranks) in zip(layers, before, strict=True):
                    layer.momentum, layer.mean_over_ranks = momentum, mean_over_ranks
            return [(mean.value + 0.0, variance.value + 0.0) for mean, variance in self._variables]

        self._statistics = compiled(statistics, detector.network, use_xla=use_xla)

    def __call__(self, batches: Iterable[Batch]) -> None:
        """Set the running statistics to those of all images of the batches; frozen layers keep theirs.

        Random layers continue afterwards as if nothing had been.
        """
        if not self._variables:
            return
        seeds = [np.asarray(seed.value).copy() for seed in self._seeds]
        measured = [[(np.asarray(mean), np.asarray(variance)) for mean, variance in
                     self._statistics(batch.images, batch.sizes)] for batch in batches]
        for number, (mean, variance) in enumerate(self._variables):
            means, variances = (np.stack(values) for values in zip(*(batch[number] for batch in measured), strict=True))
            mean.assign(means.mean(axis=0))
            variance.assign(variances.mean(axis=0) + means.var(axis=0))
        for seed, value in zip(self._seeds, seeds, strict=True):
            seed.assign(value)
