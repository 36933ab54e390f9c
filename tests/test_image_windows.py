"""Windows of large images: the pixels that were written, kinds of TIFF, and files that claim what is not there."""

import socket
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dataset.conversion.convert import UnusableImage, check_image
from dataset.files import image_windows
from dataset.files.image_files import read_image
from dataset.files.image_windows import open_windows
from dataset.files.pixel_values import ValueRange
from program_support.errors import InputError

rasterio = pytest.importorskip("rasterio")
RNG = np.random.default_rng(5)
HEIGHT, WIDTH = 700, 450


pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


@pytest.fixture(autouse=True)
def _by_rasterio(monkeypatch):
    monkeypatch.setattr(image_windows, "MOST_DECODED_PIXELS", 0)


def store(path, values, *, tags=None, colors=None, palette=None, overviews=(), **profile):
    """Write bands [n, h, w] as a TIFF."""
    count, height, width = values.shape
    with rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=count, dtype=values.dtype, **profile
    ) as file:
        if colors:
            file.colorinterp = [rasterio.enums.ColorInterp[color] for color in colors]
        file.write(values)
        file.update_tags(ns="OVERVIEWS", **tags or {})
        if palette:
            file.write_colormap(1, palette)
        if overviews:
            file.build_overviews(overviews, rasterio.enums.Resampling.average)
    return str(path)


def complete(path, side=256, **options):
    """Return the image that its windows of `side` pixels make."""
    with open_windows(path, **options) as windows:
        height, width = windows.size
        image = np.zeros((height, width, 3), np.uint8)
        for top in range(0, height, side):
            for left in range(0, width, side):
                bottom, right = min(top + side, height), min(left + side, width)
                image[top:bottom, left:right] = windows.read(top, left, bottom, right)
    return image


def noise(count=3, dtype=np.uint8):
    return RNG.integers(0, np.iinfo(dtype).max, (count, HEIGHT, WIDTH), dtype=dtype, endpoint=True)


LAYOUTS = [
    {},
    {"compress": "lzw", "predictor": 2},
    {"tiled": True, "blockxsize": 128, "blockysize": 64, "compress": "deflate"},
    {"interleave": "band", "tiled": True, "compress": "zstd"},
    {"BIGTIFF": "YES"},
    {"ENDIANNESS": "BIG"},
    {"blockysize": HEIGHT, "compress": "deflate"},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_windows_are_the_pixels_that_were_written(tmp_path, layout):
    values = noise()
    path = store(tmp_path / "a.tif", values, **layout)
    np.testing.assert_array_equal(complete(path), values.transpose(1, 2, 0))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_windows_are_upright(tmp_path, orientation):
    path, exif = str(tmp_path / "a.tif"), Image.Exif()
    exif[274] = orientation
    Image.fromarray(noise().transpose(1, 2, 0)).save(path, exif=exif, compression="tiff_lzw")
    expected = read_image(path)
    np.testing.assert_array_equal(complete(path), expected)
    with open_windows(path) as windows:
        assert (windows.size, windows.orientation) == (expected.shape[:2], 1)
        reduced = windows.reduced((expected.shape[0] // 10, expected.shape[1] // 10))
    blocks = expected.reshape(reduced.shape[0], 10, reduced.shape[1], 10, 3).mean(axis=(1, 3))
    assert np.abs(reduced - blocks).max() <= 1


def test_other_formats_are_decoded_once_and_keep_their_stored_pixels(tmp_path):
    path, exif, pixels = str(tmp_path / "a.png"), Image.Exif(), noise().transpose(1, 2, 0)
    exif[274] = 6
    Image.fromarray(pixels).save(path, exif=exif)
    np.testing.assert_array_equal(complete(path), pixels)
    with open_windows(path) as windows:
        assert (windows.size, windows.orientation, windows.note) == (pixels.shape[:2], 6, "")
        window = windows.read(10, 20, 110, 80)
        assert window.base is None
        assert windows.reduced((7, 9)).shape == (7, 9, 3)
        with pytest.raises(ValueError, match="not in the image"):
            windows.read(0, 0, HEIGHT + 1, 10)


def test_16_bits_have_a_white_level(tmp_path):
    path = store(tmp_path / "a.tif", np.array([[[0, 2048, 4095, 9000]]], np.uint16))
    assert complete(path, value_range=ValueRange(white=4095))[0, :, 1].tolist() == [0, 128, 255, 255]
    assert complete(path)[0, :, 1].tolist() == [0, 8, 16, 35]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32", "int8"])
def test_floats_and_signed_values_need_a_range(tmp_path, dtype):
    values = np.array([[[-30, -20, 22, 60, 90]]] * 3).astype(dtype)
    path = store(tmp_path / "a.tif", values, nodata=-30)
    if dtype.startswith("float"):
        values[:, 0, 4] = np.nan
        path = store(tmp_path / "a.tif", values, nodata=-30)
    bright = [0, 0, 134, 255, 0 if dtype.startswith("float") else 255]
    assert complete(path, value_range=ValueRange(-20, 60))[0, :, 2].tolist() == bright
    with pytest.raises(InputError, match=f"pixels of type {dtype} without a known range: convert with --black_level"):
        open_windows(path)


@pytest.mark.parametrize(
    ("count", "colors", "chosen", "note"),
    [
        (1, None, [0, 0, 0], ""),
        (2, ("gray", "alpha"), [0, 0, 0], ""),
        (2, ("gray", "undefined"), [0, 0, 0], "band 1 is used of 2, as gray"),
        (4, ("red", "green", "blue", "alpha"), [0, 1, 2], ""),
        (4, ("blue", "green", "red", "nir"), [2, 1, 0], "bands 3, 2, 1 are used of 4, as red, green and blue"),
        (6, None, [0, 1, 2], "bands 1, 2, 3 are used of 6, as red, green and blue"),
    ],
)
def test_bands_become_colors(tmp_path, count, colors, chosen, note):
    values = noise(count)
    colors = colors and [color if hasattr(rasterio.enums.ColorInterp, color) else "undefined" for color in colors]
    path = store(tmp_path / "a.tif", values, colors=colors, photometric="MINISBLACK")
    np.testing.assert_array_equal(complete(path), values[chosen].transpose(1, 2, 0))
    with open_windows(path) as windows:
        assert windows.note == note


def test_a_palette_one_bit_and_inverted_gray_are_refused(tmp_path):
    numbers = np.array([[[0, 1, 1]]], np.uint8)
    for profile in ({"palette": {1: (10, 20, 30)}}, {"nbits": 1}, {"photometric": "MINISWHITE"}):
        with pytest.raises(InputError, match="of TIFF, expected gray or RGB of 8 bits"):
            open_windows(store(tmp_path / "a.tif", numbers, **profile))


def test_pixels_without_data_are_black(tmp_path):
    values = np.full((3, 4, 4), 255, np.uint8)
    values[0, 1, 1] = 9
    path = store(tmp_path / "a.tif", values, nodata=255)
    assert complete(path).sum(axis=-1).tolist() == [[0, 0, 0, 0], [0, 519, 0, 0], [0] * 4, [0] * 4]


@pytest.mark.parametrize("beside", [False, True])
def test_overviews_of_the_file_alone_are_used(tmp_path, beside):
    bright, path = np.full((3, 512, 512), 200, np.uint8), str(tmp_path / "a.tif")
    with rasterio.Env(TIFF_USE_OVR=beside):
        store(path, bright, tiled=True, overviews=[2, 4, 8])
        with rasterio.open(path, "r+") as file:  # the overviews keep the bright pixels
            file.write(bright // 2)
    assert [file.name for file in tmp_path.glob("*.ovr")] == ["a.tif.ovr"] * beside
    with open_windows(path) as windows:
        assert np.unique(windows.reduced((64, 64))) == [100 if beside else 200]
        assert np.unique(windows.read(0, 0, 64, 64)) == [100]


def crafted(*entries, big=False, then=b"\0" * 2000):
    """Return a TIFF whose directory has these (tag, type, number of values, value)."""
    head, entry, count = ("<2sHHHQQ", "<HHQQ", 16) if big else ("<2sHIH", "<HHII", 8)
    values = (b"II", 43, 8, 0, count, len(entries)) if big else (b"II", 42, count, len(entries))
    return struct.pack(head, *values) + b"".join(struct.pack(entry, *one) for one in sorted(entries)) + then


def image_tags(width, height, *, kind=4, **more):
    tags = {"bits": (258, 3, 1, 8), "compression": (259, 3, 1, 1), "photometric": (262, 3, 1, 1)}
    tags |= {"offset": (273, 4, 1, 300), "rows": (278, 4, 1, 10), "bytes": (279, 4, 1, 10)}
    return [(256, kind, 1, width), (257, kind, 1, height), *(tags | more).values()]


TILED = {"offset": (324, 4, 1, 300), "rows": (322, 4, 1, 2**30), "columns": (323, 4, 1, 2**30), "bytes": (325, 4, 1, 9)}
HOSTILE = {
    "pixels": (crafted(*image_tags(10**10, 10**10, kind=16), big=True), "10000000000 x 10000000000 pixels; the limit"),
    "10 gigapixels": (crafted(*image_tags(100_000, 100_000)), "the limit is 4294967296 pixels"),
    "a tag of 10^10": (
        crafted(*image_tags(100, 100, kind=16), (42112, 2, 10**10, 300), big=True),
        "the directory of the TIFF is damaged: Tag data larger than file",
    ),
    "a large tile": (crafted(*image_tags(60_000, 60_000, **TILED)), "tiles of 1073741824 x 1073741824 pixels"),
    "unknown compression": (crafted(*image_tags(100, 100, compression=(259, 3, 1, 60_000))), "cannot be decoded"),
    "a directory beyond the end": (b"II*\0\xf0\xff\xff\xff" + b"\0" * 20, "cannot be decoded"),
    "a VRT": (
        b"<VRTDataset><SourceFilename>/etc/passwd</SourceFilename></VRTDataset>",
        "none of the formats",
    ),
    "colors for print": (crafted(*image_tags(10, 10, photometric=(262, 3, 1, 8))), "photometric interpretation 8"),
    "float": (
        crafted(*image_tags(10, 10, bits=(258, 3, 1, 32), format=(339, 3, 1, 3))),
        "pixels of type float32 without a known range",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_there_is_reported_in_one_line(tmp_path, capfd, name):
    content, message = HOSTILE[name]
    path = tmp_path / "a.tif"
    path.write_bytes(content)
    with pytest.raises(InputError) as refusal, open_windows(str(path)) as windows:
        windows.read(0, 0, 10, 10)
    assert message in str(refusal.value)
    assert str(refusal.value).startswith(f"{path}: ")
    assert str(refusal.value).count("\n") == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["/vsicurl/http://{}/a.tif", "http://{}/a.tif", "/etc/hostname"])
def test_a_file_that_metadata_name_is_not_opened(tmp_path, name):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        name = name.format(f"127.0.0.1:{server.getsockname()[1]}")
        path = store(tmp_path / "a.tif", noise(), tags={"OVERVIEW_FILE": name})
        with pytest.raises(InputError, match="its metadata name another file as its overviews"):
            open_windows(path)
        with pytest.raises(BlockingIOError):  # there was no connection
            server.accept()


def test_without_rasterio_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rasterio", None)
    path = tmp_path / "a.tif"
    path.write_bytes(crafted(*image_tags(20_000, 20_000)))
    with pytest.raises(InputError, match=r"20000 x 20000 pixels .* needs the package rasterio: pip install -e"):
        open_windows(str(path))
    pixels = noise().transpose(1, 2, 0)
    Image.fromarray(pixels).save(path)
    np.testing.assert_array_equal(complete(str(path)), pixels)  # Pillow decodes it


@pytest.mark.parametrize("profile", [{"count": 5, "dtype": np.uint8}, {"count": 3, "dtype": np.uint16}])
def test_small_tiffs_of_other_kinds_are_named(tmp_path, profile):
    path = store(tmp_path / "a.tif", noise(**profile).astype(np.int16 if profile["count"] == 3 else np.uint8))
    message = rf"a TIFF of {profile['count']} bands whose kind of pixels is not read.*gdal_translate"
    with pytest.raises(InputError, match=message):
        read_image(path)
    with pytest.raises(UnusableImage, match=message):
        check_image(Path(path).read_bytes())
