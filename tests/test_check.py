import io
import os

import numpy as np
import pytest
from PIL import Image

from dataset.conversion import convert
from dataset.conversion.convert import SizeDisagreement, UnusableImage, check_image
from program_support.errors import silenced_stderr


def photo(height=48, width=64, mode="RGB"):
    """Noise: every part of its JPEG matters."""
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image, image_format="JPEG", **settings):
    buffer = io.BytesIO()
    image.save(buffer, image_format, **settings)
    return buffer.getvalue()


@pytest.mark.parametrize("progressive", [False, True])
def test_every_cut_is_seen(progressive):
    whole = encoded(photo(), progressive=progressive)
    checked = check_image(whole)
    assert (checked.encoded, checked.height, checked.width, checked.fix) == (whole, 48, 64, None)
    fixed = check_image(whole[: -1 if progressive else -2])
    assert (fixed.encoded, fixed.fix) == (whole, "end marker added")
    for length in range(0, len(whole) - 12, 211):  # the last bytes of a scan may be padding
        with pytest.raises(UnusableImage):
            check_image(whole[:length])
        with pytest.raises(UnusableImage):
            check_image(whole[:length] + b"\xff\xd9")


def test_progressive_without_its_last_scans_is_truncated():
    whole = encoded(photo(), progressive=True)
    last_scan = whole.rindex(b"\xff\xda")
    with pytest.raises(UnusableImage, match="Premature end"):
        check_image(whole[:last_scan])


def test_a_broken_scan_header_is_damage():
    whole = encoded(photo())
    at = whole.index(b"\xff\xda")
    cut = whole[: at + 2] + b"\x00\x04\x01\x02"  # names a component and not what follows
    no_components, five = whole[: at + 2] + b"\x00\x02", whole[: at + 4] + b"\x05" + whole[at + 5 : -2]
    for damaged in (cut, cut + b"\xff\xd9", no_components, five):
        with pytest.raises(UnusableImage):
            check_image(damaged)


def test_scans_without_end():
    whole = encoded(photo(), progressive=True)
    last = whole.rindex(b"\xff\xda")
    with pytest.raises(UnusableImage, match="scans, expected at most 500"):
        check_image(whole[:-2] + whole[last:-2] * 500 + b"\xff\xd9")


def test_a_side_beyond_what_a_jpeg_holds():
    with pytest.raises(UnusableImage, match="66000x2 pixels; a JPEG has at most 65500 per side"):
        check_image(encoded(Image.new("RGB", (66000, 2)), "PNG"))
    assert check_image(encoded(Image.new("RGB", (65500, 2)), "PNG")).width == 65500


def test_stray_bytes_and_odd_application_segments_cannot_hide_damage():
    whole = encoded(photo())
    odd = whole.replace(b"JFIF\0\x01", b"JFIF\0\x09")  # a version that libjpeg warns about
    assert check_image(odd).encoded == odd
    with pytest.raises(UnusableImage, match="premature end"):
        check_image(odd[: len(odd) // 2] + b"\xff\xd9")
    before_the_end = whole[:-2] + b"\0\0\1\xff\xd9"
    assert check_image(before_the_end).encoded == before_the_end
    stray = whole[:2] + b"\x01\x02\x03" + whole[2:]
    checked = check_image(stray)
    assert checked.encoded == whole
    assert checked.fix == "stray bytes between header segments dropped (3)"
    with pytest.raises(UnusableImage, match="premature end"):
        check_image(stray[: len(stray) // 2] + b"\xff\xd9")


def test_an_end_marker_in_a_thumbnail_is_not_the_end():
    whole = encoded(photo())
    thumbnail = encoded(photo(8, 8))
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    assert check_image(whole[:2] + segment + whole[2:]).fix is None


def test_size_is_compared_with_the_annotations():
    assert check_image(encoded(photo()), expected_size=(48, 64)).height == 48
    with pytest.raises(
        SizeDisagreement, match=r"64x48 pixels, the annotations say 48x64 \(width and height are swapped\)"
    ):
        check_image(encoded(photo()), expected_size=(64, 48))
    with pytest.raises(SizeDisagreement, match=r"64x48 pixels, the annotations say 65x48$"):
        check_image(encoded(photo(), "PNG"), expected_size=(48, 65))


@pytest.mark.parametrize("image_format", ["PNG", "BMP", "WEBP", "TIFF"])
def test_other_formats_become_jpeg(image_format):
    smooth = photo(4, 4).resize((64, 48), Image.Resampling.BICUBIC)
    settings = {"lossless": True} if image_format == "WEBP" else {}
    checked = check_image(encoded(smooth, image_format, **settings))
    assert checked.fix == f"{image_format} RGB re-encoded as RGB JPEG"
    result = Image.open(io.BytesIO(checked.encoded))
    assert (result.format, result.mode, result.size) == ("JPEG", "RGB", (64, 48))
    assert np.abs(np.asarray(result).astype(int) - np.asarray(smooth)).mean() < 2


def test_cmyk_keeps_its_colors():
    flat = Image.new("RGB", (32, 16), (200, 30, 90))
    checked = check_image(encoded(flat.convert("CMYK"), quality=95))
    assert checked.fix == "JPEG CMYK re-encoded as RGB JPEG"
    assert np.abs(np.asarray(Image.open(io.BytesIO(checked.encoded))).astype(int) - (200, 30, 90)).max() < 8


def test_floating_point_pixels_have_no_known_range():
    with pytest.raises(UnusableImage, match="mode F"):
        check_image(encoded(photo(mode="F"), "TIFF"))


def test_limit_of_pixels(monkeypatch):
    monkeypatch.setattr(convert, "LARGEST_IMAGE_PIXELS", 48 * 64 - 1)
    for image_format in ("JPEG", "PNG"):
        with pytest.raises(UnusableImage, match="claims 64x48 pixels; the limit is 3071"):
            check_image(encoded(photo(), image_format))


def test_silenced_stderr_restores(capfd):
    with silenced_stderr():
        os.write(2, b"noise")
    os.write(2, b"message")
    assert capfd.readouterr().err == "message"
