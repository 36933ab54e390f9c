"""`infer.py --track`: identities in annotated videos, messages."""

import json
import re

import cv2
import numpy as np
import pytest
from color_artifact import write_color_artifact

import efficientdet
from dataset.class_names import ClassNames
from efficientdet.inference.detect import Detector
from efficientdet.plugins.streams.video import annotate_video
from object_detection.coco.results import DetectionRows

NAMES = ClassNames((3, 8), ("cat", "dog"))
FRAMES, HEIGHT, WIDTH = 30, 120, 160


def write_video(path, color, frames=FRAMES):
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 25.0, (WIDTH, HEIGHT))
    for _ in range(frames):
        writer.write(np.full((HEIGHT, WIDTH, 3), color[::-1], np.uint8))
    writer.release()
    return path


@pytest.fixture
def gray_video(tmp_path):
    return write_video(tmp_path / "gray.mp4", (128, 128, 128))


def walking_dog():
    """A detector of a dog that walks to the right, 4 pixels a frame, and of a cat with a low score that sits."""
    places = iter(range(0, 4 * FRAMES, 4))

    def detect(images):
        boxes = [[[40, x, 80, x + 40], [0, 0, 30, 30]] for x in (next(places) for _ in images)]
        return [
            DetectionRows.of_image(np.array(one, np.float32), np.array([0.9, 0.3], np.float32), np.array([8, 3]))
            for one in boxes
        ]

    return Detector(detect, NAMES)


def frames_of(path):
    source, frames = cv2.VideoCapture(str(path)), []
    while (read := source.read())[0]:
        frames.append(read[1][..., ::-1].astype(int))
    source.release()
    return frames


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_video_is_annotated_with_its_tracks(gray_video, tmp_path, capsys, batch_size):
    found = []
    annotate_video(
        walking_dog(),
        str(gray_video),
        tmp_path / "out" / "gray.mp4",
        batch_size=batch_size,
        track=True,
        on_frame=lambda one: found.append((one.rows.track_ids.tolist(), one.rows.category_ids.tolist())),
    )
    assert found == [([], [])] + [([1], [8])] * (FRAMES - 1)
    assert capsys.readouterr().out.splitlines()[-1] == f"{gray_video}: tracks: 1 (dog 1)"
    drawn = frames_of(tmp_path / "out" / "gray.mp4")
    assert len(drawn) == FRAMES
    for number in (5, 25):  # the box of the dog has the color of its identity
        assert np.abs(drawn[number][60, 4 * number : 4 * number + 2] - 128).max() > 60


def test_two_videos_have_their_own_tracks_and_messages(tmp_path, capsys):
    model = write_color_artifact(tmp_path / "colors.onnx")
    videos = [write_video(tmp_path / f"{name}.mp4", (250, 0, 10), frames=5) for name in "ab"]
    out = efficientdet.infer(
        videos,
        tmp_path / "out",
        model=model,
        track=True,
        format=["coco"],
        json_lines=tmp_path / "lines.jsonl",
    )
    shown = capsys.readouterr().out
    assert len(re.findall(r"[ab]\.mp4: tracks: 1 \(red 1\)\n", shown)) == 2
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*.*") if path.name[0] != ".") == [
        "a.mp4",
        "b.mp4",
        "coco.json",
    ]
    annotations = json.loads((out / "coco.json").read_text())["annotations"]
    assert [one["track_id"] for one in annotations] == [1] * 8
    messages = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [[one["track_id"] for one in message["detections"]] for message in messages] == [[], *[[1]] * 4] * 2


def test_a_video_file_is_tracked_in_python(tmp_path):
    model = write_color_artifact(tmp_path / "colors.onnx")
    video = write_video(tmp_path / "a.mp4", (250, 0, 10), frames=4)
    detector = efficientdet.load_detector(model)
    by_name = [one.track_ids.tolist() for one in detector.track(video)]
    by_frame = [one.track_ids.tolist() for one in detector.track(efficientdet.read_frames(video))]
    assert by_name == by_frame == [[], [1], [1], [1]]
