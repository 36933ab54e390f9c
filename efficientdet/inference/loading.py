"""`efficientdet.load_detector`: what is stored in a folder as an object that detects.

This module is what `import efficientdet` reaches before the call: it imports nothing heavy outside its functions.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from program_support.errors import InputError

if TYPE_CHECKING:
    from efficientdet.inference.detector import LoadedDetector

Runtime = Literal["keras", "onnxruntime", "openvino"]
_FOR_CHECKPOINTS = "model_name, class_names, hparams, precision"


def load_detector(
    path: str | os.PathLike[str], *, runtime: Runtime = "keras", model_name: str | None = None,
    class_names: Sequence[str] | None = None, hparams: Mapping[str, Any] | None = None, averaged: bool = True,
    batch_size: int = 1, precision: str | None = None, use_xla: bool | None = None, int8_images: Sequence[str] = (),
) -> "LoadedDetector":
    """The detector of a checkpoint, of a folder with a SavedModel, or of a file of export.py, ready to detect.

    path: a prefix, one of its files or a folder; ours, google/automl's or NVIDIA's; or the name of published weights. A
        SavedModel's graph is run as it is: only from a source that you trust. For an .onnx, .xml or .tflite neither
        TensorFlow nor Keras is imported.
    runtime: what runs a checkpoint's network; "onnxruntime" and "openvino" are faster on CPUs (extra `export`).
    model_name, class_names: for a checkpoint that does not say what it is, whose categories are then 1, 2, ..; without
        names those of COCO.
    hparams: hyperparameters over those of the checkpoint, such as {"image_size": 640}.
    averaged: the moving average of the weights where both are stored.
    batch_size: images that the network sees at a time.
    precision: float32, mixed_float16 or mixed_bfloat16; None: mixed_float16 where there is an accelerator, else float32.
    use_xla: compile with XLA; None: where there is an accelerator.
    int8_images: with "openvino", image files from whose values the ranges of an 8-bit network are taken.

    Raises InputError, one line, where there is no such checkpoint or the settings do not go with it.
    """
    from dataset.class_names import ClassNames
    from efficientdet.artifacts.artifact_files import kind_of
    from efficientdet.artifacts.saved_model_files import is_saved_model
    from efficientdet.checkpoints.checkpoint import checkpoint_prefix
    from efficientdet.configuration.model_config import ModelConfig
    from efficientdet.families.registry import DEFAULT_MODEL
    from efficientdet.weights.downloads import local_path

    path = os.fspath(path)
    exported = is_saved_model(path)
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: expected at least 1")
    if kind := kind_of(path):
        if model_name or class_names or hparams or precision or int8_images:
            raise InputError(f"{path}: is a file of {kind.name}, which runs as it is: {_FOR_CHECKPOINTS} and int8_images are "
                             "for checkpoints")
        return _artifact(path, runtime=runtime, batch_size=batch_size)
    if exported and (runtime != "keras" or model_name or class_names or hparams or precision):
        raise InputError(f"{path}: is a SavedModel, which runs as it is: {_FOR_CHECKPOINTS} and runtime are for checkpoints")
    _check_runtime(runtime, int8_images=int8_images)
    prefix = None if exported else checkpoint_prefix(local_path(path))
    from efficientdet.devices.runtime_environment import prepare_environment

    prepare_environment(owns_process=False)  # only now what takes seconds, TensorFlow without its start-up notices
    from efficientdet.devices.runtime import start_runtime
    from efficientdet.inference.detector import LoadedDetector
    from efficientdet.inference.opened_detection import detect_with_model, saved_model_detector

    if exported:
        start_runtime(precision=precision, use_xla=use_xla, owns_process=False)
        return LoadedDetector(*saved_model_detector(path), batch_size=batch_size)

    names = ClassNames.numbered(class_names) if class_names else None
    opened = detect_with_model(ModelConfig(
        ckpt_path=prefix, model_name=model_name or DEFAULT_MODEL, model_name_given=model_name is not None, class_names=names,
        overrides=dict(hparams or {}), averaged=averaged, precision=precision, use_xla=use_xla, runtime=runtime,
        int8_images=tuple(int8_images)), batch_size=batch_size, owns_process=False)
    return LoadedDetector(*opened, batch_size=batch_size)


def _artifact(path: str, *, runtime: str, batch_size: int) -> "LoadedDetector":
    from efficientdet.inference.artifact import artifact_detection, artifact_runtime
    from efficientdet.inference.detector import LoadedDetector

    runtime = artifact_runtime(path, runtime, asked_by="load_detector")
    return LoadedDetector(*artifact_detection(path, runtime=runtime), batch_size=batch_size)


def _check_runtime(runtime: str, *, int8_images: Sequence[str]) -> None:
    """Raises InputError for a runtime that is unknown or not installed."""
    from efficientdet.configuration.inference_runtimes import RUNTIMES, require_runtime

    if runtime not in RUNTIMES:
        raise InputError(f"runtime={runtime!r}: expected one of {', '.join(RUNTIMES)}")
    if int8_images and runtime != "openvino":
        raise InputError(f"int8_images requires runtime='openvino'; runtime is {runtime!r}")
    if runtime == "keras":
        return
    require_runtime(runtime, asked_by=f"runtime={runtime!r}")
    if int8_images:
        require_runtime("onnxruntime", asked_by="int8_images")
