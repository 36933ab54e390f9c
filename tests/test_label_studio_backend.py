"""serve.py as Label Studio's machine learning backend, beside a stand-in for Label Studio with its answers."""

import errno
import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from color_artifact import wanted, write_color_artifact
from serving import encoded, running, wait_until
from starlette.testclient import TestClient

from dataset.class_names import ClassNames
from efficientdet.options.serve import RequestLimits, ServeOptions
from efficientdet.plugins.labeling import background_training
from efficientdet.plugins.labeling.background_training import BackgroundTraining, LabelStudio
from efficientdet.quickstart.output_folder import sole_quickstart
from efficientdet.serving.application import build_application
from efficientdet.serving.batching import Batcher, Metrics, ServedModel
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError

BLUE = (0, 40, 220)
PERSONAL_TOKEN, ACCESS_TOKEN = "head.personal.signature", "head.access.signature"
LABELS = {"red": "RED", "blue & co": "Blue & Co"}  # by class name
CONFIGURATION = """<View><Image name="photo" value="$image"/><RectangleLabels name="color" toName="photo">
<Label value="RED"/><Label value="Blue &amp; Co"/></RectangleLabels></View>"""


class StandIn(ThreadingHTTPServer):
    """Answers as Label Studio 1.23 does to a user with a personal access token."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.images = {"/data/upload/1/0a1b2c3d-blue.png": encoded(BLUE, size=(80, 40))}
        self.tasks, self.paths = [], []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
        right = self.path == "/api/token/refresh/" and sent == {"refresh": PERSONAL_TOKEN}
        self.reply(200 if right else 401, json.dumps({"access": ACCESS_TOKEN}).encode())

    def do_GET(self):
        self.server.paths.append(self.path)
        if self.headers["authorization"] != f"Bearer {ACCESS_TOKEN}":
            self.reply(401, b"{}")
        elif self.path == "/data/garbage.png":
            self.wfile.write(b"garbage\r\n\r\n")
        elif self.path == "/data/short.png":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(encoded(BLUE))
        elif self.path == "/data/page.png":
            self.reply(200, b"<html>")
        elif self.path == "/data/elsewhere.png":
            self.reply(302, b"", Location="http://storage.example/blue.png")
        elif self.path == "/api/projects/7/export?exportType=JSON":
            self.reply(200, json.dumps(self.server.tasks).encode())
        else:
            image = self.server.images.get(self.path)
            self.reply(404 if image is None else 200, image or b"")

    def reply(self, status, content, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def studio():
    with StandIn() as stand_in:
        threading.Thread(target=stand_in.serve_forever, daemon=True).start()
        yield stand_in
        stand_in.shutdown()


@contextmanager
def backend(studio, folder):
    artifact = write_color_artifact(folder / "colors.onnx")
    arguments = ("serve.py", f"--model={artifact}", "--port=0", "--min_score=0.1", "--max_request_bytes=300000")
    with running(folder, *arguments, f"--label_studio={studio.address}", LABEL_STUDIO_API_KEY=PERSONAL_TOKEN) as server:
        yield server


def posted(server, path, **content):
    return server.call("POST", path, json.dumps(content), content_type="application/json")


def task(number, image):
    return {"id": number, "project": 7, "data": {"image": image}, "annotations": []}


def test_proposals_and_hostile_tasks(studio, tmp_path):
    """A box in percent is where the detector finds it; what is not on this Label Studio is never requested."""
    [[name]] = [list(studio.images)]
    hostile = [
        "http://elsewhere.example/blue.png",
        "//elsewhere.example/blue.png",
        f"{studio.address}.elsewhere.example/blue.png",
        "s3://bucket/blue.png",
        "/data/local-files/?d=../../etc/passwd",
        "/data/local-files/?d=%252e%252e/passwd",
        "/data/elsewhere.png",  # redirects
        "/data/missing.png",
        "/data/local-files/?d=a.png&d=../../etc/passwd",  # Label Studio takes the last
        "/data/\ud800.png",
        "/data/a\0.png",
        "/api/current-user/token",
        "file:///etc/passwd",
        "http://2130706433/blue.png",
        "http://[::1]/blue.png",
        "/data/short.png",
        "/data/garbage.png",
        "/data/page.png",
        "<script>alert(1)</script>",
        7,
    ]
    with backend(studio, tmp_path) as server:
        assert server.get("/health").content["status"] == "UP"
        version = posted(server, "/setup", project="7.1", schema=CONFIGURATION, hostname="http://elsewhere.example")
        reply = posted(
            server,
            "/predict",
            tasks=[task(1, name), task(2, f"{studio.address}{name}"), *(task(9, image) for image in hostile)],
            label_config=CONFIGURATION,
        )
        assert (reply.status, version.status) == (200, 200)
        first, second, *others = reply.content["results"]
        assert first == second
        assert others == [[] for _ in hostile]
        assert first["model_version"] == version.content["model_version"]
        assert first["model_version"].startswith("colors.onnx 20")
        expected = [
            one for one in wanted(BLUE, height=40, width=80) if one[3] in ("red", "blue & co") and one[1] >= 0.1
        ]
        assert len(expected) == len(first["result"]) > 0
        for region, (box, score, _, class_name) in zip(first["result"], expected, strict=True):
            value = region["value"]
            sides = [value["x"], value["y"], value["x"] + value["width"], value["y"] + value["height"]]
            np.testing.assert_allclose(sides, 100 * np.array(box) / [80, 40, 80, 40], atol=0.05)
            assert value["rectanglelabels"] == [LABELS[class_name]]
            assert (region["from_name"], region["to_name"]) == ("color", "photo")
            assert (region["original_width"], region["original_height"]) == (80, 40)
            assert region["score"] == pytest.approx(score, abs=1e-4)
        assert {*studio.paths} == {
            name,
            *(f"/data/{page}.png" for page in ("elsewhere", "missing", "short", "garbage", "page")),
        }
        for path, content, status in (
            ("/predict", {"tasks": [], "label_config": "<View/>"}, 422),
            ("/setup", {"schema": "<View"}, 422),
            ("/predict", {"tasks": "all", "label_config": CONFIGURATION}, 422),
            ("/predict", {"tasks": ["x" * 300_000], "label_config": CONFIGURATION}, 413),
        ):
            assert posted(server, path, **content).status == status
        assert server.call("POST", "/predict", b"[" * 250_000).status == 413
        assert server.call("POST", "/predict", b"no").status == 400
        assert posted(server, "/webhook", action="ANNOTATION_CREATED", project={"id": 7}).status == 200
    assert "Traceback" not in server.errors.read_text()


def quick_start(folder, body):
    """A stand-in for quickstart.py that runs `body`."""
    program = folder / "program.py"
    program.write_text(f"import os, sys, time, pathlib\nout = pathlib.Path({str(folder)!r})\n{body}\n")
    return lambda settings: [sys.executable, str(program), *(f"--{one}={settings[one]}" for one in settings)]


@pytest.fixture
def trained(studio, tmp_path, monkeypatch):
    """A function that starts a background training whose program runs a body."""
    studio.tasks = [task(1, *studio.images), task(2, "http://elsewhere.example/a.png")]
    monkeypatch.setattr("efficientdet.plugins.labeling.background_training._STOPPING_S", 10.0)

    def start(body):
        model = ServedModel(detect=lambda images: [], class_names=ClassNames((1,), ("a",)), name="new")
        command = quick_start(tmp_path, body)
        monkeypatch.setattr(background_training, "program_command", lambda _, settings: command(settings))
        options = ServeOptions(train_dir=str(tmp_path / "run"), train_minutes=0.1, train_after=3)
        training = BackgroundTraining(LabelStudio(studio.address, PERSONAL_TOKEN), options, lambda _: model)
        return training, Batcher(None, RequestLimits(), Metrics()), model

    return start


def test_enough_annotations_start_one_training_whose_model_is_served(trained, studio, tmp_path, capsys):
    annotation = {"result": [], "ground_truth": True, "updated_at": "2026-11-27", "lead_time": 3.5}
    studio.tasks[0] |= {"annotations": [annotation], "total_predictions": 2}
    training, batcher, model = trained("out.joinpath(f'run-{os.getpid()}').write_text(' '.join(sys.argv[1:]))")
    with training.running(batcher):
        for _ in range(2):
            training.changed(7, at_once=False)
        training.changed(8, at_once=True)  # another project
        assert batcher.model is None
        training.changed(7, at_once=False)
        wait_until(lambda: batcher.model is model)
    [run] = tmp_path.glob("run-*")
    source = tmp_path / "run" / "label_studio"
    flags = (
        f"--images={source}/images --annotations={source}/annotations.json --output_dir={tmp_path}/run --minutes=0.1"
    )
    assert run.read_text() == flags
    [copied] = [file for file in source.rglob("*.png")]
    assert copied.read_bytes() == studio.images[f"/{copied.relative_to(source / 'images')}"]
    [stored] = json.loads((source / "annotations.json").read_text())
    # What changes without the labels would start another round.
    assert stored == {"id": 1, "data": studio.tasks[0]["data"], "annotations": [{"result": [], "ground_truth": True}]}
    said = capsys.readouterr().out
    assert "task 2: the image 'http://elsewhere.example/a.png' is not one of http://127.0.0.1:" in said
    assert "project 8: this server trains on project 7" in said


def test_the_default_score_is_that_of_the_model_that_is_served():
    """As /v1/detect, the page and the documents state it, also after the first model was replaced."""

    class Studio:
        """Replaces the model as a training does."""

        def routes(self):
            return []

        @contextmanager
        def serving(self, batcher):
            self.batcher = batcher
            yield

    def model(min_score):
        found = DetectionRows.of_image(np.float32([[0, 0, 9, 9]] * 3), np.float32([0.9, 0.6, 0.3]), np.int64([1] * 3))
        names = ClassNames((1,), ("a",))
        return ServedModel(detect=lambda images: [found], class_names=names, name="one", min_score=min_score)

    studio, limits = Studio(), RequestLimits()
    application = build_application(model(0.5), limits=limits, added_routes=[studio])
    with TestClient(application, base_url="http://localhost") as client:
        for min_score, count in ((0.5, 2), (0.25, 3)):
            studio.batcher.model = model(min_score)
            reply = client.post("/v1/detect", files={"image": encoded()}).json()
            assert (reply["min_score"], len(reply["images"][0]["detections"])) == (min_score, count)
            assert client.get("/v1/model").json()["min_score"] == min_score
            [parameter] = client.get("/openapi.json").json()["paths"]["/v1/detect"]["post"]["parameters"]
            assert parameter["schema"]["default"] == min_score
            assert f'value="{min_score:.2f}"' in client.get("/").text


def test_a_training_that_was_cut_short_goes_on_with_the_next_server(trained, tmp_path):
    training, batcher, _ = trained("out.joinpath('started').touch()\ntime.sleep(60)")
    with training.running(batcher):
        training.changed(7, at_once=True)
        wait_until((tmp_path / "started").exists)
        started = time.monotonic()
    assert time.monotonic() - started < 30
    assert batcher.model is None
    training, batcher, model = trained("pass")
    with training.running(batcher):
        wait_until(lambda: batcher.model is model)
    assert not json.loads((tmp_path / "run" / "label_studio.json").read_text())["due"]


def test_an_unfinished_quick_start_ends_with_its_annotations_and_the_present_ones_follow(trained, studio, tmp_path):
    """It refuses others, so that a label that was added after a kill would have ended every later training."""
    run = tmp_path / "run"
    (run / "label_studio").mkdir(parents=True)
    (run / "label_studio" / "annotations.json").write_text("[]")
    (run / "label_studio" / "training.log").touch()
    (run / "quickstart.json").write_text(json.dumps({"done": {"convert": None}}))
    training, batcher, _ = trained(
        "state, seen = out / 'run' / 'quickstart.json', out / 'run' / 'label_studio' / 'annotations.json'\n"
        "out.joinpath('sizes').open('a').write(f'{seen.stat().st_size} ')\n"
        """state.write_text('{"done": {"convert": 1, "export": 1}}')"""
    )
    with training.running(batcher):
        training.changed(7, at_once=True)
        wait_until(lambda: (tmp_path / "sizes").exists() and len((tmp_path / "sizes").read_text().split()) == 2)
    first, second = map(int, (tmp_path / "sizes").read_text().split())
    assert (first, second > first) == (2, True)


def test_a_training_waits_for_the_quick_start_of_a_killed_server(trained, tmp_path):
    """It may save its state for seconds; until then the folder is its own."""
    training, batcher, model = trained("out.joinpath('started').touch()")
    with training.running(batcher):
        with sole_quickstart(tmp_path / "run"):
            training.changed(7, at_once=True)
            time.sleep(0.5)
            assert not (tmp_path / "started").exists()
        wait_until(lambda: batcher.model is model)
    assert (tmp_path / "started").exists()


def test_a_training_that_is_asked_for_during_another_follows_it(trained, tmp_path):
    training, batcher, _ = trained("out.joinpath(f'run-{os.getpid()}').touch()\ntime.sleep(1)")
    with training.running(batcher):
        training.changed(7, at_once=True)
        wait_until(lambda: [*tmp_path.glob("run-*")])
        training.changed(7, at_once=True)
        wait_until(lambda: len([*tmp_path.glob("run-*")]) == 2)


def test_images_and_states_that_cannot_be_stored(trained, studio, tmp_path, capsys, monkeypatch):
    """A task whose image no file can be named after is left out; a full disk ends no thread."""
    [image] = studio.images.values()
    names = ["/data/upload/2/b.png", "/data/upload/2/b.png/c.png", f"/data/upload/{'d' * 300}.png"]
    studio.images |= dict.fromkeys(names, image)
    studio.tasks = [task(number, name) for number, name in enumerate(names)]
    studio.tasks.append({"id": 9, "data": {"title": "ninth", "photo": "/data/upload/3/e.png"}})
    studio.images["/data/upload/3/e.png"] = image
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "label_studio.json").write_text("[1]")
    training, batcher, model = trained("pass")

    def full(path, *_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch, training.running(batcher):
        patch.setattr(background_training, "write_text", full)
        for _ in range(2):
            batcher.model = None
            training.changed(7, at_once=True)
            wait_until(lambda: batcher.model is model)
    tasks = json.loads((tmp_path / "run" / "label_studio" / "annotations.json").read_text())
    assert [one["id"] for one in tasks] == [0, 9]
    printed = capsys.readouterr().out
    assert "label_studio.json: cannot be written (No space left on device)" in printed
    assert "task 1: the image '/data/upload/2/b.png/c.png' cannot be stored (File exists); it is left out" in printed
    assert "cannot be stored (File name too long); it is left out" in printed


def test_a_failed_training_keeps_the_model(trained, tmp_path, capsys):
    training, batcher, _ = trained("print('error: no images')\nsys.exit(2)")
    with training.running(batcher):
        training.changed(7, at_once=True)
        wait_until(lambda: not json.loads((tmp_path / "run" / "label_studio.json").read_text())["due"])
    assert batcher.model is None
    assert "project 7: the training ended with status 2: error: no images" in capsys.readouterr().out


@pytest.mark.parametrize(
    "address",
    [
        *("localhost:8080", "ftp://localhost", "http://", "http://localhost/?a=b", "http://me:secret@localhost"),
        *("http://localhost:99999", "http://[::1", "http://local host"),
    ],
)
def test_an_address_that_is_none(address):
    with pytest.raises(InputError, match=r"expected the address of a Label Studio.*without a user") as refused:
        LabelStudio(address, "key")
    assert "secret" not in str(refused.value)


def test_a_label_studio_below_the_root_of_its_host(studio):
    """Its images have the folder in their addresses."""
    studio.images["/labels/data/upload/1/a.png"] = encoded(BLUE)
    client = LabelStudio(f"{studio.address}/labels/", "wrong")
    assert client.local_path("/labels/data/upload/1/a.png") == "/data/upload/1/a.png"
    with pytest.raises(InputError, match=f"{studio.address}/labels/data/upload/1/a.png: Label Studio answered 401"):
        client.image("/labels/data/upload/1/a.png", max_bytes=9999)


def test_another_server_at_the_address():
    class Page(Handler):
        def do_GET(self):
            self.reply(200, b"<html>")

        do_POST = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for key, place in (("key", "/api/projects/7/export"), (PERSONAL_TOKEN, "/api/token/refresh/")):
            with pytest.raises(InputError, match=f"{place}.* answered something else than JSON"):
                LabelStudio(f"http://127.0.0.1:{server.server_port}", key).annotated_tasks(7)
        server.shutdown()


def test_a_wrong_key_is_named(studio):
    with pytest.raises(InputError, match=r"answered 401; LABEL_STUDIO_API_KEY is the key of a user who may read it"):
        LabelStudio(studio.address, "wrong").annotated_tasks(7)
