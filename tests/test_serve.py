"""`python serve.py`: what it answers, what it refuses, what waits, and how it ends; in a real browser too."""

import base64
import contextlib
import http.client
import io
import json
import signal
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from chromium import PROGRAM, chromium
from color_artifact import CLASSES, wanted, write_color_artifact
from gated_server import CONNECTIONS, MOST_IMAGES
from PIL import Image
from serving import FORM, ROOT, encoded, form, received, request_bytes, running, wait_until

from efficientdet.inference.detect import Detector
from efficientdet.options.serve import MAX_SIDE
from efficientdet.prediction import open_model
from efficientdet.reports.drawing import class_color
from efficientdet.serving.batching import ImageResult, ServedModel, image_reply
from efficientdet.serving.server import bind
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import run_lengths
from program_support.errors import InputError

MOST_BYTES, MOST_PIXELS = 300_000, 1_000_000
BLUE, GREEN = (0, 40, 220), (10, 180, 90)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return write_color_artifact(tmp_path_factory.mktemp("artifact") / "colors.onnx")


@pytest.fixture(scope="module")
def server(artifact, tmp_path_factory):
    """serve.py with small limits; its standard error lists what it imports."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "tmp").mkdir()
    with running(
        folder,
        "serve.py",
        f"--model={artifact}",
        "--port=0",
        "--max_batch=4",
        f"--max_request_bytes={MOST_BYTES}",
        f"--max_pixels={MOST_PIXELS}",
        f"--max_queue={MOST_IMAGES}",
        "--min_score=0.1",
        PYTHONPROFILEIMPORTTIME="1",
        TMPDIR=str(folder / "tmp"),
    ) as one:
        one.temporary = folder / "tmp"
        yield one
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(timeout=60) == 0
        assert "Traceback" not in one.errors.read_text()


# What it answers


def found_in(image):
    return [(one["box"], one["score"], one["class_id"], one["class_name"]) for one in image["detections"]]


def assert_found(image, color, *, width, height, least=0.1):
    assert (image["width"], image["height"]) == (width, height)
    expected = [one for one in wanted(color, height=height, width=width) if one[1] >= least]
    assert len(expected) == len(found_in(image))
    for (box, score, *rest), (right_box, right_score, *right_rest) in zip(found_in(image), expected, strict=True):
        assert rest == right_rest
        assert box == pytest.approx(right_box, abs=0.01)
        assert score == pytest.approx(right_score, abs=1e-4)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "TIFF", "WEBP"])
def test_a_file_of_a_form(server, kind):
    lossless = {"lossless": True} if kind == "WEBP" else {}
    reply = server.detect([encoded(BLUE, size=(48, 40), kind=kind, **lossless)])
    assert (reply.status, reply.content["model"], reply.content["min_score"]) == (200, "colors.onnx", 0.1)
    [image] = reply.content["images"]
    assert_found(image, BLUE, width=48, height=40)


def as_json(images, **more):
    return json.dumps({"images": [base64.b64encode(image).decode() for image in images], **more})


def test_images_of_a_request_keep_their_order(server):
    colors = [BLUE, GREEN, (255, 0, 0), (90, 90, 200), (1, 2, 250)]
    images = [encoded(color, size=(20 + number, 30)) for number, color in enumerate(colors)]
    reply = server.detect(images)
    assert reply.status == 200
    for number, (image, color) in enumerate(zip(reply.content["images"], colors, strict=True)):
        assert_found(image, color, width=20 + number, height=30)


def lines_and_data_url(images):
    first, second = (base64.encodebytes(image).decode() for image in images)
    return json.dumps({"images": [first, f"data:image/png;base64,{second}"]})


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (as_json, "application/json"),
        (lines_and_data_url, "application/json; charset=utf-8"),
        (lambda images: form(images).replace(b'name="image"', b'name="file"', 1), FORM),
    ],
)
def test_other_ways_to_send_images(server, body, kind):
    reply = server.call("POST", "/v1/detect", body([encoded(BLUE), encoded(GREEN)]), content_type=kind)
    for image, color in zip(reply.content["images"], (BLUE, GREEN), strict=True):
        assert_found(image, color, width=64, height=64)


def test_an_image_of_as_many_scans_as_are_taken(server):
    assert server.detect([many_scans(99)]).status == 200


def test_the_lowest_score_of_the_address_of_the_form_and_of_json(server):
    image = encoded((200, 100, 50))

    def scores(reply):
        return [one["score"] for one in reply.content["images"][0]["detections"]]

    assert scores(server.detect([image])) == pytest.approx([0.78431, 0.39216, 0.19608], abs=1e-5)
    assert len(scores(server.detect([image], "?min_score=0.3"))) == 2
    assert len(scores(server.detect([image], min_score="0.5"))) == 1
    assert len(scores(server.detect([image], "?min_score=1", min_score="0.5"))) == 0
    reply = server.call("POST", "/v1/detect", as_json([image], min_score=0.3), content_type="application/json")
    assert (len(scores(reply)), reply.content["min_score"]) == (2, 0.3)


def test_a_picture_is_turned_upright_as_its_exif_says(server):
    """Stored red over blue; orientation 6 is seen with the top at the right: blue left, red right."""
    stored = np.zeros((40, 20, 3), np.uint8)
    stored[:20, :, 0] = stored[20:, :, 2] = 255
    stream, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(stored).save(stream, "JPEG", quality=95, exif=exif)
    [image] = server.detect([stream.getvalue()]).content["images"]
    assert (image["width"], image["height"]) == (40, 20)
    [first, *_] = [one for one in image["detections"] if one["class_id"] == 1]
    assert first["box"] == pytest.approx([0, 0, 20, 10], abs=0.01)  # half of 40 x 20, and not of 20 x 40


def test_neither_tensorflow_nor_keras_is_imported(server):
    server.detect([encoded()])
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in server.errors.read_text().splitlines()}
    assert {"onnxruntime", "starlette", "numpy"} <= imported
    assert imported & {"tensorflow", "keras", "jax", "onnx"} == set()


def written_bytes(process):
    """Of every write to a file; what goes to sockets is not among them."""
    return int(Path(f"/proc/{process.pid}/io").read_text().split("wchar:")[1].split()[0])


def test_nothing_that_was_sent_is_written(server):
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3)).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "PNG")
    assert len(stream.getvalue()) > 250_000
    before = written_bytes(server.process)
    for _ in range(8):
        assert server.detect([stream.getvalue()]).status == 200
    assert written_bytes(server.process) - before < 20_000
    assert list(server.temporary.iterdir()) == []


# What it refuses


def png_head(width, height):
    """A PNG of so many pixels of which there are none."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def text_bomb():
    """A PNG whose comment is 60 MB when unpacked."""
    whole = encoded()
    content = b"Comment\0\0" + zlib.compress(bytes(60_000_000), 9)
    chunk = struct.pack(">I", len(content)) + b"zTXt" + content + struct.pack(">I", zlib.crc32(b"zTXt" + content))
    return whole[:33] + chunk + whole[33:]


def many_scans(more, **options):
    """A progressive JPEG whose last scan is repeated: each takes a decoder as long as the image is large."""
    whole = encoded(kind="JPEG", progressive=True, **options)
    return whole[:-2] + whole[whole.rindex(b"\xff\xda") : -2] * (more - 9) + whole[-2:]


def many_parts(kind, place, part):
    """An image with 15,000 parts at a place of its head."""
    whole = encoded(kind=kind)
    return whole[:place] + part * 15_000 + whole[place:]


JSON = "application/json"
PICTURE = encoded()
REFUSED = {
    "no type": (415, PICTURE, None, "without a content type"),
    "another type": (415, PICTURE, "image/png", "'image/png'; expected multipart/form-data or application/json"),
    "no json": (400, "{", JSON, "is not JSON"),
    "deep json": (413, "[" * 100_000, JSON, "the JSON has more than 124 values"),
    "many values": (
        413,
        '{"images": [' + "{}," * 99_000 + "{}]}",
        JSON,
        "more than 124 values; expected at most 6 images",
    ),
    "long number": (400, '{"min_score": ' + "9" * 9000 + "}", JSON, "is not JSON"),
    "latin-1": (400, b'{"images": ["\xff"]}', JSON, "is not JSON"),
    "a list": (422, "[]", JSON, "is not an object"),
    "no images": (422, "{}", JSON, "images is missing"),
    "empty": (422, '{"images": []}', JSON, "the request has no image"),
    "numbers": (422, '{"images": [1]}', JSON, "images is missing or not a list"),
    "another key": (422, '{"image": "a"}', JSON, "unknown key 'image'; expected images, min_score"),
    "no base64": (400, '{"images": ["?!"]}', JSON, "the image is not base64"),
    "another data url": (400, '{"images": ["data:image/png,abc"]}', JSON, "not base64-encoded"),
    "no image": (400, form([PICTURE, b"hello"]), FORM, "image 2 of 2 is not a supported image"),
    "postscript": (400, form([b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"]), FORM, "not a supported image"),
    "cut short": (400, form([encoded(size=(200, 200), kind="BMP")[:-500]]), FORM, "the image: cannot be decoded"),
    "text bomb": (400, form([text_bomb()]), FORM, "the image"),
    "jpeg 2000": (400, form([encoded(kind="JPEG2000")]), FORM, "expected BMP, GIF, JPEG, PNG, TIFF, WEBP"),
    "many scans": (413, form([many_scans(100)]), FORM, "101 scans"),
    "many scans of a large image": (
        413,
        form([many_scans(99, size=(500, 500))]),
        FORM,
        "500 x 500 pixels in 100 scans; expected at most 64 scans of this size",
    ),
    "many segments": (413, form([many_parts("JPEG", 2, b"\xff\xe0\0\2")]), FORM, "0 scans and"),
    "many chunks": (413, form([many_parts("PNG", 33, b"\0\0\0\0teXt\0\0\0\0")]), FORM, "0 scans and"),
    "many blocks": (413, form([many_parts("GIF", 13 + 3 * 4, b"!\xfe\1a\0")]), FORM, "0 scans and"),
    "pixel bomb": (413, form([png_head(50_000, 50_000)]), FORM, f"more than {MOST_PIXELS} pixels"),
    "too many pixels": (413, form([png_head(1000, 1001)]), FORM, "1000 x 1001 pixels; expected at most 1000000"),
    "too long": (413, form([png_head(MAX_SIDE + 1, 1)]), FORM, f"{MAX_SIDE} per side"),
    "too many": (413, form([PICTURE] * (MOST_IMAGES + 1)), FORM, "Maximum number of files is 6"),
    "too many images": (413, as_json([PICTURE] * (MOST_IMAGES + 1)), JSON, "more than 6 images"),
    "too many fields": (413, form([], min_score="1", color="red"), FORM, "Maximum number of fields is 1"),
    "no file": (422, form([], image="text"), FORM, "expected files in the fields image and file"),
    "too large": (413, form([bytes(MOST_BYTES)]), FORM, f"more than {MOST_BYTES} bytes"),
    "no boundary": (400, form([PICTURE]), "multipart/form-data", "form: Missing boundary"),
    "another boundary": (400, form([PICTURE]), "multipart/form-data; boundary=x", "form: Invalid multipart data"),
    "no end": (400, form([PICTURE])[:-20], FORM, "truncated"),
    "no disposition": (400, b"--frontier\r\nA: b\r\n\r\nx\r\n--frontier--\r\n", FORM, '"name" must be provided'),
    "long header": (
        400,
        b"--frontier\r\nA: " + b"b" * 9000 + b"\r\n\r\nx\r\n--frontier--\r\n",
        FORM,
        "form: Invalid multipart data",
    ),
    "another field": (
        422,
        form([PICTURE], color="red"),
        FORM,
        "unknown field 'color'; expected image, file, min_score",
    ),
    "form without": (422, form([], min_score="1"), FORM, "the request has no image"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_request_is_told_in_one_line(server, case):
    status, body, kind, message = REFUSED[case]
    reply = server.call("POST", "/v1/detect", body, **({"content_type": kind} if kind else {}))
    assert (reply.status, [*reply.content]) == (status, ["error"])
    assert message in reply.content["error"]
    assert "\n" not in reply.content["error"]
    assert len(reply.content["error"]) < 300


@pytest.mark.parametrize("value", ["nan", "-0.1", "1.1", "inf", "much", "", "1e999"])
def test_a_wrong_score_is_refused(server, value):
    for reply in (server.detect([PICTURE], f"?min_score={value}"), server.detect([PICTURE], min_score=value)):
        assert (reply.status, reply.content["error"]) == (422, f"min_score is {value!r}; expected a number from 0 to 1")


def test_addresses_and_methods_that_there_are_not(server):
    assert [server.get(path).status for path in ("/nothing", "/metrics/", "/../serve.py", "/%2e%2e/serve.py")] == [
        404
    ] * 4
    assert server.get("/nothing").content == {
        "error": "Not found. See / for the demo page and /openapi.json for the API."
    }
    reply = server.get("/v1/detect")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert reply.content == {"error": "method GET is not allowed; see /openapi.json"}
    assert server.detect([PICTURE], "?score=1").content["error"] == "unknown parameter 'score'; expected min_score"


def test_a_large_body_is_refused_before_it_comes(server):
    """By its stated length, without the 100 that asks for it; one that states none, as soon as it is too long."""
    head = request_bytes(b"", length=10**9).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    with server.connect(head) as connection:
        assert received(connection).status == 413
    head = request_bytes(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with server.connect(head) as connection:
        for _ in range(MOST_BYTES // 50_000 + 1):
            connection.sendall(b"c350\r\n" + bytes(50_000) + b"\r\n")
        assert received(connection).status == 413


def test_what_is_no_http_is_refused_in_json(server):
    for sent in (
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 20_000,
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        with server.connect(sent) as connection:
            reply = received(connection)
            assert (reply.status, [*reply.content]) == (400, ["error"])
    assert server.get("/healthz").content == {"status": "ok"}


def test_pages_elsewhere_may_not_call_it(server):
    host = f"127.0.0.1:{server.port}"
    assert server.call("GET", "/healthz", origin=f"http://{host}").status == 200
    assert server.call("GET", "/healthz", origin="https://example.org").status == 403
    assert server.call("GET", "/healthz", origin="null").status == 403
    with server.connect(b"GET /healthz HTTP/1.1\r\nHost: example.org\r\n\r\n") as connection:  # DNS rebinding
        reply = received(connection)
    assert (reply.status, "access-control-allow-origin" in reply.headers) == (400, False)
    with server.connect(b"GET /healthz HTTP/1.1\r\nHost: [::1\r\n\r\n") as connection:
        assert received(connection).status == 400


# What is reported about it


def test_the_interface_is_described_as_it_is(server):
    api = server.get("/openapi.json").content
    assert api["openapi"] == "3.1.0"
    assert set(api["paths"]) == {"/v1/detect", "/v1/model", "/healthz", "/metrics"}
    answers = {
        "Detections": server.detect([encoded(), encoded(BLUE)]).content,
        "Model": server.get("/v1/model").content,
        "Error": server.detect([]).content,
    }
    for name, content in answers.items():
        schema = {
            "$ref": f"#/components/schemas/{name}",
            "components": api["components"],
            "unevaluatedProperties": False,
        }
        jsonschema.Draft202012Validator(schema).validate(content)
    documented = {int(status) for status in api["paths"]["/v1/detect"]["post"]["responses"]}
    assert {status for status, *_ in REFUSED.values()} | {200, 500, 503, 504} <= documented


def test_metrics_count(server):
    def counts():
        return (
            server.metric("efficientdet_images_total"),
            server.metric("efficientdet_request_seconds_count"),
            server.metric('efficientdet_requests_total{path="/v1/detect",status="200"}'),
            server.metric('efficientdet_request_seconds_bucket{le="+Inf"}'),
        )

    server.detect([PICTURE])
    before = counts()
    server.detect([PICTURE] * 3)
    server.get("/no/such/page")
    assert np.subtract(counts(), before).tolist() == [3, 1, 1, 1]
    assert server.metric('efficientdet_requests_total{path="other",status="404"}') >= 1
    assert server.metric("efficientdet_queue_images") == 0
    assert server.metric("process_resident_memory_bytes") > 1e7


def test_masks_are_cocos_run_lengths_and_what_is_not_finite_is_left_out():
    masks = [run_lengths(np.eye(4, 6, k) > 0) for k in range(3)]
    rows = DetectionRows.of_image(
        np.float32([[1, 2, 3, 4], [-1, -2, 9, 9], [0, np.nan, 1, 1]]),
        np.float32([0.9, 0.5, 0.8]),
        np.int64([9, 1, 5]),
        masks=masks,
    )
    model = ServedModel(detect=lambda images: [rows], class_names=CLASSES, name="model")
    reply = image_reply(ImageResult((4, 6), rows, model), min_score=0.5)
    assert (
        reply
        == json.loads(json.dumps(reply))
        == {
            "width": 6,
            "height": 4,
            "detections": [
                {"box": [2, 1, 4, 3], "score": 0.9, "class_id": 9, "class_name": "blue & co", "mask": masks[0]},
                {"box": [0, 0, 6, 4], "score": 0.5, "class_id": 1, "class_name": "red", "mask": masks[1]},
            ],
        }
    )


# What waits


def gated_server(tmp_path_factory, seconds):
    """A server with a folder for its gate, which gives a request so many seconds."""
    folder = tmp_path_factory.mktemp("gated")
    with running(folder, ROOT / "tests" / "gated_server.py", folder, seconds) as one:
        one.folder = folder
        yield one


@pytest.fixture(scope="module")
def gated_process(tmp_path_factory):
    yield from gated_server(tmp_path_factory, 50)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """One that gives a request a second."""
    yield from gated_server(tmp_path_factory, 1)


@pytest.fixture
def gated(gated_process):
    """Its gate is open at the end of each test, and nothing waits."""
    yield gated_process
    (gated_process.folder / "gate").unlink(missing_ok=True)
    wait_until(lambda: gated_process.metric("efficientdet_queue_images") == 0)


def shade(number):
    return encoded((number,) * 3)


def close_gate(gated, requests):
    """A detector that is busy: one image has gone in and does not come out."""
    (gated.folder / "entered").unlink(missing_ok=True)
    (gated.folder / "gate").touch()
    inside = requests.submit(gated.detect, [shade(200)])
    wait_until((gated.folder / "entered").exists)
    return inside


def queued(gated, count):
    wait_until(lambda: gated.metric("efficientdet_queue_images") == count)


def shades(reply):
    return [one["class_id"] for image in reply.content["images"] for one in image["detections"]]


def test_requests_that_come_together_are_one_batch_and_a_broken_picture_harms_nobody(gated):
    def batches():
        bounds = ("1.0", "2.0", "4.0", "+Inf")
        return [gated.metric(f'efficientdet_batch_images_bucket{{le="{bound}"}}') for bound in bounds]

    before = batches()
    with ThreadPoolExecutor(8) as requests:
        inside = close_gate(gated, requests)
        replies = []
        for number, image in enumerate([shade(10), shade(20)[:-30], shade(0), shade(40), shade(50)], start=1):
            replies.append(requests.submit(gated.detect, [image]))
            queued(gated, number)
        (gated.folder / "gate").unlink()
        first, *others = [one.result() for one in (inside, *replies)]
    assert shades(first) == [200]
    assert [reply.status for reply in others] == [200, 400, 500, 200, 200]
    assert [shades(others[number]) for number in (0, 3, 4)] == [[10], [40], [50]]
    assert others[2].content == {"error": "the detector failed; see the log of the server"}
    assert np.subtract(batches(), before).tolist() == [2, 2, 3, 3]  # of 1, of 4, of 1
    assert "cannot see in the dark" in gated.errors.read_text()


def test_a_full_queue_says_when_to_come_again(gated):
    with ThreadPoolExecutor(8) as requests:
        inside = close_gate(gated, requests)
        waiting = requests.submit(gated.detect, [shade(1)] * MOST_IMAGES)
        queued(gated, MOST_IMAGES)
        reply = gated.detect([shade(2)])
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert reply.content == {"error": "the queue is full (6 of 6 images); retry later"}
        (gated.folder / "gate").unlink()
        assert (inside.result().status, waiting.result().status) == (200, 200)


def test_who_waits_too_long_is_told_and_takes_no_place(impatient):
    with ThreadPoolExecutor(8) as requests:
        inside = close_gate(impatient, requests)
        waiting = requests.submit(impatient.detect, [shade(1)] * 3)
        assert (waiting.result().status, inside.result().status) == (504, 504)
        queued(impatient, 0)
        (impatient.folder / "gate").unlink()


def test_who_hangs_up_takes_no_place(gated):
    with ThreadPoolExecutor(8) as requests:
        inside = close_gate(gated, requests)
        with gated.connect(request_bytes(form([shade(1)] * 3))):
            queued(gated, 3)
        queued(gated, 0)
        (gated.folder / "gate").unlink()
        assert inside.result().status == 200


def test_a_body_that_does_not_come_is_not_waited_for(impatient):
    with impatient.connect(request_bytes(form([shade(1)])[:-5], length=1000)) as connection:
        assert received(connection).status == 408


def test_slow_and_many_connections_end(gated):
    """Unfinished requests take all places until they lose them; then others are answered."""
    half = [b"GET / HTTP/1.1\r\nHost: localhost\r\n", request_bytes(form([shade(1)]))[:-1]]
    slow = [gated.connect(half[number % 2]) for number in range(2 * CONNECTIONS)]
    assert gated.get("/healthz").status == 503
    wait_until(lambda: not refused(gated))
    assert gated.detect([shade(2)]).status == 200
    for connection in slow[::2]:
        with connection, contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
    for connection in slow[1::2]:
        connection.close()


def refused(server):
    try:
        return server.get("/healthz").status != 200
    except (ConnectionError, http.client.HTTPException):
        return True


def test_too_many_large_bodies_at_once_are_refused(gated):
    """All but the last byte of many: what is held together has a limit."""
    body = form([bytes(90_000)])
    half = [gated.connect(request_bytes(body)[:-1]) for _ in range(20)]
    try:
        half[0].setblocking(True)
        statuses = []
        for connection in half:
            connection.sendall(body[-1:])
            statuses.append(received(connection).status)
    finally:
        for connection in half:
            connection.close()
    assert set(statuses) == {400, 503}  # no image; no room
    assert 16 <= statuses.count(400) < 20


# How it starts and ends


def test_the_stored_threshold_is_the_default_of_page_and_api(tmp_path):
    stored = write_color_artifact(tmp_path / "stored.onnx", {"overall": 0.27, "classes": {"red": 0.9}})
    for flags, least, told in (
        ((), 0.27, "the best F1 on the validation data, stored with the model"),
        (("--min_score=0.6", "--allowed_hosts=LocalHost:80,127.0.0.1"), 0.6, "--min_score"),
    ):
        with running(tmp_path, "serve.py", f"--model={stored}", "--port=0", *flags) as one:
            assert one.threshold == f"score threshold: {least:g}, {told}\n"
            assert f'id="score" min="0.05" max="1" step="0.01" value="{least:.2f}"' in one.get("/").content
            assert one.get("/v1/model").content["min_score"] == least
            with one.connect(b"GET /healthz HTTP/1.1\r\nHost: localhost:8000\r\n\r\n") as connection:
                assert received(connection).status == 200
            [parameter] = one.get("/openapi.json").content["paths"]["/v1/detect"]["post"]["parameters"]
            assert parameter["schema"]["default"] == least
            reply = one.detect([encoded((204, 127, 77))])  # 0.8, 0.5, 0.3
            assert reply.content["min_score"] == least
            assert [found["score"] >= least for found in reply.content["images"][0]["detections"]] == [True] * (
                3 if least == 0.27 else 1
            )


def test_requests_that_have_begun_are_answered_at_the_end(artifact, tmp_path):
    with running(tmp_path, "serve.py", f"--model={artifact}", "--port=0") as one:
        sent = request_bytes(form([encoded(GREEN)]))
        with one.connect(sent[:300]) as begun, one.connect() as idle:
            wait_until(lambda: one.get("/healthz").status == 200)
            one.process.send_signal(signal.SIGTERM)
            assert idle.recv(1) == b""
            with pytest.raises(ConnectionError):
                one.connect()
            begun.sendall(sent[300:])
            reply = received(begun)
        assert_found(reply.content["images"][0], GREEN, width=64, height=64, least=0.4)
        assert (one.process.wait(timeout=60), one.errors.read_text()) == (0, "")


def test_a_second_signal_ends_it_at_once(tmp_path):
    with running(tmp_path, ROOT / "tests" / "gated_server.py", tmp_path, 50) as one, ThreadPoolExecutor(1) as requests:
        one.folder = tmp_path
        inside = close_gate(one, requests)
        one.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refused(one))
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(timeout=60) == 128 + signal.SIGTERM
        assert one.errors.read_text() == "exited immediately; running requests were aborted\n"
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            inside.result()


def test_a_taken_port_is_one_line(server):
    with pytest.raises(
        InputError, match=rf"--host=127.0.0.1 --port={server.port}: cannot listen on this address \(Address already"
    ):
        bind("127.0.0.1", server.port)


def test_a_missing_package_is_one_line(artifact):
    program = (
        "import importlib.util, runpy, sys; sys.argv = ['serve.py', sys.argv[1]]; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: find(name) if name != 'uvicorn' else None\n"
        "runpy.run_path('serve.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, f"--model={artifact}"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "serve.py: error: serve.py needs the package uvicorn: pip install -e '.[serve]'\n"


def test_a_checkpoints_network_sees_few_sizes_of_batches(monkeypatch):
    seen = []

    def detect(images):
        seen.append(len(images))
        return [
            DetectionRows.of_image(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64), image_id=image[0, 0, 0])
            for image in images
        ]

    monkeypatch.setattr(open_model, "load_detector", lambda path, **_: Detector(detect, CLASSES, batch_size=1))
    opened = open_model.open_for_serving("runs/first", runtime="keras", max_batch=6)
    assert (seen, opened.class_names) == ([1, 2, 4, 6], CLASSES)
    seen.clear()
    images = [np.full((1, 1, 3), number, np.uint8) for number in range(6)]
    for count in range(1, 7):
        ids = [rows.evaluated_ids.tolist() for rows in opened.detect(images[:count])]
        assert ids == [[number] for number in range(count)]
    assert seen == [1, 2, 4, 4, 6, 6]


# In a browser


@pytest.mark.skipif(not PROGRAM, reason="no Chromium is installed; on Debian: apt install chromium")
def test_the_page_in_a_browser(server, tmp_path):
    files = []
    for name, image in (
        ("first.png", encoded((200, 100, 50), size=(120, 80))),
        ("blue.jpg", encoded(BLUE, kind="JPEG")),
        ("broken.png", encoded()[:-40]),
    ):
        (tmp_path / name).write_bytes(image)
        files.append(tmp_path / name)
    with chromium(tmp_path / "profile") as page:
        page.open(f"http://127.0.0.1:{server.port}/")
        page.wait_for("document.querySelector('#model').textContent === 'colors.onnx · 3 classes'")
        page.give_files("#files", files[:1])
        page.wait_for("document.querySelectorAll('#rows tr').length === 3")  # the slider starts at --min_score=0.1
        assert page.value("[$('score').value, $('threshold').textContent]") == ["0.1", "0.10"]
        assert page.value("$('status').textContent").startswith("first.png · 120 \xd7 80 · 3 of 3 shown · ")

        def slide(value):
            page.value(f"$('score').value = {value}; $('score').dispatchEvent(new Event('input'))")
            return page.value(
                "[...document.querySelectorAll('#rows tr')].map((row) => [...row.cells].map("
                "(cell) => cell.textContent))"
            )

        red, evil, blue = (
            ["red", "0.784", "0", "0", "60", "40"],
            [CLASSES.names[1], "0.392", "30", "20", "60", "40"],
            [CLASSES.names[2], "0.196", "60", "40", "60", "40"],
        )
        assert slide(0.3) == [red, evil]  # best first; the name of a class is text and no HTML
        assert slide(0.1) == [red, evil, blue]
        assert page.value("document.querySelectorAll('img').length") == 0
        page.value("document.querySelector('[data-class-id=\"5\"]').click()")
        assert slide(0.1) == [red, blue]
        pixel = page.value(
            "(() => { const c = $('image'); return [...c.getContext('2d').getImageData("
            "c.width / 2, c.height / 4, 1, 1).data] })()"
        )  # on the right edge of red's box
        assert np.abs(np.subtract(pixel[:3], class_color(0))).max() < 40

        page.give_files("#files", files[1:])
        page.wait_for("state.images.every((image) => image.found || image.error)")
        assert page.value("document.querySelectorAll('#thumbnails button').length") == 3
        assert page.value("state.current.name") == "first.png"
        for name in ("blue.jpg", "broken.png"):
            page.press("ArrowRight")
            assert page.value("state.current.name") == name
        page.wait_for("$('status').className === 'bad' && $('status').textContent.startsWith('broken.png: the image')")

        refusals = [one for one in page.complaints if "400 (Bad Request)" in one]
        assert (len(refusals), page.complaints) == (1, refusals)  # of the broken image; nothing else went wrong
