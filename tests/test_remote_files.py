"""Files at remote addresses: copied once, again when they change, and one clear line for what does not work."""

import errno
import os
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import s3fs
from s3_server import BUCKET, s3_server

from dataset.files.image_files import find_images
from dataset.records.record_files import expand_glob
from efficientdet.configuration.flag_paths import writable_folder
from efficientdet.plugins.cluster import remote_files
from efficientdet.plugins.cluster.remote_files import cache_folder, local_copies
from program_support.errors import InputError
from program_support.remote_addresses import address_of, is_remote

SHARDS = {f"train-0000{number}-of-00003.tfrecord": bytes([number]) * 5000 for number in range(3)}
PATTERN = f"s3://{BUCKET}/records/train-*"


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EFFICIENTDET_REMOTE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def server():
    with pytest.MonkeyPatch.context() as patch, s3_server(patch) as system:
        yield system


@pytest.fixture
def bucket(server):
    s3fs.S3FileSystem.clear_instance_cache()  # another test's address
    for name, content in {**SHARDS, "train.classes.json": b"{}", "val.instances.json": b"{}"}.items():
        server.pipe_file(f"{BUCKET}/records/{name}", content)
    return server


def contents(paths):
    return {Path(path).name: Path(path).read_bytes() for path in paths}


def test_addresses_are_told_from_paths():
    assert all(map(is_remote, ("s3://bucket/x", "gs://bucket/x", "hf://datasets/user/name/x", "memory://x")))
    assert not any(
        map(is_remote, ("records/train-*", "rtsp://camera/1", "", "a/s3://x", "s3:///x", "C://x", "https://x"))
    )
    assert address_of(Path("s3://bucket/a", "s3:/x")) == "s3://bucket/a/s3:/x"
    assert address_of("hf://datasets/x") == "hf://datasets/x"


def test_records_are_copied_once_with_their_classes(bucket, capsys):
    paths = expand_glob(PATTERN)
    assert contents(paths) == SHARDS
    assert [*map(Path, paths)] == [cache_folder() / "s3" / BUCKET / "records" / name for name in sorted(SHARDS)]
    assert "copying 4 files" in capsys.readouterr().out
    assert sorted(path.name for path in Path(paths[0]).parent.glob("[!.]*")) == [*sorted(SHARDS), "train.classes.json"]
    before = [os.stat(path).st_mtime_ns for path in paths]
    assert expand_glob(PATTERN) == paths
    assert [os.stat(path).st_mtime_ns for path in paths] == before
    assert capsys.readouterr().out == ""


def test_a_changed_file_is_copied_again_and_a_removed_class_file_is_removed(bucket, capsys):
    first = expand_glob(PATTERN)
    changed = next(iter(SHARDS))
    bucket.pipe_file(f"{BUCKET}/records/{changed}", b"x" * 5000)  # of the same size
    bucket.rm(f"{BUCKET}/records/train.classes.json")
    capsys.readouterr()
    assert contents(expand_glob(PATTERN)) == SHARDS | {changed: b"x" * 5000}
    assert "copying 1 file (" in capsys.readouterr().out
    assert not Path(first[0]).with_name("train.classes.json").exists()
    os.truncate(first[1], 17)
    assert contents(expand_glob(PATTERN)) == SHARDS | {changed: b"x" * 5000}


def test_an_interrupted_copy_is_not_used(bucket, monkeypatch):
    def breaks_off(self, source, target, **_):
        Path(target).write_bytes(b"half")
        raise ConnectionResetError("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "get_file", breaks_off)
        with pytest.raises(InputError, match=r"^s3://bucket/records/train-0000.*: cannot be read \(the connection was"):
            expand_glob(PATTERN)
    assert not [path for path in cache_folder().rglob("*") if path.is_file() and path.name != ".lock"]
    with monkeypatch.context() as patch:
        patch.setattr(
            s3fs.S3FileSystem, "get_file", lambda self, source, target, **_: Path(target).write_bytes(b"half")
        )
        with pytest.raises(InputError, match="4 bytes were copied, expected 5000; it changed meanwhile"):
            expand_glob(PATTERN)
    assert contents(expand_glob(PATTERN)) == SHARDS


def test_images_of_an_address_are_copied_under_their_names(bucket):
    for name in ("a.jpg", "b.jpg", "c.txt"):
        bucket.pipe_file(f"{BUCKET}/photos/{name}", name.encode())
    assert contents(find_images([f"s3://{BUCKET}/photos/*.jpg"])) == {"a.jpg": b"a.jpg", "b.jpg": b"b.jpg"}
    with pytest.raises(InputError, match=r"^s3://bucket/photos: .*a folder, which holds a.jpg, b.jpg, c.txt; .*/\*$"):
        find_images([f"s3://{BUCKET}/photos"])


def test_a_program_does_not_write_into_a_folder_named_like_an_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match="--model_dir=s3://bucket/runs: is a remote address; expected a folder of this"
    ):
        writable_folder("s3://bucket/runs", "model_dir")
    assert not [*tmp_path.iterdir()]


def test_several_processes_copy_once(bucket):
    program = f"from efficientdet.plugins.cluster.remote_files import local_copies; local_copies('{PATTERN}')"
    ranks = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    lines = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert sum("copying 3 files" in line for line in lines) == 1
    assert contents(local_copies(PATTERN)) == SHARDS


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (f"s3://{BUCKET}/records/val-*", "no file matches; the folder holds train-00000-of-00003"),
        (f"s3://{BUCKET}/records", r"no file matches; it is a folder, which holds train-00000-of-00003"),
        (f"s3://{BUCKET}/elsewhere/train-*", "there is no such bucket, folder or file"),
        ("s3://unknown/records/train-*", "there is no such bucket, folder or file"),
        (f"s3://{BUCKET}/", f"expected a pattern of files in a folder or bucket, such as s3://{BUCKET}/train-"),
        ("s3://wrong_name!/train-*", "Parameter validation failed: Invalid bucket name"),
        ("gs://bucket/records/train-*", r"needs a package that is not installed .*: pip install gcsfs"),
    ],
)
def test_a_wrong_address_is_one_line(bucket, pattern, message):
    with pytest.raises(InputError, match=f"^{pattern.replace('*', '.')}: .*{message}") as error:
        expand_glob(pattern)
    assert "\n" not in str(error.value)


def test_a_full_disk_is_reported_before_the_copy(bucket, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 9000}))
    with pytest.raises(InputError, match=r"0 MB are free\); set EFFICIENTDET_REMOTE_CACHE to another folder"):
        expand_glob(PATTERN)


def test_a_disk_that_fills_during_the_copy_is_reported(bucket, monkeypatch):
    def fills(self, source, target, **_):
        Path(target).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(s3fs.S3FileSystem, "get_file", fills)
    with pytest.raises(InputError, match=r"copies cannot be stored there \(No space left on device\)"):
        expand_glob(PATTERN)
    assert not [path for path in cache_folder().rglob("*") if path.is_file() and path.name != ".lock"]


class Refusing(BaseHTTPRequestHandler):
    """Answers each request as S3 does where permission is missing."""

    def do_GET(self):
        content = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_HEAD = do_PUT = do_GET

    def log_message(self, *_):
        pass


def at_server(patch, address):
    patch.setenv("AWS_ENDPOINT_URL", address)
    s3fs.S3FileSystem.clear_instance_cache()


def test_access_denied_and_a_missing_server_are_reported(bucket, monkeypatch):
    at_server(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(InputError, match=rf"^{re.escape(PATTERN)}: cannot be read \(.*127.0.0.1:9"):
        expand_glob(PATTERN)
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at_server(monkeypatch, f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(InputError, match=rf"^{re.escape(PATTERN)}: access denied \(Access Denied\).*AWS_PROFILE"):
            expand_glob(PATTERN)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/missing")
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(InputError, match=r"access denied \(Unable to locate credentials\)"):
            expand_glob(PATTERN)
        server.shutdown()


def test_a_server_that_does_not_answer_is_reported(bucket, monkeypatch):
    monkeypatch.setitem(remote_files._TIMEOUTS, "read_timeout", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at_server(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(InputError, match=rf"^{re.escape(PATTERN)}: cannot be read \(.*timeout"):
            expand_glob(PATTERN)
