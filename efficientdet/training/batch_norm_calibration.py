"""Calibration of batch normalization statistics with large batches, for training with small batches.

The running statistics of a training are means over its batches. In batches of four images the later layers see less
variety than in all images together, because each batch's own brightness and contrast are subtracted before. The
statistics become too small, increasingly so with a higher learning rate: on the synthetic data of scripts/demo.sh AP is
0.25 instead of 0.53 with one seed of three, without an effect on the training loss (docs/measurements/performance.md).
The weights are correct; statistics of 64 images at a time restore the AP.

A forward pass keeps no activations, so eight times the batch of the training takes about its memory.
"""

from collections.abc import Iterable
from itertools import islice

import numpy as np

from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.device import compiled
from efficientdet.training.interruption import StopRequest
from efficientdet.training.run import Run
from model.batch_norm import BatchNormalization
from model.detection_model import SEED_STATE, DetectionModel
from object_detection.structures import Batch

SMALL_BATCH = 16
IMAGES = 512
_BATCH_SIZE = 64
_TIMES_TRAINING, _SMALL_PIXELS = 8, 16 * 512 * 512
_PIXELS = _BATCH_SIZE * 512 * 512  # pixels of 64 images of D0; larger images use smaller batches


def calibration_batch(image_size: tuple[int, int], images: int, *, training_batch: int) -> int:
    """Return the calibration batch size: 64, or the largest that fits where training fits; at least 1."""
    pixels = image_size[0] * image_size[1]
    fitting = min(_PIXELS, max(_SMALL_PIXELS, _TIMES_TRAINING * training_batch * pixels)) // pixels
    return max(1, min(_BATCH_SIZE, images, fitting))


def calibration_size(config: TrainingConfig, *, sharing_statistics: int, available: int, seen: int) -> tuple[int, int]:
    """Return the number of calibration images, 0 if larger batches have no benefit, and the batch size.

    sharing_statistics: number of processes or devices that share batch statistics in training. available, seen: number
    of images that the training sees in all, and has seen; more are not used, but at least one batch, whose size stays
    the same because another size is compiled again.
    """
    images = config.calibration_images
    assert config.batch_size is not None  # set by `with_batch_sizes`
    if images is None:
        images = min(IMAGES, available) if config.batch_size * sharing_statistics < SMALL_BATCH else 0
    batch_size = calibration_batch(config.hparams.input_size, images, training_batch=config.batch_size)
    if config.calibration_images is None:
        images = min(images, max(seen, batch_size)) if batch_size >= 2 * config.batch_size else 0
    return images, batch_size


class Calibration:
    """Calibration of one detector with its weights at the time of each call."""

    def __init__(self, detector: DetectionModel, *, use_xla: bool):
        layers = [
            layer for layer in detector.network.layers if isinstance(layer, BatchNormalization) and layer.trainable
        ]
        self._variables = [(layer.moving_mean, layer.moving_variance) for layer in layers]
        self._seeds = [variable for variable in detector.network.variables if variable.name == SEED_STATE]

        def statistics(images, sizes):
            settings_before = [(layer.momentum, layer.mean_over_ranks, layer.groups) for layer in layers]
            try:
                for layer in layers:
                    layer.momentum = 0.0  # during tracing: the running statistics are set to the batch statistics
                    layer.mean_over_ranks, layer.groups = None, 1  # all ranks calibrate with the same images
                detector.outputs(images, sizes, training=True)
            finally:
                for layer, settings in zip(layers, settings_before, strict=True):
                    layer.momentum, layer.mean_over_ranks, layer.groups = settings
            return [(mean.value + 0.0, variance.value + 0.0) for mean, variance in self._variables]

        self._statistics = compiled(statistics, detector.network, use_xla=use_xla)

    def __call__(self, batches: Iterable[Batch]) -> None:
        """Set the running statistics to the statistics of all images of the batches; frozen layers keep theirs.

        The state of random layers is restored afterwards.
        """
        if not self._variables:
            return
        seeds = [np.asarray(seed.value).copy() for seed in self._seeds]
        for mean, _ in self._variables:  # moments are differences from it: a repeated calibration has the same bits
            mean.assign(np.zeros(mean.shape, mean.dtype))
        measured = [
            [(np.asarray(mean), np.asarray(variance)) for mean, variance in self._statistics(batch.images, batch.sizes)]
            for batch in batches
        ]
        for number, (mean, variance) in enumerate(self._variables):
            means, variances = (np.stack(values) for values in zip(*(batch[number] for batch in measured), strict=True))
            mean.assign(means.mean(axis=0))
            variance.assign(variances.mean(axis=0) + means.var(axis=0))
        for seed, value in zip(self._seeds, seeds, strict=True):
            seed.assign(value)


class CalibrationOfAverages:
    """Calibration of the averaged weights before they are evaluated or written, once per step."""

    def __init__(self, run: Run, stop_request: StopRequest):
        self._run, self._stop_request = run, stop_request
        self._calibration = Calibration(run.state.detector, use_xla=run.runtime.use_xla)
        self._step: int | None = None  # of the last calibration

    def calibrate(self) -> None:
        """Calibrate the averaged weights of the state."""
        run, state = self._run, self._run.state
        images, batch_size = calibration_size(
            run.config,
            sharing_statistics=run.world.sharing_statistics,
            available=min(len(run.inputs.index), run.schedule_steps * run.global_batch_size),
            seen=state.progress.images_seen,
        )
        if not images or self._step == state.step:
            return
        batches = run.inputs.calibration_batches(batch_size, composes=run.composes_images)
        batches_of_images = self._stop_request.interruptible(islice(batches, images // batch_size))
        with run.stopwatch.measuring("calibration"):
            state.change_averages(lambda: self._calibration(batches_of_images))
        self._step = state.step
