"""get_open_images.sh with its downloads from a local server; the json of MLPerf's own program; both scripts."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import forked_programs
import pytest
from PIL import Image

from dataset.class_names import class_names_of_records
from dataset.input.ground_truth import ground_truth_of_records
from dataset.records.record_index import index_records
from efficientdet.plugins.label_formats.open_images_classes import MLPERF_FILE

ROOT = Path(__file__).resolve().parent.parent
HEADER = (
    "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside\n"
)
# PYTHON of the script: downloads in earnest, and only notes down what it is reported to convert
NOT_CONVERTING = """#!/bin/bash
printf '%s\\n' "$*" >> "$LOG"
[[ $* == *--list_images=* ]] && exec "$REAL" "$@"
for flag; do case $flag in --output_file_prefix=*) touch "${flag#*=}.report.json" ;; esac; done
"""


def jpeg(shade=100):
    content = io.BytesIO()
    Image.new("RGB", (40, 30), (shade, 100, 200)).save(content, "JPEG")
    return content.getvalue()


class Site(ThreadingHTTPServer):
    """Files by address; `asked` has the addresses, `stall` holds back the second half of a file until released."""

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.asked, self.answers, self.stall, self.sends_parts = files, [], {}, {}, True
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        site, place = self.server, self.path.lstrip("/")
        site.asked.append(place)
        code = site.answers.get(place, [])
        if code:
            return self.answer(code.pop(0), b"")
        if place not in site.files:
            return self.answer(404, b"")
        content, begin = site.files[place], 0
        if (ranges := self.headers.get("Range")) and site.sends_parts:
            begin = int(ranges.removeprefix("bytes=").rstrip("-"))
            site.asked[-1] += f" from {begin}"
        if begin and begin >= len(content):
            return self.answer(416, b"")
        return self.answer(206 if begin else 200, content[begin:], begin, len(content), site.stall.get(place))

    def answer(self, code, content, begin=0, total=0, stall=None):
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "text/html; charset=utf-8" if content[:1] == b"<" else "image/jpeg")
        if code == 206:
            self.send_header("Content-Range", f"bytes {begin}-{total - 1}/{total}")
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        if stall:
            self.wfile.flush()
            stall.wait(30)
        if stall is None or stall.is_set():
            self.wfile.write(content[len(content) // 2 :])
        else:
            self.close_connection = True

    def log_message(self, *_):
        pass


@contextmanager
def serving(files):
    with Site(files) as site:
        thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield site
        site.shutdown()


def box(image, label="/m/014j1m", group=0):
    return f"{image},xclick,{label},1,0.1,0.5,0.2,0.6,0,0,{group},0,0\n"


@pytest.fixture
def site(monkeypatch):
    """Five images of each split with an apple, one with a zebra."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    files = {
        "v5/class-descriptions-boxable.csv": "".join(MLPERF_FILE.read_text().splitlines(keepends=True)[1:]).encode()
    }
    tables = {"train": "v6/oidv6-train-annotations-bbox.csv", "validation": "v5/validation-annotations-bbox.csv"}
    for split, table in tables.items():
        names = [f"{number:016x}" for number in range(5)]
        files[table] = (HEADER + "".join(map(box, names)) + box("f" * 16, "/m/0898b", 1)).encode()
        files |= {f"{split}/{name}.jpg": jpeg(number) for number, name in enumerate([*names, "f" * 16])}
    with serving(files) as site:
        yield site


@pytest.fixture
def environment(tmp_path, site):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(NOT_CONVERTING)
    python.chmod(0o755)
    return {
        **os.environ,
        "PYTHON": str(python),
        "REAL": sys.executable,
        "LOG": str(tmp_path / "log"),
        "OPEN_IMAGES_TABLES_URL": site.url,
        "OPEN_IMAGES_IMAGES_URL": site.url,
    }


def call(environment, folder, *arguments):
    return subprocess.run(
        ["bash", str(ROOT / "dataset" / "get_open_images.sh"), *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def conversions(folder):
    log = folder / "log"
    return [line for line in log.read_text().splitlines() if "--list_images=" not in line] if log.exists() else []


# The script


def test_downloads_and_converts(tmp_path, site, environment):
    done = call(environment, tmp_path, "a b", "--classes=Apple")
    assert (done.returncode, done.stderr) == (0, "")
    folder = tmp_path / "a b"
    for split in ("train", "validation"):
        assert sorted(path.name for path in (folder / split).iterdir()) == [f"{number:016x}.jpg" for number in range(5)]
        assert (folder / split / f"{3:016x}.jpg").read_bytes() == site.files[f"{split}/{3:016x}.jpg"]
        assert (folder / f"{split}.images.txt").read_text().split() == [f"{number:016x}" for number in range(5)]
    validation, train = conversions(tmp_path)
    for words in (
        f"--object_annotations_file={folder}/oidv6-train-annotations-bbox.csv ",
        f"--image_dir={folder}/train ",
        f"--class_descriptions_file={folder}/class-descriptions-boxable.csv ",
        "--classes=Apple ",
        f"--output_file_prefix={folder}/train",
    ):
        assert words in train
    assert "--expect" not in train
    assert "--image_ids_file" not in train
    assert f"--object_annotations_file={folder}/validation-annotations-bbox.csv " in validation
    asked = len(site.asked)
    done = call(environment, tmp_path, "a b", "--classes=Apple")
    assert done.returncode == 0
    assert len(site.asked) == asked
    assert done.stdout.count("already converted") == 2
    assert len(conversions(tmp_path)) == 2


def test_a_number_of_images(tmp_path, site, environment):
    done = call(environment, tmp_path, "out", "--max_images=2", "--splits=validation")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out" / "validation").iterdir()) == [
        f"{0:016x}.jpg",
        f"{1:016x}.jpg",
    ]
    [line] = conversions(tmp_path)
    assert line.endswith(f"--image_ids_file={tmp_path}/out/validation.images.txt")
    assert call(environment, tmp_path, "out", "--max_images=4", "--splits=validation").returncode == 0
    assert len(conversions(tmp_path)) == 2
    images = [place for place in site.asked if place.endswith(".jpg")]
    assert len(images) == len({*images}) == 4


def test_the_whole_set_of_mlperf_is_counted(tmp_path, site, environment):
    done = call(environment, tmp_path, "out", "--classes=mlperf")
    assert done.returncode == 2
    assert "6 images have a box of the 264 classes; expected 24781 by --expect=mlperf-validation" in done.stderr
    assert not [place for place in site.asked if place.endswith(".jpg")]
    assert call(environment, tmp_path, "out", "--classes=mlperf", "--max_images=1").returncode == 0


def test_a_part_of_a_table_is_continued(tmp_path, site, environment):
    table = "v5/validation-annotations-bbox.csv"
    folder = tmp_path / "out"
    folder.mkdir()
    part = folder / "validation-annotations-bbox.csv.part"
    for length in (100, len(site.files[table])):  # of the whole one the server has no more
        part.write_bytes(site.files[table][:length])
        assert call(environment, tmp_path, "out", "--splits=validation", f"--max_images={length}").returncode == 0
        assert f"{table} from {length}" in site.asked
        assert (folder / "validation-annotations-bbox.csv").read_bytes() == site.files[table]
        (folder / "validation-annotations-bbox.csv").unlink()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_and_continued(tmp_path, site, environment, number):
    stalled = f"validation/{2:016x}.jpg"
    site.stall[stalled] = threading.Event()
    command = ["bash", str(ROOT / "dataset" / "get_open_images.sh"), "out", "--splits=validation", "--connections=2"]
    run = subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    images = tmp_path / "out" / "validation"
    deadline = time.monotonic() + 60
    while not (stalled in site.asked and list(images.parent.glob(f".*/{4:016x}.jpg"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(run.pid, number)
    run.communicate(timeout=60)
    assert run.returncode != 0
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:  # until nothing is left of them, or they would count as still writing
            os.killpg(run.pid, 0)
            time.sleep(0.02)
    assert not (images / f"{2:016x}.jpg").exists()
    assert not conversions(tmp_path)
    site.stall.pop(stalled).set()
    site.asked.clear()
    done = call(environment, tmp_path, "out", "--splits=validation")
    assert done.returncode == 0, done.stderr
    assert stalled in site.asked
    assert sorted(path.name for path in images.iterdir()) == [
        *(f"{one:016x}.jpg" for one in range(5)),
        "f" * 16 + ".jpg",
    ]
    assert (images / f"{2:016x}.jpg").read_bytes() == site.files[stalled]


def test_images_that_the_server_lacks(tmp_path, site, environment):
    del site.files[f"validation/{3:016x}.jpg"]
    site.answers[f"validation/{4:016x}.jpg"] = [503, 403]
    done = call(environment, tmp_path, "out", "--splits=validation")
    assert done.returncode == 0, done.stderr
    assert "the server lacks 2 images" in done.stdout
    missing = (tmp_path / "out" / "validation.missing.txt").read_text()
    assert sorted(missing.split()) == [f"{3:016x}.jpg", f"{4:016x}.jpg"]
    assert site.asked.count(f"validation/{4:016x}.jpg") == 2
    assert len(list((tmp_path / "out" / "validation").iterdir())) == 4
    python = forked_programs.python()
    done = call({**environment, "PYTHON": python}, tmp_path, "out", "--splits=validation", "--max_images=5")
    assert "1 of 5 images would be skipped" in done.stderr  # by the conversion: the other one is there now


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"<html>Log in</html>", "check for a proxy page"), (None, r"503.*run this again to resume")],
)
def test_what_is_no_image_ends_it(tmp_path, site, environment, content, message):
    place = f"validation/{2:016x}.jpg"
    if content:
        site.files[place] = content
    else:
        site.answers[place] = [503] * 9
    done = call(environment, tmp_path, "out", "--splits=validation")
    assert done.returncode == 2
    assert re.search(message, done.stderr)
    assert not (tmp_path / "out" / place).exists()


def test_settings_are_not_run_by_a_shell(tmp_path, site, environment):
    for value in ("`touch run`", "a[$(touch run)]"):
        for option in ("--classes", "--max_images", "--splits", "--connections", "--max_bad_fraction", "--nonsense"):
            done = call(environment, tmp_path, "out", f"{option}={value}")
            assert done.returncode == 2
            assert len(done.stderr.splitlines()) == 1, done.stderr
        done = call({**environment, "OPEN_IMAGES_IMAGES_URL": value}, tmp_path, "out", "--splits=validation")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert not list(tmp_path.rglob("run"))


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--classes=mlperf"]])
def test_usage(tmp_path, environment, arguments):
    done = call(environment, tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: bash dataset/get_open_images.sh FOLDER")


@pytest.mark.parametrize("folder", [["out"], ["-d", "out"]])  # -d as in MLPerf's download_openimages_mlperf.sh
def test_offline_is_one_line(tmp_path, environment, folder):
    done = call({**environment, "OPEN_IMAGES_TABLES_URL": "http://127.0.0.1:9"}, tmp_path, *folder)
    assert (tmp_path / "out").is_dir()
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "http://127.0.0.1:9/v5/class-descriptions-boxable.csv: download failed (curl: (7)" in done.stderr
    assert "run this again to resume" in done.stderr


# Records in earnest


def test_from_the_server_to_records(tmp_path, site, environment):
    python = forked_programs.python()
    done = call({**environment, "PYTHON": python}, tmp_path, "out", "--splits=validation", "--classes=Zebra,Apple")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads((tmp_path / "out" / "validation.report.json").read_text())
    assert (report["images"], report["boxes_per_class"], report["crowd_boxes"]) == (6, {"Zebra": 1, "Apple": 5}, 1)
    shards = [str(tmp_path / "out" / "validation-00000-of-00001.tfrecord")]
    annotations = ground_truth_of_records(index_records(shards), class_names_of_records(shards))["annotations"]
    assert [(one["image_id"], one["category_id"], one["iscrowd"]) for one in annotations] == [
        *((number, 1, 0) for number in range(1, 6)),
        (6, 0, 1),
    ]
    assert annotations[0]["bbox"] == pytest.approx([4, 6, 16, 12], abs=1e-4)
    assert sorted(path.name for path in (tmp_path / "out").glob(".*")) == [
        ".outputs_of_efficientdet.json",
        ".validation.conversion",
        ".validation.done",
    ]
