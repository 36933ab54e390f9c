"""Choose unlabeled images, and write copies of them, proposals for labeling programs and a page that says why."""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dataset.class_names import ClassNames, beside_records, class_names_of_records
from dataset.conversion.named_splits import INSTANCES
from dataset.files.bounded_files import read_json, read_regular_file
from dataset.files.image_files import copy_names, encode_image, read_stored_image
from dataset.records.labeled_records import LabeledImages, labeled_records
from dataset.records.record_index import RecordIndex, index_records
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.inference.detect import Detector
from efficientdet.inference.result_files import ResultFiles, names_of_files, write_output
from efficientdet.options.next_images import NextImagesOptions
from efficientdet.plugins.labeling.expected_gain import choose, class_weights, uncertainty
from efficientdet.plugins.labeling.image_views import Viewer
from efficientdet.reports.drawing import draw_detections, resized
from efficientdet.reports.html_page import document, heading, image_figure, row, section
from object_detection.coco.results import DetectionRows, results_json
from program_support.atomic_files import report_write_errors
from program_support.claimed_outputs import claimed_outputs, remove_outputs
from program_support.errors import InputError, printable
from program_support.progress import Progress

LIST, PAGE, IMAGES = "next_images.json", "next_images.html", "images"
_LONGER_SIDE = 320  # pixels of a thumbnail
_LEAD = {
    "expected_gain": "The images whose labels are expected to teach the detector most: the product of its doubt, the "
    "entropy of the scores in the image and in its mirror image, and of novelty, the distance to the nearest labeled "
    "or chosen image in the features of the backbone.",
    "uncertainty": "The images with the most doubt: the entropy of the scores in the image and in its mirror image.",
    "diversity": "The images that differ most from each labeled or chosen one in the features of the backbone.",
    "random": "Images at random.",
}


class SeenImage(NamedTuple):
    """The part of an image's views that the choice needs; its many detections are not kept, as a pool may be large."""

    path: str
    proposals: DetectionRows
    doubt: float  # bits
    features: np.ndarray  # [F] float32


class ChosenImage(NamedTuple):
    """An image to label next."""

    path: str
    name: str  # of its copy
    proposals: DetectionRows
    doubt: float  # bits
    novelty: float  # 0 to 2


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
    names = [LIST, PAGE, IMAGES, *names_of_files(options.format, crops=False)]
    with claimed_outputs(*(folder / name for name in names)):
        index = index_records(records) if records else None
        labeled = None if index is None else _labeled_images(index)
        unlabeled = _unlabeled(paths, records, labeled)
        viewer = Viewer(ModelConfig(ckpt_path=checkpoint))
        weights = class_weights(_counts(labeled), viewer.detector.class_names)
        seen = _seen(unlabeled, viewer, weights)
        known = np.zeros((0, 1), np.float32) if index is None else viewer.features(index)
        of_paths, proposals, doubts, features = zip(*seen, strict=True)
        order = choose(np.array(doubts), np.stack(features), known, count=options.count, strategy=options.strategy)
        copies = copy_names([of_paths[number] for number, _ in order])
        chosen = [
            ChosenImage(of_paths[number], copy, proposals[number], doubts[number], novelty)
            for (number, novelty), copy in zip(order, copies, strict=True)
        ]
        with report_write_errors(folder / IMAGES):
            remove_outputs(folder, names)
        _write(options, chosen, viewer.detector, unlabeled=len(seen))


def _seen(paths: Sequence[str], viewer: Viewer, weights: Mapping[int, float]) -> list[SeenImage]:
    """Return what is seen of the readable images, in their order, and print why the others are skipped.

    Of files with the same pixels, such as copies in another format, the first is kept.
    """
    thresholds, failures, num_seen = viewer.detector.thresholds, list[str](), 0
    distinct: dict[bytes, SeenImage] = {}
    with Progress("next_images", total=len(paths), noun="image") as progress:
        for view in viewer.views(paths):
            if isinstance(view, InputError):
                failures.append(str(view))
                print(f"skipped: {printable(failures[-1])}")
                progress.advance(1, images=0)
                continue
            num_seen += 1
            if view.digest not in distinct:
                proposals = view.rows.chosen(view.rows.scores >= thresholds.of(view.rows.category_ids))
                doubt = uncertainty(view.rows, view.mirrored, weights)
                distinct[view.digest] = SeenImage(view.path, proposals, doubt, view.features)
            progress.advance(1, images=1)
    if not distinct:
        raise InputError(f"--images: none of {len(paths)} images could be decoded; the first: {failures[0]}")
    if copies := num_seen - len(distinct):
        print(f"{copies} of {len(paths)} images have the pixels of others")
    return [*distinct.values()]


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


def _write(options: NextImagesOptions, chosen: Sequence[ChosenImage], detector: Detector, *, unlabeled: int) -> None:
    folder, class_names = Path(options.output_dir), detector.class_names
    copies = folder / IMAGES
    lines = [
        {
            "file_name": image.name,
            "path": image.path,
            "doubt": round(image.doubt, 3),
            "novelty": round(image.novelty, 4),
            "proposals": len(image.proposals.scores),
        }
        for image in chosen
    ]
    with report_write_errors(copies):
        copies.mkdir(parents=True, exist_ok=True)
    write_output(folder / LIST, (json.dumps(lines, indent=1) + "\n").encode())
    files = ResultFiles(
        options.output_dir, class_names, formats=options.format, for_labeling=True, storage_folder=f"{IMAGES}/"
    )
    figures = []
    for number, image in enumerate(chosen, start=1):
        pixels = read_stored_image(image.path, value_range=detector.value_range).upright()
        with report_write_errors(copies / image.name):
            shutil.copyfile(image.path, copies / image.name)
        results = results_json(image.proposals.with_image_id(number))
        files.add(Path(image.name).stem, image.name, number, size=pixels.shape[:2], results=results)
        figures.append(image_figure(f"{number}. {_why(image)}", _thumbnail(image, pixels, class_names)))
    files.write()
    title, found = "Images to label next", f"{len(chosen)} of {unlabeled:,} unlabeled images"
    page = document(
        title,
        [heading(title, figure=found, lead=_LEAD[options.strategy]), section("Images", row(figures, thumbnails=True))],
    )
    write_output(folder / PAGE, page.encode())
    print(f"{found}: {copies}; why: {folder / PAGE}")


def _why(image: ChosenImage) -> str:
    return f"{image.name} \N{MIDDLE DOT} doubt {image.doubt:.1f} bits \N{MIDDLE DOT} novelty {image.novelty:.2f}"


def _thumbnail(image: ChosenImage, pixels: np.ndarray, names: ClassNames) -> bytes:
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
