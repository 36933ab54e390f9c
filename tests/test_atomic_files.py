import os
import platform
import re
import resource
import subprocess
import sys

import pytest

from program_support.atomic_files import (
    flush_to_disk,
    link_or_copy,
    report_write_errors,
    unfinished_folder,
    unfinished_path,
    write_text,
)
from program_support.errors import InputError

HOST = re.sub(r"[^A-Za-z0-9-]", "-", platform.node())


@pytest.fixture(scope="module")
def dead():
    """The number of a process that was."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def small_files():
    """Within the test no file can grow beyond 100 bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path, small_files):
    path = tmp_path / "report.json"
    with pytest.raises(OSError, match="too large") as caught:
        write_text(path, "x" * 1000)
    assert caught.value.filename == str(path)
    with pytest.raises(InputError, match=f"{path}: cannot be written .File too large."), report_write_errors(path):
        write_text(path, "x" * 1000)
    with pytest.raises(InputError, match=f"{path}: cannot be written .encoder error."), report_write_errors(path):
        raise OSError("encoder error")  # as Pillow
    assert names(tmp_path) == []


def names(folder):
    return sorted(os.listdir(folder))


def leave(folder, name, *, hours=0):
    """As a killed process does: a folder with a file in it."""
    (folder / name).mkdir()
    (folder / name / "half").write_text("x")
    for path in (folder / name / "half", folder / name):
        os.utime(path, (path.stat().st_mtime - 3600 * hours,) * 2)


def test_text_is_replaced_and_nothing_is_left(tmp_path):
    for text in ("é\n", ""):
        write_text(tmp_path / "a.json", text)
        assert (tmp_path / "a.json").read_text(encoding="utf-8") == text
    assert names(tmp_path) == ["a.json"]


def test_the_longest_names_can_be_written(tmp_path):
    longest = ["é" * 125 + end for end in ("a.jpg", "b.jpg")]  # of 255 bytes
    for name in longest:
        write_text(tmp_path / name, name)
    assert names(tmp_path) == longest
    assert len({unfinished_path(name) for name in longest}) == 2


def test_text_that_cannot_be_written_leaves_the_old(tmp_path, monkeypatch):
    write_text(tmp_path / "a.json", "old")

    def full_disk(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_text(tmp_path / "a.json", "new")
    assert names(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


def test_unfinished_folder_is_beside_and_goes(tmp_path):
    with unfinished_folder(tmp_path / "ckpt-3") as folder:
        assert folder == unfinished_path(tmp_path / "ckpt-3")
        assert folder.parent == tmp_path
        (folder / "file").touch()
    with pytest.raises(KeyError), unfinished_folder(tmp_path / "ckpt-3"):
        raise KeyError
    assert names(tmp_path) == []


def test_what_the_dead_left_goes_and_what_the_living_write_stays(tmp_path, dead):
    gone = [
        f".ckpt-1.{HOST}.{dead}.unfinished",
        f".a.json.{HOST}.{os.getpid()}.unfinished",
        ".ckpt-2.elsewhere.1.unfinished",
    ]
    stays = [
        f".ckpt-3.{HOST}.{os.getppid()}.unfinished",
        f".ckpt-3.{HOST}.1.unfinished",
        ".ckpt-4.elsewhere.1.unfinished",
        "ckpt-5",
        f"ckpt-6.{HOST}.{dead}.unfinished",
    ]
    for name in (*gone, *stays):
        leave(tmp_path, name, hours=0 if name == ".ckpt-4.elsewhere.1.unfinished" else 2)
    with unfinished_folder(tmp_path / "ckpt-7"):
        pass
    assert names(tmp_path) == sorted(stays)


def test_another_host_that_still_writes_into_its_folder(tmp_path):
    leave(tmp_path, ".ckpt-1.elsewhere.1.unfinished", hours=2)
    (tmp_path / ".ckpt-1.elsewhere.1.unfinished" / "data").touch()
    with unfinished_folder(tmp_path / "ckpt-7"):
        pass
    assert names(tmp_path) == [".ckpt-1.elsewhere.1.unfinished"]


def test_what_may_not_be_removed_is_no_matter(tmp_path, dead, monkeypatch):
    leave(tmp_path, f".ckpt-1.{HOST}.{dead}.unfinished")

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refused)
        patch.setattr(os, "rmdir", refused)
        with unfinished_folder(tmp_path / "ckpt-7") as folder:
            assert folder.is_dir()


@pytest.mark.parametrize("number", [1, 18, 31, 38, 95])  # EPERM, EXDEV, EMLINK, ENOSYS, ENOTSUP
def test_without_hard_links_there_is_a_copy(tmp_path, monkeypatch, number):
    (tmp_path / "a").write_bytes(b"content")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").stat().st_nlink == 2

    def refused(source, target):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    link_or_copy(tmp_path / "a", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"content"
    assert (tmp_path / "c").stat().st_nlink == 1


def test_a_folder_that_cannot_be_flushed_is_no_error_but_a_file_is(tmp_path, monkeypatch):
    (tmp_path / "a").touch()

    def refused(handle):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refused)
    flush_to_disk(tmp_path)
    with pytest.raises(OSError, match="Invalid argument"):
        flush_to_disk(tmp_path / "a")
