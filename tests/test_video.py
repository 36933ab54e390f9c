"""Videos, and cameras."""

import os
import resource
import signal
import threading
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from dataset.class_names import ClassNames
from efficientdet.inference.detect import Detector
from efficientdet.plugins.streams import video_source
from efficientdet.plugins.streams.video import annotate_video
from efficientdet.plugins.streams.video_files import VideoFile
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError

NAMES = ClassNames((3, 8), ("cat", "dog"))
FRAMES, HEIGHT, WIDTH = 7, 96, 128


@pytest.fixture
def gray_video(tmp_path):
    """Seven gray frames at 12.5 a second."""
    path = tmp_path / "gray.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 12.5, (WIDTH, HEIGHT))
    for _ in range(FRAMES):
        writer.write(np.full((HEIGHT, WIDTH, 3), 128, np.uint8))
    writer.release()
    return path


def one_dog(images):
    """In each image a dog, and a cat whose score is too low to be drawn."""
    return [
        DetectionRows.of_image(
            np.array([[30, 40, 80, 110], [0, 0, 9, 9]], np.float32), np.array([0.9, 0.3], np.float32), np.array([8, 3])
        )
        for _ in images
    ]


def frames_of(path):
    source = cv2.VideoCapture(str(path))
    rate, frames = source.get(cv2.CAP_PROP_FPS), []
    while (read := source.read())[0]:
        frames.append(read[1][..., ::-1].astype(int))
    source.release()
    return rate, frames


def test_every_frame_is_drawn_at_the_rate_of_the_source(gray_video, tmp_path):
    batches = []

    def detect(images):
        batches.append([image.shape for image in images])
        return one_dog(images)

    target = tmp_path / "out" / "drawn.mp4"
    annotate_video(Detector(detect, NAMES), str(gray_video), target, batch_size=3)
    assert batches == [[(HEIGHT, WIDTH, 3)] * 3, [(HEIGHT, WIDTH, 3)] * 3, [(HEIGHT, WIDTH, 3)]]
    rate, frames = frames_of(target)
    assert rate == pytest.approx(12.5)
    assert len(frames) == FRAMES
    changed = np.abs(frames[0] - 128).max(axis=-1) > 40
    assert changed[30:80, 40:110].any()
    assert not changed[:8, :8].any()  # the cat
    assert list(target.parent.iterdir()) == [target]


def test_colors_keep_their_order(tmp_path):
    seen = []

    def detect(images):
        seen.append(images[0])
        return one_dog(images)

    red = tmp_path / "red.mp4"
    writer = cv2.VideoWriter(str(red), cv2.VideoWriter_fourcc(*"mp4v"), 10, (WIDTH, HEIGHT))
    writer.write(np.full((HEIGHT, WIDTH, 3), (0, 0, 255), np.uint8))  # BGR
    writer.release()
    target = tmp_path / "drawn.mp4"
    annotate_video(Detector(detect, NAMES), str(red), target)
    for image in (seen[0], frames_of(target)[1][0]):
        assert image[90, 10, 0] > 200
        assert image[90, 10, 2] < 60


def test_a_file_that_is_no_video_is_named(tmp_path):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video" * 100)
    with pytest.raises(InputError, match=r"broken\.mp4: cannot be read as a video"):
        annotate_video(Detector(one_dog, NAMES), str(broken), tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == [broken]


def test_a_video_that_was_cut_short_is_told(tmp_path, capsys):
    writer = cv2.VideoWriter(str(tmp_path / "whole.mkv"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (WIDTH, HEIGHT))
    for _ in range(20):
        writer.write(np.full((HEIGHT, WIDTH, 3), 128, np.uint8))
    writer.release()
    content = (tmp_path / "whole.mkv").read_bytes()
    (tmp_path / "cut.mkv").write_bytes(content[: len(content) // 2])
    told = {}
    for name in ("whole", "cut"):
        annotate_video(Detector(one_dog, NAMES), str(tmp_path / f"{name}.mkv"), tmp_path / "a.mp4")
        told[name] = capsys.readouterr().out
    assert "is the file complete?" not in told["whole"]
    found = len(frames_of(tmp_path / "a.mp4")[1])
    assert 5 < found < 15
    assert f"cut.mkv: only {found} of 20 frames could be decoded; is the file complete?" in told["cut"]


def test_an_error_leaves_nothing_behind(gray_video, tmp_path):
    def detect(images):
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        annotate_video(Detector(detect, NAMES), str(gray_video), tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == [gray_video]


def test_a_full_disk_leaves_the_earlier_video(tmp_path):
    """OpenCV reports no error; here no file can grow beyond 20 kB."""
    noise = np.random.default_rng(0).integers(0, 256, (FRAMES, HEIGHT, WIDTH, 3), np.uint8)
    writer = cv2.VideoWriter(str(tmp_path / "noise.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10, (WIDTH, HEIGHT))
    for frame in noise:
        writer.write(frame)
    writer.release()
    (tmp_path / "out.mp4").write_text("the earlier one")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"out\.mp4: \d of 7 frames could be written; is the disk full\?"):
            annotate_video(Detector(one_dog, NAMES), str(tmp_path / "noise.mp4"), tmp_path / "out.mp4")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "out.mp4").read_text() == "the earlier one"


class Camera:
    """Shows a number of gray frames, each after `film` has had the detections of the one before."""

    def __init__(self, frames):
        self.left, self.released, self.asked = frames, threading.Event(), threading.Semaphore(1)

    def isOpened(self):
        return self.left >= 0

    def get(self, name):
        return 10.0 if name == cv2.CAP_PROP_FPS else -1.0

    def set(self, name, value):
        return True

    def read(self):
        assert self.asked.acquire(timeout=10)
        self.left -= 1
        return (True, np.full((HEIGHT, WIDTH, 3), 128, np.uint8)) if self.left >= 0 else (False, None)

    def release(self):
        self.released.set()


@pytest.fixture
def film(monkeypatch, tmp_path):
    """A function that films with a camera, a quarter of a second for each look at the clock -> rate and frames.

    Further cameras are found when the one before has broken off, after a moment without one.
    """
    monkeypatch.setattr(video_source, "_FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(video_source, "_FIRST_FRAME_SECONDS", 0)

    def film(*cameras, detect=one_dog):
        connected = iter([camera for one in cameras for camera in (one, Camera(-1))])

        def detect_and_ask(images):
            rows = detect(images)
            next(camera for camera in cameras if not camera.released.is_set()).asked.release()
            return rows

        clock = iter(np.arange(1000) * 0.25)
        with monkeypatch.context() as patch:
            read_file = cv2.VideoCapture
            patch.setattr(
                cv2, "VideoCapture", lambda source: next(connected, Camera(-1)) if source == 0 else read_file(source)
            )
            patch.setattr(video_source, "time", SimpleNamespace(monotonic=lambda: next(clock)))
            annotate_video(
                Detector(detect_and_ask, NAMES),
                0,
                tmp_path / "a.mp4",
                live=True,
                batch_size=4,
                max_offline_seconds=2,
            )
        for camera in cameras:
            camera.asked.release()
            assert camera.released.wait(10)
        return frames_of(tmp_path / "a.mp4")

    return film


def test_a_camera_is_filmed_for_as_long_as_it_was(film):
    sizes = []

    def detect(images):
        sizes.append(len(images))
        return one_dog(images)

    rate, frames = film(Camera(8), detect=detect)
    assert (rate, sizes) == (10, [1] * 8)
    assert len(frames) == 20  # two seconds


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_filming_and_the_file_is_finished(film, number, capsys, monkeypatch):
    def detect(images):
        seen.append(len(images))
        if len(seen) == 3:
            os.kill(os.getpid(), number)
            assert stopped.wait(10)
        return one_dog(images)

    seen, stopped = [], threading.Event()
    events = iter([stopped])  # the first one is that of the source
    threads = SimpleNamespace(
        Event=lambda: next(events, None) or threading.Event(),
        Condition=threading.Condition,
        Thread=threading.Thread,
    )
    monkeypatch.setattr(video_source, "threading", threads)
    _, frames = film(Camera(8), detect=detect)
    assert seen == [1] * 3
    assert len(frames) == 7
    assert "wrote " in capsys.readouterr().out


@pytest.mark.parametrize("frames", [0, -1])
def test_a_camera_that_is_not_there_is_one_line(film, frames, tmp_path):
    with pytest.raises(InputError, match="camera 0: cannot be read; expected the number of a connected camera"):
        film(Camera(frames))
    assert not list(tmp_path.iterdir())


def test_an_interruption_of_hours_is_a_minute_of_the_recording(tmp_path):
    file, frame = VideoFile(tmp_path / "a.mp4", 2.0), np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    for seconds in (0.5, 1.0, 21.0, 9021.0, 9021.5, 9022.0):
        file.write(frame, seconds)
    file.complete()
    file.close()
    assert len(frames_of(tmp_path / "a.mp4")[1]) == 2 * 82  # 21 seconds, a minute, and one second
