"""The labeling loop in a real Label Studio and a browser: proposals, annotations, a training, its model's proposals.

Runs with `scripts/test.sh --label_studio=PROGRAM` only: Label Studio takes a gigabyte, and the training minutes.
"""

import contextlib
import http.cookiejar
import json
import os
import socket
import subprocess
import urllib.request
import uuid
from pathlib import Path
from urllib.parse import urlencode

import pytest
from chromium import PROGRAM, chromium
from color_artifact import write_color_artifact
from serving import running, wait_until

from dataset.synthetic import draw_data_set

MAIL, PASSWORD = "user@example.org", "as secret as any"
LABELED = 20
pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="without Chromium")]


class Session:
    """Requests of a user who has logged in."""

    def __init__(self, address: str):
        self.address, self._cookies = address, http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._cookies))
        self._opener.open(f"{address}/user/login/").read()
        form = {"csrfmiddlewaretoken": self._forgery_token(), "email": MAIL, "password": PASSWORD}
        self._opener.open(urllib.request.Request(f"{address}/user/login/", urlencode(form).encode())).read()

    def call(self, method, path, content=None, *, kind="application/json"):
        body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
        headers = {"Content-Type": kind, "X-CSRFToken": self._forgery_token()}
        with self._opener.open(urllib.request.Request(self.address + path, body, headers, method=method)) as reply:
            told = reply.read()
        return json.loads(told) if told else None

    def upload(self, project: int, image: Path):
        boundary = uuid.uuid4().hex
        head = f'Content-Disposition: form-data; name="file"; filename="{image.name}"\r\nContent-Type: image/jpeg'
        body = f"--{boundary}\r\n{head}\r\n\r\n".encode() + image.read_bytes() + f"\r\n--{boundary}--\r\n".encode()
        kind = f"multipart/form-data; boundary={boundary}"
        self.call("POST", f"/api/projects/{project}/import", body, kind=kind)

    def tasks(self, project: int):
        return self.call("GET", f"/api/tasks?project={project}&page_size=100&fields=all")["tasks"]

    def _forgery_token(self) -> str:
        return next(cookie.value for cookie in self._cookies if cookie.name == "csrftoken")


@contextlib.contextmanager
def label_studio(program: str, folder: Path):
    """A Label Studio of one user, who has logged in."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "LABEL_STUDIO_BASE_DATA_DIR": str(folder / "data"),
        "LABEL_STUDIO_USERNAME": MAIL,
        "LABEL_STUDIO_PASSWORD": PASSWORD,
        "ML_BLOCK_LOCAL_IP": "false",
        "SSRF_PROTECTION_ENABLED": "false",
        "COLLECT_ANALYTICS": "false",
        "LATEST_VERSION_CHECK": "false",
        "SENTRY_DSN": "",
        "FRONTEND_SENTRY_DSN": "",
    }
    command = [program, "start", "--no-browser", "--port", str(port), "--internal-host", "127.0.0.1"]
    with (folder / "label_studio.log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: _answers(f"{address}/health"), seconds=400)
        yield Session(address)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False


def region(annotation: dict, image: dict, names: dict[int, str]) -> dict:
    """An annotation of COCO as a user draws it."""
    width, height = image["width"], image["height"]
    x, y, w, h = (100 * side / whole for side, whole in zip(annotation["bbox"], (width, height) * 2, strict=True))
    label = names[annotation["category_id"]]
    return {
        "type": "rectanglelabels",
        "from_name": "label",
        "to_name": "image",
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
        "value": {"x": x, "y": y, "width": w, "height": h, "rotation": 0, "rectanglelabels": [label]},
    }


def test_label_train_and_label_on(request, tmp_path):
    if not (program := request.config.getoption("--label_studio")):
        pytest.skip("without --label_studio=PROGRAM")
    draw_data_set(tmp_path / "drawn", images={"train": LABELED + 2}, image_size=(96, 96), seed=1)
    drawn = json.loads((tmp_path / "drawn" / "annotations" / "instances_train.json").read_text())
    names = {one["id"]: one["name"] for one in drawn["categories"]}
    labels = "".join(f'<Label value="{name}"/>' for name in (*names.values(), "red"))
    with label_studio(program, tmp_path) as session:
        key = session.call("POST", "/api/token/", {})["token"]
        rectangles = f'<RectangleLabels name="label" toName="image">{labels}</RectangleLabels>'
        configuration = f'<View><Image name="image" value="$image"/>{rectangles}</View>'
        project = session.call("POST", "/api/projects", {"title": "scenes", "label_config": configuration})["id"]
        images = {Path(one["file_name"]).name: one for one in drawn["images"]}
        for name in images:
            session.upload(project, next((tmp_path / "drawn").rglob(name)))
        artifact = write_color_artifact(tmp_path / "colors.onnx")
        with running(
            tmp_path / "server",
            "serve.py",
            f"--model={artifact}",
            "--port=0",
            f"--label_studio={session.address}",
            f"--train_dir={tmp_path / 'run'}",
            f"--train_after={LABELED}",
            "--train_minutes=1",
            LABEL_STUDIO_API_KEY=key,
        ) as server:
            backend = {"project": project, "url": f"http://127.0.0.1:{server.port}", "title": "detector"}
            assert session.call("POST", "/api/ml", backend)["state"] == "CO"  # connected
            everything = {"selectedItems": {"all": True, "excluded": []}}
            retrieve = f"/api/dm/actions?id=retrieve_tasks_predictions&project={project}"
            session.call("POST", retrieve, everything)
            assert {one["model_version"][:10] for task in session.tasks(project) for one in task["predictions"]} == {
                "colors.onn"
            }
            for task in session.tasks(project)[:LABELED]:
                name = task["data"]["image"].rpartition("/")[2].partition("-")[2]
                found = [one for one in drawn["annotations"] if one["image_id"] == images[name]["id"]]
                result = [region(one, images[name], names) for one in found]
                session.call("POST", f"/api/tasks/{task['id']}/annotations/", {"result": result})
            wait_until(lambda: server.get("/health").content["model_class"].startswith("detector.onnx"), seconds=1500)
            session.call("POST", retrieve, everything)
            rest = session.tasks(project)[LABELED:]
            assert all(task["predictions"][-1]["model_version"].startswith("detector.onnx") for task in rest)
            with chromium(tmp_path / "browser") as page:
                page.open(f"{session.address}/user/login/")
                page.value(
                    f"[...document.querySelectorAll('input')].forEach(one => {{ if (one.name === 'email') one.value ="
                    f" '{MAIL}'; if (one.name === 'password') one.value = '{PASSWORD}' }});"
                    "document.querySelector('form').submit()"
                )
                page.wait_for("location.pathname.startsWith('/projects') || location.pathname === '/'")
                page.open(f"{session.address}/projects/{project}/data?task={rest[0]['id']}")
                page.wait_for("document.body.innerText.includes('detector...')", seconds=120)  # shortened version
                (tmp_path / "editor.png").write_bytes(page.screenshot())
            assert "label studio" not in server.errors.read_text()
