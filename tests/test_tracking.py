"""Tracks: identities against the library called by hand."""

import pickle

import numpy as np
import pytest

import efficientdet
from dataset.class_names import ClassNames
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.inference.detect import Detector
from efficientdet.plugins.streams.tracks import Tracker, require_trackers
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError

NAMES = ClassNames((1, 2, 9), ("ball", "fish", "star"))
SIZE = (240, 320)
FRAME = np.zeros((*SIZE, 3), np.uint8)


def detected(*objects):
    """Detections of a frame, (x, y, width, height, score, category id) each."""
    values = np.array(objects, np.float64).reshape(-1, 6)
    boxes = np.stack([values[:, 1], values[:, 0], values[:, 1] + values[:, 3], values[:, 0] + values[:, 2]], axis=-1)
    return DetectionRows.of_image(
        boxes.astype(np.float32), values[:, 4].astype(np.float32), values[:, 5].astype(np.int64)
    )


def moving_boxes(frames, *, objects=9, seed=0):
    """Yield (detections, their object) of crossing boxes; later ones hide earlier ones, which lowers scores."""
    random, moving, count = np.random.default_rng(seed), [], 0
    for frame in range(frames):
        moving = [(x + step, *rest, step) for x, *rest, step in moving if -rest[2] < x + step < SIZE[1]]
        while len(moving) < objects:
            (height, width), count, speed = random.integers(40, 80, 2), count + 1, random.uniform(1, 3)
            x, step = (1 - width, speed) if count % 2 else (SIZE[1] - 1, -speed)
            x = x if frame else random.integers(0, 240)
            moving.append((x, random.integers(0, 160), height, width, int(random.choice([1, 2, 9])), count, step))
        shown, known = np.zeros(SIZE, int), []
        for x, y, height, width, category_id, number, _ in sorted(moving, key=lambda one: one[5]):
            left, right = max(round(x), 0), min(round(x) + width, SIZE[1])
            shown[y : y + height, left:right] = number
            known.append(((left, y, right - left, height), height * width, category_id, number))
        shares = [(shown == number).sum() / area for _, area, _, number in known]
        rows = [
            (*box, 0.27 + 0.63 * share, category_id, number)
            for (box, _, category_id, number), share in zip(known, shares, strict=True)
            if share >= 0.25
        ]
        yield detected(*(row[:6] for row in rows)), [row[6] for row in rows]


def tracker(threshold=0.4):
    return Tracker(ScoreThresholds(overall=threshold), frames_per_second=25)


# Identities


def test_identities_are_those_of_the_library_called_by_hand():
    from supervision import Detections
    from trackers import ByteTrackTracker

    ours = tracker(0.5)
    theirs = ByteTrackTracker(frame_rate=25, track_activation_threshold=0.5, high_conf_det_threshold=0.5)
    compared = 0
    for number, (rows, _) in enumerate(moving_boxes(120, objects=14)):
        rows = rows._replace(category_ids=np.ones_like(rows.category_ids))
        xyxy = rows.boxes[:, [1, 0, 3, 2]].astype(np.float64)
        result = theirs.update(Detections(xyxy=xyxy, confidence=rows.scores), timestamp=number / 25)
        tracked = ours.update(rows, number / 25)
        expected = {
            track_id + 1: box  # the library counts from 0
            for box, track_id in zip(result.xyxy.tolist(), result.tracker_id.tolist(), strict=True)
            if track_id >= 0
        }
        boxes = tracked.boxes[:, [1, 0, 3, 2]].tolist()
        assert dict(zip(tracked.track_ids.tolist(), boxes, strict=True)) == expected
        compared += len(boxes)
    assert compared > 800
    assert max(expected) > 10


def test_classes_have_their_own_tracks():
    tracked = tracker()
    for _ in range(3):
        rows = tracked.update(detected((10, 10, 50, 50, 0.9, 1), (12, 10, 50, 50, 0.8, 2)))
    assert rows.category_ids.tolist() == [1, 2]
    assert len({*rows.track_ids.tolist()}) == 2
    alternating = [tracked.update(detected((10, 10, 50, 50, 0.9, 1 + number % 2))) for number in range(4)]
    assert [one.track_ids.tolist() for one in alternating] == [[rows.track_ids[number % 2]] for number in range(4)]


def test_low_scores_continue_a_track_and_begin_none():
    tracked = Tracker(ScoreThresholds(overall=0.9, by_category={2: 0.5}))
    scores = [(0.95, 0.4), (0.95, 0.4), (0.5, 0.4), (0.5, 0.6), (0.95, 0.6), (0.4, 0.6)]
    rows = [tracked.update(detected((10, 10, 50, 50, one, 1), (100, 90, 50, 50, two, 2))) for one, two in scores]
    assert [one.category_ids.tolist() for one in rows] == [[], [1], [1], [1], [1, 2], [2]]
    assert [one.track_ids.tolist() for one in rows] == [[], [1], [1], [1], [1, 2], [2]]


def test_a_track_ends_after_a_second():
    tracked, box = tracker(), (10, 10, 50, 50, 0.9, 1)
    times = [0, 0.04, 0.9, 1.0, 2.5, 2.54, 2.5, 2.5]  # the last ones do not increase
    ids = [tracked.update(detected(box), seconds).track_ids.tolist() for seconds in times]
    assert ids == [[], [1], [1], [1], [], [2], [2], [2]]
    assert tracked.update(detected(), 9).track_ids.tolist() == []


def test_memory_does_not_grow_with_the_number_of_tracks():
    tracks = Tracker(ScoreThresholds())
    sizes = []
    for number in range(600):  # a new object every 3 frames
        x = 20 + 100 * (number // 3 % 3)
        tracks.update(detected((x, 10, 40, 40, 0.9, (1, 2, 9)[number // 3 % 3])), number * 0.5)
        if number % 300 == 299:
            sizes.append(len(pickle.dumps(tracks)))
    assert tracks.totals.total() == 200
    assert sizes[1] < 1.02 * sizes[0]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^--track needs the package trackers: pip install -e '.\[track\]' && "):
        require_trackers(asked_by="--track")


# Pictures and Python


def detector(batch_size=1):
    """A detector that finds moving boxes, frame by frame."""
    found = (rows for rows, _ in moving_boxes(20))
    return Detector(lambda images: [next(found) for _ in images], NAMES, batch_size=batch_size)


@pytest.mark.parametrize("batch_size", [1, 7])
def test_frames_are_tracked_in_python(batch_size):
    frames = [FRAME] * 20
    expected = tracker()
    by_hand = [expected.update(rows) for rows, _ in moving_boxes(20)]
    results = list(detector(batch_size).track(iter(frames)))
    assert [one.track_ids.tolist() for one in results] == [rows.track_ids.tolist() for rows in by_hand]
    assert len(results[-1]) >= 5
    assert f"#{results[-1].track_ids[0]} 0." in repr(results[-1])
    assert [row["track_id"] for row in results[-1].to_coco()] == results[-1].track_ids.tolist()
    assert results[-1].to_supervision().tracker_id.tolist() == results[-1].track_ids.tolist()
    assert (np.asarray(results[-1].draw()) != frames[-1]).any()


@pytest.mark.parametrize(
    ("frames", "arguments", "message"),
    [
        (FRAME, {}, r"^frames is one image \[240, 320, 3\]; expected several frames$"),
        ([np.zeros(3)], {}, r"^image 0 is float64 \[3\]; expected uint8"),
        ([FRAME], {"frames_per_second": 0}, r"^frames_per_second=0: expected a finite number above 0$"),
        ("a.mp4", {}, r"^a.mp4: only a detector of load_detector reads videos; pass the frames$"),
    ],
)
def test_refuses_other_frames(frames, arguments, message):
    with pytest.raises(efficientdet.InputError, match=message):
        list(detector().track(frames, **arguments))
