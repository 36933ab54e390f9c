"""The folder of `export.py --formats=web`: same pixels and detections as elsewhere, in Node and in a real browser."""

import hashlib
import json
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from chromium import PROGRAM, chromium
from miniature import miniature_detector
from onnx_sessions import session_of
from PIL import Image

from dataset.class_names import ClassNames
from dataset.input.host_resize import HostResize
from dataset.input.resize import letterbox
from efficientdet.checkpoints.description import Description
from efficientdet.families.published_files import PublishedFile
from efficientdet.inference.detect import Detector
from efficientdet.inference.runtimes import Predictor
from efficientdet.plugins.onnx.graph import OnnxGraph
from efficientdet.plugins.onnx.resizing import add_resize
from efficientdet.plugins.small_devices import image_model as web_page
from efficientdet.plugins.small_devices.formats import WEB
from efficientdet.plugins.small_devices.image_model import RUNTIME, write_web_page
from efficientdet.weights.downloads import cache_folder
from model.detection_model import named_variables
from program_support.errors import InputError

CLASSES = ClassNames((5, 7, 9), ("red", "<i>evil</i>", "blue & co"))
DESCRIPTION = Description(
    model_name="efficientdet-d0", hparams={"image_size": 64}, categories=CLASSES.to_categories(), weights="raw"
)
HAS_RUNTIME = (cache_folder() / RUNTIME.file).exists()
NO_RUNTIME = "ONNX Runtime Web is not in the cache; an export with --formats=web downloads it"


@pytest.mark.parametrize(
    "rule",
    [
        HostResize(kind="letterbox", size=(64, 96)),
        HostResize(kind="letterbox", size=(64, 96), half_pixel_centers=False),
        HostResize(kind="stretch", size=(50, 31)),
        HostResize(kind="stretch", size=(50, 31), antialias=True),
        HostResize(kind="fit", size=(96, 96), shorter=40, longer=70),
    ],
    ids=lambda rule: f"{rule.kind}, antialias {rule.antialias}, half pixel {rule.half_pixel_centers}",
)
def test_the_graph_resizes_as_infer_does(rule):
    graph = OnnxGraph()
    scales = add_resize(graph, rule=rule, image="image", images="images", sizes="sizes")
    outputs = {"images": ("uint8", [None] * 4), "sizes": ("int32", [None] * 2), scales: ("float32", [None])}
    _, session = session_of(graph, {"image": ("uint8", ["h", "w", 4])}, outputs)
    for size in ((48, 64), (7, 5), (123, 311), (300, 20), (64, 96)):
        image = np.random.default_rng(0).integers(0, 256, (*size, 4), np.uint8)
        pixels, valid, found_scales = session.run(list(outputs), {"image": image})
        wanted, wanted_valid, wanted_scales = rule(image[..., :3])
        np.testing.assert_array_equal(valid, wanted_valid[None])
        np.testing.assert_array_equal(found_scales, wanted_scales)
        difference = np.abs(pixels[0].astype(int) - wanted)
        assert difference.max() <= rule.antialias  # where a half is rounded
        assert difference.mean() < 2e-2


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The folder of a miniature's page, with an empty runtime unless the real one is in the cache; its detector."""
    cache, folder = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("page") / "web"
    detector = miniature_detector()
    for name, variable in named_variables(detector.network).items():
        if name.startswith("class_net/class-predict"):  # scores that differ, and that the page shows
            variable.assign(np.random.default_rng(1).normal(size=variable.shape))
    with pytest.MonkeyPatch.context() as patch:
        if not HAS_RUNTIME:
            patch.setenv("EFFICIENTDET_WEIGHTS", str(cache))
            patch.setattr(web_page, "RUNTIME", empty_runtime(cache))
        write_web_page(SimpleNamespace(detector=detector, description=DESCRIPTION, resize=letterbox((64, 64))), folder)
    return folder, detector


def empty_runtime(cache):
    with tarfile.open(cache / "runtime.tgz", "w:gz") as package:
        for name in web_page._RUNTIME_FILES.values():
            package.addfile(tarfile.TarInfo(name))
    content = (cache / "runtime.tgz").read_bytes()
    return PublishedFile("runtime.tgz", len(content), "", "", sha256=hashlib.sha256(content).hexdigest())


def noise(*size):
    return np.random.default_rng(size).integers(0, 256, (*size, 3), np.uint8)


def test_the_folder_and_its_detections(page):
    folder, detector = page
    assert {file.name for file in folder.iterdir()} == {
        "index.html",
        "worker.js",
        "model.json",
        "detector.onnx",
        "onnxruntime.js",
        "ort-wasm-simd-threaded.wasm",
    }
    about = json.loads((folder / "model.json").read_text())
    assert [entry["name"] for entry in about["classes"]] == list(CLASSES.names)
    assert [entry["id"] for entry in about["classes"]] == [5, 7, 9]
    html = (folder / "index.html").read_text()
    assert "/v1/" not in html  # which only the server answers
    assert 'value="0.40"' in html
    images = [noise(64, 64), noise(50, 121), noise(200, 90)]
    predict = Predictor(lambda images, sizes: detector.detections(detector.outputs(images, sizes), sizes))
    wanted = Detector.resizing(predict, resize=letterbox((64, 64)), description=DESCRIPTION).detect(images)
    for found, expected in zip(
        WEB.open_for(SimpleNamespace(description=DESCRIPTION), folder)(images), wanted, strict=True
    ):
        assert len(found.scores) == len(expected.scores) == 20
        np.testing.assert_allclose(found.boxes, expected.boxes, atol=1e-2)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
        np.testing.assert_array_equal(found.category_ids, expected.category_ids)


def test_without_a_connection_the_error_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("EFFICIENTDET_WEIGHTS", str(tmp_path / "cache"))
    monkeypatch.delenv("EFFICIENTDET_WEIGHTS_URL", raising=False)
    monkeypatch.setattr(web_page, "RUNTIME", PublishedFile("runtime.tgz", 9, "", "", site="http://127.0.0.1:9"))
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9/runtime\.tgz: cannot be downloaded .*download it to /.*tgz$"):
        write_web_page(None, tmp_path / "web")
    assert not (tmp_path / "web").exists()


@pytest.mark.skipif(not HAS_RUNTIME, reason=NO_RUNTIME)
@pytest.mark.skipif(not PROGRAM, reason="no Chromium is installed; on Debian: apt install chromium")
def test_in_a_browser_from_a_static_file_server(page, tmp_path):
    folder, _ = page
    image = noise(50, 121)
    Image.fromarray(image).save(tmp_path / "noise.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "noise.png").read_bytes()[:200])
    [wanted] = WEB.open_for(SimpleNamespace(description=DESCRIPTION), folder)([image])
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietFiles, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with chromium(tmp_path / "profile") as tab:
            tab.open(f"http://127.0.0.1:{server.server_port}/")
            tab.wait_for("$('model').textContent === 'efficientdet-d0 \xb7 3 classes \xb7 WebAssembly, 1 thread'")
            tab.give_files("#files", [tmp_path / "noise.png", tmp_path / "broken.png"])
            tab.wait_for("state.images.length === 2 && state.images.every((image) => image.found || image.error)")
            found, broken = tab.value("state.images.map(({found, size, error}) => ({found, size, error}))")
            tab.open((folder / "index.html").as_uri())
            tab.wait_for("$('status').textContent.includes('python -m http.server')")
    finally:
        server.shutdown()
        server.server_close()
    assert (found["size"], found["error"]) == ([121, 50], "")
    assert "decoded" in broken["error"]
    shown = wanted.scores >= 0.05
    assert len(found["found"]) == shown.sum() > 0
    assert [one["class_id"] for one in found["found"]] == wanted.category_ids[shown].tolist()
    assert [one["score"] for one in found["found"]] == pytest.approx(wanted.scores[shown].tolist(), abs=1e-4)
    boxes = np.array([one["box"] for one in found["found"]])[:, [1, 0, 3, 2]]
    np.testing.assert_allclose(boxes, wanted.boxes[shown], atol=0.02)


class QuietFiles(SimpleHTTPRequestHandler):
    """As `python -m http.server`."""

    def log_message(self, *_):
        pass
