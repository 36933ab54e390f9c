import contextlib
import os
import re
import struct
import zlib

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from dataset.conversion.folder_files import ImageFolder
from dataset.files.file_kinds import FileKind, kind_of_file
from dataset.files.image_files import (
    distinct_names,
    find_images,
    image_ids,
    output_names,
    read_image,
    read_stored_image,
)
from dataset.files.image_formats import READS_AVIF
from program_support.errors import InputError


@pytest.fixture
def folder(tmp_path):
    for name in ("b.jpg", "a.PNG", "c.txt", ".hidden.jpg", "d.webp"):
        (tmp_path / name).touch()
    (tmp_path / "sub.jpg").mkdir()
    (tmp_path / "sub.jpg" / "e.jpg").touch()
    return tmp_path


def names(paths):
    return [path.rsplit("/", 1)[1] for path in paths]


def test_image_folder_glob(folder):
    assert find_images([f"{folder}/b.jpg"]) == (f"{folder}/b.jpg",)
    assert find_images([f"{folder}/c.txt"]) == (f"{folder}/c.txt",)  # named by itself: the decoder will say
    assert names(find_images([str(folder)])) == ["a.PNG", "b.jpg", "d.webp"]
    assert names(find_images([f"{folder}/*.jpg"])) == ["b.jpg"]
    assert names(find_images([f"{folder}/sub.jpg"])) == ["e.jpg"]  # a folder whose name looks like an image


def test_file_whose_name_has_glob_characters(tmp_path):
    (tmp_path / "a[1].jpg").touch()
    assert names(find_images([f"{tmp_path}/a[1].jpg"])) == ["a[1].jpg"]


def test_nothing_there(tmp_path):
    for wrong in (f"{tmp_path}/nosuch.jpg", f"{tmp_path}/*.jpg"):
        with pytest.raises(InputError, match="no such file; expected an image, a folder or a glob"):
            find_images([wrong])
    with pytest.raises(InputError, match="no image in this folder"):
        find_images([str(tmp_path)])
    with pytest.raises(InputError, match="--images is empty; expected an image, a folder or a glob"):
        find_images([""], flag="images")  # and not the images of the folder that one is in


def test_files_of_a_format_that_is_not_read_are_named(tmp_path, capsys):
    (tmp_path / "IMG_1.HEIC").write_bytes(b"ftypheic")
    what = f"1 files of the format .heic are not read, such as {tmp_path}/IMG_1.HEIC: save them as JPEG or PNG"
    for name in (tmp_path, tmp_path / "IMG_1.HEIC"):
        with pytest.raises(InputError, match=re.escape(what)):
            [*map(read_image, find_images([str(name)]))]
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    assert find_images([str(tmp_path)]) == (f"{tmp_path}/a.png",)
    assert f"warning: {what}" in capsys.readouterr().err
    ImageFolder(tmp_path).report_unread()
    (tmp_path / "a.png").unlink()
    with pytest.raises(InputError, match=r"IMG_1\.HEIC: save them as JPEG or PNG .*; there are no other images"):
        ImageFolder(tmp_path).report_unread()


def test_pixels_come_as_stored_with_their_orientation(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    exif = Image.Exif()
    for orientation, wanted in ((1, 1), (6, 6), (8, 8), (9, 1), (0, 1)):
        exif[0x0112] = orientation
        Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
        found = read_stored_image(str(tmp_path / "a.png"))
        np.testing.assert_array_equal(found.pixels, pixels)
        assert found.orientation == wanted


@pytest.mark.parametrize(
    ("mode", "value", "rgb"),
    [
        ("L", 100, (100, 100, 100)),
        ("RGBA", (10, 20, 30, 255), (10, 20, 30)),
        ("1", 1, (255, 255, 255)),
        ("LA", (50, 255), (50, 50, 50)),
        ("P", 0, (0, 0, 0)),
    ],
)
def test_any_mode_becomes_rgb(tmp_path, mode, value, rgb):
    Image.new(mode, (5, 4), value).save(tmp_path / "a.png")
    found = read_image(str(tmp_path / "a.png"))
    assert (found.shape, found.dtype) == ((4, 5, 3), np.uint8)
    assert tuple(found[0, 0]) == rgb


def test_sixteen_bits_are_scaled_not_cut_off(tmp_path):
    Image.fromarray(np.uint16([[0, 256, 32768, 65535]])).save(tmp_path / "a.png")
    assert read_image(str(tmp_path / "a.png"))[0, :, 0].tolist() == [0, 1, 128, 255]


@pytest.mark.skipif(not READS_AVIF, reason="this Pillow does not read AVIF")
def test_avif(tmp_path):
    Image.new("RGB", (32, 16), (200, 30, 30)).save(tmp_path / "a.avif", quality=90)
    assert find_images([str(tmp_path)]) == (str(tmp_path / "a.avif"),)
    np.testing.assert_allclose(read_image(str(tmp_path / "a.avif"))[8, 8], (200, 30, 30), atol=8)
    assert kind_of_file(tmp_path / "a.avif") is FileKind.IMAGE


@pytest.mark.parametrize("values", [np.float32([[0.5]]), np.int32([[70_000]])])
def test_pixels_of_unknown_range_are_refused(tmp_path, values):
    """Pillow would make them black or white."""
    Image.fromarray(values).save(tmp_path / "a.tif")
    with pytest.raises(InputError, match=r"pixels of mode [FI] without a known range"):
        read_image(str(tmp_path / "a.tif"))


def test_unreadable(tmp_path):
    Image.effect_noise((64, 64), 50).convert("RGB").save(tmp_path / "whole.jpg")
    whole = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "empty.jpg").touch()
    for name in ("cut", "text", "empty"):
        with pytest.raises(InputError, match=f"{name}.jpg: cannot be decoded") as caught:
            read_image(str(tmp_path / f"{name}.jpg"))
        assert "\n" not in str(caught.value)
    for name in ("nosuch.jpg", "nul\0.jpg"):
        with pytest.raises(InputError, match="there is no such file"):
            read_image(str(tmp_path / name))


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n0 0 8 8 rectfill\nshowpage\n%%EOF\n"


def test_no_program_is_started_for_an_image(tmp_path, monkeypatch):
    (tmp_path / "a.jpg").write_bytes(EPS)
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    with pytest.raises(InputError, match=r"a\.jpg: cannot be decoded \(in none of the formats BMP, GIF, JPEG,"):
        read_image(str(tmp_path / "a.jpg"))
    assert not (tmp_path / "started").exists()
    with Image.open(tmp_path / "a.jpg") as image, contextlib.suppress(OSError):
        image.load()  # what is avoided, so that the test above cannot pass by a file that no one would run
    assert (tmp_path / "started").exists()


def test_sizes_beyond_the_limit_are_refused_from_the_header(tmp_path):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    (tmp_path / "bomb.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )
    with pytest.raises(
        InputError, match=r"bomb\.png: cannot be decoded \(it has more than 178,956,970 pixels; of a TIFF file"
    ):
        read_image(str(tmp_path / "bomb.png"))


def test_pipes_and_devices_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "endless.jpg").symlink_to("/dev/zero")
    for name in ("pipe.jpg", "endless.jpg"):
        with pytest.raises(InputError, match=f"{name}: cannot be decoded .it is a (named pipe|device)"):
            read_image(str(tmp_path / name))
        with pytest.raises(InputError, match=f"{name}: a pipe or a device, not a regular file; expected an image"):
            find_images([str(tmp_path / name)])
    with pytest.raises(InputError, match="no image in this folder"):
        find_images([str(tmp_path)])


def test_image_ids():
    assert image_ids(["a/000000000139.jpg", "7.png"]) == [139, 7]
    assert image_ids(["a/1.jpg", "b/1.jpg"]) == [1, 2]  # not distinct
    assert image_ids(["cat.jpg", "5.jpg"]) == [1, 2]
    assert image_ids(["²", "1"]) == [1, 2]  # a digit, but NaN or infinite
    assert image_ids([]) == []


def test_output_names_are_distinct():
    paths = ["a/x.png", "b/x.jpg", "b/x-2.jpg", "c/X.jpg", "y.tif"]
    assert list(output_names(paths)) == ["x.jpg", "x-2.jpg", "x-2-2.jpg", "X-3.jpg", "y.jpg"]


def test_distinct_names():
    assert distinct_names(["a/x.jpg", "b/x.jpg", "b/x.png"]) == ["a/x.jpg", "b/x.jpg", "x.png"]
