"""The teacher of --teacher_ckpt."""

from collections.abc import Callable

from efficientdet.checkpoints.restore import restore_detector
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.configuration.training_config import TrainingConfig
from model.detector import Detector
from model.distillation import DistilledDetector
from program_support.errors import InputError


def with_teacher(detector: Detector, config: TrainingConfig, *, precision: str, log: Callable[[str], None]) -> Detector:
    """Return the detector that a training step trains: the given one, or with a teacher if one is configured.

    The teacher sees the images of the student, at the student's input size. Raise InputError for a teacher or a student
    without feature pyramid.
    """
    if not config.teacher_ckpt:
        return detector
    overrides = {"image_size": config.hparams.image_size}
    teacher = restore_detector(ModelConfig(ckpt_path=config.teacher_ckpt, overrides=overrides), precision=precision)
    try:
        distilled = DistilledDetector(detector, teacher.detector, weight=config.distillation_weight)
    except InputError as error:
        raise InputError(f"--teacher_ckpt={config.teacher_ckpt}: {error}") from error
    log(
        f"teacher: {teacher.hparams.model_name} of {config.teacher_ckpt}, {len(teacher.class_names)} classes, input "
        f"size of the student; --distillation_weight={config.distillation_weight:g}"
    )
    return distilled
