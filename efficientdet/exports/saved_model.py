"""TensorFlow SavedModels that run without this project."""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from dataset.input.resize import ResizeRule
from efficientdet.checkpoints.description import DESCRIPTION_FILE, Description, description_of
from model.detection_model import DetectionModel, detections_in_original
from program_support.errors import InputError
from program_support.file_patterns import without_magic

SIGNATURE = "serving_default"
_OUTPUTS = {"boxes", "scores", "classes", "count"}
# Errors of loading a damaged folder
_DAMAGE = (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError, tf.errors.OpError)
# Custom gradients capture tensors of the forward pass, which cannot be saved.
FOR_INFERENCE = tf.saved_model.SaveOptions(experimental_custom_gradients=False)


def export_saved_model(detector: DetectionModel, folder: str, *, description: Description, resize: ResizeRule) -> None:
    """Write a SavedModel that detects in `images` uint8 [B, h, w, 3] of any size; it includes `resize`.

    The outputs are `boxes` [B, D, 4] float32 yxyx in pixels of the images, `scores` [B, D] float32, `classes` [B, D]
    int64 (category ids of the data set) and `count` [B] int32, the number of valid detections; with masks also `masks`
    [B, D, S, S] float32, the probability that a cell of the box belongs to the object. Class names and configuration
    are in description.json in the folder.

    Raises:
        OSError, InputError: for backends other than TensorFlow.
    """
    if (backend := keras.backend.backend()) != "tensorflow":
        raise InputError(f"{folder}: a SavedModel needs the TensorFlow backend; KERAS_BACKEND is {backend}")
    class_names = description.class_names
    module = tf.Module()
    module.network = detector.network
    size = detector.image_size

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, name="images")], autograph=False)
    def detect(images):
        boxed, sizes, scales = tf.map_fn(
            resize,
            images,
            fn_output_signature=(
                tf.TensorSpec([*size, 3], tf.uint8),
                tf.TensorSpec([2], tf.int32),
                tf.TensorSpec([2], tf.float32),
            ),
        )
        detections = detections_in_original(detector, boxed, sizes, scales)
        return {
            "boxes": detections.boxes,
            "scores": detections.scores,
            "classes": tf.gather(tf.constant(class_names.category_ids, tf.int64), detections.classes),
            "count": tf.reduce_sum(tf.cast(detections.valid, tf.int32), axis=1),
            **({} if detections.masks is None else {"masks": detections.masks}),
        }

    try:
        tf.saved_model.save(module, folder, signatures={SIGNATURE: detect}, options=FOR_INFERENCE)
    except tf.errors.OpError as error:
        raise OSError(None, str(error.message).splitlines()[0], folder) from error
    description.write(f"{folder}/{DESCRIPTION_FILE}")


@contextlib.contextmanager
def without_gradient_warnings() -> Iterator[None]:
    """Silence TensorFlow's warning that a loaded function may have no gradient, which inference does not need."""

    def is_other(record: logging.LogRecord) -> bool:
        return "unsaved custom gradients" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def load_saved_model(folder: str) -> tuple[Callable[[Any], dict[str, Any]], Description]:
    """Return signature and Description of a folder of `export_saved_model`.

    Raises:
        InputError: for any other folder.
    """
    try:
        description = description_of(json.loads(Path(folder, DESCRIPTION_FILE).read_text(encoding="utf-8")))
        _ = description.class_names  # reports invalid names
        with without_gradient_warnings(), without_magic(folder) as readable:
            loaded = tf.saved_model.load(readable)
        run = loaded.signatures[SIGNATURE]
        if set(run.structured_input_signature[1]) != {"images"} or not set(run.structured_outputs) >= _OUTPUTS:
            raise ValueError(
                f"{SIGNATURE} takes {', '.join(run.structured_input_signature[1])} and returns "
                f"{', '.join(map(str, run.structured_outputs))}"
            )
    except _DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise InputError(f"{folder}: is not a complete SavedModel of this project ({reason})") from error

    def signature(images: Any) -> dict[str, Any]:
        # By way of `loaded`, because its variables are deleted with it
        return loaded.signatures[SIGNATURE](images=tf.convert_to_tensor(images, tf.uint8))

    return signature, description
