"""Detection in images, and their annotated copies: the part of infer.py that needs the pixels."""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from dataset.class_names import ClassNames
from dataset.files.image_files import (
    StoredImage,
    distinct_stem,
    encode_image,
    output_names,
)
from dataset.files.image_windows import open_windows, size_of_large_tiff
from dataset.input.tiling import Tiling
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.exports.formats import export_formats
from efficientdet.inference.detect import Detector
from efficientdet.inference.result_files import write_output
from efficientdet.inference.tiles import LargeImage
from efficientdet.options.infer import InferOptions
from efficientdet.options.model import MOST_DRAWN
from efficientdet.prediction.inputs import Inputs, read_input, recording_stem
from efficientdet.prediction.open_model import open_model, with_classes, with_thresholds
from efficientdet.reports.drawing import draw_detections
from object_detection.coco.results import DetectionRows, results_json
from object_detection.coco.run_length_masks import DecodedMasks
from program_support.checked_fields import checked
from program_support.errors import InputError
from program_support.processor import available_cores

VIDEO_SUFFIXES = {
    "video": ".mp4",
    "events": "_events",
    "none": "",
}  # of --save: what follows the stem in an output's name


@checked
class AnnotationConfig(InferOptions):
    """Options of infer.py with resolved inputs, model and tiles."""

    inputs: Inputs
    model_config: ModelConfig = field(default_factory=ModelConfig)  # checkpoint or exported file
    tiling: Tiling | None = None  # None: the tiles of the model, if it has any

    def max_boxes(self, model: Detector) -> int | None:
        """Return the maximum number of boxes drawn per image; None: all."""
        return self.max_boxes_to_draw or (None if model.tiling else MOST_DRAWN)

    @property
    def runs_network_once(self) -> bool:
        """Return whether the input is a single image without tiling."""
        return len(self.inputs.images) == 1 and not self.inputs.videos and self.tiling is None


def output_paths(config: AnnotationConfig, sources: Sequence[str], suffix: str) -> list[Path]:
    """Return the path of each output.

    Raises:
        InputError: one would overwrite an input image or video.
    """
    paths = [Path(config.output_dir, name) for name in output_names(sources, suffix)]
    originals = {os.path.realpath(source) for source in (*config.inputs.images, *config.inputs.videos)}
    for path in paths:
        if os.path.realpath(path) in originals:
            kind = "image" if suffix == ".jpg" else "video"
            raise InputError(
                f"--output_dir={config.output_dir}: the output {path.name} would overwrite the {kind} {path}; "
                "expected another folder"
            )
    return paths


def camera_output(config: AnnotationConfig, camera: int | str) -> Path:
    """Return the first of camera_0.mp4, camera_0-2.mp4, .. that does not exist: a recording cannot be repeated.

    Of clips it is the same folder camera_0_events, as their names are times.
    """
    folder, used = Path(config.output_dir), set()
    if config.save == "video":
        used = {path.stem.casefold() for path in folder.glob("*.mp4")}
    return folder / f"{distinct_stem(recording_stem(camera), used)}{VIDEO_SUFFIXES[config.save]}"


def drawn_rows(
    pixels: np.ndarray, rows: DetectionRows, names: ClassNames, *, shorter_side: int | None = None
) -> np.ndarray:
    """Return pixels [h, w, 3] uint8 with all rows drawn into them. shorter_side: see `draw_detections`."""
    return draw_detections(
        pixels,
        rows.boxes,
        classes=np.searchsorted(names.category_ids, rows.category_ids),
        names=names.names,
        scores=rows.scores,
        track_ids=rows.track_ids,
        shorter_side=shorter_side,
        masks=None if rows.masks is None else DecodedMasks(rows.masks.tolist()),
    )


_MAX_JPEG_SIDE = 65_500  # pixels of a JPEG side, the limit of libjpeg


class InputImage(NamedTuple):
    """An image to detect in."""

    path: str
    output: str  # the annotated copy
    image_id: int


class ImageResult(NamedTuple):
    """Detections in an image, or why there are none."""

    failure: str = ""
    note: str = ""
    size: tuple[int, int] = (0, 0)  # height and width
    results: Sequence[dict[str, Any]] = ()
    drawn: Sequence[int] = ()  # numbers of the drawn results


def annotated_batches(
    images: Sequence[InputImage], config: AnnotationConfig, model: Detector
) -> Iterator[list[ImageResult]]:
    """Annotate images, and yield the results of each batch, or with tiles of each image.

    A batch is that of consecutive images, without those that cannot be decoded. While the network runs, threads decode
    the next batch and write the copies of the last one.

    Raises:
        InputError: an output cannot be written.
    """
    size = 1 if model.tiling else config.batch_size
    batches = [images[start : start + size] for start in range(0, len(images), size)]
    pool = ThreadPoolExecutor(available_cores())

    def opened(batch: Sequence[InputImage]) -> list[Future[StoredImage | InputError]]:
        return [pool.submit(_opened, image, model) for image in batch]

    def annotated(
        image: InputImage, stored: StoredImage | InputError, rows: Iterator[DetectionRows]
    ) -> Future[ImageResult]:
        if isinstance(stored, InputError):
            return pool.submit(ImageResult, failure=str(stored))
        return pool.submit(_annotated, image, stored, next(rows), config, model)

    ahead, writing = opened(batches[0]), list[Future[ImageResult]]()
    try:
        for batch, following in itertools.zip_longest(batches, batches[1:], fillvalue=()):
            stored = [future.result() for future in ahead]
            ahead = opened(following)
            usable = [image.pixels for image in stored if isinstance(image, StoredImage)]
            rows = iter(model.detect(usable) if usable else ())
            if writing:
                yield [future.result() for future in writing]
            writing = [annotated(image, result, rows) for image, result in zip(batch, stored, strict=True)]
        yield [future.result() for future in writing]
    finally:
        pool.shutdown(cancel_futures=True)


def _annotated(
    image: InputImage, stored: StoredImage, rows: DetectionRows, config: AnnotationConfig, model: Detector
) -> ImageResult:
    """Write the annotated copy of an image."""
    numbers = np.flatnonzero(rows.scores >= model.thresholds.of(rows.category_ids))[: config.max_boxes(model)]
    drawn = rows.chosen(numbers)
    pixels = drawn_rows(
        *_to_draw_into(stored.pixels, drawn),
        model.class_names,
        shorter_side=None if model.tiling is None else min(model.tiling.size),
    )
    write_output(Path(image.output), encode_image(pixels, "JPEG", quality=92))
    if isinstance(stored.pixels, LargeImage):
        stored.pixels.close()
    return ImageResult(
        note=stored.pixels.note if isinstance(stored.pixels, LargeImage) else "",
        size=stored.pixels.shape[:2],
        results=results_json(rows.with_image_id(image.image_id)),
        drawn=numbers.tolist(),
    )


def _to_draw_into(pixels: np.ndarray | LargeImage, rows: DetectionRows) -> tuple[np.ndarray, DetectionRows]:
    """Return what is drawn into, of a large image an overview, and its boxes."""
    if not isinstance(pixels, LargeImage):
        return pixels, rows
    overview, scale = pixels.overview()
    return overview, rows._replace(boxes=rows.boxes * scale, masks=None)


def _opened(image: InputImage, model: Detector) -> StoredImage | InputError:
    """Return the upright pixels of an image, or why there are none."""
    try:
        stored = _read(image.path, model)
    except InputError as error:
        return error
    if max(stored.pixels.shape) > _MAX_JPEG_SIDE and not isinstance(stored.pixels, LargeImage):
        return InputError(
            f"{image.path}: cannot be saved (it has a side of {max(stored.pixels.shape)} pixels, a JPEG "
            f"{_MAX_JPEG_SIDE} at most)"
        )
    return stored if stored.orientation == 1 else stored._replace(pixels=stored.upright())


def _read(path: str, model: Detector) -> StoredImage:
    """Return an image, of a TIFF with too many pixels its windows, if the detector needs no more.

    Raises:
        InputError: as `read_input` does.
    """
    if model.tiling is None or size_of_large_tiff(path) is None:
        return read_input(path, value_range=model.value_range)
    image = LargeImage(open_windows(path, value_range=model.value_range))
    return StoredImage(cast(np.ndarray, image), 1)  # it is sliced like an array


def open_detector(
    config: AnnotationConfig, *, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Detector:
    """Open the model with the tiles, classes and thresholds of the configuration; print the thresholds.

    on_progress: called with the number of tiles that are done, and of all.

    Raises:
        InputError: the model cannot be opened, or lacks what is requested.
    """
    opened = _opened_model(config)
    tiling = config.tiling or opened.tiling
    return with_thresholds(
        with_classes(opened.with_tiling(tiling, batch_size=config.batch_size, on_progress=on_progress), config.classes),
        min_score=config.min_score_thresh,
        calibrated_scores=config.calibrated_scores,
    )


def _opened_model(config: AnnotationConfig) -> Detector:
    if config.debug:
        import tensorflow as tf

        tf.config.run_functions_eagerly(True)
    if not config.saved_model_dir:
        return open_model(config.model_config, batch_size=config.batch_size, once=config.runs_network_once)
    from efficientdet.devices.runtime import start_runtime
    from efficientdet.inference.checkpoint_model import load_model

    saved_model = export_formats()["savedmodel"]
    if config.model_config.ckpt_path:
        restored, _ = load_model(config.model_config)
        saved_model.write(restored, Path(config.saved_model_dir))
        print(f"wrote {config.saved_model_dir}")
    else:
        start_runtime(
            precision=config.model_config.precision, amp=config.model_config.amp, use_xla=config.model_config.use_xla
        )
    return saved_model.open(config.saved_model_dir)
