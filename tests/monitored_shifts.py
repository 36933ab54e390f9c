"""Measure the estimates of monitor.py on changed images of known AP; makes the table of docs/guides/monitor.md.

python tests/monitored_shifts.py MODEL SET [NAME_PREFIX]: a detector whose classes are those of the data set SET
(annotations/instances_val.json, instances_test.json, images/), perhaps with a prefix and among others.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dataset.class_names import ClassNames
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.shards import ConversionConfig, convert
from efficientdet.inference.detect import Detector
from efficientdet.plugins.monitor.estimates import Estimator, drift_p_values
from efficientdet.plugins.monitor.reference import make_reference, read_reference, seen_image, statistics
from efficientdet.prediction.open_model import load_detector
from object_detection.coco.evaluation import CocoEvaluator, ground_truth_from_dataset
from object_detection.coco.results import CocoResults
from object_detection.coco.score_calibration import ScoreMap

GENERATOR = np.random.default_rng(0)


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
    return cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], cv2.IMREAD_COLOR)


def fog(image, density):
    coarse = cv2.resize(GENERATOR.random((6, 6)).astype(np.float32), image.shape[1::-1], interpolation=cv2.INTER_CUBIC)
    share = np.clip(density * (0.6 + 0.8 * coarse), 0, 1)[..., None]
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


SHIFTS: dict[str, Callable] = {
    "none": lambda image: image,
    **{f"brightness {factor}": lambda image, factor=factor: clipped(image * factor) for factor in (0.65, 0.4, 1.4)},
    "gamma 2.2": lambda image: clipped(255 * (image / 255) ** 2.2),
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
    "rotation 180": lambda image: np.ascontiguousarray(image[::-1, ::-1]),
}


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


def main(model: str, folder: str, prefix: str = "") -> None:
    content = json.loads(Path(folder, "annotations", "instances_test.json").read_text())
    detector = restricted(load_detector(model), content["categories"], prefix)
    config = ConversionConfig(
        image_folder=f"{folder}/images", output_prefix=f"{model}.val", num_shards=1, processes=1, max_bad_fraction=0.1
    )
    convert(read_coco(object_annotations_file=f"{folder}/annotations/instances_val.json"), config, log=print)
    make_reference(model, detector, [f"{model}.val-00000-of-00001.tfrecord"])
    reference = read_reference(model)
    estimator = Estimator(reference.windows, reference.aps, reference.kinds.tolist(), spread=float(reference.spread))
    content["images"] = content["images"][:50]
    kept = {entry["id"] for entry in content["images"]}
    content["annotations"] = [one for one in content["annotations"] if one["image_id"] in kept]
    evaluator = CocoEvaluator(ground_truth_from_dataset(content, source=folder))
    sizes = {entry["id"]: (entry["height"], entry["width"]) for entry in content["images"]}
    for name, change in SHIFTS.items():
        results, seen = CocoResults(), []
        for entry in content["images"]:
            image = change(np.array(Image.open(Path(folder, "images", entry["file_name"])).convert("RGB")))
            [rows] = detector.detect([image])
            seen.append(seen_image(image, rows))
            if name == "rotation 180":
                rows = rows._replace(boxes=(np.tile(sizes[entry["id"]], 2) - rows.boxes)[:, [2, 3, 0, 1]])
            results.add_rows(rows.with_image_id(entry["id"]))
        ap = evaluator.evaluate(results.rows()).numbers["AP"]
        window = statistics(seen, detector.class_names, ScoreMap(*reference.score_map.tolist()))
        found = estimator.estimate(window, objects=float(reference.objects), reference_images=len(reference.images))
        p_value = drift_p_values(reference.images, window, rate=0.01).min()
        shown = f"{found.ap:.3f} ({found.low:.3f} to {found.high:.3f}){'' if found.is_trusted else ' ?'}"
        print(f"| {name} | {ap:.3f} | {shown} | {'alarm' if p_value <= 0.01 else ''} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
