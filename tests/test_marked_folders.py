"""Marked folders: only what carries the marker is replaced, and only if nothing in it was changed."""

import os
import zipfile

import pytest

from program_support.claimed_outputs import MARKER, claim_folder, unpacked_archive
from program_support.errors import InputError


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def zipped(path, **files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return str(path)


def test_a_new_or_empty_folder_is_claimed_and_another_refused(tmp_path):
    for _ in range(2):
        assert claim_folder(tmp_path / "below" / "new") == tmp_path / "below" / "new"
    (tmp_path / "empty").mkdir()
    claim_folder(tmp_path / "empty")
    assert names(tmp_path / "below") == ["new", f"new/{MARKER}"]
    assert names(tmp_path / "empty") == [MARKER]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("full", "file", "link"):
        with pytest.raises(InputError, match=f"{name}: exists and was not written by this program"):
            claim_folder(tmp_path / name)
    assert names(tmp_path / "full") == ["file"]


def test_a_folder_is_kept_until_the_archive_changes(tmp_path):
    folder = tmp_path / "images"
    unpacked_archive(zipped(tmp_path / "a.zip", one="1", two="2"), folder, fingerprint="first")
    (folder / "one").write_text("corrected")
    unpacked_archive(zipped(tmp_path / "a.zip", three="3"), folder, fingerprint="first")
    assert (folder / "one").read_text() == "corrected"
    assert names(folder) == [MARKER, "one", "two"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "one").write_text("corrected"), "images/one: changed after"),
        (lambda folder: (folder / "one").unlink(), "images/one: removed after"),
        (lambda folder: (folder / "new").touch(), "images/new: added after"),
    ],
)
def test_an_unpacked_folder_that_was_changed_is_not_replaced(change, message, tmp_path):
    folder = tmp_path / "images"
    unpacked_archive(zipped(tmp_path / "a.zip", one="1", two="2"), folder, fingerprint="first")
    change(folder)
    before = names(folder)
    with pytest.raises(InputError, match=message):
        unpacked_archive(zipped(tmp_path / "a.zip", three="3"), folder, fingerprint="second")
    assert names(folder) == before


def test_an_unchanged_folder_is_replaced_with_its_archive(tmp_path, monkeypatch):
    folder = tmp_path / "images"
    unpacked_archive(zipped(tmp_path / "a.zip", one="1", two="2"), folder, fingerprint="first")
    (tmp_path / "damaged.zip").write_bytes((tmp_path / "a.zip").read_bytes().replace(b"1PK", b"2PK"))
    with pytest.raises(InputError, match="cannot be unpacked"):
        unpacked_archive(str(tmp_path / "damaged.zip"), folder, fingerprint="damaged")
    assert names(folder) == [MARKER, "one", "two"]
    unpacked_archive(zipped(tmp_path / "a.zip", three="3"), folder, fingerprint="second")
    assert names(folder) == [MARKER, "three"]
    assert sorted(os.listdir(tmp_path)) == ["a.zip", "damaged.zip", "images"]
