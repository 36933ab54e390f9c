"""Detection in images of any size and in batches of network inputs, independent of the runtime of the network.

Imports neither Keras nor TensorFlow.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from dataset.class_names import ClassNames
from dataset.files.pixel_values import FULL_RANGE, ValueRange
from dataset.input.tiling import Tiling
from efficientdet.checkpoints.description import SCORE_CALIBRATION, Description
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.inference.runtimes import Network, Outputs, Postprocess, Predictor, copied
from efficientdet.inference.tiles import Detect, OnProgress, TiledDetector
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import pasted_run_lengths
from object_detection.coco.score_calibration import ScoreMap, calibrated_scores
from object_detection.structures import Detections, stacked
from program_support.errors import InputError
from program_support.plugins import load_plugin

if TYPE_CHECKING:
    from dataset.input.host_resize import HostResize
    from dataset.input.resize import ResizeRule
    from efficientdet.inference.image_detections import AnyImage, ImageDetections
    from efficientdet.inference.video_frames import VideoFrame

_SMALLEST_SIDE = 0.01  # pixels


def exported_predictor(network: Network, *, path: str, class_count: int) -> Predictor:
    """Return the detection of an exported file that outputs detections, with the weights and NMS of the export.

    Its `detect` raises InputError for a file with other outputs. path: the name of the file in messages.
    """
    postprocess = _checked_detections(path, class_count)
    return Predictor(lambda images, sizes: stacked(network(np.asarray(images), np.asarray(sizes), postprocess)))


def _checked_detections(path: str, class_count: int) -> Postprocess[Detections]:

    def detections(outputs: Outputs, size: np.ndarray) -> Detections:
        """Return the detections of one image, copied because the next outputs overwrite them."""
        boxes, scores, classes, *masks = copied(outputs, size)
        detected = classes[scores > 0]
        if detected.size and not 0 <= detected.min() <= detected.max() < class_count:
            raise InputError(
                f"{path}: returns classes {detected.min()} to {detected.max()}; expected 0 to {class_count - 1}"
            )
        valid = (scores > 0) & np.isfinite(boxes).all(axis=-1)  # boxes are not yet clipped to the image
        return Detections(boxes, scores, classes, valid, masks[0] if masks else None)

    return detections


@dataclass(eq=False, repr=False)
class Detector:
    """Detection in images of any size, with a model that `load_detector` or `open_model` opens.

    Attributes:
        detect: function from at most `batch_size` images to their result rows, without a threshold.
        class_names: ids and names of the categories.
        thresholds: scores from which `predict` returns detections; `print(detector.thresholds)` shows them.
        batch_size: number of images that `predict` detects in at a time.
        value_range: values of images with more than 8 bits per channel that become 0 and 255, as in the training data.
        tiling: the tiles in which it detects, those of its training; None: in complete images.
        score_maps: the calibration stored with the model, by category id; for `with_calibrated_scores`.
        read_frames: function that yields the frames of a video file, camera or stream; for `track`.
    """

    detect: Detect
    class_names: ClassNames
    thresholds: ScoreThresholds = field(default_factory=ScoreThresholds)
    batch_size: int = 1
    value_range: ValueRange = FULL_RANGE
    tiling: Tiling | None = None
    score_maps: Mapping[int, ScoreMap] = field(default_factory=dict)
    read_frames: "Callable[[str], Iterable[VideoFrame]] | None" = None

    @classmethod
    def described(cls, detect: Detect, description: Description, *, batch_size: int = 1) -> "Detector":
        """Return a detector with the names, thresholds, score calibration, tiles and value range of a description.

        batch_size: number of tiles per call of `detect`.
        """
        if tiling := description.tiling:
            detect = TiledDetector(detect, tiling, batch_size=batch_size)
        maps = description.score_thresholds.get(SCORE_CALIBRATION, {})
        class_names = description.class_names
        ids = class_names.by_name()
        return cls(
            detect,
            class_names,
            ScoreThresholds.stored_in(description),
            value_range=description.value_range,
            tiling=tiling,
            score_maps={ids[name]: ScoreMap(*values) for name, values in maps.items() if name in ids},
        )

    @classmethod
    def resizing(
        cls, predict: Predictor, *, resize: "ResizeRule | HostResize", description: Description, batch_size: int = 1
    ) -> "Detector":
        """Return a detector that converts images to network inputs by `resize`.

        batch_size: the size to which batches are padded, for compiled networks.
        """
        category_ids = np.array(description.class_names.category_ids, np.int64)

        def detect(images: list[np.ndarray]) -> list[DetectionRows]:
            inputs = [[np.asarray(part) for part in resize(image)] for image in images]
            inputs += [inputs[-1]] * (batch_size - len(inputs))
            detections = predict(*map(np.stack, zip(*inputs, strict=True)))
            each = (
                Detections(*(None if values is None else values[number] for values in detections))
                for number in range(len(images))
            )
            return [_rows(*one, category_ids, description) for one in zip(each, images, strict=True)]

        return cls.described(detect, description, batch_size=batch_size)

    @classmethod
    def of_images(cls, network: Network, *, path: str, description: Description) -> "Detector":
        """Return the detector of an exported file that takes an image as it is. path: its name in messages."""
        category_ids = np.array(description.class_names.category_ids, np.int64)
        postprocess = _checked_detections(path, len(category_ids))

        def detect(images: list[np.ndarray]) -> list[DetectionRows]:
            inputs = [({"image": np.ascontiguousarray(image)}, np.array(image.shape[:2])) for image in images]
            detections = network.run(inputs, postprocess)
            return [_rows(*one, category_ids, description) for one in zip(detections, images, strict=True)]

        return cls.described(detect, description)

    def with_tiling(self, tiling: Tiling | None, *, batch_size: int, on_progress: OnProgress) -> "Detector":
        """Return the detector of an opened model with other tiles, `batch_size` of them at a time; None: without."""
        detect = self.detect.untiled if isinstance(self.detect, TiledDetector) else self.detect
        if tiling is not None:
            detect = TiledDetector(detect, tiling, batch_size=batch_size, on_progress=on_progress)
        return replace(self, detect=detect, tiling=tiling)

    def with_calibrated_scores(self) -> "Detector":
        """Return the detector with probabilities as scores; its thresholds are mapped as the scores are.

        Raises:
            InputError: the model stores no score calibration.
        """
        if not self.score_maps:
            raise InputError(
                "--calibrated_scores: the model stores no score calibration; eval.py --calibrate_scores "
                "--store_thresholds stores one"
            )
        detect, maps = self.detect, self.score_maps

        def calibrated(rows: DetectionRows) -> DetectionRows:
            rows = rows._replace(scores=calibrated_scores(rows.scores, rows.category_ids, maps))
            return rows.chosen(np.argsort(-rows.scores, kind="stable"))

        return replace(
            self,
            detect=lambda images: [calibrated(rows) for rows in detect(images)],
            thresholds=self.thresholds.calibrated(maps, self.class_names.category_ids),
            score_maps={},
        )

    def predict(
        self, images: "AnyImage | Sequence[AnyImage]", *, min_score: float | None = None
    ) -> "list[ImageDetections]":
        """Detect objects in one or several images.

        Args:
            images: names of files, of folders (their images) and glob patterns, binary file objects, PIL images or
                uint8 arrays [height, width, 3] (RGB), [height, width, 4] (alpha is ignored) or [height, width] (gray),
                mixed and of any sizes. The EXIF orientation of files is applied, and boxes refer to the upright image;
                PIL images and arrays are used unchanged.
            min_score: lowest score of the returned detections; 0 returns all. Default: the score with the best F1 of
                each class on the validation data if the model stores it, else 0.4.

        Returns:
            One result per image, in their order, by name within a folder or pattern.

        Raises:
            InputError: an input is not an image, or a folder or pattern has none.
        """
        from efficientdet.inference.image_detections import batches_of, image_detections

        results = []
        for batch, pixels in batches_of(images, self.batch_size, value_range=self.value_range):
            for rows, array, image in zip(self.detect(pixels), pixels, batch, strict=True):
                threshold = self.thresholds.of(rows.category_ids) if min_score is None else min_score
                chosen = rows.chosen(np.asarray(rows.scores) >= threshold)
                results.append(
                    image_detections(chosen, self.class_names, image=image, pixels=array, value_range=self.value_range)
                )
        return results

    def track(
        self,
        frames: "str | os.PathLike[str] | Iterable[AnyImage | VideoFrame]",
        *,
        min_score: float | None = None,
        frames_per_second: float = 25.0,
    ) -> "Iterator[ImageDetections]":
        """Detect the objects in consecutive frames; an object has the same identity in all of them.

        Uses ByteTrack (extra `track`) for each class. A track begins with detections that reach the threshold in two
        consecutive frames, continues with detections of at least half of it, and ends after one second without one.

        Args:
            frames: a video file, or the address of a stream; or frames in their order, one at a time: arrays and images
                as for `predict`, or the frames of `efficientdet.read_frames`.
            min_score: lowest score of detections that begin a track. Default: as for `predict`.
            frames_per_second: frame rate of arrays and images.

        Yields:
            The detections of each frame that belong to a track, with `track_ids`.

        Raises:
            InputError: a frame or the video cannot be read, or the packages of the extra are not installed.
        """
        if isinstance(frames, str | os.PathLike):
            if self.read_frames is None:
                raise InputError(f"{frames}: only a detector of load_detector reads videos; pass the frames")
            frames = self.read_frames(os.fspath(frames))
        thresholds = self.thresholds if min_score is None else ScoreThresholds(overall=min_score)
        return load_plugin("efficientdet.tracking", "frames")(
            frames,
            self.detect,
            self.class_names,
            thresholds=thresholds,
            frames_per_second=frames_per_second,
            batch_size=self.batch_size,
            value_range=self.value_range,
        )


def _rows(
    detections: Detections, image: np.ndarray, category_ids: np.ndarray, description: Description
) -> DetectionRows:
    """Return the rows of one image; category_ids [K]: the ids of the classes."""
    valid = detections.valid
    return rows_of_image(
        detections.boxes[valid],
        detections.scores[valid],
        category_ids[detections.classes[valid]],
        image=image,
        masks=None if detections.masks is None else detections.masks[valid],
        description=description,
    )


def rows_of_image(
    boxes: np.ndarray,
    scores: np.ndarray,
    category_ids: np.ndarray,
    *,
    image: np.ndarray,
    masks: np.ndarray | None,
    description: Description,
) -> DetectionRows:
    """Return rows of an image [h, w, 3]; masks [N, S, S] within the boxes are pasted as the description specifies.

    Boxes of less than 0.01 pixels, as LiteRT's operator returns, are dropped, because
    result files have two decimals; so are NaN and infinite boxes, which JSON cannot represent.
    """
    is_usable = np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] - boxes[:, :2] >= _SMALLEST_SIDE).all(axis=1)
    boxes, pasted = boxes[is_usable], None
    if masks is not None:
        pasted = pasted_run_lengths(
            masks[is_usable],
            boxes,
            size=image.shape[:2],
            in_whole_pixels=description.hparams.get("masks_in_whole_pixels", False),
        )
    return DetectionRows.of_image(boxes, scores[is_usable], category_ids[is_usable], masks=pasted)
