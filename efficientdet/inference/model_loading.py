"""Load a detector from a checkpoint, or build it with random weights from a model's name."""

from dataset.class_names import COCO_2017
from efficientdet.checkpoints.checkpoint import Description
from efficientdet.checkpoints.checkpoint_classes import numbered_classes
from efficientdet.checkpoints.restore import Restored, restore_detector
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.runtime import Runtime, start_runtime
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.families.registry import build_detector, hyperparameters_of


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


def _with_random_weights(hparams: Hyperparameters, *, precision: str) -> Restored:
    number = hparams.num_classes
    names = COCO_2017 if number in (None, len(COCO_2017)) else numbered_classes(number)
    detector = build_detector(hparams, num_classes=len(names), precision=precision)
    description = Description(
        model_name=hparams.model_name, hparams=hparams.to_dict(), categories=names.to_categories(), weights="raw"
    )
    return Restored(detector=detector, hparams=hparams, class_names=names, description=description)
