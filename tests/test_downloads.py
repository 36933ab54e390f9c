"""Published weights by name, from a server of this machine that ends early, lies, is busy or is not there."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from efficientdet.checkpoints.checkpoint import existing_backbone, existing_checkpoint
from efficientdet.families.published_files import PublishedFile, published_files
from efficientdet.weights import transfer
from efficientdet.weights.downloads import cache_folder, cached_file, cached_weights, local_path, main
from program_support.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
CONTENT = bytes(range(256)) * 2000
NAME = f"drawn-{hashlib.sha256(CONTENT).hexdigest()[:8]}.pth"
FILE = PublishedFile(NAME, len(CONTENT), "a backbone", "top-1 0")


class Handler(BaseHTTPRequestHandler):
    """Answers as the server's `plan` says: an entry for each request, then always whole."""

    def do_GET(self):
        server = self.server
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        server.asked.append(start)
        step = server.plan.pop(0) if server.plan else {}
        content = step.get("content", CONTENT)
        code = step.get("code") or (
            416 if start >= len(content) else 206 if start and not step.get("ignores_range") else 200
        )
        if code not in (200, 206):
            self.send_error(code)
            return
        if code == 200:
            start = 0
        self.send_response(code)
        if code == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if not step.get("endless"):
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : step.get("until", len(content))])
        self.wfile.flush()
        if "waits" in step:
            step["waits"].wait(30)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    """At EFFICIENTDET_WEIGHTS_URL; the cache is `tmp_path`/cache, and nothing waits between two tries."""
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads, made.plan, made.asked = True, [], []
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("EFFICIENTDET_WEIGHTS_URL", f"http://127.0.0.1:{made.server_port}/models/")
    monkeypatch.setenv("EFFICIENTDET_WEIGHTS", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(transfer, "_RETRY_DELAYS", (0.0, 0.0, 0.0))
    for name in (NAME, "drawn"):
        monkeypatch.setitem(published_files(), name, FILE)
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def left_in(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_file_is_brought_once(server, tmp_path, capsys):
    for _ in range(2):
        path = cached_file(FILE, tmp_path / "a" / "b")
        assert path.read_bytes() == CONTENT
    assert server.asked == [0]
    assert left_in(path.parent) == [NAME]
    said = capsys.readouterr().out.splitlines()
    assert said == [f"downloading {os.environ['EFFICIENTDET_WEIGHTS_URL']}{NAME} (1 MB)", f"saved {path}"]


@pytest.mark.parametrize(
    ("plan", "asked"),
    [
        ([{"until": 1000}, {"until": 300_000}, {"until": 300_000}], [0, 1000, 300_000, 300_000]),
        ([{"until": 1000}, {"ignores_range": True}], [0, 1000]),
        ([{"code": 503}, {"code": 429}], [0, 0, 0]),
    ],
)
def test_an_interrupted_transfer_is_resumed(server, tmp_path, plan, asked):
    server.plan += plan
    assert cached_file(FILE, tmp_path).read_bytes() == CONTENT
    assert server.asked == asked


@pytest.mark.parametrize("part", [CONTENT[:5000], CONTENT, CONTENT + b"more", b"of another file", bytes(5000)])
def test_a_part_of_an_earlier_call_or_of_another_file(server, tmp_path, part):
    (tmp_path / f"{NAME}.part").write_bytes(part)
    assert cached_file(FILE, tmp_path).read_bytes() == CONTENT
    assert server.asked == [len(part)] + [0] * (not CONTENT.startswith(part))
    assert left_in(tmp_path) == [NAME]


@pytest.mark.parametrize(
    ("plan", "message", "requests"),
    [
        ([{"content": CONTENT[::-1]}], r"begins with [0-9a-f]{8}; expected [0-9a-f]{8}; removed", 1),
        ([{"content": b"<html>please log in</html>"}], "removed the file", 1),
        ([{"code": 404}], "the server responds 404 Not Found; download it from elsewhere into the cache", 1),
        ([{"code": 503}] * 9, r"the server responds 503 Service Unavailable\); run this again", 4),
        ([{"content": CONTENT + bytes(10**5)}], r"sends more than \d+ bytes; expected about 512000", 1),
        ([{"content": CONTENT + bytes(10**5), "endless": True}], r"sends more than \d+ bytes", 1),
    ],
)
def test_what_is_wrong_at_the_server_is_one_line(server, tmp_path, plan, message, requests):
    server.plan += plan
    with pytest.raises(InputError, match=message) as caught:
        cached_file(FILE, tmp_path)
    assert f"/models/{NAME}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.asked) == requests
    assert NAME not in left_in(tmp_path)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:9", "Connection refused"),
        ("http://nowhere.invalid", "[Nn]ame"),
        ("nothing", "unknown url type"),
        ("http://127.0.0.1:notaport", "port"),
    ],
)
def test_no_network_is_one_line_with_address_and_place(monkeypatch, tmp_path, url, reason):
    monkeypatch.setenv("EFFICIENTDET_WEIGHTS_URL", url)
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(
        InputError, match=rf"{url}/{NAME}: cannot be downloaded \(.*{reason}.*download it to {tmp_path}/{NAME}"
    ):
        cached_file(FILE, tmp_path)


def test_a_name_that_no_server_resolves_is_silence(monkeypatch, tmp_path):
    """A name server behind a firewall, or one address of a server after the other: `urlopen` does not limit these."""
    end = threading.Event()

    def resolved(*_, **__):
        end.wait()
        raise OSError

    monkeypatch.setattr(transfer, "_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr("socket.getaddrinfo", resolved)
    monkeypatch.setenv("EFFICIENTDET_WEIGHTS_URL", "http://nowhere.invalid")
    try:
        with pytest.raises(InputError, match="no data for 0 s"):
            cached_file(FILE, tmp_path)
    finally:
        end.set()


def test_a_file_of_keras_is_checked_and_used_from_the_cache_of_keras(server, tmp_path, monkeypatch):
    file = PublishedFile("b0_notop.h5", None, "a backbone", "top-1 0", md5=hashlib.md5(CONTENT).hexdigest())
    monkeypatch.setitem(published_files(), "b0", file)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    (tmp_path / "keras" / "models").mkdir(parents=True)
    of_keras = tmp_path / "keras" / "models" / "b0_notop.h5"
    of_keras.write_bytes(CONTENT)
    assert local_path("b0") == str(of_keras)
    assert server.asked == []
    of_keras.write_bytes(b"damaged")
    assert local_path("b0") == f"{tmp_path}/cache/b0_notop.h5"
    (tmp_path / "cache" / "b0_notop.h5").unlink()
    server.plan += [{"content": b"changed"}]
    with pytest.raises(InputError, match=r"^--backbone_init=b0: .*the MD5 of the download begins with"):
        existing_backbone("b0")


@contextmanager
def small_disk(folder):
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(folder)], capture_output=True
        ).returncode
    ):
        pytest.skip("cannot mount a file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_one_line(server, tmp_path):
    with small_disk(tmp_path):
        with pytest.raises(InputError, match=r"stored there \(No space left on device\); set EFFICIENTDET_") as caught:
            cached_file(FILE, tmp_path)
        assert "\n" not in str(caught.value)
        assert NAME not in left_in(tmp_path)


DOWNLOAD = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from efficientdet.weights.downloads import cached_file
from efficientdet.families.published_files import PublishedFile
print(cached_file(PublishedFile({NAME!r}, {len(CONTENT)}, "", ""), Path(sys.argv[1])))
"""


def started(folder):
    return subprocess.Popen(
        [sys.executable, "-c", DOWNLOAD, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_processes_that_start_together_bring_it_once(server, tmp_path):
    server.plan.append({"until": 1000, "waits": (go_on := threading.Event())})
    first = started(tmp_path)
    wait_for(lambda: server.asked)
    others = [started(tmp_path) for _ in range(2)]
    for other in others:
        assert other.stdout.readline() == f"waiting for the process that downloads {NAME}\n"
    go_on.set()
    for process in (first, *others):
        said = process.communicate(timeout=60)[0]
        assert process.returncode == 0, said
        assert said.endswith(f"{tmp_path / NAME}\n")
    assert server.asked == [0, 1000]


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/a user")
    for variable in ("XDG_CACHE_HOME", "EFFICIENTDET_WEIGHTS"):
        monkeypatch.delenv(variable, raising=False)
    assert str(cache_folder()) == "/home/a user/.cache/efficientdet/weights"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert str(cache_folder()) == "/cache/efficientdet/weights"
    monkeypatch.setenv("EFFICIENTDET_WEIGHTS", "/weights")
    assert str(cache_folder()) == "/weights"


def test_a_name_is_as_good_as_a_path_and_a_path_wins(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = f"{tmp_path}/cache/{NAME}"
    assert local_path("drawn") == local_path(NAME) == existing_checkpoint("drawn", "pretrained_ckpt") == there
    assert existing_backbone("drawn") == "drawn"
    assert server.asked == [0]
    assert local_path("nothing") == "nothing"
    (tmp_path / "drawn").mkdir()
    assert local_path("drawn") == "drawn"


def test_a_name_that_cannot_be_had_is_told_with_its_flag(server):
    server.plan.append({"code": 404})
    with pytest.raises(InputError, match=r"^--backbone_init=drawn: http.*the server responds 404 Not Found"):
        existing_backbone("drawn")
    with pytest.raises(
        InputError, match=r"^--pretrained_ckpt=resnet5O: there is no .*; the nearest name .* is resnet50$"
    ):
        existing_checkpoint("resnet5O", "pretrained_ckpt")


CHECKPOINT = {
    "checkpoint": b'model_checkpoint_path: "model"',
    "model.index": b"index",
    "model.data-00000-of-00001": b"weights",
}


def packed(files, *, links=()):
    """A .tar.gz of files by path."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return stream.getvalue()


def test_an_efficientdet_by_its_name(server, tmp_path, monkeypatch):
    """Downloaded, unpacked and found again; nothing is asked for twice."""
    monkeypatch.chdir(tmp_path)
    server.plan += [{"content": packed({f"efficientdet-d0/{name}": content for name, content in CHECKPOINT.items()})}]
    folder = tmp_path / "cache" / "efficientdet-d0"
    for _ in range(2):
        assert local_path("efficientdet-d0") == local_path("efficientdet-d0.tar.gz") == str(folder)
        assert existing_checkpoint("efficientdet-d0", "pretrained_ckpt") == str(folder / "model")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CHECKPOINT
    assert left_in(folder.parent) == ["efficientdet-d0", "efficientdet-d0.tar.gz", "efficientdet-d0.tar.gz.sha256"]
    assert len(server.asked) == 1


def test_an_archive_that_is_not_what_came_at_first_is_told(server, tmp_path):
    archive = PublishedFile("d9.tar.gz", None, "", "")
    server.plan += [{"content": packed(CHECKPOINT)}]
    path = cached_file(archive, tmp_path)
    assert (
        path.with_name("d9.tar.gz.sha256").read_text()
        == f"{hashlib.sha256(path.read_bytes()).hexdigest()}  d9.tar.gz\n"
    )
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(InputError, match=r"d9.tar.gz: is damaged: its SHA-256 begins with"):
        cached_weights(archive, tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>please log in</html>", "cannot be extracted"),
        (packed(CHECKPOINT)[:-30], "cannot be extracted"),
        (packed({"../../outside.index": b""}), "cannot be extracted"),
        (packed(CHECKPOINT, links=[("link.index", "/etc/passwd")]), "'link.index' is a link to an absolute path"),
        (packed({"a/model.index": b"", "b/model.index": b""}), "has checkpoints in 2 folders; expected one"),
        (packed({"readme": b""}), "has checkpoints in 0 folders; expected one"),
        (packed({f"{'a' * 300}.index": b""}), r"aaa\.index': File name too long"),
    ],
    ids=["html", "cut short", "outside", "link", "two", "no checkpoint", "long name"],
)  # the bytes tell the time
def test_an_archive_that_is_no_checkpoints_is_one_line(server, tmp_path, content, message):
    server.plan += [{"content": content}]
    with pytest.raises(InputError, match=message) as caught:
        cached_weights(PublishedFile("d9.tar.gz", None, "", ""), tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert left_in(tmp_path / "cache") == ["d9.tar.gz", "d9.tar.gz.sha256"]
    assert not list(tmp_path.glob("*.index"))


def test_the_table():
    assert published_files()["efficientdet-d7x"].url == (
        "https://storage.googleapis.com/cloud-tpu-checkpoints/efficientdet/coco2/efficientdet-d7x.tar.gz"
    )
    lite = published_files()["efficientdet-lite3x"]
    assert (lite.is_archive, lite.stem) == (True, "efficientdet-lite3x")
    assert lite.url == (
        "https://storage.googleapis.com/cloud-tpu-checkpoints/efficientdet/coco/efficientdet-lite3x.tgz"
    )
    files = {file.file for file in published_files().values() if not file.is_archive}
    resnext = published_files()["resnext50_32x4d"]
    assert resnext.url == "https://download.pytorch.org/models/resnext50_32x4d-7cdf4587.pth"
    assert resnext.sha256_prefix == "7cdf4587"
    b0 = published_files()["efficientnet-b0"]
    assert b0.url == "https://storage.googleapis.com/keras-applications/efficientnetb0_notop.h5"
    for file in (file for file in files if not file.endswith(".h5")):
        assert published_files()[file] is published_files()[file.removesuffix(".pth")]
        assert 40e6 < published_files()[file].size < 200e6


def script(*words, **environment):
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "get_weights.sh"), *words],
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        timeout=60,
    )


def test_the_script_lists_helps_and_refuses():
    listed = script()
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()][:2] == ["resnet18", "resnet34"]
    for word in ("--help", "-h"):
        helped = script(word)
        assert (helped.returncode, helped.stderr) == (0, "")
        assert "bash scripts/get_weights.sh NAME FOLDER" in helped.stdout
    for words, message in (
        (["resnet500"], "resnet500: is not a name of published weights; the nearest is resnet50; "),
        (["--folder"], "unexpected word '--folder'"),
    ):
        refused = script(*words)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"get_weights.sh: error: {message}")


def test_the_script_brings_a_file(server, tmp_path, capsys):
    assert main(["drawn", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(f"{tmp_path / NAME}: intact\n")
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert main(["drawn", str(tmp_path), "more"]) == 2
    assert "unexpected word 'more'" in capsys.readouterr().err
