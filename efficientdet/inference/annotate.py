"""Images in, annotated images and detections.json out."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataset.class_names import ClassNames
from dataset.files.image_files import (
    StoredImage,
    distinct_names,
    encode_image,
    image_ids,
    output_names,
    read_stored_image,
)
from dataset.progress import Progress
from efficientdet.inference.exif_orientation import stored_image, upright_boxes, upright_image
from efficientdet.inference.image_rows import Detect
from object_detection.coco_masks import decoded
from object_detection.coco_results import DetectionRows, results_json, write_results
from object_detection.drawing import draw_detections
from object_detection.errors import InputError

if TYPE_CHECKING:
    from efficientdet.checkpoints.restore import Restored

DETECTIONS_FILE = "detections.json"


@dataclass(frozen=True, kw_only=True)
class AnnotationConfig:
    """The flags of infer.py, resolved."""

    images: tuple[str, ...]
    output_dir: str
    ckpt_path: str | None = None
    saved_model_dir: str | None = None
    artefact: str | None = None  # an exported file, which is run without TensorFlow
    model_name: str = ""
    model_name_given: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)
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
    apply_exif_orientation: bool = False


def annotate(config: AnnotationConfig) -> None:
    """Detect in every image, draw, and write the detections as COCO results with file names.

    Boxes are in the frame of the stored pixels, as in training, or with `apply_exif_orientation` in that of the upright
    picture; a result of an image that the two differ for says which. An image that cannot be decoded is named and left
    out; raises InputError at the end if there was one, and before anything is drawn if a drawing would replace an image.
    """
    outputs = _output_paths(config)
    detect, names = _detector(config)
    ids, file_names = image_ids(config.images), distinct_names(config.images)
    results, failures = [], []
    with Progress("infer", total=len(config.images), noun="image") as progress:
        for numbers, images in _batches(config, failures):
            for number, image, rows in zip(numbers, images, detect([image.pixels for image in images]), strict=True):
                of_image = {"file_name": file_names[number]}
                if image.orientation != 1:
                    of_image["exif_orientation_applied"] = config.apply_exif_orientation
                results += [{**result, **of_image} for result in results_json(rows.with_image_id(ids[number]))]
                _draw(image, rows, outputs[number], names=names, config=config)
            progress.advance(len(images), images=len(images))
    write_results(Path(config.output_dir) / DETECTIONS_FILE, results)
    for failure in failures:
        print(f"left out: {failure}")
    done = len(config.images) - len(failures)
    if done:
        print(f"annotated {done} images, {len(results)} detections: {config.output_dir}")
    if failures:
        raise InputError(f"{len(failures) if done else 'none'} of {len(config.images)} images could "
                         f"{'not ' if done else ''}be decoded; the first: {failures[0]}")


def _output_paths(config: AnnotationConfig) -> list[Path]:
    """Where each drawing goes. Raises InputError where one would replace an image that is to be read."""
    paths = [Path(config.output_dir, name) for name in output_names(config.images)]
    originals = {os.path.realpath(image) for image in config.images}
    for path in paths:
        if os.path.realpath(path) in originals:
            raise InputError(f"--output_dir={config.output_dir}: the drawing {path.name} would replace the image {path}; "
                             "wanted another folder")
    return paths


def _batches(config: AnnotationConfig, failures: list[str]) -> Iterator[tuple[list[int], list[StoredImage]]]:
    """Numbers and pixels of up to batch_size readable images at a time; what cannot be read is noted."""
    numbers, images = [], []
    for number, path in enumerate(config.images):
        try:
            image = read_stored_image(path)
        except InputError as error:
            failures.append(str(error))
            continue
        if config.apply_exif_orientation:
            image = image._replace(pixels=upright_image(image.pixels, image.orientation))
        images.append(image)
        numbers.append(number)
        if len(images) == config.batch_size:
            yield numbers, images
            numbers, images = [], []
    if images:
        yield numbers, images


def _detector(config: AnnotationConfig) -> tuple[Detect, ClassNames]:
    if config.artefact:
        from efficientdet.inference.artefact import artefact_detection

        return artefact_detection(config.artefact, runtime=config.runtime)
    from efficientdet.checkpoints.restore import restore_detector
    from efficientdet.inference.opened_detection import detect_with_checkpoint
    from efficientdet.machine.runtime import start_runtime

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


def _from_saved_model(config: AnnotationConfig, restored: "Restored | None") -> tuple[Detect, ClassNames]:
    from efficientdet.inference.opened_detection import saved_model_detector

    if restored is not None:
        from efficientdet.export.saved_model import export_saved_model

        export_saved_model(restored.detector, config.saved_model_dir, description=restored.description, resize=restored.resize)
        print(f"wrote {config.saved_model_dir}")
    detect, names = saved_model_detector(config.saved_model_dir)
    return (lambda images: [rows for image in images for rows in detect([image])]), names  # as their sizes may differ


def _draw(image: StoredImage, rows: DetectionRows, path: Path, *, names: ClassNames, config: AnnotationConfig) -> None:
    """Write the picture with its detections.

    Its pixels are in the frame of the boxes in detections.json. Where a viewer turns them, the EXIF tag is kept and the
    labels are written for the viewer: drawn upright and turned back.
    """
    shown = rows.chosen(np.flatnonzero(rows.scores >= config.min_score)[: config.max_boxes])
    orientation = 1 if config.apply_exif_orientation else image.orientation
    drawn = draw_detections(
        upright_image(image.pixels, orientation),
        upright_boxes(shown.boxes, orientation, size=image.pixels.shape[:2]),
        classes=np.searchsorted(names.category_ids, shown.category_ids), names=names.names, scores=shown.scores,
        masks=None if shown.masks is None else [upright_image(decoded(mask), orientation) for mask in shown.masks])
    encoded = encode_image(stored_image(drawn, orientation), "JPEG", quality=92, orientation=orientation)
    try:
        path.write_bytes(encoded)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
