"""Clips of events, from video files and from frames with times as a camera sends them."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from dataset.class_names import ClassNames
from efficientdet.inference.detect import Detector
from efficientdet.inference.video_frames import FrameDetections, VideoFrame
from efficientdet.plugins.streams import video_files as event_clips
from efficientdet.plugins.streams.video import annotate_video
from efficientdet.plugins.streams.video_files import EventRecorder
from object_detection.coco.results import DetectionRows

NAMES = ClassNames((3, 8), ("cat", "dog"))
HEIGHT, WIDTH = 48, 64
START = datetime(2026, 11, 27, 23, 59, 58, tzinfo=UTC)


def rows_of(*ids):
    """One detection of each category, with scores 0.9, 0.8 and so on."""
    scores = np.float32([0.9 - 0.1 * index for index in range(len(ids))])
    return DetectionRows.of_image(np.float32([[5, 5, 20, 30]] * len(ids)).reshape(-1, 4), scores, np.array(ids, int))


def dogs_in_bright_images(images):
    return [rows_of(8) if image.mean() > 100 else rows_of() for image in images]


def write_video(path, pattern):
    """At 10 frames a second, a bright frame for each # and a dark one for each dot."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 10, (WIDTH, HEIGHT))
    for sign in pattern:
        writer.write(np.full((HEIGHT, WIDTH, 3), 200 if sign == "#" else 20, np.uint8))
    writer.release()


def clip_of(path):
    """Return the clip as signs, one for each frame."""
    source, signs = cv2.VideoCapture(str(path)), ""
    while (read := source.read())[0]:
        signs += "#" if np.median(read[1]) > 100 else "."
    source.release()
    return signs


def clips_in(folder):
    return {path.stem: clip_of(path) for path in sorted(folder.glob("*.mp4"))}


def test_a_clip_shows_the_time_around_each_event(tmp_path, capsys):
    write_video(tmp_path / "a.mp4", "." * 15 + "###.....##" + "." * 20 + "#")
    folder = tmp_path / "out"
    annotate_video(
        Detector(dogs_in_bright_images, NAMES),
        str(tmp_path / "a.mp4"),
        folder,
        batch_size=4,
        save="events",
        event_seconds=1,
    )
    # The gap of 5 frames is within the event; a frame 1.0 s before the first detection is in the clip
    assert clips_in(folder) == {"00-00-01": "." * 10 + "###.....##" + "." * 10, "00-00-04": "." * 10 + "#"}
    first = json.loads((folder / "00-00-01.json").read_text())
    assert first == {
        "source": str(tmp_path / "a.mp4"),
        "video": "00-00-01.mp4",
        "start": None,
        "end": None,
        "start_seconds": 1.5,
        "end_seconds": 2.4,
        "video_start_seconds": 0.5,
        "objects": [{"class": "dog", "category_id": 8, "best_score": pytest.approx(0.9), "most_at_once": 1}],
    }
    assert len(list(folder.iterdir())) == 4
    printed = capsys.readouterr().out
    assert f"wrote {folder}/00-00-01.mp4 (0:03; dog 0.90)" in printed
    assert f"2 events; {folder}" in printed


def test_clips_of_an_earlier_run_with_a_file_are_removed(tmp_path):
    for pattern in ("#" + "." * 50 + "#", "..#"):
        write_video(tmp_path / "a.mp4", pattern)
        annotate_video(
            Detector(dogs_in_bright_images, NAMES),
            str(tmp_path / "a.mp4"),
            tmp_path / "out",
            save="events",
            event_seconds=0.5,
        )
    assert clips_in(tmp_path / "out") == {"00-00-00": "..#"}


def test_a_long_event_continues_in_another_clip(tmp_path, monkeypatch):
    monkeypatch.setattr(event_clips, "_LONGEST_CLIP_SECONDS", 1)
    write_video(tmp_path / "a.mp4", "#" * 25)
    annotate_video(Detector(dogs_in_bright_images, NAMES), str(tmp_path / "a.mp4"), tmp_path / "out", save="events")
    found = clips_in(tmp_path / "out")
    assert "".join(found.values()) == "#" * 25
    assert [len(signs) for signs in found.values()] == [11, 11, 3]


def camera_frame(seconds, *ids, size=(HEIGHT, WIDTH)):
    """A frame of a camera that is bright if it has detections."""
    pixels = np.full((*size, 3), 200 if ids else 20, np.uint8)
    return FrameDetections(VideoFrame(1, seconds, START + timedelta(seconds=seconds), pixels), rows_of(*ids))


def recorder_of(folder):
    source = SimpleNamespace(name="rtsp://user:secret@host/1", is_live=True, frames_per_second=10.0)
    return EventRecorder(folder, source, NAMES, seconds=1)


def add(recorder, *frames):
    for found in frames:
        recorder.add(found, lambda found=found: found.frame.pixels)


def test_clips_of_a_camera_have_the_time_in_utc_and_the_duration_of_the_recording(tmp_path, capsys):
    recorder = recorder_of(tmp_path)
    # Two frames a second: each is repeated in a clip of 10 frames a second
    add(recorder, *(camera_frame(second / 2) for second in range(5)), camera_frame(2.5, 8), camera_frame(3.0, 8, 3, 3))
    recorder.interrupt()  # the camera is gone; its clip exists
    assert {stem: len(signs) for stem, signs in clips_in(tmp_path).items()} == {"2026-11-28T00-00-00Z": 15}
    found = json.loads((tmp_path / "2026-11-28T00-00-00Z.json").read_text())
    assert (found["source"], found["start"], found["end"]) == (
        "rtsp://host/1",
        "2026-11-28T00:00:00.500Z",
        "2026-11-28T00:00:01.000Z",
    )
    assert [(one["class"], one["most_at_once"]) for one in found["objects"]] == [("dog", 1), ("cat", 2)]
    # Hours later with another size; a second recorder keeps the clips of the first
    add(recorder, camera_frame(9000.0, size=(96, 128)), camera_frame(9000.5, 8, size=(HEIGHT, WIDTH)))
    recorder.complete()
    again = recorder_of(tmp_path)
    add(again, camera_frame(2.5, 8))
    (tmp_path / "2026-11-28T00-00-00Z-2.mp4").write_text("of another program, for another camera of this host")
    again.complete()
    names = {path.name for path in tmp_path.glob("*.mp4")}
    assert names == {f"2026-11-28T{name}.mp4" for name in ("00-00-00Z", "00-00-00Z-2", "00-00-00Z-3", "02-29-58Z")}
    assert "another" in (tmp_path / "2026-11-28T00-00-00Z-2.mp4").read_text()
    assert "secret" not in capsys.readouterr().out


def test_memory_for_frames_before_an_event_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(event_clips, "_MAX_EARLIER_BYTES", 3000)  # of these frames some have this size
    recorder = recorder_of(tmp_path)
    add(recorder, *(camera_frame(second / 50) for second in range(50)), camera_frame(1.0, 8))
    recorder.complete()
    [record] = tmp_path.glob("*.json")
    assert 0.5 < json.loads(record.read_text())["video_start_seconds"] < 1


def test_an_error_leaves_no_unfinished_clip(tmp_path):
    recorder = recorder_of(tmp_path)
    add(recorder, camera_frame(0.0, 8))
    assert [path.name for path in tmp_path.iterdir()] != []
    recorder.close()
    assert list(tmp_path.iterdir()) == []
