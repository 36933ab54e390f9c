"""Archives of users: names of Linux zip and Finder, damaged directories, tar files, and files that are no archive."""

import io
import os
import tarfile
import zipfile

import pytest

from dataset.files.image_files import image_folder
from program_support.archives import archive_digest, archive_kind, extract_archive
from program_support.errors import InputError

UMLAUTS = "bilder/größe_über.jpg"


def zip_without_flag(path, *names):
    """As `zip` of Linux and Finder write it: UTF-8 names without the flag."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            entry = zipfile.ZipInfo(name.encode("utf-8").decode("cp437") if isinstance(name, str) else "x" * len(name))
            archive.writestr(entry, "1")
    content = path.read_bytes()
    for name in names:  # Python has written cp437's letters as UTF-8, with the flag
        if isinstance(name, str):
            raw = name.encode("utf-8")
            written = raw.decode("cp437").encode("utf-8")
        else:
            raw, written = name, b"x" * len(name)
        content = replaced(content, written, raw)
    path.write_bytes(content)
    return str(path)


def replaced(content, written, raw):
    """Replace a name in both headers of a zip of one member; lengths and flags follow."""
    local, central, end = content.index(b"PK\3\4"), content.index(b"PK\1\2"), content.index(b"PK\5\6")
    parts = {
        "local": bytearray(content[local:central]),
        "central": bytearray(content[central:end]),
        "end": bytearray(content[end:]),
    }
    for part, flags, length in (("local", 6, 26), ("central", 8, 28)):
        header = parts[part]
        header[flags + 1] &= ~0x08
        header[length : length + 2] = len(raw).to_bytes(2, "little")
        parts[part] = header.replace(written, raw)
    parts["end"][12:16] = len(parts["central"]).to_bytes(4, "little")
    parts["end"][16:20] = len(parts["local"]).to_bytes(4, "little")
    return bytes(parts["local"] + parts["central"] + parts["end"])


def names_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("name", "found"),
    [(UMLAUTS, UMLAUTS), ("写真.jpg", "写真.jpg"), (b"gr\x94\xe1e.jpg", "größe.jpg"), ("plain.jpg", "plain.jpg")],
)
def test_names_without_the_flag_are_utf_8_where_they_can_be(name, found, tmp_path):
    path = zip_without_flag(tmp_path / "a.zip", name)
    with zipfile.ZipFile(path) as archive:
        assert not archive.infolist()[0].flag_bits & 0x800
    extract_archive(path, tmp_path / "new", target=tmp_path)
    assert names_below(tmp_path / "new") == [found]


def test_names_with_the_flag(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(UMLAUTS, "1")
        archive.writestr("__MACOSX/._a.jpg", "2")
        archive.writestr("windows\\b.jpg", "3")
    extract_archive(str(tmp_path / "a.zip"), tmp_path / "new", target=tmp_path)
    assert names_below(tmp_path / "new") == [UMLAUTS, "windows/b.jpg"]


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.xz", "tgz"])
def test_tar_archives(ending, tmp_path):
    path, mode = tmp_path / f"a.{ending}", {"tar": "w", "tar.xz": "w:xz"}.get(ending, "w:gz")
    with tarfile.open(path, mode) as archive:
        entry = tarfile.TarInfo(UMLAUTS)
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"abc"))
    assert archive_kind(path) == "tar"
    before = archive_digest(str(path))
    extract_archive(str(path), tmp_path / "new", target=tmp_path)
    assert (tmp_path / "new" / UMLAUTS).read_bytes() == b"abc"
    path.write_bytes(path.read_bytes() + b"\0")
    assert archive_digest(str(path)) != before
    with pytest.raises(InputError, match="is a tar archive: unpack it, with python -m tarfile -e FILE FOLDER"):
        image_folder(str(path))


def test_damaged_archives_are_one_line(tmp_path):
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        archive.writestr("größe.jpg", os.urandom(2000))
    whole = (tmp_path / "whole.zip").read_bytes()
    central = whole.index(b"PK\1\2")
    undecodable = whole.replace("ö".encode(), b"\xff\xfe")
    damaged = {
        "cut": whole[:-30],
        "directory": whole[:central] + b"XXXX" + whole[central + 4 :],
        "offset": whole[:-6] + b"\xff\xff\xff\x7f" + whole[-2:],
        "undecodable": undecodable,
        "content": whole[:500] + b"\0" * 100 + whole[600:],
    }
    with tarfile.open(tmp_path / "outside.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("../../outside.jpg"), io.BytesIO())
    damaged["outside"] = (tmp_path / "outside.tar").read_bytes()
    with tarfile.open(tmp_path / "whole.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "whole.zip", "a")
    damaged["tar"] = (tmp_path / "whole.tar.gz").read_bytes()[:-40]
    with pytest.raises(InputError, match="cannot be unpacked"):
        archive_digest(str(tmp_path / "missing"))
    for name, content in damaged.items():
        path = tmp_path / name
        path.write_bytes(content)
        assert archive_kind(path) in ("zip", "tar"), name
        with pytest.raises(InputError, match=rf"{name}: cannot be unpacked into [^\n]+\)$"):
            extract_archive(str(path), tmp_path / f"new {name}", target=tmp_path)


def test_pipes_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert archive_kind(tmp_path / "pipe") is archive_kind(tmp_path) is archive_kind(tmp_path / "none") is None
    with pytest.raises(InputError, match="pipe: is a pipe or a device; expected the folder"):
        image_folder(str(tmp_path / "pipe"))
    with pytest.raises(InputError, match="none: no such folder"):
        image_folder(str(tmp_path / "none"))
