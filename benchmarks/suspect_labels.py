"""Plant errors into the labels of a data set, and measure how many of them the first suspects of a ranking are.

`python benchmarks/suspect_labels.py plant ANNOTATIONS.json ... --output=FOLDER [--share=0.05] [--seed=0]` writes
`instances.json`, the labels with errors, and `planted.json`, the errors. Of each kind there are as many as `--share` of
the labels: labels that are removed (missing), have another class (wrong_class), are moved and resized to an IoU of 0.2
to 0.6 (badly_placed), and additional boxes that overlap no label (superfluous).

`python benchmarks/suspect_labels.py measure FOLDER --results=FILE ... [--cleanlab=PYTHON]` ranks with the detections of
models that were trained without the images: as `eval.py --suspects`, by loss, and as ObjectLab, with its own score
thresholds and with that of the best F1. The unit is a label or detection; ObjectLab's own is an image.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
from miss_rate_coverage import merged

from object_detection.coco.comparison import Comparison
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.ground_truth import ground_truth_from_dataset
from object_detection.coco.results import DetectionRows, boxes_xywh
from object_detection.coco.score_thresholds import overall_threshold
from object_detection.coco.suspect_labels import KINDS, Suspect, find_suspects

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)  # of the labels


def without_masks(dataset: dict) -> dict:
    """Return COCO's content with annotations that have a box only."""
    kept = ("id", "image_id", "category_id", "bbox", "area", "iscrowd")
    boxes = [{name: one[name] for name in kept} for one in dataset["annotations"]]
    return {**dataset, "annotations": boxes}


def ious(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the IoU of a box (x, y, width, height) with others [N, 4]."""
    sides = np.minimum(box[:2] + box[2:], others[:, :2] + others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = sides.clip(0).prod(1)
    return shared / (box[2:].prod() + others[:, 2:].prod(1) - shared)


def inside(box: np.ndarray, image: dict) -> np.ndarray:
    """Return a box clipped to its image, in hundredths of a pixel."""
    limits = np.array([image["width"], image["height"]])
    start, end = box[:2].clip(0, limits), (box[:2] + box[2:]).clip(0, limits)
    return np.concatenate((start, end - start)).round(2)


def moved(box: np.ndarray, image: dict, rng: np.random.Generator) -> np.ndarray:
    """Return a box with an IoU of 0.2 to 0.6 with the given one."""
    while True:
        sides = box[2:] * np.exp(rng.uniform(-0.5, 0.5, 2))
        center = box[:2] + box[2:] / 2 + box[2:] * rng.uniform(-0.5, 0.5, 2)
        other = inside(np.concatenate((center - sides / 2, sides)), image)
        if other[2:].min() >= 1 and 0.2 <= ious(other, box[None])[0] <= 0.6:
            return other


def plant(content: dict, share: float, seed: int) -> list[dict]:
    """Change the labels of a data set and return the errors: kind, image id, box, class, and the id of the label."""
    rng = np.random.default_rng(seed)
    images = {image["id"]: image for image in content["images"]}
    original = content["annotations"]
    boxes = {i: np.array([one["bbox"] for one in original if one["image_id"] == i]).reshape(-1, 4) for i in images}
    count = round(share * len(original))
    categories = [category["id"] for category in content["categories"]]
    removed, renamed, misplaced = np.split(rng.permutation(len(original))[: 3 * count], 3)
    planted = []

    def changed(kind: str, label: dict) -> None:
        planted.append({"kind": kind, **{name: label[name] for name in ("id", "image_id", "bbox", "category_id")}})

    for i in removed:
        changed("missing", original[i])
    for i in renamed if len(categories) > 1 else ():
        original[i]["category_id"] = int(rng.choice([one for one in categories if one != original[i]["category_id"]]))
        changed("wrong_class", original[i])
    for i in misplaced:
        original[i]["bbox"] = moved(np.array(original[i]["bbox"]), images[original[i]["image_id"]], rng).tolist()
        changed("badly_placed", original[i])
    kept = [one for i, one in enumerate(original) if i not in set(removed.tolist())]
    while len(kept) < len(original) - len(removed) + count:
        image, like = images[rng.choice(list(images))], original[rng.integers(len(original))]
        sides = np.array(like["bbox"][2:])
        start = rng.uniform(0, 1, 2) * (np.array([image["width"], image["height"]]) - sides)
        box = inside(np.concatenate((start, sides)), image)
        if start.min() >= 0 and ious(box, boxes[image["id"]]).max(initial=0) < 0.1:
            kept.append({**like, "id": len(kept) + count + 1, "image_id": image["id"], "bbox": box.tolist()})
            changed("superfluous", kept[-1])
    content["annotations"] = [{**one, "area": one["bbox"][2] * one["bbox"][3]} for one in kept]
    return planted


class Ranking(NamedTuple):
    """Suspects of a method, the worst first."""

    images: np.ndarray  # [N] image ids
    boxes: np.ndarray  # [N, 4] x, y, width, height: of the label, or of the missing one
    is_missing: np.ndarray  # [N] bool

    @classmethod
    def by(cls, worse: np.ndarray, images: np.ndarray, boxes: np.ndarray, is_missing: np.ndarray) -> "Ranking":
        """Return the ranking by falling `worse` [N]."""
        order = np.argsort(-worse, kind="stable")
        return cls(images[order], boxes[order], is_missing[order])


def detection_rows(results: list[dict]) -> DetectionRows:
    """Return detections in COCO's format."""
    x, y, width, height = np.array([one["bbox"] for one in results]).T
    image_ids = np.array([one["image_id"] for one in results])
    return DetectionRows(
        image_ids=image_ids,
        boxes=np.stack([y, x, y + height, x + width], axis=1),
        scores=np.array([one["score"] for one in results]),
        category_ids=np.array([one["category_id"] for one in results]),
        evaluated_ids=np.unique(image_ids),
    )


def ranked_by_us(comparison: Comparison, boxes: np.ndarray) -> tuple[Ranking, list[Suspect]]:
    suspects = find_suspects(comparison, boxes)
    ranking = Ranking(
        comparison.image_ids[[one.image for one in suspects]],
        np.array([one.box if one.label < 0 else comparison.object_boxes[one.label] for one in suspects]),
        np.array([one.label < 0 for one in suspects]),
    )
    return ranking, suspects


def ranked_by_loss(comparison: Comparison, boxes: np.ndarray) -> Ranking:
    """Rank labels and wrong detections by cross-entropy; labels that are found also by 1 - IoU."""
    outcomes, scores = comparison.outcomes, comparison.scores.astype(float).clip(1e-3, 1 - 1e-3)
    losses = np.full(len(comparison.object_boxes), -np.log(1e-3) + 1)
    right, wrong = np.flatnonzero(outcomes.right), np.flatnonzero(outcomes.wrong)
    found = outcomes.matched_objects[right]
    overlap = comparison.overlap(right[:, None], found[:, None])[:, 0, 0]
    losses[found] = -np.log(scores[right]) + 1 - overlap
    return Ranking.by(
        np.concatenate((losses, -np.log(1 - scores[wrong]))),
        comparison.image_ids[np.concatenate((comparison.objects.images, comparison.detections.images[wrong]))],
        np.concatenate((comparison.object_boxes, boxes[wrong])),
        np.arange(len(losses) + len(wrong)) >= len(losses),
    )


def ranked_by_objectlab(
    comparison: Comparison, boxes: np.ndarray, python: str, *, high: float, low: float, scratch: Path
) -> Ranking:
    """Rank labels and detections by the lowest of ObjectLab's scores of each box."""
    classes, numbers = range(len(comparison.names)), range(len(comparison.image_ids))
    of_image = [
        [np.flatnonzero((comparison.detections.images == i) & (comparison.detections.classes == k)) for k in classes]
        for i in numbers
    ]
    labels = [np.flatnonzero(comparison.objects.images == i) for i in numbers]

    def corners(of: np.ndarray) -> np.ndarray:
        return np.concatenate((of[:, :2], of[:, :2] + of[:, 2:]), axis=1)

    case = {
        "labels": [
            {
                "bboxes": corners(comparison.object_boxes[rows]).tolist(),
                "labels": comparison.objects.classes[rows].tolist(),
            }
            for rows in labels
        ],
        "predictions": [
            [np.column_stack((corners(boxes[rows]), comparison.scores[rows])).tolist() for rows in image]
            for image in of_image
        ],
        "high": high,
        "low": low,
    }
    (scratch / "objectlab.json").write_text(json.dumps(case))
    script = Path(__file__).parent / "peers" / "objectlab.py"
    command = [python, str(script), str(scratch / "objectlab.json")]
    scores = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    detected = np.concatenate([rows for image in of_image for rows in image])
    labeled = np.concatenate(labels)
    overlooked, badloc, swap = (np.concatenate(scores[name]) for name in ("overlooked", "badloc", "swap"))
    return Ranking.by(
        -np.concatenate((np.minimum(badloc, swap), overlooked)),
        comparison.image_ids[
            np.concatenate((comparison.objects.images[labeled], comparison.detections.images[detected]))
        ],
        np.concatenate((comparison.object_boxes[labeled], boxes[detected])),
        np.arange(len(labeled) + len(detected)) >= len(labeled),
    )


def hits(ranking: Ranking, planted: list[dict], count: int) -> np.ndarray:
    """Return the planted error [count] that each of the first suspects is, each once; -1: none.

    A label must be that of the error, a detection have an IoU of 0.5 with a removed label.
    """
    removed, changed = {}, {}
    for number, error in enumerate(planted):
        if error["kind"] == "missing":
            removed.setdefault(error["image_id"], []).append(number)
        else:
            changed[error["image_id"], *np.round(error["bbox"], 1).tolist()] = number
    found = np.full(count, -1)
    for place, (image, box, is_missing) in enumerate(zip(*(column[:count] for column in ranking), strict=True)):
        if is_missing:
            near = [
                number
                for number in removed.get(int(image), ())
                if ious(box, np.array([planted[number]["bbox"]]))[0] >= 0.5 and number not in found
            ]
            found[place] = near[0] if near else -1
        else:
            found[place] = changed.get((int(image), *np.round(box, 1).tolist()), -1)
    return found


def measure(folder: Path, results: list[str], python: str | None) -> None:
    """Print precision and recall of each method in the first shares of the labels."""
    content, planted = (json.loads((folder / name).read_text()) for name in ("instances.json", "planted.json"))
    detections = [one for path in results for one in json.loads(Path(path).read_text())]
    images = {one["image_id"] for one in detections}  # those of the given folds
    content["images"] = [one for one in content["images"] if one["id"] in images]
    content["annotations"] = [one for one in content["annotations"] if one["image_id"] in images]
    planted = [one for one in planted if one["image_id"] in images]
    evaluator = CocoEvaluator(ground_truth_from_dataset(content, source=str(folder / "instances.json")))
    rows = detection_rows(detections)
    comparison = evaluator.compare(rows)
    boxes = boxes_xywh(rows.boxes)[comparison.detected]
    numbers, labels = evaluator.evaluate(rows).numbers, len(content["annotations"])
    print(f"{folder.name}: {labels} labels, {len(planted)} errors; AP {numbers['AP']:.3f}, AP50 {numbers['AP50']:.3f}")
    rankings = {"suspects": (ours := ranked_by_us(comparison, boxes))[0], "loss": ranked_by_loss(comparison, boxes)}
    if python:
        best = overall_threshold(comparison).score
        for name, high, low in (("ObjectLab", 0.95, 0.5), (f"ObjectLab at {best:.2f}", best, best)):
            rankings[name] = ranked_by_objectlab(comparison, boxes, python, high=high, low=low, scratch=folder)
    print("| method | " + " | ".join(f"{share:.0%}" for share in SHARES) + " | recall at 20% |")
    for name, ranking in rankings.items():
        found = hits(ranking, planted, round(SHARES[-1] * labels)) >= 0
        precision = [found[: round(share * labels)].mean() for share in SHARES]
        print(f"| {name} | {' | '.join(f'{one:.3f}' for one in precision)} | {found.sum() / len(planted):.3f} |")
    found = hits(ours[0], planted, len(ours[1]))
    kinds = np.array([one.kind for one in ours[1]])
    for kind in KINDS:
        errors = sum(error["kind"] == kind for error in planted)
        first = found[kinds == kind][:errors]
        right = sum(planted[number]["kind"] == kind for number in first if number >= 0)
        print(f"{kind}: {right} of {errors} among the first {errors} of the kind")
    chances = np.array([one.probability for one in ours[1]])
    for low in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9):
        here = (chances >= low) & (chances < {0.0: 0.1, 0.9: 2}.get(low, low + 0.2))
        if here.any():
            print(f"probability {chances[here].mean():.2f}: {(found[here] >= 0).mean():.2f} of {here.sum()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    planting, measuring = commands.add_parser("plant"), commands.add_parser("measure")
    planting.add_argument("annotations", nargs="+")
    planting.add_argument("--output", required=True)
    planting.add_argument("--share", type=float, default=0.05)
    planting.add_argument("--seed", type=int, default=0)
    measuring.add_argument("folder", type=Path)
    measuring.add_argument("--results", nargs="+", required=True)
    measuring.add_argument("--cleanlab", help="Python interpreter with cleanlab.")
    options = parser.parse_args()
    if options.command == "measure":
        return measure(options.folder, options.results, options.cleanlab)
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    content = without_masks(merged(options.annotations))
    (folder / "original.json").write_text(json.dumps(content))
    planted = plant(content, options.share, options.seed)
    (folder / "instances.json").write_text(json.dumps(content))
    (folder / "planted.json").write_text(json.dumps(planted))
    print(f"{len(content['annotations'])} labels, {len(planted)} errors planted")


if __name__ == "__main__":
    main()
