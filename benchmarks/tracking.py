"""Measure identities on videos with known tracks: HOTA, MOTA and IDF1 by `trackeval` and `motmetrics`.

`python benchmarks/tracking.py [--seeds=3] [--frames=250]` draws a video for each seed (see `moving_objects.py`). The
detections are the known boxes with noise, lower scores where an object is hidden, 10% of them missing, and a false one
in every second frame.

`python benchmarks/tracking.py --model=PATH --images=FOLDER --labels=COCO.json [--photos=10]` detects in a view that
moves over each of the first photos of a labeled data set, with the classes of the model.

All methods get the same detections.

Needs `pip install --no-deps trackeval tabulate motmetrics xmltodict` besides the packages of `--track`.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from moving_objects import FRAMES_PER_SECOND, KnownBox, MovingView, Sequence

from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.tracking.tracker import Tracker
from object_detection.coco.results import DetectionRows

THRESHOLD = 0.4
_MISSING, _FALSE, _NOISE = 0.1, 0.5, 0.04  # share of boxes, boxes per frame, shares of the longer side
_IOU = 0.5  # of MOTA and IDF1; least overlap of a box with its known one
Update = Callable[[DetectionRows], DetectionRows]  # detections of a frame -> those with an identity


class Numbers(NamedTuple):
    """Measures of one video; `trackeval` computes them all, and `motmetrics` MOTA, IDF1 and the switches."""

    hota: float
    mota: float
    idf1: float
    switches: float
    motmetrics: tuple[float, float, float]


def drawn_detections(known: list[KnownBox], size: tuple[int, int], random: np.random.Generator) -> DetectionRows:
    """Return the detections of a frame, made of its known boxes."""
    rows = []
    for one in known:
        if random.random() >= _MISSING:
            x, y, width, height = one.box
            box = np.array([y, x, y + height, x + width]) + random.normal(0, _NOISE * max(width, height), 4)
            rows.append((box, 0.1 + 0.85 * one.visible * random.uniform(0.6, 1), one.category_id))
    for _ in range(random.poisson(_FALSE)):
        center, sides = random.uniform(0, size), random.uniform(20, 70, 2)
        box = np.concatenate((center - sides / 2, center + sides / 2))
        rows.append((box, random.uniform(0.05, 0.65), random.choice([1, 2, 9])))
    rows.sort(key=lambda row: -row[1])
    boxes = np.array([box for box, _, _ in rows], np.float32).reshape(-1, 4)
    scores, category_ids = (np.array([row[column] for row in rows]) for column in (1, 2))
    return DetectionRows.of_image(boxes, scores.astype(np.float32), category_ids.astype(np.int64))


def ious(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the IoU of boxes [N, 4] yxyx with others [M, 4], [N, M]."""
    sides = np.minimum(boxes[:, None, 2:], others[:, 2:]) - np.maximum(boxes[:, None, :2], others[:, :2])
    shared = sides.clip(0).prod(-1)
    return shared / (
        (boxes[:, 2:] - boxes[:, :2]).prod(-1)[:, None] + (others[:, 2:] - others[:, :2]).prod(-1) - shared
    )


class GreedyIou:
    """No tracker: a detection has the identity of the one before of its class that it overlaps most, with IoU 0.3."""

    def __init__(self, thresholds: ScoreThresholds) -> None:
        self._thresholds = thresholds
        self._before, self._count = (
            drawn_detections([], (1, 1), np.random.default_rng(1)).chosen([])._replace(track_ids=np.zeros(0, np.int64)),
            0,
        )

    def __call__(self, rows: DetectionRows) -> DetectionRows:
        """Return the detections that reach the threshold, each with an identity."""
        rows = rows.chosen(np.flatnonzero(rows.scores >= self._thresholds.of(rows.category_ids)))
        overlap = ious(rows.boxes, self._before.boxes)
        overlap[rows.category_ids[:, None] != self._before.category_ids] = 0
        ids = []
        for number in range(len(rows.scores)):
            best = int(overlap[number].argmax()) if overlap.shape[1] else -1
            if best >= 0 and overlap[number, best] >= 0.3:
                ids.append(int(self._before.track_ids[best]))
                overlap[:, best] = 0
            else:
                self._count += 1
                ids.append(self._count)
        self._before = rows._replace(track_ids=np.array(ids, np.int64))
        return self._before


def byte_track_by_hand() -> Update:
    """Return ByteTrack of `trackers` with its default settings, for all classes together."""
    from supervision import Detections
    from trackers import ByteTrackTracker

    tracker = ByteTrackTracker(frame_rate=FRAMES_PER_SECOND)

    def update(rows: DetectionRows) -> DetectionRows:
        xyxy = rows.boxes[:, [1, 0, 3, 2]].astype(np.float64)
        tracked = tracker.update(
            Detections(xyxy=xyxy, confidence=rows.scores, data={"row": np.arange(len(rows.scores))})
        )
        which = tracked.tracker_id >= 0
        numbers = np.asarray(tracked.data.get("row", np.zeros(0)))[which].astype(np.int64)
        return rows.chosen(numbers)._replace(track_ids=tracked.tracker_id[which] + 1)

    return update


def measured(known: list[list[KnownBox]], tracked: list[DetectionRows]) -> Numbers:
    """Compare tracks with the known ones; an object may have tracks of its own class only."""
    import motmetrics
    from trackeval.metrics import CLEAR, HOTA, Identity

    accumulator = motmetrics.MOTAccumulator(auto_id=True)
    known_numbers = {number: index for index, number in enumerate(sorted({one.track_id for f in known for one in f}))}
    numbers = {number: index for index, number in enumerate(sorted({n for rows in tracked for n in rows.track_ids}))}
    data: dict[str, Any] = {"gt_ids": [], "tracker_ids": [], "similarity_scores": []}
    for objects, rows in zip(known, tracked, strict=True):
        boxes = np.array([one.box for one in objects]).reshape(-1, 4)
        boxes = np.concatenate((boxes[:, 1::-1], boxes[:, 1::-1] + boxes[:, :1:-1]), axis=1)
        overlap = ious(boxes, rows.boxes)
        overlap[np.array([one.category_id for one in objects], int)[:, None] != rows.category_ids] = 0
        data["gt_ids"].append(np.array([known_numbers[one.track_id] for one in objects], int))
        data["tracker_ids"].append(np.array([numbers[number] for number in rows.track_ids], int))
        data["similarity_scores"].append(overlap)
        accumulator.update(data["gt_ids"][-1], data["tracker_ids"][-1], np.where(overlap >= _IOU, 1 - overlap, np.nan))
    data |= {"num_timesteps": len(known), "num_gt_ids": len(known_numbers), "num_tracker_ids": len(numbers)}
    data["num_gt_dets"] = sum(map(len, data["gt_ids"]))
    data["num_tracker_dets"] = sum(map(len, data["tracker_ids"]))
    hota = float(np.mean(HOTA().eval_sequence(data)["HOTA"]))
    clear = CLEAR({"THRESHOLD": _IOU, "PRINT_CONFIG": False}).eval_sequence(data)
    identity = Identity({"THRESHOLD": _IOU, "PRINT_CONFIG": False}).eval_sequence(data)
    theirs = motmetrics.metrics.create().compute(accumulator, metrics=["mota", "idf1", "num_switches"]).iloc[0]
    return Numbers(hota, clear["MOTA"], identity["IDF1"], clear["IDSW"], tuple(map(float, theirs)))


def main() -> None:
    """Print a table of the methods."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="Number of drawn videos.")
    parser.add_argument("--frames", type=int, default=250, help="Frames of each.")
    parser.add_argument("--model", help="Detector. Default: drawn detections of drawn objects.")
    parser.add_argument("--images", type=Path, help="Folder of the photos.")
    parser.add_argument("--labels", type=Path, help="COCO file with their labels.")
    parser.add_argument("--photos", type=int, default=10, help="Number of photos, from the first.")
    options = parser.parse_args()
    thresholds, detector = ScoreThresholds(overall=THRESHOLD), None
    videos: list[Sequence | MovingView] = [Sequence(frames=options.frames, seed=seed) for seed in range(options.seeds)]
    if options.model:
        import efficientdet

        detector, labels = efficientdet.load_detector(options.model), json.loads(options.labels.read_text())
        thresholds = detector.thresholds
        names = [one["file_name"] for one in labels["images"][: options.photos]]
        videos = [MovingView(options.images / name, labels) for name in names]
    methods: dict[str, Callable[[], Update]] = {
        "greedy IoU": lambda: GreedyIou(thresholds),
        "ByteTrack, its settings": byte_track_by_hand,
        "--track": lambda: Tracker(thresholds, frames_per_second=FRAMES_PER_SECOND).update,
    }
    results: dict[str, list[Numbers]] = {name: [] for name in methods}
    for seed, video in enumerate(videos):
        random, known, detections = np.random.default_rng(seed), [], []
        for pixels, boxes in video:
            known.append(boxes)
            detections.append(
                detector.detect([pixels])[0] if detector else drawn_detections(boxes, pixels.shape[:2], random)
            )
        for name, create in methods.items():
            update = create()
            results[name].append(measured(known, [update(rows) for rows in detections]))
    print("| method | HOTA | MOTA | IDF1 | switches | motmetrics: MOTA | IDF1 | switches |\n" + "|---" * 8 + "|")
    for name, numbers in results.items():
        rows = [(*one[:4], *one.motmetrics) for one in numbers]
        cells = [
            f"{mean:.3f} ± {spread:.3f}" if column % 4 < 3 and column != 6 else f"{mean:.1f}"
            for column, (mean, spread) in enumerate(zip(np.mean(rows, 0), np.std(rows, 0), strict=True))
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
