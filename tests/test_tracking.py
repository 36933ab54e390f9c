"""Tracks: identities against the library called by hand, counts by hand, the track file read back."""

import pickle
from contextlib import closing

import numpy as np
import pytest

import efficientdet
from dataset.class_names import ClassNames
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.inference.detect import Detector
from efficientdet.inference.video_frames import TrackSettings
from efficientdet.plugins.streams.lines_and_zones import TrackCounts
from efficientdet.plugins.streams.tracker import Tracker, require_trackers
from efficientdet.plugins.streams.tracks import VideoTracks
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError

NAMES = ClassNames((1, 2, 9), ("ball", "fish", "star"))
SIZE = (240, 320)
FRAME = np.zeros((*SIZE, 3), np.uint8)
LIVE = {*range(1000)}


def detected(*objects, track_ids=None):
    """Detections of a frame, (x, y, width, height, score, category id) each."""
    values = np.array(objects, np.float64).reshape(-1, 6)
    boxes = np.stack([values[:, 1], values[:, 0], values[:, 1] + values[:, 3], values[:, 0] + values[:, 2]], axis=-1)
    rows = DetectionRows.of_image(
        boxes.astype(np.float32), values[:, 4].astype(np.float32), values[:, 5].astype(np.int64)
    )
    return rows if track_ids is None else rows._replace(track_ids=np.array(track_ids, np.int64))


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
    assert tracked.live_ids == {2}
    assert tracked.update(detected(), 9).track_ids.tolist() == []
    assert tracked.live_ids == set()


def test_memory_does_not_grow_with_the_number_of_tracks():
    tracks = VideoTracks(TrackSettings(lines=["0.5,0,0.5,1"], zones=["0,0,1,1"]), ScoreThresholds(), NAMES)
    sizes = []
    for number in range(600):  # a new object every 3 frames, on both sides of the line
        x = 20 + 100 * (number // 3 % 3)
        tracks.update(detected((x, 10, 40, 40, 0.9, (1, 2, 9)[number // 3 % 3])), FRAME, number * 0.5)
        if number % 300 == 299:
            sizes.append(len(pickle.dumps(tracks)))
    assert "tracks: 200" in str(tracks)
    assert sizes[1] < 1.02 * sizes[0]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^--track needs the package trackers: pip install -e '.\[track\]' && "):
        require_trackers(asked_by="--track")


# Lines and zones


def counted(counts, *places, track_id=1, side=20, category_id=1):
    """Move the center of an object through places."""
    for x, y in places:
        box = (x - side / 2, y - side / 2, side, side, 0.9, category_id)
        counts.update(detected(box, track_ids=[track_id]), NAMES, live_ids=LIVE, size=SIZE)


def line_counts(text, *places):
    counts = TrackCounts(lines=[text])
    counted(counts, *places)
    return counts.lines[0].entered.total(), counts.lines[0].left.total()


@pytest.mark.parametrize(
    ("line", "places", "expected"),
    [
        ("100,200,100,0", [(80, 100), (120, 100)], (1, 0)),  # upwards: to the right is in
        ("100,200,100,0", [(120, 100), (80, 100)], (0, 1)),
        ("100,0,100,200", [(80, 100), (120, 100)], (0, 1)),
        ("0,100,300,100", [(80, 80), (80, 120)], (1, 0)),  # to the right: downwards is in
        ("0.3125,1,0.3125,0", [(80, 100), (120, 100)], (1, 0)),  # 100 of 320 pixels
        ("100,200,100,0", [(80, 210), (120, 210)], (0, 0)),  # past its end
        ("100,200,100,0", [(80, 100), (80, 210), (120, 210), (120, 100)], (0, 0)),  # around its end
        ("100,200,100,0", [(80, 100), (101, 100), (99, 100), (101, 100), (80, 100)], (0, 0)),  # trembles on it
        ("100,200,100,0", [(80, 100), (101, 100), (99, 100), (120, 100)], (1, 0)),
        ("100,200,100,0", [(80, 100), (120, 100), (80, 100), (120, 100)], (2, 1)),
        ("100,200,100,0", [(120, 100), (150, 100)], (0, 0)),
        ("0,0,200,200", [(50, 20), (20, 50)], (1, 0)),
        ("200,200,0,0", [(50, 20), (20, 50)], (0, 1)),
    ],
)
def test_crossings_of_a_line(line, places, expected):
    assert line_counts(line, *places) == expected


def test_a_crossing_is_counted_where_the_object_was_hidden_at_the_line():
    counts = TrackCounts(lines=["gate:100,200,100,0"])
    counted(counts, (60, 100))
    for _ in range(10):
        counts.update(detected(track_ids=[]), NAMES, live_ids={1}, size=SIZE)
    counted(counts, (140, 100), category_id=1)
    counted(counts, (140, 100), (60, 100), track_id=2, category_id=9)
    assert str(counts) == "gate: in 1 (ball 1), out 1 (star 1)"
    assert counts.to_json()["lines"] == [{"name": "gate", "in": {"ball": 1}, "out": {"star": 1}}]


@pytest.mark.parametrize(
    ("zone", "inside", "outside"),
    [
        ("100,50,200,150", [(101, 51), (199, 149)], [(99, 100), (201, 100), (150, 49), (150, 151)]),
        ("200,150,100,50", [(101, 51), (199, 149)], [(99, 100), (201, 100)]),  # the other corners
        ("0.5,0.5,1,1", [(161, 121), (319, 239)], [(159, 121), (161, 119)]),
        ("0,0,200,0,0,200", [(10, 10), (98, 98)], [(102, 102), (190, 190)]),
        ("0,0,200,0,200,200,100,200,100,100,0,100", [(50, 50), (150, 150)], [(50, 150)]),  # an L
    ],
)
def test_places_in_a_zone(zone, inside, outside):
    for places, expected in ((inside, 1), (outside, 0)):
        for place in places:
            counts = TrackCounts(zones=[zone])
            counted(counts, place)
            assert counts.zones[0].inside.total() == expected, place


def test_visitors_of_a_zone_are_counted_once():
    counts = TrackCounts(zones=["yard:100,50,200,150", "0,0,10,10"])
    counted(counts, (50, 50), (150, 100), (50, 50), (150, 100))
    two = detected((110, 60, 20, 20, 0.9, 1), (150, 60, 20, 20, 0.9, 2), track_ids=[1, 2])
    counts.update(two, NAMES, live_ids=LIVE, size=SIZE)
    assert str(counts) == "yard: 2 (ball 1, fish 1), at most 2 at a time\nzone 2: 0, at most 0 at a time"
    counts.update(detected(track_ids=[]), NAMES, live_ids=LIVE, size=SIZE)
    assert counts.zones[0].inside.total() == 0
    assert counts.zones[0].visitors == {"ball": 1, "fish": 1}


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("lines", "1,2,3", "expected [NAME:]X1,Y1,X2,Y2"),
        ("lines", "5,5,5,5", "two different points"),
        ("lines", "1,2,3,4,5,6", "two different points"),
        ("lines", "0,0,1e9,1", "expected [NAME:]X1,Y1,X2,Y2"),
        ("lines", "0.5,0,320,240", "mixes pixels and fractions"),
        ("lines", "gate\nof:0,0,1,1", "expected [NAME:]X1,Y1,X2,Y2"),
        ("zones", "0,0", "has no area"),
        ("zones", "0,0,0,9", "has no area"),
        ("zones", "0,0,1", "expected [NAME:]X1,Y1,X2,Y2 (a rectangle)"),
        ("zones", ",".join(["1", "2"] * 101), "has no area"),
    ],
)
def test_refuses_other_lines_and_zones(kind, text, message):
    with pytest.raises(InputError) as raised:
        TrackCounts(**{kind: [text]})
    assert message in str(raised.value)
    assert str(raised.value).startswith("--count_line=" if kind == "lines" else "--zone=")


def test_refuses_two_of_a_name_and_places_outside_the_frame():
    with pytest.raises(InputError, match="two lines or zones have the name 'a'"):
        TrackCounts(lines=["a:0,0,1,1"], zones=["a:0,0,1,1"])
    with pytest.raises(InputError, match="zone 1: lies outside the frames, which have 320x240 pixels"):
        counted(TrackCounts(zones=["400,10,500,90"]), (1, 1))


# Track files


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The track file of 60 drawn frames, and what was tracked in each."""
    folder = tmp_path_factory.mktemp("tracks") / "mot"
    settings = TrackSettings(zones=["all:0,0,1,1"], mot_folder=folder)
    tracks = VideoTracks(settings, ScoreThresholds(), NAMES)
    rows = []
    for number, (found, _) in enumerate(moving_boxes(60, objects=12, seed=1)):
        found = found.chosen(np.arange(len(found.scores)) != number % 17)  # gaps in tracks
        rows.append(tracks.update(found, FRAME, number / 25))
    assert tracks.write("drawn") == [folder / "drawn.txt"]
    tracks.close()
    return folder, rows


def expected_boxes(rows):
    """(frame from 1, track id, x, y, x_max, y_max) of all tracked detections."""
    return sorted(
        (frame, track_id, *np.round([box[1], box[0], box[3], box[2]], 1).tolist())
        for frame, found in enumerate(rows, start=1)
        for track_id, box in zip(found.track_ids.tolist(), found.boxes.tolist(), strict=True)
    )


def test_the_mot_file_is_what_its_tools_read(written):
    from trackers import load_mot_file

    folder, rows = written
    read = load_mot_file(folder / "drawn.txt")
    boxes = sorted(
        (frame, int(track_id), *np.round([x, y, x + width, y + height], 1).tolist())
        for frame, data in read.items()
        for track_id, (x, y, width, height) in zip(data.ids, data.boxes, strict=True)
    )
    assert boxes == expected_boxes(rows)
    assert min(frame for frame, *_ in boxes) == 2  # a track begins with its second detection
    first = (folder / "drawn.txt").read_text().splitlines()[0].split(",")
    assert first[:2] == ["2", "1"]
    assert first[7:] == ["-1", "-1", "-1"]


def test_a_track_file_that_cannot_be_written_is_named(tmp_path):
    tracks = VideoTracks(TrackSettings(mot_folder=tmp_path / "mot"), ScoreThresholds(), NAMES)
    (tmp_path / "mot").write_text("a file")
    with closing(tracks), pytest.raises(InputError, match=r"drawn.txt: cannot be written"):
        tracks.write("drawn")


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
    counts = TrackCounts(zones=["0,0,1,1"])
    results = list(detector(batch_size).track(iter(frames), counts=counts))
    assert [one.track_ids.tolist() for one in results] == [rows.track_ids.tolist() for rows in by_hand]
    assert len(results[-1]) >= 5
    assert counts.zones[0].visitors.total() == max(max(one.track_ids, default=0) for one in results)
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
