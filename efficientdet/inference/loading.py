"""`efficientdet.load_detector`: load a stored model for detection.

`import efficientdet` imports this module, so it imports nothing slow outside its functions.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from program_support.errors import InputError

if TYPE_CHECKING:
    from efficientdet.inference.detector import LoadedDetector
    from efficientdet.inference.export_formats import ExportFormat

Runtime = Literal["keras", "onnxruntime", "openvino"]
_FOR_CHECKPOINTS = "model_name, class_names, hparams, precision"


def load_detector(
    path: str | os.PathLike[str],
    *,
    runtime: Runtime = "keras",
    model_name: str | None = None,
    class_names: str | os.PathLike[str] | Sequence[str] | None = None,
    hparams: Mapping[str, Any] | None = None,
    averaged: bool = True,
    batch_size: int = 1,
    precision: str | None = None,
    use_xla: bool | None = None,
    int8_images: Sequence[str] = (),
) -> "LoadedDetector":
    """Load the detector of a checkpoint, of a folder with a SavedModel, or of a file of export.py.

    Args:
        path: a checkpoint prefix, one of its files or a folder, of this project, google/automl or NVIDIA; or the name
            of pretrained weights. A SavedModel's graph is executed unchecked: load it only from a trusted source. For
            .onnx, .xml and .tflite files neither TensorFlow nor Keras is imported.
        runtime: runtime of a checkpoint's network; "onnxruntime" and "openvino" are faster on CPUs (extra `export`).
        model_name: one of the models, for a checkpoint without a description. Default: efficientdet-d0.
        class_names: names of the categories 1, 2, ..., or a file of names, for a checkpoint that does not name its
            classes. Default: classes.json, a label map or another such file beside it, else those of COCO, or numbers.
        hparams: hyperparameters that override those of the checkpoint, such as {"image_size": 640}.
        averaged: use the moving average of the weights if both are stored.
        batch_size: number of images per call of the network.
        precision: float32, mixed_float16 or mixed_bfloat16. Default: mixed_float16 with an accelerator, else float32.
        use_xla: compile with XLA. Default: only with an accelerator.
        int8_images: with "openvino", image files for the calibration of an int8 network.

    Returns:
        A detector; its `predict` detects objects in images.

    Raises:
        InputError: there is no such checkpoint, or a setting does not apply to it.
    """
    from efficientdet.inference.export_formats import format_of

    path = os.fspath(path)
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: expected at least 1")
    exported = format_of(path)
    if exported:
        is_file = bool(exported.runtimes)
        if model_name or class_names or hparams or precision or (int8_images if is_file else runtime != "keras"):
            raise InputError(
                f"{path}: is a {'file of ' * is_file}{exported.title}, which runs as it is: {_FOR_CHECKPOINTS} and "
                f"{'int8_images' if is_file else 'runtime'} are for checkpoints"
            )
        if is_file:
            chosen = exported.runtime_of(path, runtime, asked_by="load_detector")
            return _exported(exported, path, runtime=chosen, batch_size=batch_size)
    _check_runtime(runtime, int8_images=int8_images)
    if exported:
        return _exported(exported, path, batch_size=batch_size, precision=precision, use_xla=use_xla)
    return _checkpoint(
        path,
        batch_size=batch_size,
        model_name=model_name,
        class_names=class_names,
        overrides=dict(hparams or {}),
        averaged=averaged,
        precision=precision,
        use_xla=use_xla,
        runtime=runtime,
        int8_images=tuple(int8_images),
    )


def _checkpoint(
    path: str,
    *,
    batch_size: int,
    model_name: str | None,
    class_names: str | os.PathLike[str] | Sequence[str] | None,
    overrides: dict[str, Any],
    **settings: Any,
) -> "LoadedDetector":
    """Load a checkpoint; settings: fields of `ModelConfig`."""
    from dataset.class_files import parse_class_names
    from efficientdet.checkpoints.checkpoint import checkpoint_prefix
    from efficientdet.configuration.model_config import ModelConfig
    from efficientdet.configuration.overrides import split_label_map
    from efficientdet.devices.runtime_environment import prepare_environment
    from efficientdet.families.registry import DEFAULT_MODEL
    from efficientdet.weights.downloads import local_path

    prefix = checkpoint_prefix(local_path(path))
    overrides, label_map = split_label_map(overrides)
    prepare_environment(owns_process=False)  # before the slow imports: TensorFlow without its start-up messages
    from efficientdet.inference.detector import LoadedDetector
    from efficientdet.inference.model_detection import detect_with_model

    config = ModelConfig(
        ckpt_path=prefix,
        model_name=model_name or DEFAULT_MODEL,
        model_name_given=model_name is not None,
        checkpoint_classes=parse_class_names(class_names) if class_names else label_map,
        overrides=overrides,
        **settings,
    )
    model = detect_with_model(config, batch_size=batch_size, owns_process=False)
    return LoadedDetector(*model, batch_size=batch_size)


def _exported(
    exported: "ExportFormat", path: str, *, batch_size: int, runtime: str = "keras", **settings: Any
) -> "LoadedDetector":
    """Open a file or a SavedModel; settings: arguments of `start_runtime` for a SavedModel."""
    if settings:
        from efficientdet.devices.runtime_environment import prepare_environment

        prepare_environment(owns_process=False)  # as for a checkpoint
        from efficientdet.devices.runtime import start_runtime

        start_runtime(owns_process=False, **settings)
    from efficientdet.inference.detector import LoadedDetector

    return LoadedDetector(*exported.open(path, runtime=runtime), batch_size=batch_size)


def _check_runtime(runtime: str, *, int8_images: Sequence[str]) -> None:
    """Raise InputError for a runtime that is unknown or not installed."""
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
