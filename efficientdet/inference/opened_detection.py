"""Detection by a checkpoint or a SavedModel, which takes TensorFlow (or JAX): images in, rows of results out."""

import numpy as np

from dataset.class_names import ClassNames
from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.inference.image_rows import OpenedModel, rows_of_image, rows_of_signature
from efficientdet.inference.opening import open_model
from efficientdet.inference.predict import Network, build_predict, predict_on_host
from model import tensorflow_cpu


def detect_with_checkpoint(
    restored: Restored, *, batch_size: int, compiled: bool, runtime: str = "keras", int8_images: tuple[str, ...] = (),
    network: Network | None = None,
) -> OpenedModel:
    """Detection by a restored detector in up to `batch_size` images at a time, resized by its rule; by another `network` in
    place of its own where one is given."""
    resize = restored.resize
    predict = (build_predict(restored.detector, compiled=compiled, runtime=runtime, int8_images=int8_images, resize=resize)
               if network is None else predict_on_host(restored.detector, network))
    category_ids = np.asarray(restored.class_names.category_ids, np.int64)

    def detect(images):
        boxed = [[np.asarray(part) for part in resize(image)] for image in images]
        boxed += [boxed[-1]] * (batch_size - len(boxed))  # one shape, one compilation
        found = predict(*map(np.stack, zip(*boxed, strict=True)))
        boxes, scores, classes, valid = map(np.asarray, found[:4])
        masks = None if found.masks is None else np.asarray(found.masks)
        return [rows_of_image(boxes[i][valid[i]], scores[i][valid[i]], category_ids[classes[i][valid[i]]], image=image,
                              masks=None if masks is None else masks[i][valid[i]],
                              masks_in_whole_pixels=restored.hparams.masks_in_whole_pixels)
                for i, image in enumerate(images)]

    return OpenedModel(detect, restored.class_names, ScoreThresholds.stored_in(restored.description))


def detect_with_model(config: ModelConfig, *, batch_size: int, owns_process: bool = True, once: bool = False) -> OpenedModel:
    """Open a model and return its detection in up to `batch_size` images at a time.

    once: the network will run a single time. On a CPU, tracing and compiling it would take longer than that run.
    """
    restored, runtime = open_model(config, owns_process=owns_process)
    opened = detect_with_checkpoint(restored, batch_size=batch_size, compiled=runtime.use_xla, runtime=config.runtime,
                                    int8_images=config.int8_images)
    on_cpu = restored.detector.detects_on_host and not runtime.use_xla and tensorflow_cpu.applies()
    if once and config.runtime == "keras" and on_cpu:
        return opened._replace(detect=tensorflow_cpu.run_eagerly(opened.detect))
    return opened


def saved_model_detector(folder: str) -> OpenedModel:
    """Detection by a SavedModel in images of one size."""
    from efficientdet.artifacts.saved_model import load_saved_model

    signature, description = load_saved_model(folder)

    def detect(images):
        outputs = {name: np.asarray(value) for name, value in signature(np.stack(images)).items()}
        return [rows_of_signature({name: values[i] for name, values in outputs.items()}, image, description=description)
                for i, image in enumerate(images)]

    return OpenedModel(detect, ClassNames.from_categories(description.categories), ScoreThresholds.stored_in(description))
