"""Images in, annotated images and detections.json out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from dataset.class_names import ClassNames
from dataset.transforms import letterbox
from efficientdet.hyperparameters import height_and_width
from efficientdet.image_files import image_ids, output_names, read_image
from efficientdet.predict import build_predict
from efficientdet.progress import Progress
from efficientdet.restore import Restored, restore_detector
from efficientdet.runtime import start_runtime
from object_detection.coco_results import DetectionRows, results_json, write_results
from object_detection.drawing import draw_detections
from object_detection.errors import InputError

DETECTIONS_FILE = "detections.json"


@dataclass(frozen=True, kw_only=True)
class AnnotationConfig:
    """The flags of infer.py, resolved."""

    images: tuple[str, ...]
    output_dir: str
    ckpt_path: str | None
    saved_model_dir: str | None
    model_name: str
    model_name_given: bool
    overrides: dict[str, Any]
    averaged: bool = True
    batch_size: int = 1
    min_score: float = 0.4
    max_boxes: int = 100
    debug: bool = False
    precision: str | None = None
    amp: bool | None = None
    use_xla: bool | None = None
    runtime: str = "keras"
    int8_images: tuple[str, ...] = ()


class Found(NamedTuple):
    """Detections of one image, best first."""

    boxes: np.ndarray  # [N, 4] float32 yxyx pixels of the image
    scores: np.ndarray  # [N] float32
    category_ids: np.ndarray  # [N] int64


Detect = Callable[[list[np.ndarray]], list[Found]]


def annotate(config: AnnotationConfig) -> None:
    """Detect in every image, draw, and write the detections as COCO results with file names.

    An image that cannot be decoded is named and left out; raises InputError if none can.
    """
    detect, names = _detector(config)
    ids = image_ids(config.images)
    outputs = list(output_names(config.images))
    results, failures = [], []
    with Progress("infer", total=len(config.images), noun="image") as progress:
        for numbers, images in _batches(config.images, config.batch_size, failures):
            for number, image, found in zip(numbers, images, detect(images), strict=True):
                results += _results(found, image_id=ids[number], file_name=Path(config.images[number]).name)
                _draw(image, found, Path(config.output_dir) / outputs[number], names=names, config=config)
            progress.advance(len(images), images=len(images))
    write_results(Path(config.output_dir) / DETECTIONS_FILE, results)
    for failure in failures:
        print(f"left out: {failure}")
    if len(failures) == len(config.images):
        raise InputError(f"none of {len(failures)} images could be decoded; the first: {failures[0]}")
    print(f"annotated {len(config.images) - len(failures)} images, {len(results)} detections: {config.output_dir}")


def _batches(paths, batch_size: int, failures: list[str]) -> Iterator[tuple[list[int], list[np.ndarray]]]:
    """Numbers and pixels of up to batch_size readable images at a time; what cannot be read is noted."""
    numbers, images = [], []
    for number, path in enumerate(paths):
        try:
            images.append(read_image(path))
            numbers.append(number)
        except InputError as error:
            failures.append(str(error))
        if len(images) == batch_size:
            yield numbers, images
            numbers, images = [], []
    if images:
        yield numbers, images


def _detector(config: AnnotationConfig) -> tuple[Detect, ClassNames]:
    runtime = start_runtime(precision=config.precision, amp=config.amp, use_xla=config.use_xla)
    if config.debug:
        import tensorflow as tf

        tf.config.run_functions_eagerly(True)
    restored = None
    if config.ckpt_path:
        restored = restore_detector(
            config.ckpt_path, model_name=config.model_name, model_name_given=config.model_name_given,
            overrides=config.overrides, averaged=config.averaged, precision=runtime.precision)
    if config.saved_model_dir:
        return _from_saved_model(config, restored)
    return detect_with_checkpoint(restored, batch_size=config.batch_size, compiled=runtime.use_xla, runtime=config.runtime,
                                  int8_images=config.int8_images)


def detect_with_checkpoint(
    restored: Restored, *, batch_size: int, compiled: bool, runtime: str = "keras", int8_images: tuple[str, ...] = ()
) -> tuple[Detect, ClassNames]:
    predict = build_predict(restored.detector, compiled=compiled, runtime=runtime, int8_images=int8_images)
    size = height_and_width(restored.hparams.image_size)
    category_ids = np.asarray(restored.class_names.category_ids, np.int64)

    def detect(images):
        boxed = [[np.asarray(part) for part in letterbox(image, size)] for image in images]
        boxed += [boxed[-1]] * (batch_size - len(boxed))  # one shape, one compilation
        boxes, scores, classes, valid = map(np.asarray, predict(*map(np.stack, zip(*boxed, strict=True))))
        return [Found(boxes[i][valid[i]], scores[i][valid[i]], category_ids[classes[i][valid[i]]])
                for i in range(len(images))]

    return detect, restored.class_names


def _from_saved_model(config: AnnotationConfig, restored: Restored | None) -> tuple[Detect, ClassNames]:
    from efficientdet.export import export_saved_model, load_saved_model

    if restored is not None:
        export_saved_model(restored.detector, config.saved_model_dir, description=restored.description)
        print(f"wrote {config.saved_model_dir}")
    signature, description = load_saved_model(config.saved_model_dir)

    def detect(images):
        found = []
        for image in images:  # images of one call must be of one size
            outputs = {name: np.asarray(value)[0] for name, value in signature(image[None]).items()}
            count = int(outputs["count"])
            found.append(Found(outputs["boxes"][:count], outputs["scores"][:count], outputs["classes"][:count]))
        return found

    return detect, ClassNames.from_categories(description.categories)


def _results(found: Found, *, image_id: int, file_name: str) -> list[dict]:
    count = len(found.scores)
    rows = DetectionRows(np.full(count, image_id, np.int64), found.boxes, found.scores, found.category_ids,
                         np.array([image_id], np.int64))
    return [{**result, "file_name": file_name} for result in results_json(rows)]


def _draw(image: np.ndarray, found: Found, path: Path, *, names: ClassNames, config: AnnotationConfig) -> None:
    shown = np.flatnonzero(found.scores >= config.min_score)[: config.max_boxes]
    classes = np.searchsorted(names.category_ids, found.category_ids[shown])
    drawn = draw_detections(image, found.boxes[shown], classes=classes, names=names.names, scores=found.scores[shown])
    Image.fromarray(drawn).save(path, quality=92)
