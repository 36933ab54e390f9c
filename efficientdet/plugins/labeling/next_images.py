"""Choose unlabeled images, and write copies of them, proposals for labeling programs and a page that says why."""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from dataset.class_names import ClassNames, beside_records, class_names_of_records
from dataset.conversion.named_splits import INSTANCES
from dataset.files.bounded_files import read_json, read_regular_file
from dataset.files.image_files import copy_names, encode_image, read_stored_image
from dataset.input.pipeline import original_images
from dataset.records.labeled_records import LabeledImages, labeled_records
from dataset.records.record_index import RecordIndex, index_records
from efficientdet.checkpoints.restore import Restored
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices import device
from efficientdet.families.family import Family
from efficientdet.inference.checkpoint_model import checkpoint_detector, load_model
from efficientdet.inference.detect import Detector
from efficientdet.inference.result_files import ResultFiles, names_of_files, write_output
from efficientdet.options.next_images import NextImagesOptions
from efficientdet.reports.drawing import draw_detections, resized
from efficientdet.reports.html_page import image_figure, page, row
from object_detection.coco.results import DetectionRows, results_json
from object_detection.geometry.box_geometry import pairwise_iou
from program_support.atomic_files import report_write_errors
from program_support.claimed_outputs import claimed_outputs, remove_outputs
from program_support.errors import InputError, printable
from program_support.progress import Progress

_LOWEST_SCORE = 0.1  # of a detection; detectors return many with less, in every image
_SAME_OBJECT = 0.5  # IoU


def class_weights(counts: Mapping[str, int], class_names: ClassNames) -> dict[int, float]:
    """Return a weight by category id: the root of the mean number of labels of a class over that of this class.

    counts: labels by class name; a class without any counts as one.
    """
    numbers = np.array([max(counts.get(name, 0), 1) for name in class_names.names])
    return dict(zip(class_names.category_ids, np.sqrt(numbers.mean() / numbers).tolist(), strict=True))


def uncertainty(rows: DetectionRows, mirrored: DetectionRows, weights: Mapping[int, float]) -> float:
    """Return the doubt about the objects of an image in bits, summed over objects and weighted by class.

    An object's probability is its mean score in the image and in the mirror image, 0 where it was not detected, so that
    low scores and disagreement count alike: a committee of two views whose mean vote has the entropy
    (https://doi.org/10.1145/130385.130417; of detections: https://arxiv.org/abs/2103.12023).

    Args:
        rows: detections in the image.
        mirrored: detections in the mirror image, with boxes in pixels of the image.
        weights: of `class_weights`.
    """
    rows, mirrored = (view.chosen(view.scores >= _LOWEST_SCORE) for view in (rows, mirrored))
    scores, partner = rows.scores.astype(np.float64), mirrored.scores.astype(np.float64)
    if len(scores) and len(partner):
        shared = np.array(pairwise_iou(rows.boxes, mirrored.boxes))
        shared[rows.category_ids[:, None] != mirrored.category_ids] = 0
        for number in np.argsort(-scores, kind="stable"):
            other = int(shared[number].argmax())
            if shared[number, other] >= _SAME_OBJECT:
                scores[number] += partner[other]
                partner[other] = 0
                shared[:, other] = 0
    probabilities = np.clip(np.concatenate([scores, partner]) / 2, 1e-12, 1 - 1e-12)
    entropies = -probabilities * np.log2(probabilities) - (1 - probabilities) * np.log2(1 - probabilities)
    categories = np.concatenate([rows.category_ids, mirrored.category_ids])
    return float(entropies @ [weights[category] for category in categories.tolist()])


def choose(doubts: np.ndarray, features: np.ndarray, known: np.ndarray, *, count: int) -> list[tuple[int, float]]:
    """Return up to `count` of n images, best first, each with its novelty when it was chosen, from 0 to 2.

    Novelty is the distance, 1 - cosine, to the nearest image that is labeled or was chosen before (k-center greedy,
    https://arxiv.org/abs/1708.00489); 1 without such an image. The next image has the largest product of doubt and
    novelty.

    Args:
        doubts: [n], see `uncertainty`.
        features: [n, F] of the images.
        known: [m, F] of the labeled images.
        count: number of images.
    """
    features, known = _unit_vectors(features), _unit_vectors(known)
    novelty = 1 - (features @ known.T).max(axis=1) if len(known) else np.ones(len(features))
    chosen: list[tuple[int, float]] = []
    is_left = np.ones(len(features), bool)
    for _ in range(min(count, len(features))):
        worth = np.where(is_left, doubts * np.maximum(novelty, 0), -1.0)
        best = int(np.lexsort((novelty, worth))[-1])  # novelty decides between equal worths, such as no doubt at all
        chosen.append((best, float(novelty[best])))
        is_left[best] = False
        novelty = np.minimum(novelty, 1 - features @ features[best])
    return chosen


def _unit_vectors(features: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(lengths > 0, lengths, 1)


BATCH = 8  # images at a time; the last one of a pool is padded to it, so that the network is compiled once


class ImageViews(NamedTuple):
    """An image as a detector sees it."""

    path: str
    rows: DetectionRows  # of the upright image
    mirrored: DetectionRows  # of its mirror image, with boxes in pixels of the image
    features: np.ndarray  # [F] float32


class Viewer:
    """A restored detector that looks at images, with calibrated scores if it stores their maps."""

    def __init__(self, config: ModelConfig):
        restored, runtime = load_model(config)
        detector = checkpoint_detector(restored, batch_size=BATCH, compiled=runtime.use_xla)
        self.detector: Detector = detector.with_calibrated_scores() if detector.score_maps else detector
        self._features = _feature_function(restored, compiled=runtime.use_xla)
        self._resize = restored.resize

    def views(self, paths: Sequence[str]) -> Iterator[ImageViews | InputError]:
        """Yield the views of each image, or why it cannot be decoded; no path twice."""
        for start in range(0, len(paths), BATCH):
            batch = {path: self._read(path) for path in paths[start : start + BATCH]}
            images = {path: image for path, image in batch.items() if isinstance(image, np.ndarray)}
            views = self._views([*images], [*images.values()])
            for image in batch.values():
                yield image if isinstance(image, InputError) else next(views)

    def features(self, index: RecordIndex) -> np.ndarray:
        """Return the features of the images in records, [n, F]."""
        images = (image.pixels for image in original_images(index, range(len(index))))
        return np.concatenate([self._features_of(batch) for batch in iter(lambda: list(islice(images, BATCH)), [])])

    def _read(self, path: str) -> np.ndarray | InputError:
        try:
            return read_stored_image(path, value_range=self.detector.value_range).upright()
        except InputError as error:
            return error

    def _views(self, names: Sequence[str], images: list[np.ndarray]) -> Iterator[ImageViews]:
        if not images:
            return
        found = self.detector.detect(images)
        in_mirror = self.detector.detect([np.ascontiguousarray(image[:, ::-1]) for image in images])
        features = self._features_of(images)
        for name, image, rows, mirrored, vector in zip(names, images, found, in_mirror, features, strict=True):
            y_min, x_min, y_max, x_max = mirrored.boxes.T
            boxes = np.stack([y_min, image.shape[1] - x_max, y_max, image.shape[1] - x_min], axis=1)
            yield ImageViews(name, rows, mirrored._replace(boxes=boxes), vector)

    def _features_of(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Return the mean of the backbone's last features over the area, [n, F], of up to 8 images [h, w, 3] uint8."""
        inputs = [[np.asarray(part) for part in self._resize(image)] for image in images]
        pixels, sizes, _ = map(np.stack, zip(*(inputs + [inputs[-1]] * (BATCH - len(inputs))), strict=True))
        return np.asarray(self._features(pixels, sizes))[: len(images)]


def _feature_function(restored: Restored, *, compiled: bool) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the function from images uint8 [B, H, W, 3] and sizes [B, 2] to features [B, F]."""
    detector, family = restored.detector, restored.hparams.family
    if (found := _backbone_end(detector.network, family)) is None:
        raise InputError(
            f"the family {family.name} names no backbone (`Family.is_backbone`), whose features are needed"
        )
    images, end = found
    network = keras.Model(images, ops.mean(ops.cast(end, "float32"), axis=(1, 2)))
    return device.compiled(
        lambda images, sizes: network(detector.normalize(images, sizes)),
        network,
        use_xla=compiled,
        constants=device.present_weights(network),
    )


def _backbone_end(network: keras.Model, family: Family) -> tuple[keras.KerasTensor, keras.KerasTensor] | None:
    """Return the images and the backbone's last features, tensors of the network or of one nested in it."""
    end = None
    for layer in network.layers:
        if isinstance(layer, keras.Model):
            end = None
            if found := _backbone_end(layer, family):
                return found
        elif layer.variables and family.is_backbone(f"{layer.name.replace('.', '/')}/"):
            end = layer.output
    return None if end is None else (network.inputs[0], end)


LIST, PAGE, IMAGES = "next_images.json", "next_images.html", "images"
_LONGER_SIDE = 320  # pixels of a thumbnail
_LEAD = (
    "The images whose labels are expected to teach the detector most: the product of its doubt, the entropy of the "
    "scores in the image and in its mirror image, and of novelty, the distance to the nearest labeled or chosen image "
    "in the features of the backbone."
)


class SeenImage(NamedTuple):
    """The part of an image's views that the choice needs; its many detections are not kept, as a pool may be large."""

    path: str
    proposals: DetectionRows
    doubt: float  # bits
    features: np.ndarray  # [F] float32
    novelty: float = 0.0  # 0 to 2, of a chosen image


def choose_next_images(
    options: NextImagesOptions, *, paths: Sequence[str], records: Sequence[str], checkpoint: str
) -> None:
    """Choose unlabeled images, and write them with their proposals into the output folder.

    Args:
        options: options with resolved formats and output folder.
        paths: images to choose from.
        records: shards of the labeled images.
        checkpoint: prefix of the detector's checkpoint.

    Raises:
        InputError: all images are labeled or unreadable, or a file of the user would be overwritten or removed.
    """
    folder = Path(options.output_dir)
    place = (folder / IMAGES).resolve()
    if inside := next((path for path in paths if Path(path).resolve().is_relative_to(place)), None):
        raise InputError(
            f"--images: {inside} is among the copies of an earlier choice, which this one replaces; use another "
            "--output_dir"
        )
    names = [LIST, PAGE, IMAGES, *names_of_files(options.format)]
    with claimed_outputs(*(folder / name for name in names)):
        index = index_records(records) if records else None
        labeled = None if index is None else _labeled_images(index)
        unlabeled = _unlabeled(paths, records, labeled)
        viewer = Viewer(ModelConfig(ckpt_path=checkpoint))
        weights = class_weights(_counts(labeled), viewer.detector.class_names)
        seen = _seen(unlabeled, viewer, weights)
        known = np.zeros((0, 1), np.float32) if index is None else viewer.features(index)
        doubts, features = np.array([image.doubt for image in seen]), np.stack([image.features for image in seen])
        order = choose(doubts, features, known, count=options.count)
        chosen = [seen[number]._replace(novelty=novelty) for number, novelty in order]
        with report_write_errors(folder / IMAGES):
            remove_outputs(folder, names)
        _write(options, chosen, viewer.detector, unlabeled=len(seen))


def _seen(paths: Sequence[str], viewer: Viewer, weights: Mapping[int, float]) -> list[SeenImage]:
    """Return what is seen of the readable images, in their order, and print why the others are skipped."""
    thresholds, failures, seen = viewer.detector.thresholds, list[str](), list[SeenImage]()
    with Progress("next_images", total=len(paths), noun="image") as progress:
        for view in viewer.views(paths):
            if isinstance(view, InputError):
                failures.append(str(view))
                print(f"skipped: {printable(failures[-1])}")
                progress.advance(1, images=0)
                continue
            proposals = view.rows.chosen(view.rows.scores >= thresholds.of(view.rows.category_ids))
            seen.append(SeenImage(view.path, proposals, uncertainty(view.rows, view.mirrored, weights), view.features))
            progress.advance(1, images=1)
    if not seen:
        raise InputError(f"--images: none of {len(paths)} images could be decoded; the first: {failures[0]}")
    return seen


def _labeled_images(index: RecordIndex) -> LabeledImages:
    names = class_names_of_records([*index.paths])
    if names is None:
        raise InputError(f"{index.paths[0]}: has no file with the class names beside it; convert again")
    return labeled_records(index, names)


def _unlabeled(paths: Sequence[str], records: Sequence[str], labeled: LabeledImages | None) -> list[str]:
    """Return the images whose file is in no record, each file once."""
    known = {digest.decode() for digest in labeled.digests if digest} if labeled else set()
    for instances in {beside_records(path, INSTANCES) for path in records}:
        if instances.exists():  # a record may have another encoding of the file
            known |= {image.get("sha256", "") for image in read_json(str(instances))["images"]}
    digests = {path: _digest(path) for path in paths}
    unlabeled = [path for path, digest in digests.items() if digest not in known]
    if not unlabeled:
        raise InputError(f"--images: all {len(digests)} images are labeled already")
    distinct: dict[str, str] = {}
    for path in unlabeled:
        distinct.setdefault(digests[path] or path, path)
    for count, what in (
        (len(digests) - len(unlabeled), "labeled already"),
        (len(unlabeled) - len(distinct), "copies of others"),
    ):
        if count:
            print(f"{count} of {len(digests)} images are {what}")
    return [*distinct.values()]


def _digest(path: str) -> str:
    """Return the hash of a file, "" of one that cannot be read: its decoding says why."""
    try:
        return hashlib.sha256(read_regular_file(path)).hexdigest()
    except OSError:
        return ""


def _counts(labeled: LabeledImages | None) -> Counter[str]:
    return Counter() if labeled is None else Counter(labeled.class_names.names[index] for index in labeled.classes)


def _write(options: NextImagesOptions, chosen: Sequence[SeenImage], detector: Detector, *, unlabeled: int) -> None:
    folder, class_names = Path(options.output_dir), detector.class_names
    names = copy_names([image.path for image in chosen])
    copies = folder / IMAGES
    lines = [
        {
            "file_name": name,
            "path": image.path,
            "doubt": round(image.doubt, 3),
            "novelty": round(image.novelty, 4),
            "proposals": len(image.proposals.scores),
        }
        for name, image in zip(names, chosen, strict=True)
    ]
    with report_write_errors(copies):
        copies.mkdir(parents=True, exist_ok=True)
    write_output(folder / LIST, (json.dumps(lines, indent=1) + "\n").encode())
    files = ResultFiles(
        options.output_dir, class_names, formats=options.format, for_labeling=True, storage_folder=f"{IMAGES}/"
    )
    figures = []
    for number, (name, image) in enumerate(zip(names, chosen, strict=True), start=1):
        pixels = read_stored_image(image.path, value_range=detector.value_range).upright()
        with report_write_errors(copies / name):
            shutil.copyfile(image.path, copies / name)
        results = results_json(image.proposals.with_image_id(number))
        files.add(Path(name).stem, name, number, size=pixels.shape[:2], results=results)
        why = f"{number}. {name} \N{MIDDLE DOT} doubt {image.doubt:.1f} bits \N{MIDDLE DOT} novelty {image.novelty:.2f}"
        figures.append(image_figure(why, _thumbnail(image, pixels, class_names)))
    files.write()
    title, found = "Images to label next", f"{len(chosen)} of {unlabeled:,} unlabeled images"
    html = page(title, {"Images": row(figures, thumbnails=True)}, figure=found, lead=_LEAD)
    write_output(folder / PAGE, html.encode())
    print(f"{found}: {copies}; why: {folder / PAGE}")


def _thumbnail(image: SeenImage, pixels: np.ndarray, names: ClassNames) -> bytes:
    """Return the image with its proposals as JPEG."""
    small = resized(pixels, longer_side=_LONGER_SIDE)
    drawn = draw_detections(
        small,
        image.proposals.boxes * (small.shape[0] / pixels.shape[0]),
        classes=np.searchsorted(names.category_ids, image.proposals.category_ids),
        names=names.names,
        scores=image.proposals.scores,
    )
    return encode_image(drawn, "JPEG", quality=80)
