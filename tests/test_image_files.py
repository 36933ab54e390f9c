import numpy as np
import pytest
from PIL import Image

from efficientdet.image_files import find_images, image_ids, output_names, read_image
from object_detection.errors import InputError


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


def test_folder_whose_name_looks_like_an_image(folder):
    assert "sub.jpg" not in names(find_images([str(folder)]))
    assert names(find_images([f"{folder}/sub.jpg"])) == ["e.jpg"]


def test_several_in_the_order_given_each_once(folder):
    found = find_images([f"{folder}/d.webp", f"{folder}/*.jpg", f"{folder}/b.jpg"])
    assert names(found) == ["d.webp", "b.jpg"]


def test_file_whose_name_has_glob_characters(tmp_path):
    (tmp_path / "a[1].jpg").touch()
    assert names(find_images([f"{tmp_path}/a[1].jpg"])) == ["a[1].jpg"]


def test_nothing_there(tmp_path):
    for wrong in (f"{tmp_path}/nosuch.jpg", f"{tmp_path}/*.jpg"):
        with pytest.raises(InputError, match="no such file; wanted an image, a folder or a glob"):
            find_images([wrong])
    with pytest.raises(InputError, match="no image in this folder"):
        find_images([str(tmp_path)])


def test_exif_rotation_is_applied(tmp_path):
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :16] = 255  # left half white
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned 90 degrees clockwise: left becomes top
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    found = read_image(str(tmp_path / "a.png"))
    assert found.shape == (32, 16, 3)
    assert found[:14].min() == 255
    assert found[18:].max() == 0


@pytest.mark.parametrize(("mode", "value", "rgb"), [
    ("L", 100, (100, 100, 100)), ("RGBA", (10, 20, 30, 255), (10, 20, 30)), ("1", 1, (255, 255, 255)),
    ("LA", (50, 255), (50, 50, 50)), ("P", 0, (0, 0, 0))])
def test_any_mode_becomes_rgb(tmp_path, mode, value, rgb):
    Image.new(mode, (5, 4), value).save(tmp_path / "a.png")
    found = read_image(str(tmp_path / "a.png"))
    assert (found.shape, found.dtype) == ((4, 5, 3), np.uint8)
    assert tuple(found[0, 0]) == rgb


def test_cmyk_jpeg(tmp_path):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a.jpg")  # red
    red, green, blue = read_image(str(tmp_path / "a.jpg"))[4, 4].astype(int)
    assert red > 200
    assert max(green, blue) < 60


def test_sixteen_bits_are_scaled_not_cut_off(tmp_path):
    Image.fromarray(np.uint16([[0, 256, 32768, 65535]])).save(tmp_path / "a.png")
    assert read_image(str(tmp_path / "a.png"))[0, :, 0].tolist() == [0, 1, 128, 255]


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
    with pytest.raises(InputError, match="there is no such file"):
        read_image(str(tmp_path / "nosuch.jpg"))


def test_image_ids():
    assert image_ids(["a/000000000139.jpg", "7.png"]) == [139, 7]
    assert image_ids(["a/1.jpg", "b/1.jpg"]) == [1, 2]  # not distinct
    assert image_ids(["cat.jpg", "5.jpg"]) == [1, 2]
    assert image_ids(["²", "1"]) == [1, 2]  # a digit, but no number
    assert image_ids([]) == []


def test_output_names_are_distinct():
    paths = ["a/x.png", "b/x.jpg", "b/x-2.jpg", "c/x.jpg", "y.tif"]
    assert list(output_names(paths)) == ["x.jpg", "x-2.jpg", "x-2-2.jpg", "x-3.jpg", "y.jpg"]
