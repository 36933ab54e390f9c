"""Measure the estimates of monitor.py on changed images of known AP; makes the table of docs/guides/monitor.md.

python tests/monitored_shifts.py MODEL SET [NAME_PREFIX]: a detector whose classes are those of the data set SET
(annotations/instances_val.json, instances_test.json, images/), perhaps with a prefix and among others. One line for
each change, a summary, the false alarms in images without a change, and the cost. The reference is written beside
MODEL.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dataset.class_names import ClassNames
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.shards import ConversionConfig, convert
from efficientdet.inference.detect import Detector
from efficientdet.plugins.monitor.estimates import MEASURES, Estimate, drift_p_values
from efficientdet.plugins.monitor.monitoring import compared
from efficientdet.plugins.monitor.reference import (
    Reference,
    Seen,
    counts_of_images,
    make_reference,
    precision_and_recall,
    read_reference,
    seen_image,
    statistics,
)
from efficientdet.prediction.open_model import load_detector
from object_detection.coco.evaluation import CocoEvaluator, ground_truth_from_dataset
from object_detection.coco.results import CocoResults
from object_detection.coco.score_calibration import ScoreMap

GENERATOR = np.random.default_rng(0)
IMAGES = 50  # of a window
VISIBLE = 0.4  # share of an object's area, below which it is not expected to be found


class Labeled(NamedTuple):
    """An image and its labels."""

    image: np.ndarray
    boxes: np.ndarray  # [N, 4] top, left, bottom, right
    classes: np.ndarray  # [N] category ids


# Changes of the pixels


def clipped(image):
    return np.clip(np.round(image), 0, 255).astype(np.uint8)


def blurred(image, sigma):
    return cv2.GaussianBlur(image, (0, 0), sigma)


def motion(image, side):
    kernel = np.zeros((side, side))
    kernel[side // 2] = 1 / side
    return cv2.filter2D(image, -1, kernel)


def contrast(image, factor):
    return clipped((image - image.mean()) * factor + image.mean())


def noisy(image, deviation):
    return clipped(image + GENERATOR.normal(0, deviation, image.shape))


def jpeg(image, quality):
    content = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    return np.ascontiguousarray(cv2.imdecode(content, cv2.IMREAD_COLOR)[..., ::-1])


def spots(image, cells):
    return cv2.resize(
        GENERATOR.random((cells, cells, 3)).astype(np.float32), image.shape[1::-1], interpolation=cv2.INTER_CUBIC
    )


def fog(image, density):
    share = np.clip(density * (0.6 + 0.8 * spots(image, 6)[..., :1]), 0, 1)
    return clipped(image * (1 - share) + 235 * share)


def dead(image, share, *, rows=False):
    changed = image.copy()
    changed[GENERATOR.random(image.shape[: 1 if rows else 2]) < share] = 0
    return changed


def coarse(image, factor):
    return cv2.resize(cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA), image.shape[1::-1])


def hue(image, turn):
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    hsv[..., 0] = (hsv[..., 0].astype(int) + turn) % 180
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)


def vignette(image, strength):
    rows, columns = np.ogrid[-1 : 1 : image.shape[0] * 1j, -1 : 1 : image.shape[1] * 1j]
    return clipped(image * (1 - strength * (rows**2 + columns**2) / 2)[..., None])


def pasted(image, count, source):
    changed, (height, width) = image.copy(), image.shape[:2]
    side = min(height, width) // 6
    for _ in range(count):
        top, left = GENERATOR.integers(height - side), GENERATOR.integers(width - side)
        changed[top : top + side, left : left + side] = source(side)
    return changed


def strange(side):
    """An object of a new class: a checkered disk."""
    rows, columns = np.mgrid[:side, :side]
    disk = (rows - side / 2) ** 2 + (columns - side / 2) ** 2 < side**2 / 4
    return np.where((disk & ((rows // 4 + columns // 4) % 2 > 0))[..., None], (40, 180, 230), (90, 60, 60))


def camera(image):
    return noisy(blurred(clipped(image * (1.1, 0.95, 0.85)), 1.2), 8)


PIXELS: dict[str, Callable] = {
    **{f"brightness {factor}": lambda image, factor=factor: clipped(image * factor) for factor in (0.65, 0.4, 1.4)},
    "gamma 2.2": lambda image: clipped(255 * (image / 255) ** 2.2),
    "vignette": lambda image: vignette(image, 0.9),
    "contrast 0.5": lambda image: contrast(image, 0.5),
    **{f"blur {sigma}": lambda image, sigma=sigma: blurred(image, sigma) for sigma in (1.5, 3, 6)},
    **{f"motion {side}": lambda image, side=side: motion(image, side) for side in (9, 21)},
    **{f"noise {level}": lambda image, level=level: noisy(image, level) for level in (20, 45, 80)},
    **{f"JPEG {quality}": lambda image, quality=quality: jpeg(image, quality) for quality in (15, 5)},
    **{f"fog {density}": lambda image, density=density: fog(image, density) for density in (0.4, 0.7)},
    **{f"dead pixels {share}": lambda image, share=share: dead(image, share) for share in (0.01, 0.06)},
    "dead rows 0.1": lambda image: dead(image, 0.1, rows=True),
    "resolution 0.35": lambda image: coarse(image, 0.35),
    "gray camera": lambda image: np.repeat(image.mean(axis=-1, keepdims=True), 3, axis=-1).astype(np.uint8),
    "color cast": lambda image: clipped(image * (0.75, 1, 1.25)),
    "hue 45": lambda image: hue(image, 45),
    "inverted": lambda image: 255 - image,
    "other camera": camera,
    "other camera, compressed": lambda image: jpeg(contrast(clipped(image * (0.8, 0.9, 1.05)), 0.7), 30),
    "new class": lambda image: pasted(image, 4, strange),
    "occluded": lambda image: pasted(image, 8, lambda side: 30),
}


# Changes of the objects


def turned(labeled, quarters):
    for _ in range(quarters):
        width, (top, left, bottom, right) = labeled.image.shape[1], labeled.boxes.T
        labeled = Labeled(np.rot90(labeled.image), np.stack([width - right, top, width - left, bottom], 1), labeled[2])
    return labeled._replace(image=np.ascontiguousarray(labeled.image))


def smaller(labeled, factor):
    image = np.empty_like(labeled.image)
    image[:] = labeled.image.mean(axis=(0, 1))
    small = cv2.resize(labeled.image, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
    top, left = (np.array(image.shape[:2]) - small.shape[:2]) // 2
    image[top : top + small.shape[0], left : left + small.shape[1]] = small
    return labeled._replace(image=image, boxes=labeled.boxes * factor + np.array([top, left, top, left]))


def larger(labeled, factor):
    size = np.array(labeled.image.shape[:2])
    (top, left), (height, width) = (size * (1 - 1 / factor) / 2).astype(int), (size / factor).astype(int)
    image = cv2.resize(labeled.image[top : top + height, left : left + width], size[::-1].tolist())
    boxes = (labeled.boxes - np.array([top, left, top, left])) * factor
    inside = np.clip(boxes, 0, np.tile(size, 2))
    visible = np.prod(inside[:, 2:] - inside[:, :2], axis=1) > VISIBLE * np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    return Labeled(image, inside[visible], labeled.classes[visible])


def mask_of(image, boxes, margin):
    mask = np.zeros(image.shape[:2], np.float32)
    for top, left, bottom, right in boxes.astype(int):
        mask[max(top - margin, 0) : bottom + margin, max(left - margin, 0) : right + margin] = 1
    return cv2.GaussianBlur(mask, (0, 0), 2)[..., None]


def before_spots(labeled, share):
    """Replace a share of the background by colored spots."""
    other = 255 * spots(labeled.image, 12)
    kept = np.maximum(mask_of(labeled.image, labeled.boxes, 2), 1 - share)
    return labeled._replace(image=clipped(labeled.image * kept + other * (1 - kept)))


def without(labeled, category):
    """Paint over the objects of a category."""
    removed = labeled.classes == category
    mask, color = mask_of(labeled.image, labeled.boxes[removed], 0), np.median(labeled.image, axis=(0, 1))
    image = clipped(labeled.image * (1 - mask) + color * mask)
    return Labeled(image, labeled.boxes[~removed], labeled.classes[~removed])


OBJECTS: dict[str, Callable] = {
    "rotation 90": lambda labeled, _: turned(labeled, 1),
    "rotation 180": lambda labeled, _: turned(labeled, 2),
    "scale 0.6": lambda labeled, _: smaller(labeled, 0.6),
    "scale 1.8": lambda labeled, _: larger(labeled, 1.8),
    **{f"background {share}": lambda labeled, _, share=share: before_spots(labeled, share) for share in (0.6, 1.0)},
    "missing class": without,
}
CHANGES: dict[str, Callable] = {
    "none": lambda labeled, _: labeled,
    **{
        name: lambda labeled, _, change=change: labeled._replace(image=change(labeled.image))
        for name, change in PIXELS.items()
    },
    **OBJECTS,
}


class Detected(NamedTuple):
    """An image with the labels and the detections in it."""

    labeled: Labeled  # its image is empty
    seen: Seen


def by_brightness(detected):
    return sorted(detected, key=lambda one: one.seen.of_image[0])


# Each frame of "double frame" arrives twice and counts once; in halves by brightness are other cameras or stains
SUBSETS: dict[str, Callable] = {
    "double frame": lambda detected: detected[::2],
    "darkest half": lambda detected: by_brightness(detected)[: len(detected) // 2],
    "brightest half": lambda detected: by_brightness(detected)[len(detected) // 2 :],
}


# Measurement


def restricted(detector: Detector, categories, prefix: str) -> Detector:
    """Return the detector of the classes of a data set alone, with its category ids."""
    ids = {prefix + entry["name"]: entry["id"] for entry in categories}
    known = dict(zip(detector.class_names.category_ids, detector.class_names.names, strict=True))

    def detect(images):
        rows = detector.detect(images)
        rows = [one.chosen(np.array([known[number] in ids for number in one.category_ids], bool)) for one in rows]
        return [
            one._replace(category_ids=np.array([ids[known[number]] for number in one.category_ids], np.int64))
            for one in rows
        ]

    return replace(detector, detect=detect, class_names=ClassNames.from_categories(categories))


def detected_in(folder: str, content, detector: Detector, change: Callable = CHANGES["none"]) -> list[Detected]:
    """Detect in the changed images of COCO annotations."""
    detected, last = [], content["categories"][-1]["id"]
    for entry in content["images"]:
        rows = [one for one in content["annotations"] if one["image_id"] == entry["id"]]
        boxes = np.array([one["bbox"] for one in rows], float).reshape(-1, 2, 2)
        boxes = np.concatenate([boxes[:, 0], boxes.sum(axis=1)], axis=1)[:, [1, 0, 3, 2]]
        image = np.array(Image.open(Path(folder, "images", entry["file_name"])).convert("RGB"))
        labeled = change(Labeled(image, boxes, np.array([one["category_id"] for one in rows], int)), last)
        [found] = detector.detect([labeled.image])
        detected.append(Detected(labeled._replace(image=image[:0]), seen_image(labeled.image, found)))
    return detected


def evaluated(detected: list[Detected], categories, detector: Detector) -> list[float]:
    """Return AP, precision (NaN without detections) and recall."""
    images, annotations, results = [], [], CocoResults()
    for number, (labeled, seen) in enumerate(detected, 1):
        images.append({"id": number, "height": seen.size[0], "width": seen.size[1]})
        for (top, left, bottom, right), category in zip(labeled.boxes.tolist(), labeled.classes.tolist(), strict=True):
            box = [left, top, right - left, bottom - top]
            annotations.append({"id": 1, "image_id": number, "category_id": category, "bbox": box})
        results.add_rows(seen.rows.with_image_id(number))
    content = {"images": images, "annotations": annotations, "categories": categories}
    evaluator, rows = CocoEvaluator(ground_truth_from_dataset(content, source="the changed images")), results.rows()
    comparison = evaluator.compare(rows)
    ap = evaluator.evaluate(rows, comparison=comparison).numbers["AP"]
    counts = counts_of_images(comparison, detector).sum(axis=0)
    precision, recall = precision_and_recall(counts).tolist()
    return [ap, precision if counts[1] else np.nan, recall]


class Line(NamedTuple):
    """Measures and estimates of one change."""

    name: str
    measures: list[float]
    estimates: list[Estimate]
    is_alarm: bool
    mean_score: float
    above: float  # detections above the threshold of the rival, for one of the reference

    def __str__(self):
        shown = [
            f"{measure:.3f} | {one.value:.3f} ({one.low:.3f} to {one.high:.3f}){'' if one.is_trusted else ' ?'}"
            for measure, one in zip(self.measures, self.estimates, strict=True)
        ]
        return f"| {self.name} | {' | '.join(shown)} | {'alarm' if self.is_alarm else ''} |"


def summary(reference: Line, lines: list[Line]) -> str:
    """Return the summary of the lines of a data set; reference: that of images like those of the reference."""
    clean = reference.measures
    truth = np.array([line.measures for line in lines])
    values, low, high = (np.array([[one[k] for one in line.estimates] for line in lines]) for k in range(3))
    known = np.array([[one.is_trusted for one in line.estimates] for line in lines])
    contains, works = (low <= truth) & (truth <= high), truth[:, 0] >= clean[0] / 2
    alarms = np.array([line.is_alarm for line in lines])
    rivals = np.array([[line.mean_score, line.above] for line in lines])
    rivals = clean[0] * rivals / np.array([reference.mean_score, reference.above])
    parts = [f"{len(lines)} changes, {(~known[:, 0]).sum()} unknown"]
    for k, name in enumerate(MEASURES):
        errors, is_known = abs(values - truth)[:, k], known[:, k] & ~np.isnan(truth[:, k])
        parts.append(
            f"{name}: {contains[:, k].sum()} of {(~np.isnan(truth[:, k])).sum()} intervals contain it, of the known "
            f"{contains[is_known, k].sum()} of {is_known.sum()}; mean error where AP is at least half "
            f"{np.nanmean(errors[works]):.3f}, of the known {errors[works & is_known].mean():.3f}"
        )
    parts.append(f"alarms below half of AP: {alarms[~works].sum()} of {(~works).sum()}")
    errors = abs(rivals - truth[:, :1])
    for k, name in enumerate(("mean score", "average threshold confidence")):
        parts.append(
            f"{name}: mean error where it works {errors[works, k].mean():.3f}, of all {errors[:, k].mean():.3f}"
        )
    parts.append(f"estimate: of all {abs(values - truth)[:, 0].mean():.3f}")
    return "\n".join(parts)


def rivals_of(detected: list[Detected], threshold: float) -> tuple[float, float]:
    """Return the mean of the ten highest scores of an image, and the detections that reach the threshold."""
    scores = [one.seen.rows.scores for one in detected]
    highest = [np.sort(one)[-10:].mean() if len(one) else 0.0 for one in scores]
    return float(np.mean(highest)), float(np.mean([(one >= threshold).sum() for one in scores]))


def false_alarms(images: np.ndarray, *, windows: int = 75, streams: int = 15) -> str:
    """Return the false alarms in windows drawn from unchanged images [n, F], and in streams of a server."""
    alarms = 0
    for _ in range(windows):
        order = GENERATOR.permutation(len(images))
        reference, window = images[order[IMAGES:]][:60], images[order[:IMAGES]]
        alarms += drift_p_values(reference, window, rate=0.01).min() <= 0.01
    began = 0
    for _ in range(streams):
        reference, stream = (images[GENERATOR.integers(len(images), size=count)] for count in (60, 600))
        states = [
            drift_p_values(reference, stream[max(end - 200, 0) : end], rate=0.005).min() <= 0.005
            for end in range(100, 601, 100)
        ]
        began += np.count_nonzero(np.diff(states, prepend=False) & states)
    return (
        f"false alarms: {alarms} of {windows} windows of {IMAGES} images; "
        f"{began} began in {streams} streams of 600 images, each 3 windows of 200"
    )


def measured(detected: list[Detected], name: str, reference: Reference, detector: Detector, categories, threshold):
    """Return the line of a change."""
    window = statistics([one.seen for one in detected], detector.class_names, ScoreMap(*reference.score_map.tolist()))
    estimates, _, is_alarm = compared(reference, window, [""] * len(window), detector.class_names.names, rate=0.01)
    measures = evaluated(detected, categories, detector)
    return Line(name, measures, [*estimates.values()], is_alarm, *rivals_of(detected, threshold))


def cost(folder: str, content, detector: Detector) -> str:
    """Return the time of the statistics as a share of the time of detection, in turns; on one core: taskset -c 1."""
    cv2.setNumThreads(1)
    paths = [Path(folder, "images", entry["file_name"]) for entry in content["images"][:12]]
    images, shares = [np.array(Image.open(path).convert("RGB")) for path in paths], []
    for _ in range(6):
        start = time.process_time()
        rows = [detector.detect([image])[0] for image in images]
        middle = time.process_time()
        statistics([seen_image(*one) for one in zip(images, rows, strict=True)], detector.class_names, ScoreMap())
        shares.append((time.process_time() - middle) / (middle - start))
    low, median, high = (f"{100 * share:.1f}" for share in np.quantile(shares[1:], (0, 0.5, 1)))
    return f"statistics: {median} % of the time of detection, {low} to {high} % in five turns"


def main(model: str, folder: str, prefix: str = "") -> None:
    content, val = (
        json.loads(Path(folder, "annotations", f"instances_{part}.json").read_text()) for part in ("test", "val")
    )
    categories = content["categories"]
    detector = restricted(load_detector(model), categories, prefix)
    config = ConversionConfig(
        image_folder=f"{folder}/images", output_prefix=f"{model}.val", num_shards=1, processes=1, max_bad_fraction=0.1
    )
    convert(read_coco(object_annotations_file=f"{folder}/annotations/instances_val.json"), config, log=print)
    make_reference(model, detector, [f"{model}.val-00000-of-00001.tfrecord"])
    reference = read_reference(model)
    content["images"], rest = content["images"][:IMAGES], content["images"][IMAGES : 3 * IMAGES]
    # The rival's threshold: as many detections of the reference reach it as AP times the number of objects
    val["images"] = val["images"][:IMAGES]
    unchanged = detected_in(folder, val, detector)
    scores = np.sort(np.concatenate([one.seen.rows.scores for one in unchanged]))[::-1]
    threshold = scores[min(round(reference.measures[0, 0] * reference.objects * len(unchanged)), len(scores) - 1)]
    of_reference = measured(unchanged, "reference", reference, detector, categories, threshold)
    lines = []
    for name, change in CHANGES.items():
        if name == "missing class" and len(categories) < 2:
            continue
        detected = detected_in(folder, content, detector, change)
        parts = {name: detected}
        if name == "none":
            pool = detected + detected_in(folder, {**content, "images": rest}, detector)
            parts |= {subset: chosen(detected) for subset, chosen in SUBSETS.items()}
        for part, chosen in parts.items():
            lines.append(measured(chosen, part, reference, detector, categories, threshold))
            print(lines[-1], flush=True)
    print(summary(of_reference, lines))
    images = statistics([one.seen for one in pool], detector.class_names, ScoreMap(*reference.score_map.tolist()))
    print(false_alarms(np.concatenate([reference.images, images])))
    print(cost(folder, content, detector))


if __name__ == "__main__":
    main(*sys.argv[1:])
