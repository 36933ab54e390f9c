"""JSON lines and MQTT messages of infer.py, on a file whose detections are the colors of the image."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from color_artifact import write_color_artifact
from serving import encoded, wait_until

import efficientdet
from efficientdet.plugins.streams import messages as message_targets
from efficientdet.plugins.streams.messages import MqttTopic
from program_support.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
NOTHING, RED, PURPLE = (0, 0, 0), (255, 0, 0), (255, 0, 255)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_color_artifact(tmp_path_factory.mktemp("model") / "colors.onnx")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(message_targets, "_SECONDS_AT_THE_END", 2.0)


def write_video(path, *colors, each=10):
    """A video of 10 frames a second, `each` of each color."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for color in colors:
        for _ in range(each):
            writer.write(np.full((48, 64, 3), color[::-1], np.uint8))
    writer.release()
    return path


def classes_of(message):
    return [one["class"] for one in message["detections"]]


def test_a_line_for_each_image_and_frame(tmp_path, model):
    (tmp_path / "a.png").write_bytes(encoded(PURPLE, size=(64, 64)))
    write_video(tmp_path / "b.avi", NOTHING, RED, each=2)
    lines = tmp_path / "new" / "found.jsonl"
    for _ in range(2):  # the lines of an earlier run with files are replaced
        efficientdet.infer(
            [tmp_path / "a.png", tmp_path / "b.avi"], tmp_path / "out", model=model, save="none", json_lines=lines
        )
    image, *frames = map(json.loads, lines.read_text().splitlines())
    assert image == {
        "source": str(tmp_path / "a.png"),
        "frame": None,
        "seconds": None,
        "time": None,
        "width": 64,
        "height": 64,
        "detections": [
            {"class": "red", "category_id": 1, "score": 1.0, "bbox": [0.0, 0.0, 32.0, 32.0]},
            {"class": "blue & co", "category_id": 9, "score": 1.0, "bbox": [32.0, 32.0, 32.0, 32.0]},
        ],
    }
    assert [(one["frame"], one["seconds"], classes_of(one)) for one in frames] == [
        (1, 0.0, []),
        (2, 0.1, []),
        (3, 0.2, ["red"]),
        (4, 0.3, ["red"]),
    ]
    assert {path.name for path in (tmp_path / "out").glob("[!.]*")} == {"a.jpg", "detections.json"}


def test_other_classes_are_left_out(tmp_path, model):
    (tmp_path / "a.png").write_bytes(encoded(PURPLE, size=(64, 64)))
    lines = tmp_path / "found.jsonl"
    efficientdet.infer(tmp_path / "a.png", tmp_path / "out", model=model, classes=["blue & co"], json_lines=lines)
    assert classes_of(json.loads(lines.read_text())) == ["blue & co"]
    assert {one["category_id"] for one in json.loads((tmp_path / "out/detections.json").read_text())} == {9}
    for name, hint in (("Blue & co", "did you mean blue & co?"), ("zebra", "it has red, <img")):
        with pytest.raises(InputError) as caught:
            efficientdet.infer(tmp_path / "a.png", tmp_path / "out", model=model, classes=[name])
        assert str(caught.value).startswith(f"classes={name}: the detector has no class '{name}'; {hint}")


def test_standard_output_has_the_lines_alone(tmp_path, model, capsys):
    video = write_video(tmp_path / "b.avi", RED, each=3)
    efficientdet.infer(video, tmp_path / "out", model=model, json_lines="-")
    printed = capsys.readouterr()
    assert [json.loads(line)["frame"] for line in printed.out.splitlines()] == [1, 2, 3]
    assert f"wrote {tmp_path}/out/b.mp4" in printed.err


def test_a_reader_that_ends_early_ends_the_program_with_0(tmp_path, model):
    video = write_video(tmp_path / "b.avi", RED, NOTHING, each=100)
    command = [sys.executable, "infer.py", f"--model={model}", f"--image_path={video}", "--json_lines=-"]
    with subprocess.Popen(
        [*command, f"--output_dir={tmp_path}/out"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert json.loads(process.stdout.readline())["frame"] == 1
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(60) == 0
    assert "the standard output was closed by its reader; ended" in errors
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors
    assert not (tmp_path / "out/b.mp4").exists()  # no part of a video as if it were complete


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"json_lines": "lines.txt"}, "json_lines=lines.txt: expected a file name that ends with .jsonl, or -"),
        ({"json_lines": "/proc/x.jsonl"}, "/proc/x.jsonl: cannot be written"),
        *(
            ({"mqtt": address}, "mqtt: is not such an address; expected mqtt://USER:PASSWORD@HOST:PORT/TOPIC")
            for address in ("secret", "http://u:secret@host/x", "mqtt://host:port/secret", "mqtt://h/a b\r\nX: secret")
        ),
        ({"mqtt": "mqtt://u:secret@host"}, "mqtt=mqtt://host: has no topic, or one with +, # or ?; expected mqtt://"),
        ({"mqtt": "mqtt://host/a/%23"}, "mqtt=mqtt://host: has no topic, or one with +, # or ?; expected mqtt://"),
        ({"mqtt": "mqtt://u:secret@127.0.0.1:1/a"}, "mqtt=mqtt://127.0.0.1:1/a: Connection refused"),
    ],
)
def test_wrong_addresses_are_one_line_without_secrets(tmp_path, model, flags, message):
    video = write_video(tmp_path / "b.avi", RED, each=1)
    with pytest.raises(InputError) as caught:
        efficientdet.infer(video, tmp_path / "out", model=model, **flags)
    assert str(caught.value).startswith(message)
    assert "secret" not in str(caught.value)


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
    with pytest.raises(InputError, match=r"--mqtt needs the package paho-mqtt: pip install -e '\.\[mqtt\]'"):
        MqttTopic("mqtt://host/topic")


def test_changes_are_sent(tmp_path, model, monkeypatch):
    received = []
    topic = SimpleNamespace(open=lambda: None, put=received.append, close=lambda: None)
    monkeypatch.setattr(message_targets, "MqttTopic", lambda address: topic)
    # Frames 1 to 12 show nothing, 13 to 15 red; the changes at 16 and 28 are within a second of the last message
    video = write_video(tmp_path / "b.avi", *[NOTHING] * 4, RED, *[PURPLE] * 4, *[NOTHING] * 4, each=3)
    (tmp_path / "a.png").write_bytes(encoded(RED))
    efficientdet.infer([tmp_path / "a.png", video], tmp_path / "out", model=model, save="none", mqtt="mqtt://host/a")
    assert [(one["frame"], classes_of(one)) for one in map(json.loads, received)] == [
        (None, ["red"]),
        (1, []),
        (13, ["red"]),
        (23, ["red", "blue & co"]),
        (33, []),
    ]


def listens(port):
    """Return whether something accepts connections at a port."""
    with socket.socket() as opened:
        return opened.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def broker(folder, port):
    """A mosquitto with a user and a password."""
    program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    if not program:
        pytest.skip("mosquitto is not installed")
    passwords = folder / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, "bob", "p:w"], check=True)
    (folder / "mosquitto.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous false\npassword_file {passwords}\nuser root\n"
    )
    with subprocess.Popen([program, "-c", folder / "mosquitto.conf"], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: listens(port), seconds=20)
            yield
        finally:
            process.terminate()


@contextlib.contextmanager
def subscriber(port):
    """The published messages, a list of (topic, retained, payload)."""
    from paho.mqtt.client import CallbackAPIVersion, Client

    received, ready = [], threading.Event()
    client = Client(CallbackAPIVersion.VERSION2)
    client.username_pw_set("bob", "p:w")
    client.on_connect = lambda *_: client.subscribe("home/#", 1)
    client.on_subscribe = lambda *_: ready.set()
    client.on_message = lambda _client, _data, message: received.append(
        (message.topic, message.retain, message.payload)
    )
    client.connect("127.0.0.1", port)
    client.loop_start()
    assert ready.wait(20)
    yield received
    client.disconnect()
    client.loop_stop()


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def test_mqtt_with_a_real_broker_that_goes_away_and_comes_back(tmp_path, model, monkeypatch, capsys):
    port = free_port()
    address = f"127.0.0.1:{port}/home/my%20door"
    video = write_video(tmp_path / "b.avi", NOTHING, RED)
    with broker(tmp_path, port):
        with pytest.raises(InputError, match=rf"^mqtt=mqtt://127\.0\.0\.1:{port}/home/my door: the broker refuses the"):
            efficientdet.infer(video, tmp_path / "out", model=model, mqtt=f"mqtt://bob:wrong@{address}")
        with subscriber(port) as received:
            efficientdet.infer(video, tmp_path / "out", model=model, save="none", mqtt=f"mqtt://bob:p%3Aw@{address}")
            wait_until(lambda: len(received) >= 4)
        online, first, second, offline = received
        assert (online[0], online[2]) == ("home/my door/available", b"online")
        assert [classes_of(json.loads(one[2])) for one in (first, second)] == [[], ["red"]]
        assert (offline[0], offline[2]) == ("home/my door/available", b"offline")
        with subscriber(port) as retained:
            wait_until(lambda: len(retained) >= 2)
        assert {(topic, kept) for topic, kept, _ in retained} == {(online[0], True), ("home/my door", True)}
        monkeypatch.setattr(message_targets, "_MOST_MESSAGES", 3)
        topic = MqttTopic(f"mqtt://bob:p%3Aw@{address}")
        topic.open()
        topic.put(b"before")
        wait_until(lambda: not topic._waiting)
    wait_until(lambda: "up to 3 messages wait to be sent again" in capsys.readouterr().out)
    for number in range(5):
        topic.put(b"%d" % number)
    with broker(tmp_path, port), subscriber(port) as received:
        wait_until(lambda: not topic._waiting, seconds=20)
        topic.put(b"after")
        topic.close()
        wait_until(lambda: received[-1][2] == b"offline")
    sent = [payload for name, _, payload in received if name == "home/my door"]
    assert sent[-2:] == [b"2", b"after"]
    printed = capsys.readouterr().out
    assert f"mqtt://127.0.0.1:{port}/home/my door: sending again after " in printed
    assert f"mqtt://127.0.0.1:{port}/home/my door: messages: 5 sent, 2 dropped\n" in printed
