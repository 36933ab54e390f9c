import hashlib
import os
import socket
import threading

import pytest

from dataset.conversion.any_format import recognize
from dataset.files import bounded_files
from dataset.files.bounded_files import read_json, read_regular_file
from efficientdet.checkpoints.restore import read_source
from program_support.errors import InputError


def test_a_file_is_its_bytes(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("a")
    assert read_regular_file(tmp_path / "a") == read_regular_file(tmp_path / "link") == b"12345"
    monkeypatch.setattr(bounded_files, "LARGEST_FILE_BYTES", 4)
    with pytest.raises(OSError, match=r"it has 5 bytes; the limit is 4"):
        read_regular_file(tmp_path / "a")


def test_what_need_not_end_is_not_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)  # the address of a socket must be short
    monkeypatch.setattr("builtins.open", None)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for name, kind in (
            ("pipe", "a named pipe"),
            ("zero", "a device"),
            ("folder", "a folder"),
            ("socket", "a socket"),
        ):
            with pytest.raises(OSError, match=f"it is {kind}"):
                read_regular_file(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_regular_file(tmp_path / "absent")


def test_a_pointer_of_git_lfs_is_named_as_such(tmp_path):
    hashed = f"oid sha256:{'4d7a' * 16}"
    pointer = f"version https://git-lfs.github.com/spec/v1\n{hashed}\nsize 12345\n"
    for name in ("labels.json", "photo.jpg", "weights.pth"):
        (tmp_path / name).write_text(pointer)
    reason = r"it is a pointer of Git LFS; `git lfs pull` fetches the file"
    with pytest.raises(OSError, match=reason):
        read_regular_file(tmp_path / "photo.jpg")
    with pytest.raises(InputError, match=rf"labels\.json: cannot be read .{reason}"):
        read_json(str(tmp_path / "labels.json"))
    with pytest.raises(InputError, match=r"labels\.json is a pointer of Git LFS; `git lfs pull` fetches the file$"):
        recognize(str(tmp_path))
    with pytest.raises(InputError, match=rf"weights\.pth: cannot be read .{reason}"):
        read_source(str(tmp_path / "weights.pth"))


def test_json_may_come_through_a_pipe_and_not_from_a_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b'\xef\xbb\xbf{"a": 1}',))
    writer.start()
    hasher = hashlib.sha256()
    assert read_json(str(tmp_path / "pipe"), hasher=hasher) == {"a": 1}
    writer.join()
    assert hasher.hexdigest() == hashlib.sha256(b'\xef\xbb\xbf{"a": 1}').hexdigest()
    with pytest.raises(InputError, match=r"/dev/zero: cannot be read .it is a device"):
        read_json("/dev/zero")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not json .0 bytes"),
        (b"\xff{}", "is not UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"id": ' + b"9" * 5000 + b"}", "contains an integer with thousands of digits"),
        (b'{"id": 3, "bbox": [1], "bbox": [2]}', r"an object with id 3 gives 'bbox' twice, as \[1\] and as \[2\]"),
        (b'{"images": [1], "images": []}', "gives 'images' twice"),
    ],
)
def test_broken_json(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^{path}: .*{message}"):
        read_json(str(path))


def test_a_key_given_twice_with_one_value_is_harmless(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [1, {"b": 2}], "a": [1, {"b": 2.0}]}')
    assert read_json(str(tmp_path / "a.json")) == {"a": [1, {"b": 2}]}
