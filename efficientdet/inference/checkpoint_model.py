"""Models of checkpoints, or with random weights, run by Keras or with their network in another runtime."""

from dataclasses import replace
from functools import partial

from dataset.class_names import COCO_2017
from efficientdet.checkpoints.checkpoint import Description
from efficientdet.checkpoints.checkpoint_classes import numbered_classes
from efficientdet.checkpoints.restore import Restored, restore_detector
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.device import replicate
from efficientdet.devices.runtime import Runtime, start_runtime
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.families.registry import build_detector, hyperparameters_of
from efficientdet.inference.detect import Detector
from efficientdet.inference.predict import build_predict
from model import tensorflow_cpu
from model.multiply_adds import multiply_adds


def load_model(config: ModelConfig, *, owns_process: bool = True, silent: bool = False) -> tuple[Restored, Runtime]:
    """Start the runtime and return the detector of a checkpoint, or one with random weights.

    owns_process: see `start_runtime`. silent: print no line on the origin of class names.
    """
    runtime = start_runtime(
        precision=config.precision,
        amp=config.amp,
        use_xla=config.use_xla,
        seed=0 if owns_process else None,
        owns_process=owns_process,
    )
    if config.ckpt_path:
        restored = restore_detector(config, precision=runtime.precision)
        for line in () if silent else restored.notes:
            print(line)
        return restored, runtime
    hparams = with_overrides(hyperparameters_of(config.model_name, {}), dict(config.overrides))
    return _with_random_weights(hparams, precision=runtime.precision), runtime


def checkpoint_detector(
    restored: Restored,
    *,
    batch_size: int = 1,
    compiled: bool = False,
    runtime: str = "keras",
    int8_images: tuple[str, ...] = (),
) -> Detector:
    """Return the detector of a restored model for up to `batch_size` images at a time, resized by its rule."""
    predict = build_predict(
        restored.detector, compiled=compiled, runtime=runtime, int8_images=int8_images, resize=restored.resize
    )
    return Detector.resizing(predict, resize=restored.resize, description=restored.description, batch_size=batch_size)


def open_checkpoint(config: ModelConfig, *, batch_size: int, owns_process: bool = True, once: bool = False) -> Detector:
    """Open a checkpoint for up to `batch_size` images at a time; see `open_model`."""
    restored, runtime = load_model(config, owns_process=owns_process)
    replicate(restored.detector.network, batch_size=batch_size)
    opened = checkpoint_detector(
        restored,
        batch_size=batch_size,
        compiled=runtime.use_xla,
        runtime=config.runtime,
        int8_images=config.int8_images,
    )
    opened = replace(opened, multiply_adds=partial(multiply_adds, restored.detector.network))
    on_cpu = restored.detector.postprocessing.detects_on_host and not runtime.use_xla and tensorflow_cpu.applies()
    if once and opened.tiling is None and config.runtime == "keras" and on_cpu:
        return replace(opened, detect=tensorflow_cpu.run_eagerly(opened.detect))
    return opened


def _with_random_weights(hparams: Hyperparameters, *, precision: str) -> Restored:
    number = hparams.num_classes
    names = COCO_2017 if number in (None, len(COCO_2017)) else numbered_classes(number)
    detector = build_detector(hparams, num_classes=len(names), precision=precision)
    description = Description(
        model_name=hparams.model_name, hparams=hparams.to_dict(), categories=names.to_categories(), weights="raw"
    )
    return Restored(detector=detector, hparams=hparams, class_names=names, description=description)
