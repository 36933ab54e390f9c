"""Detection in images and videos: annotated copies and detections.json."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dataset.files.image_files import distinct_names, image_ids
from efficientdet.inference.detect import Detector
from efficientdet.inference.result_files import ResultFiles, names_of_files
from efficientdet.inference.video_frames import FrameDetections, UnreadableVideo
from efficientdet.options.infer import EVENT_SECONDS
from efficientdet.prediction.detection_messages import NO_MESSAGES, Messages, ReaderGone, detection_message
from efficientdet.prediction.image_annotation import (
    VIDEO_SUFFIXES,
    AnnotationConfig,
    InputImage,
    annotated_batches,
    camera_output,
    open_detector,
    output_paths,
)
from efficientdet.prediction.inputs import shown_path
from object_detection.coco.results import results_json, write_results
from program_support.atomic_files import report_write_errors
from program_support.claimed_outputs import claimed_outputs, remove_outputs
from program_support.errors import InputError, printable
from program_support.plugins import load_plugin
from program_support.progress import Progress

DETECTIONS_FILE = "detections.json"


def annotate(config: AnnotationConfig, messages: Messages = NO_MESSAGES) -> None:
    """Detect in images, videos or a camera, and write annotated copies and detections.

    The detections in images are written as COCO results with file names, and all of them in further formats if
    requested. Boxes are in pixels of the upright image.

    messages: receivers of the drawn detections in each image and frame.

    Raises:
        InputError: before anything is written, an output would overwrite an input or another file that infer.py did
            not write; at the end, inputs could not be decoded, which are skipped and reported.
    """
    inputs = config.inputs
    outputs = output_paths(config, [shown_path(path) for path in inputs.images], ".jpg")
    videos = dict(zip(inputs.videos, output_paths(config, inputs.videos, VIDEO_SUFFIXES[config.save]), strict=True))
    names = names_of_files(config.format) + [DETECTIONS_FILE] * bool(inputs.images)
    saved = [] if config.save == "none" else videos.values()
    files = [*outputs, *saved, *(Path(config.output_dir, name) for name in names)]
    with claimed_outputs(*files, messages.replaced_file):
        _annotate(config, messages, outputs, videos)


def _annotate(config: AnnotationConfig, messages: Messages, outputs: Sequence[Path], videos: dict[str, Path]) -> None:
    inputs = config.inputs
    messages.open()
    if inputs.camera is not None:  # checked before the detector is loaded, which takes longer
        load_plugin("efficientdet.video", "open")(inputs.camera, live=True).release()
    failures: list[str] = []
    tiles = _TileProgress()
    model = open_detector(config, on_progress=tiles.show)
    _remove_labels_of_other_classes(config, model)
    ids = image_ids([shown_path(path) for path in inputs.images])
    files = ResultFiles(config.output_dir, model.class_names, formats=config.format)
    outlets = _Outlets(model, files, messages, failures)
    try:
        if inputs.images:
            images = [
                InputImage(path, str(output), number)
                for path, output, number in zip(inputs.images, outputs, ids, strict=True)
            ]
            _annotate_images(config, images, outlets, tiles=tiles)
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


def _remove_labels_of_other_classes(config: AnnotationConfig, model: Detector) -> None:
    """Remove YOLO's files of an earlier run, also of other images, whose numbers the new classes.txt would rename."""
    folder = Path(config.output_dir)
    classes, labels = folder / "yolo" / "classes.txt", folder / "yolo" / "labels"
    if (
        "yolo" in config.format
        and classes.is_file()
        and classes.read_text(encoding="utf-8").splitlines() != [*model.class_names.names]
    ):
        print(f"{labels}: {len([*labels.glob('*.txt')])} files of an earlier run with other classes are removed")
        with report_write_errors(labels):
            remove_outputs(folder, ["yolo"])


class _Outlets(NamedTuple):
    """The detector and what receives its detections."""

    model: Detector
    files: ResultFiles
    messages: Messages
    failures: list[str]


def _annotate_images(
    config: AnnotationConfig, images: Sequence[InputImage], outlets: _Outlets, *, tiles: "_TileProgress"
) -> None:
    """Annotate images and collect their results."""
    model = outlets.model
    file_names = iter(distinct_names([shown_path(image.path) for image in images]))
    results, num_images, drawn = [], 0, 0
    following = iter(images)
    with Progress("infer", total=len(images), noun="image") as progress:
        tiles.progress = progress
        for batch in annotated_batches(images, config, model):
            for image, annotated in zip(itertools.islice(following, len(batch)), batch, strict=True):
                file_name = next(file_names)
                if annotated.failure:
                    outlets.failures.append(annotated.failure)
                    continue
                if annotated.note:
                    print(f"{image.path}: {annotated.note}")
                results += [{**result, "file_name": file_name} for result in annotated.results]
                shown = [annotated.results[number] for number in annotated.drawn]
                stem = Path(image.output).stem
                outlets.files.add(stem, file_name, image.image_id, size=annotated.size, results=shown)
                if outlets.messages:
                    message = detection_message(image.path, model.class_names, shown, annotated.size)
                    outlets.messages.put(message)
                num_images, drawn = num_images + 1, drawn + len(shown)
            done = sum(not annotated.failure for annotated in batch)
            progress.advance(done, images=done)
    with report_write_errors(Path(config.output_dir) / DETECTIONS_FILE):
        write_results(Path(config.output_dir) / DETECTIONS_FILE, results)
    if num_images:
        highest = f" (highest score {max(result['score'] for result in results):.3g})" if results else ""
        print(
            f"images: {num_images}, detections drawn: {drawn} of {len(results)}{highest}; "
            f"{config.output_dir}/{DETECTIONS_FILE} holds all"
        )


def _annotate_videos(config: AnnotationConfig, videos: dict[str, Path], first_id: int, outlets: _Outlets) -> None:
    """Annotate videos or a camera; frames are named STEM_000001 etc. and have image ids from `first_id` on."""
    camera, model, annotate_video = config.inputs.camera, outlets.model, load_plugin("efficientdet.video", "annotate")
    sources = videos if camera is None else {camera: camera_output(config, camera)}
    ids = itertools.count(first_id)
    for source, target in sources.items():
        stem = target.name.removesuffix(VIDEO_SUFFIXES[config.save])

        def add(found: FrameDetections, source: str | int = source, stem: str = stem) -> None:
            frame, rows, size = found.frame, found.rows, found.frame.pixels.shape[:2]
            if config.format:  # a stream without an end must not fill the memory
                name, image_id = f"{stem}_{frame.number:06d}", next(ids)
                results = results_json(rows.with_image_id(image_id))
                outlets.files.add(name, None, image_id, size=size, results=results)
            if outlets.messages:
                results = results_json(rows)
                outlets.messages.put(detection_message(source, model.class_names, results, size, frame))

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
                track=config.track,
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
