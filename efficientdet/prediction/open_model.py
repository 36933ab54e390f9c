"""Open a stored model for detection: `efficientdet.load_detector`, `open_for_serving`, `open_model` for other programs.

`import efficientdet` imports this module, so it imports nothing slow outside its functions.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from program_support.errors import InputError, nearest_name
from program_support.plugins import load_plugin

if TYPE_CHECKING:
    from efficientdet.configuration.model_config import ModelConfig
    from efficientdet.inference.detect import Detect, Detector
    from efficientdet.inference.video_frames import VideoFrame

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
    calibrated_scores: bool = False,
) -> "Detector":
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
        calibrated_scores: replace each score by the probability that the detection is correct, with the maps of
            `evaluate(..., calibrate_scores=True, store_thresholds=True)`.

    Returns:
        A detector; its `predict` detects objects in images.

    Raises:
        InputError: there is no such checkpoint, a setting does not apply to it.
    """
    from efficientdet.configuration.model_config import ModelConfig
    from efficientdet.devices.runtime_environment import prepare_environment
    from efficientdet.exports.formats import format_of

    path = os.fspath(path)
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: expected at least 1")
    exported = format_of(path)
    is_file = bool(exported and exported.runtimes)
    if exported and (
        model_name or class_names or hparams or precision or (int8_images if is_file else runtime != "keras")
    ):
        raise InputError(
            f"{path}: is a {'file of ' * is_file}{exported.title}, which runs as it is: {_FOR_CHECKPOINTS} and "
            f"{'int8_images' if is_file else 'runtime'} are for checkpoints"
        )
    if exported and is_file:
        config = ModelConfig(ckpt_path=path, runtime=exported.runtime_of(path, runtime, asked_by="load_detector"))
    else:
        _check_runtime(runtime, int8_images=int8_images)
        settings = {"ckpt_path": path} if exported else _checkpoint_settings(path, model_name, class_names, hparams)
        prepare_environment(owns_process=False)  # must precede the imports: no start-up messages of TensorFlow
        settings |= {"averaged": averaged, "precision": precision, "use_xla": use_xla, "runtime": runtime}
        config = ModelConfig(int8_images=tuple(int8_images), **settings)
    detector = replace(open_model(config, batch_size=batch_size, owns_process=False), read_frames=_frames_of_video)
    detector = replace(detector, batch_size=batch_size)
    return detector.with_calibrated_scores() if calibrated_scores else detector


def _frames_of_video(name: str) -> "Iterator[VideoFrame]":
    return load_plugin("efficientdet.video", "frames")(name)


def open_model(
    config: "ModelConfig",
    *,
    batch_size: int = 1,
    owns_process: bool = True,
    once: bool = False,
) -> "Detector":
    """Open a checkpoint, an exported file or a SavedModel for up to `batch_size` images at a time.

    Args:
        config: a file has the result of `ExportFormat.runtime_of` as its runtime.
        batch_size: number of images per call of the network.
        owns_process: see `start_runtime`.
        once: a checkpoint's network runs a single time. On a CPU, tracing and compiling it would then take longer than
            the run.
    """
    from efficientdet.exports.formats import format_of

    if exported := format_of(config.ckpt_path):
        assert config.ckpt_path is not None
        if not exported.runtimes:
            from efficientdet.devices.runtime import start_runtime

            start_runtime(precision=config.precision, amp=config.amp, use_xla=config.use_xla, owns_process=owns_process)
        return exported.open(config.ckpt_path, runtime=config.runtime)
    from efficientdet.inference.checkpoint_model import open_checkpoint

    return open_checkpoint(config, batch_size=batch_size, owns_process=owns_process, once=once)


def with_thresholds(detector: "Detector", *, min_score: float | None, calibrated_scores: bool) -> "Detector":
    """Return the detector with --min_score_thresh for all classes, else the stored thresholds; print them.

    Raises:
        InputError: the model stores no calibration for --calibrated_scores.
    """
    from efficientdet.checkpoints.stored_thresholds import ScoreThresholds

    if calibrated_scores:
        detector = detector.with_calibrated_scores()
    thresholds = detector.thresholds
    if min_score is not None:
        thresholds = ScoreThresholds(overall=min_score, source="--min_score_thresh")
    print(f"score threshold: {thresholds}")
    return replace(detector, thresholds=thresholds)


def with_classes(detector: "Detector", names: Sequence[str]) -> "Detector":
    """Return the detector without detections of other classes than those of --classes; () keeps all.

    Raises:
        InputError: the detector has no such class.
    """
    import numpy as np

    from dataset.files.untrusted_values import listed

    known = detector.class_names
    for name in names:
        if name not in known.names:
            nearest = nearest_name(name, known.names)
            raise InputError(
                f"--classes={','.join(names)}: the detector has no class {name!r}"
                + (f"; did you mean {nearest}?" if nearest else f"; it has {listed(known.names)}")
            )
    if not names:
        return detector
    ids = [number for number, name in known.by_id().items() if name in names]
    detect = detector.detect
    return replace(
        detector, detect=lambda images: [rows.chosen(np.isin(rows.category_ids, ids)) for rows in detect(images)]
    )


def open_for_serving(path: str, *, runtime: Runtime, max_batch: int, **settings: Any) -> "Detector":
    """Load a model to detect in up to `max_batch` images at a time.

    settings: Arguments of `load_detector`, whose errors are raised. The model is warmed up with empty images of every
    batch size, so that the first request does not wait for compilation.
    """
    import numpy as np

    from efficientdet.exports.formats import format_of

    detector = load_detector(path, runtime=runtime, **settings)
    detect = detector.detect
    if runtime == "keras" and format_of(path) is None and detector.tiling is None:  # tiles are batches themselves
        detect = _padded_to_few_sizes(detect, max_batch)
    blank = np.zeros((64, 64, 3), np.uint8)
    for size in _batch_sizes(max_batch):
        detect([blank] * size)
    return replace(detector, detect=detect)


def _batch_sizes(max_batch: int) -> list[int]:
    """Return the powers of two below `max_batch`, and `max_batch`."""
    return [*(2**power for power in range((max_batch - 1).bit_length())), max_batch]


def _padded_to_few_sizes(detect: "Detect", max_batch: int) -> "Detect":
    """Pad batches with their last image to a few sizes, since compiling the network takes seconds per size."""

    def padded(images):
        size = next(size for size in _batch_sizes(max_batch) if size >= len(images))
        return detect([*images, *images[-1:] * (size - len(images))])[: len(images)]

    return padded


def _checkpoint_settings(
    path: str,
    model_name: str | None,
    class_names: str | os.PathLike[str] | Sequence[str] | None,
    hparams: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return fields of `ModelConfig`."""
    from dataset.class_names import parse_class_names
    from efficientdet.checkpoints.checkpoint import checkpoint_prefix
    from efficientdet.configuration.model_config import split_label_map
    from efficientdet.families.registry import DEFAULT_MODEL
    from efficientdet.weights.downloads import local_path

    prefix = checkpoint_prefix(local_path(path))
    overrides, label_map = split_label_map(dict(hparams or {}))
    return {
        "ckpt_path": prefix,
        "model_name": model_name or DEFAULT_MODEL,
        "model_name_given": model_name is not None,
        "checkpoint_classes": parse_class_names(class_names) if class_names else label_map,
        "overrides": overrides,
    }


def _check_runtime(runtime: str, *, int8_images: Sequence[str]) -> None:
    """Raise InputError for a runtime that is unknown or not installed."""
    from efficientdet.configuration.model_config import require_runtime
    from efficientdet.options.model import RUNTIMES

    if runtime not in RUNTIMES:
        raise InputError(f"runtime={runtime!r}: expected one of {', '.join(RUNTIMES)}")
    if int8_images and runtime != "openvino":
        raise InputError(f"int8_images requires runtime='openvino'; runtime is {runtime!r}")
    if runtime == "keras":
        return
    require_runtime(runtime, asked_by=f"runtime={runtime!r}")
    if int8_images:
        require_runtime("onnxruntime", asked_by="int8_images")
