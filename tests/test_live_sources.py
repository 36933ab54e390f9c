"""Network streams, from a server of motion JPEG on this machine."""

import contextlib
import http.server
import socketserver
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from dataset.class_names import ClassNames
from efficientdet.inference.detect import Detector
from efficientdet.plugins.streams import video_source
from efficientdet.plugins.streams.video import annotate_video
from efficientdet.plugins.streams.video_source import NewestFrames, open_live, read_frames
from efficientdet.prediction.inputs import Inputs, find_inputs, recording_stem, shown_source
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError

NAMES = ClassNames((1,), ("cat",))
HEIGHT, WIDTH = 48, 64


def gray(value, height=HEIGHT, width=WIDTH):
    return cv2.imencode(".jpg", np.full((height, width, 3), value, np.uint8))[1].tobytes()


@contextlib.contextmanager
def server(connections):
    """Serve motion JPEG: each connection sends the frames of the next entry, 10 ms apart, and is closed; no more."""
    entries, stopped = iter(connections), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            frames = next(entries, None)
            if frames is None:
                self.send_error(503)
                return
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            with contextlib.suppress(OSError):
                for frame in frames:
                    head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(frame)}\r\n\r\n"
                    self.wfile.write(head.encode() + frame + b"\r\n")
                    if stopped.wait(0.01):
                        return

        def log_message(self, *_):
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://user:secret@127.0.0.1:{listening.server_port}/live?token=7"
        finally:
            stopped.set()
            listening.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(video_source, "_FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(video_source, "_OPEN_TIMEOUT_MS", 1000)
    monkeypatch.setattr(video_source, "_READ_TIMEOUT_MS", 1000)


def nothing(images):
    return [DetectionRows.of_image(np.zeros((0, 4), np.float32), np.zeros(0), np.zeros(0, int)) for _ in images]


def test_a_stream_is_recorded_through_an_interruption_until_it_ends(tmp_path, capsys):
    seen = []

    def detect(images):
        seen.append((images[0].shape[:2], int(images[0].mean())))
        return nothing(images)

    def until_seen(value, height, width):
        """At least 40 frames, as FFmpeg examines the first ones of a connection."""
        frame = gray(value, height, width)
        for number in range(3000):
            yield frame
            if number >= 40 and (height, width) in {shape for shape, _ in seen}:
                return

    # The camera comes back with another size
    with server([until_seen(50, HEIGHT, WIDTH), until_seen(200, 2 * HEIGHT, 2 * WIDTH)]) as url:
        annotate_video(Detector(detect, NAMES), url, tmp_path / "a.mp4", live=True, max_offline_seconds=0.3)
    assert {shape for shape, _ in seen} == {(HEIGHT, WIDTH), (2 * HEIGHT, 2 * WIDTH)}
    assert all(abs(value - 50) < 5 or abs(value - 200) < 5 for _, value in seen)
    found = cv2.VideoCapture(str(tmp_path / "a.mp4"))
    assert (found.get(cv2.CAP_PROP_FRAME_WIDTH), found.get(cv2.CAP_PROP_FRAME_HEIGHT)) == (WIDTH, HEIGHT)
    printed = capsys.readouterr().out
    address = url.partition("@")[2].partition("?")[0]
    assert f"http://{address}: the connection broke off; connecting again" in printed
    assert f"http://{address}: connected again after " in printed
    assert f"http://{address}: no frame for 0.3 s; the recording ends" in printed
    assert "secret" not in printed
    assert "token" not in printed


class Capture:
    """A camera that sends the frames of an iterator, where None is a failed read, and then nothing."""

    def __init__(self, frames):
        self.frames, self.released = iter(frames), threading.Event()

    def read(self):
        frame = next(self.frames, None)
        return frame is not None, frame

    def release(self):
        self.released.set()


BLACK = np.zeros((2, 2, 3), np.uint8)


def test_only_the_newest_frame_is_kept():
    all_sent, stop = threading.Event(), threading.Event()

    def numbered():
        for number in range(1, 201):
            yield np.full((2, 2, 3), number, np.uint8)
        all_sent.set()

    frames = NewestFrames("rtsp://host/1", Capture(numbered()), stop)
    assert all_sent.wait(10)
    reading = iter(frames)
    frame = next(reading)
    assert (frame.number, int(frame.pixels[0, 0, 0])) == (1, 200)
    assert abs(datetime.now(UTC) - frame.received_at) < timedelta(minutes=1)
    stop.set()
    assert next(reading, None) is None
    frames.release()


def test_a_first_frame_may_take_a_moment_but_must_come(monkeypatch):
    frames = NewestFrames("rtsp://host/1", Capture([None, None, None, BLACK]), threading.Event())
    assert next(iter(frames)).number == 1
    frames.release()
    monkeypatch.setattr(video_source, "_FIRST_FRAME_SECONDS", 0.2)
    assert list(NewestFrames("rtsp://host/1", Capture([]), threading.Event())) == []


def test_an_address_without_a_stream_is_one_line():
    with server([]) as url, pytest.raises(InputError) as caught:
        open_live(url)
    address = url.partition("@")[2].partition("?")[0]
    assert str(caught.value).startswith(f"http://{address}: no video could be read from this address within 1 s; ")
    with pytest.raises(InputError, match="camera /dev/video99: cannot be read; expected the number of a connected"):
        open_live("/dev/video99")


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("rtsp://user:pass@10.0.0.5:554/ch1?x=1", Inputs(camera="rtsp://user:pass@10.0.0.5:554/ch1?x=1")),
        ("HTTP://host/video.mjpg/live", Inputs(camera="HTTP://host/video.mjpg/live")),
        ("http://host/clips/a.MP4?token=1", Inputs(videos=("http://host/clips/a.MP4?token=1",))),
        ("/dev/video7", Inputs(camera="/dev/video7")),
        ("/dev/null", Inputs(camera="/dev/null")),
    ],
)
def test_addresses_and_devices(name, inputs):
    assert find_inputs([name]) == inputs


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["http://u:p@host/a.jpg"], "--image_path=http://host/a.jpg: is the address of an image; download it first"),
        (
            ["rtsp://u:p@host/1", "rtsp://host/2"],
            "--image_path=rtsp://host/1: is a camera, not a file; ",
        ),
    ],
)
def test_refused_addresses(names, message):
    with pytest.raises(InputError) as caught:
        find_inputs(names)
    assert str(caught.value).startswith(message)


def test_a_folder_with_images_and_videos(tmp_path):
    for name in ("b.jpg", "a.3gp", "c.TS", "d.asf", "notes.txt"):
        (tmp_path / name).touch()
    found = find_inputs([str(tmp_path)])
    assert found == Inputs((f"{tmp_path}/b.jpg",), (f"{tmp_path}/a.3gp", f"{tmp_path}/c.TS", f"{tmp_path}/d.asf"))


def test_names_of_recordings():
    assert recording_stem(0) == "camera_0"
    assert recording_stem("/dev/video2") == "camera_video2"
    assert recording_stem("rtsp://user:pass@cam-1.lan:554/ch/1") == "stream_cam-1.lan"
    assert shown_source("rtsp://user:pass@cam-1.lan:554/ch/1?key=2") == "rtsp://cam-1.lan:554/ch/1"


def test_pauses_between_attempts_grow_and_start_again_after_a_long_connection(monkeypatch, capsys):
    clock, pauses = [0.0], []

    class Event(threading.Event):
        """Waits by the clock of the test."""

        def wait(self, timeout=None):
            pauses.append(timeout)
            clock[0] += timeout
            return self.is_set()

    class Timed(Capture):
        """Each read takes 0.1 s."""

        def read(self):
            clock[0] += 0.1
            return super().read()

    attempts = iter([*[None] * 6, Timed([BLACK]), Timed([BLACK] * 400), None, None])
    threads = SimpleNamespace(Event=Event, Condition=threading.Condition, Thread=threading.Thread)
    monkeypatch.setattr(video_source, "threading", threads)
    monkeypatch.setattr(video_source, "_FIRST_PAUSE_SECONDS", 1.0)
    monkeypatch.setattr(video_source, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(video_source, "_opened", lambda source: next(attempts, None))
    frames = NewestFrames("rtsp://u:secret@host/1", Timed([BLACK]), threading.Event(), max_offline_seconds=100)
    assert [frame for frame in frames if frame is not None]
    # Six attempts fail, a connection of 0.1 s does not count, one of 40 s does
    assert pauses[:8] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert pauses[8:11] == [1, 2, 4]
    assert frames.summary() == "402 frames received, 401 of them skipped, 2 times connected again"
    printed = capsys.readouterr().out
    assert printed.count("broke off") == 3
    assert "rtsp://host/1: no frame for 100 s; the recording ends" in printed


def test_the_time_without_frames_is_announced(monkeypatch):
    monkeypatch.setattr(video_source, "_SECONDS_UNTIL_NONE", 0.2)
    stop, silence = threading.Event(), threading.Event()

    def one_and_silence():
        yield BLACK
        silence.wait(10)

    frames = NewestFrames(0, Capture(one_and_silence()), stop)
    reading = iter(frames)
    assert next(reading).number == 1
    assert next(reading) is None
    assert next(reading) is None
    stop.set()
    assert list(reading) == []
    silence.set()
    frames.release()


def test_frames_of_a_stream_and_of_a_file_from_python(tmp_path):
    with server([[gray(value) for value in range(0, 250)]]) as url:
        frames = [frame for frame, _ in zip(read_frames(url), range(3), strict=False)]
    assert [frame.number for frame in frames] == [1, 2, 3]
    assert frames[0].seconds <= frames[1].seconds <= frames[2].seconds
    assert frames[0].received_at is not None
    writer = cv2.VideoWriter(str(tmp_path / "a.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10, (WIDTH, HEIGHT))
    for _ in range(3):
        writer.write(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    writer.release()
    found = list(read_frames(tmp_path / "a.mp4"))
    assert [(frame.number, round(frame.seconds, 2), frame.received_at) for frame in found] == [
        (1, 0.0, None),
        (2, 0.1, None),
        (3, 0.2, None),
    ]
    cv2.imwrite(str(tmp_path / "b.png"), np.zeros((8, 8, 3), np.uint8))
    for name in ("b.png", ""):
        with pytest.raises(InputError, match="expected one video, camera or stream"):
            next(read_frames(tmp_path / name))


def test_garbage_instead_of_a_stream_is_one_line():
    """A server that answers each connection with random bytes, as RTSP and as HTTP."""
    garbage = np.random.default_rng(0).bytes(1 << 16)

    class Garbage(socketserver.StreamRequestHandler):
        def handle(self):
            with contextlib.suppress(OSError):
                self.connection.recv(1024)
                self.wfile.write(garbage)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Garbage) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        for scheme in ("rtsp", "http"):
            address = f"{scheme}://user:secret@127.0.0.1:{listening.server_address[1]}/a;$(touch%20x)"
            with pytest.raises(InputError, match=f"^{scheme}://127.0.0.1.*no video could be read from this address"):
                list(read_frames(address))
        listening.shutdown()
        thread.join()
