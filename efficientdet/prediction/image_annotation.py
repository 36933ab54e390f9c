"""Detection in images, and their annotated copies: the part of infer.py that needs the pixels, here or on a cluster.

A part of a cluster's work is a fixed number of consecutive images, whole batches of them. What is done is stored in the
output folder, so that an interrupted run continues.
"""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
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
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import export_formats, format_of
from efficientdet.inference.detect import Detector
from efficientdet.inference.result_files import write_output
from efficientdet.inference.tiles import LargeImage
from efficientdet.options.infer import MOT, InferOptions
from efficientdet.options.model import MOST_DRAWN
from efficientdet.prediction.inputs import Inputs, read_input, recording_stem
from efficientdet.prediction.open_model import open_model, with_classes, with_thresholds
from efficientdet.reports.drawing import draw_detections
from object_detection.coco.results import DetectionRows, results_json
from object_detection.coco.run_length_masks import DecodedMasks
from program_support.atomic_files import report_write_errors
from program_support.checked_fields import checked
from program_support.engines import Cluster
from program_support.errors import InputError
from program_support.file_patterns import paths_beginning_with
from program_support.installation import canonical_json, installation
from program_support.processor import available_cores
from program_support.remote_addresses import storage

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
    def image_formats(self) -> list[str]:
        """The formats of detections in images and frames."""
        return [name for name in self.format if name != MOT]

    @property
    def mot_folder(self) -> Path | None:
        """The folder of the files of `--format=mot`; None: none are written."""
        return Path(self.output_dir, MOT) if MOT in self.format else None

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
    """Detections in an image, or why there are none; of values that JSON has."""

    failure: str = ""
    note: str = ""
    size: tuple[int, int] = (0, 0)  # height and width
    results: Sequence[dict[str, Any]] = ()
    drawn: Sequence[int] = ()  # numbers of the drawn results


@dataclass(frozen=True, kw_only=True)
class ImageTask:
    """Images to annotate. Tasks of a run are equal: their model is the same, and a process keeps it."""

    run: str
    config: AnnotationConfig = field(compare=False)
    once: bool = field(compare=False)  # see `open_model`
    images: Sequence[InputImage] = field(compare=False)


def annotated_batches(task: ImageTask, model: Detector) -> Generator[list[ImageResult], None, None]:
    """Annotate images, and yield the results of each batch, or with tiles of each image.

    A batch is that of consecutive images, without those that cannot be decoded. While the network runs, threads decode
    the next batch and write the copies of the last one.

    Raises:
        InputError: an output cannot be written.
    """
    size = 1 if model.tiling else task.config.batch_size
    batches = [task.images[start : start + size] for start in range(0, len(task.images), size)]
    pool = ThreadPoolExecutor(available_cores())

    def opened(batch: Sequence[InputImage]) -> list[Future[StoredImage | InputError]]:
        return [pool.submit(_opened, image, model) for image in batch]

    def annotated(image: InputImage, stored: StoredImage | InputError, rows: Iterator[DetectionRows]) -> Future:
        if isinstance(stored, InputError):
            return pool.submit(ImageResult, failure=str(stored))
        return pool.submit(_annotated, image, stored, next(rows), task.config, model)

    ahead, writing = opened(batches[0]), []
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
    config: AnnotationConfig, *, once: bool, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Detector:
    """Open the model with the tiles, classes and thresholds of the configuration; print the thresholds.

    on_progress: called with the number of tiles that are done, and of all. once: see `open_model`.

    Raises:
        InputError: the model cannot be opened, or lacks what is requested.
    """
    opened = _opened_model(config, once=once)
    tiling = config.tiling or opened.tiling
    return with_thresholds(
        with_classes(opened.with_tiling(tiling, batch_size=config.batch_size, on_progress=on_progress), config.classes),
        min_score=config.min_score_thresh,
        calibrated_scores=config.calibrated_scores,
    )


def _opened_model(config: AnnotationConfig, *, once: bool) -> Detector:
    if config.debug:
        import tensorflow as tf

        tf.config.run_functions_eagerly(True)
    if not config.saved_model_dir:
        return open_model(config.model_config, batch_size=config.batch_size, once=once)
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


_IMAGES_OF_TASK = 16
_JOURNAL = ".images_done.jsonl"


class ImageTasks:
    """The images of a run on a cluster."""

    def __init__(self, cluster: Cluster, config: AnnotationConfig, *, once: bool):
        """Set the configuration, whose own inputs are not used. once: see `open_model`."""
        self._cluster = cluster
        self._task = ImageTask(run=os.urandom(8).hex(), config=replace(config, inputs=Inputs()), once=once, images=())
        self._journal = Path(config.output_dir, _JOURNAL)

    def load(self) -> Detector:
        """Load the model on a node, print what is to be said of it, and return it without its functions.

        Raises:
            InputError: as `open_detector` does, or the process dies.
        """
        failure = f"{self._task.config.model_config.ckpt_path}: cannot be loaded"
        [detector] = self._cluster.results(_load, [self._task], failure=failure)
        return detector

    def results(self, images: Sequence[InputImage]) -> Generator[list[ImageResult], None, None]:
        """Yield the results of the images in their order; one that ends the process which decodes it has none.

        Raises:
            InputError: an output cannot be written.
        """
        made_from = _digest(replace(self._task, images=images))
        done = _results_of_earlier_run(self._journal, made_from, images)
        self._write([made_from, *done.items()], "w")
        if done:
            print(f"{len(done)} of {len(images)} images are done and reused")
        remaining = [number for number in range(len(images)) if number not in done]
        batch_size, following = self._task.config.batch_size, 0
        finished = self._cluster.run(
            partial(_annotate, self._task),
            [images[number] for number in remaining],
            size=-(-_IMAGES_OF_TASK // batch_size) * batch_size,
        )
        for part in itertools.chain([None], finished):
            if part is not None:
                numbers = remaining[part.start : part.stop]
                fatal = f"{images[numbers[0]].path}: ends the process that decodes it"
                results = [ImageResult(failure=fatal)] if part.crash else part.result
                done |= zip(numbers, results, strict=True)
                self._write(zip(numbers, results, strict=True), "a")
            ready = list(itertools.takewhile(done.__contains__, range(following, len(images))))
            following += len(ready)
            if ready:
                yield [done.pop(number) for number in ready]
        print(self._cluster.summary())

    def end(self) -> None:
        """Forget what is done, after all files are written."""
        self._journal.unlink(missing_ok=True)

    def _write(self, lines: Iterable[Any], mode: str) -> None:
        """Write lines of JSON into the journal, from which an interrupted run continues."""
        with report_write_errors(self._journal), self._journal.open(mode, encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def _results_of_earlier_run(journal: Path, made_from: str, images: Sequence[InputImage]) -> dict[int, ImageResult]:
    """Return the results of images that are done and whose outputs exist, by number.

    None of a run with other inputs, model, settings or versions.
    """
    done: dict[int, ImageResult] = {}
    with contextlib.suppress(OSError, ValueError):  # the last line may be incomplete
        first, *lines = journal.read_text(encoding="utf-8").splitlines()
        for line in lines if json.loads(first) == made_from else ():
            number, result = json.loads(line)
            done[number] = ImageResult(*result)
    return {
        number: result for number, result in done.items() if result.failure or os.path.exists(images[number].output)
    }


def _digest(task: ImageTask) -> str:
    """Return a digest of what determines the results: images, model, settings and versions."""
    digest = hashlib.sha256(canonical_json([task.config, task.once, installation()]).encode())
    model = task.config.model_config.ckpt_path or ""
    for path in [*paths_beginning_with(model), *(image.path for image in task.images)]:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _load(task: ImageTask) -> Detector:
    return _model_of(task).without_functions()


def _annotate(task: ImageTask, images: Sequence[InputImage]) -> list[ImageResult]:
    storage().copy_missing(image.path for image in images)
    batches = annotated_batches(replace(task, images=images), _model_of(task))
    return [result for batch in batches for result in batch]


@lru_cache(1)
def _model_of(task: ImageTask) -> Detector:
    exported = format_of(task.config.model_config.ckpt_path)
    if exported is None or not exported.runtimes:
        prepare_environment()
    return open_detector(task.config, once=task.once)
