"""Detection in images and videos: annotated copies and detections.json."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from dataset.files.exif_orientation import stored_image
from dataset.files.image_files import StoredImage, distinct_names, encode_image, image_ids
from dataset.files.image_windows import open_windows, size_of_large_tiff
from efficientdet.exports.formats import export_formats
from efficientdet.inference.detect import Detector
from efficientdet.inference.large_image import LargeImage
from efficientdet.inference.result_files import ResultFiles, names_of_files, write_output
from efficientdet.inference.video_frames import FrameDetections
from efficientdet.options.infer import EVENT_SECONDS
from efficientdet.prediction.annotation_config import VIDEO_SUFFIXES, AnnotationConfig, camera_output, output_paths
from efficientdet.prediction.detection_messages import NO_MESSAGES, Messages, ReaderGone, detection_message
from efficientdet.prediction.drawn_rows import drawn_rows
from efficientdet.prediction.inputs import read_input, shown_path
from efficientdet.prediction.open_model import open_model, with_classes, with_thresholds
from object_detection.coco.results import DetectionRows, results_json, write_results
from program_support.atomic_files import report_write_errors
from program_support.errors import InputError, printable
from program_support.marked_folders import claim_outputs
from program_support.progress import Progress

DETECTIONS_FILE = "detections.json"
_MAX_JPEG_SIDE = 65_500  # pixels of a JPEG side, the limit of libjpeg


def annotate(config: AnnotationConfig, messages: Messages = NO_MESSAGES) -> None:
    """Detect in images, videos or a camera, and write annotated copies and detections.

    The detections in images are written as COCO results with file names, and all of them in further formats if
    requested. Boxes are in pixels of the upright image, or of the stored image without `apply_exif_orientation`; a
    result of an image for which the two differ has the key `exif_orientation_applied`.

    messages: receivers of the drawn detections in each image and frame.

    Raises:
        InputError: before anything is written, an output would overwrite an input or another file that infer.py did
            not write; at the end, inputs could not be decoded, which are skipped and reported.
    """
    inputs = config.inputs
    outputs = output_paths(config, [shown_path(path) for path in inputs.images], ".jpg")
    videos = dict(zip(inputs.videos, output_paths(config, inputs.videos, VIDEO_SUFFIXES[config.save]), strict=True))
    names = names_of_files(config.format, crops=config.save_crops) + [DETECTIONS_FILE] * bool(inputs.images)
    if inputs.camera is not None and config.save == "events":
        names.append(camera_output(config, inputs.camera).name)
    saved = [] if config.save == "none" else videos.values()
    claim_outputs(Path(config.output_dir), [path.name for path in (*outputs, *saved)] + names)
    messages.open()
    if inputs.camera is not None:
        from efficientdet.prediction.video_source import open_source

        open_source(inputs.camera, live=True).release()  # checked before the detector is loaded, which takes longer
    tiles = _TileProgress()
    opened = _opened_model(config)
    tiling = config.tiling or opened.tiling
    model = with_thresholds(
        with_classes(opened.with_tiling(tiling, batch_size=config.batch_size, on_progress=tiles.show), config.classes),
        threshold=config.threshold,
        min_score=config.min_score_thresh,
        calibrated_scores=config.calibrated_scores,
    )
    files = ResultFiles(config.output_dir, model.class_names, formats=config.image_formats, crops=config.save_crops)
    ids = image_ids([shown_path(path) for path in inputs.images])
    failures: list[str] = []
    outlets = _Outlets(model, files, messages, failures)
    try:
        if inputs.images:
            _annotate_images(config, outputs, ids, outlets, tiles=tiles)
        if videos or inputs.camera is not None:
            _annotate_videos(config, videos, max(ids, default=0) + 1, outlets)
    except ReaderGone as gone:
        print(gone)
    files.write()
    for failure in failures:
        print(f"skipped: {printable(failure)}")
    if failures:
        count = len(inputs.images) + len(videos)
        noun = "images and videos" if inputs.images and videos else "images" if inputs.images else "videos"
        done = len(failures) < count
        raise InputError(
            f"{len(failures) if done else 'none'} of {count} {noun} could {'not ' if done else ''}be decoded; the "
            f"first: {failures[0]}"
        )


class _Outlets(NamedTuple):
    """The detector and what receives its detections."""

    model: Detector
    files: ResultFiles
    messages: Messages
    failures: list[str]


def _annotate_images(
    config: AnnotationConfig, outputs: Sequence[Path], ids: Sequence[int], outlets: _Outlets, *, tiles: "_TileProgress"
) -> None:
    model = outlets.model
    file_names = distinct_names([shown_path(path) for path in config.inputs.images])
    results, num_images, drawn = [], 0, 0
    with Progress("infer", total=len(outputs), noun="image") as progress:
        tiles.progress = progress
        for numbers, images in _batches(config, outlets.failures, model=model):
            found = model.detect([image.pixels for image in images])
            for number, image, rows in zip(numbers, images, found, strict=True):
                image_fields: dict[str, Any] = {"file_name": file_names[number]}
                if image.orientation != 1:
                    image_fields["exif_orientation_applied"] = config.apply_exif_orientation
                results += [{**result, **image_fields} for result in results_json(rows.with_image_id(ids[number]))]
                shown = rows.drawn(model.thresholds.of(rows.category_ids), config.max_boxes(model))
                orientation = 1 if config.apply_exif_orientation else image.orientation
                drawn_image = drawn_rows(
                    *_to_draw_into(image.pixels, shown),
                    model.class_names,
                    orientation=orientation,
                    shorter_side=None if model.tiling is None else min(model.tiling.size),
                )
                # The pixels stay in the coordinate system of the boxes in detections.json, with the EXIF orientation.
                pixels = stored_image(drawn_image, orientation)
                write_output(outputs[number], encode_image(pixels, "JPEG", quality=92, orientation=orientation))
                outlets.files.add(
                    outputs[number].stem,
                    file_names[number],
                    ids[number],
                    pixels=image.pixels,
                    rows=shown,
                    orientation=orientation,
                )
                if outlets.messages:
                    size = image.pixels.shape[:2]
                    source = config.inputs.images[number]
                    outlets.messages.put(detection_message(source, model.class_names, shown, size))
                num_images, drawn = num_images + 1, drawn + len(shown.scores)
            progress.advance(len(images), images=len(images))
    with report_write_errors(Path(config.output_dir) / DETECTIONS_FILE):
        write_results(Path(config.output_dir) / DETECTIONS_FILE, results)
    if num_images:
        highest = f" (highest score {max(result['score'] for result in results):.3g})" if results else ""
        print(
            f"images: {num_images}, detections drawn: {drawn} of {len(results)}{highest}; "
            f"{config.output_dir}/{DETECTIONS_FILE} holds all"
        )


def _to_draw_into(pixels: np.ndarray | LargeImage, rows: DetectionRows) -> tuple[np.ndarray, DetectionRows]:
    """Return what is drawn into, of a large image an overview, and its boxes."""
    if not isinstance(pixels, LargeImage):
        return pixels, rows
    overview, scale = pixels.overview()
    return overview, rows._replace(boxes=rows.boxes * scale, masks=None)


def _annotate_videos(config: AnnotationConfig, videos: dict[str, Path], first_id: int, outlets: _Outlets) -> None:
    """Annotate videos or a camera; frames are named STEM_000001 etc. and have image ids from `first_id` on."""
    from efficientdet.prediction.video import annotate_video
    from efficientdet.prediction.video_source import UnreadableVideo

    camera, model = config.inputs.camera, outlets.model
    sources = videos if camera is None else {camera: camera_output(config, camera)}
    ids = itertools.count(first_id)
    for source, target in sources.items():
        stem = target.name.removesuffix(VIDEO_SUFFIXES[config.save])

        def add(found: FrameDetections, source: str | int = source, stem: str = stem) -> None:
            frame, rows = found.frame, found.rows
            if config.image_formats or config.save_crops:  # a stream without an end must not fill the memory
                name = f"{stem}_{frame.number:06d}"
                outlets.files.add(name, None, next(ids), pixels=frame.pixels, rows=rows)
            if outlets.messages:
                size = frame.pixels.shape[:2]
                outlets.messages.put(detection_message(source, model.class_names, rows, size, frame, found.counts))

        try:
            annotate_video(
                model,
                source,
                target,
                live=camera is not None,
                batch_size=config.batch_size,
                max_boxes=config.max_boxes(model),
                save=config.save,
                event_seconds=EVENT_SECONDS if config.event_seconds is None else config.event_seconds,
                max_offline_seconds=config.max_offline_seconds,
                tracking=config.tracking,
                name=stem,
                on_frame=add,
            )
        except UnreadableVideo as error:
            outlets.failures.append(str(error))


class _TileProgress:
    """Shows how many tiles of an image are done, in the progress of the images."""

    def __init__(self) -> None:
        self.progress: Progress | None = None

    def show(self, done: int, total: int) -> None:
        """Show it, once there is a progress."""
        if self.progress is not None:
            self.progress.show(tile=f"{done}/{total}")
            self.progress.advance(0)


def _batches(
    config: AnnotationConfig, failures: list[str], *, model: Detector
) -> Iterator[tuple[list[int], list[StoredImage]]]:
    """Yield numbers and pixels of batches of readable images, one image with tiles; append the others to `failures`."""
    numbers, images = [], []
    for number, path in enumerate(config.inputs.images):
        try:
            image = _read(path, model)
            if max(image.pixels.shape) > _MAX_JPEG_SIDE and not isinstance(image.pixels, LargeImage):
                raise InputError(
                    f"{path}: cannot be saved (it has a side of {max(image.pixels.shape)} pixels, a JPEG "
                    f"{_MAX_JPEG_SIDE} at most)"
                )
        except InputError as error:
            failures.append(str(error))
            continue
        if config.apply_exif_orientation and image.orientation != 1:
            image = image._replace(pixels=image.upright())
        images.append(image)
        numbers.append(number)
        if len(images) == config.batch_size or model.tiling:
            yield numbers, images
            if isinstance(images[0].pixels, LargeImage):
                images[0].pixels.close()
            numbers, images = [], []
    if images:
        yield numbers, images


def _read(path: str, model: Detector) -> StoredImage:
    """Return an image, of a TIFF with too many pixels its windows, if the detector needs no more.

    Raises:
        InputError: as `read_input` does.
    """
    if model.tiling is None or size_of_large_tiff(path) is None:
        return read_input(path, value_range=model.value_range)
    windows = open_windows(path, value_range=model.value_range)
    if windows.note:
        print(f"{path}: {windows.note}")
    image = LargeImage(windows)
    return StoredImage(cast(np.ndarray, image), 1)  # it is sliced like an array


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
