"""Videos."""

import cv2
import numpy as np
import pytest

from dataset.class_names import ClassNames
from efficientdet.inference.video import VideoConfig, annotate_video
from object_detection.coco_results import DetectionRows
from object_detection.errors import InputError

NAMES = ClassNames((3, 8), ("cat", "dog"))
FRAMES, HEIGHT, WIDTH = 7, 96, 128


@pytest.fixture
def grey_video(tmp_path):
    """Seven grey frames at 12.5 a second."""
    path = tmp_path / "grey.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 12.5, (WIDTH, HEIGHT))
    for _ in range(FRAMES):
        writer.write(np.full((HEIGHT, WIDTH, 3), 128, np.uint8))
    writer.release()
    return path


def one_dog(images):
    """In each image a dog, and a cat whose score is too low to be drawn."""
    return [DetectionRows.of_image(np.array([[30, 40, 80, 110], [0, 0, 9, 9]], np.float32), np.array([0.9, 0.3], np.float32),
                                   np.array([8, 3])) for _ in images]


def frames_of(path):
    source = cv2.VideoCapture(str(path))
    rate, frames = source.get(cv2.CAP_PROP_FPS), []
    while (read := source.read())[0]:
        frames.append(read[1][..., ::-1].astype(int))
    source.release()
    return rate, frames


def test_every_frame_is_drawn_at_the_rate_of_the_source(grey_video, tmp_path):
    batches = []

    def detect(images):
        batches.append([image.shape for image in images])
        return one_dog(images)

    target = tmp_path / "out" / "drawn.mp4"
    annotate_video(VideoConfig(source=str(grey_video), output_video=str(target), batch_size=3), detect, NAMES)
    assert batches == [[(HEIGHT, WIDTH, 3)] * 3, [(HEIGHT, WIDTH, 3)] * 3, [(HEIGHT, WIDTH, 3)]]
    rate, frames = frames_of(target)
    assert rate == pytest.approx(12.5)
    assert len(frames) == FRAMES
    changed = np.abs(frames[0] - 128).max(axis=-1) > 40
    assert changed[30:80, 40:110].any()
    assert not changed[:8, :8].any()  # the cat
    assert list(target.parent.iterdir()) == [target]


def test_colours_keep_their_order(tmp_path):
    seen = []

    def detect(images):
        seen.append(images[0])
        return one_dog(images)

    red = tmp_path / "red.mp4"
    writer = cv2.VideoWriter(str(red), cv2.VideoWriter_fourcc(*"mp4v"), 10, (WIDTH, HEIGHT))
    writer.write(np.full((HEIGHT, WIDTH, 3), (0, 0, 255), np.uint8))  # BGR
    writer.release()
    target = tmp_path / "drawn.mp4"
    annotate_video(VideoConfig(source=str(red), output_video=str(target)), detect, NAMES)
    for image in (seen[0], frames_of(target)[1][0]):
        assert image[90, 10, 0] > 200
        assert image[90, 10, 2] < 60


def test_a_file_that_is_no_video_is_named(tmp_path):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video" * 100)
    with pytest.raises(InputError, match=r"broken\.mp4: cannot be read as a video"):
        annotate_video(VideoConfig(source=str(broken), output_video=str(tmp_path / "a.mp4")), one_dog, NAMES)
    assert list(tmp_path.iterdir()) == [broken]


def test_an_error_leaves_nothing_behind(grey_video, tmp_path):
    def detect(images):
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        annotate_video(VideoConfig(source=str(grey_video), output_video=str(tmp_path / "a.mp4")), detect, NAMES)
    assert list(tmp_path.iterdir()) == [grey_video]
