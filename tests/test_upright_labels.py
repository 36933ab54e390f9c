"""Photos with EXIF rotation that were labeled upright become upright records; labels of stored pixels keep theirs."""

import json

import numpy as np
import pytest
from label_sets import WRITERS, Label, Picture, read_parts, write
from PIL import ExifTags, Image

from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.shards import convert
from dataset.files.image_files import upright_image
from dataset.input.ground_truth import ground_truth_of_records
from dataset.input.pipeline import original_images
from dataset.records.record_index import index_records

ORIENTATIONS = range(1, 9)
BOX = (40, 16, 64, 56)  # left, top, right, bottom in the upright image; whole blocks of a JPEG
UPRIGHT = tuple(Picture(f"{number}.jpg", 72, 120, (Label("nut", *BOX),)) for number in ORIENTATIONS)
STORED_SIZE = (72, 120)


def white_box(pixels):
    rows, columns = np.nonzero(pixels.min(axis=-1) > 128)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos that look alike in a viewer, with an orientation as their name and their tag."""
    folder = tmp_path_factory.mktemp("photos")
    pixels = np.zeros((120, 72, 3), np.uint8)
    pixels[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 255
    for number in ORIENTATIONS:
        stored = upright_image(pixels, {6: 8, 8: 6}.get(number, number))
        tags = Image.Exif()
        tags[ExifTags.Base.Orientation] = number
        Image.fromarray(stored).save(folder / f"{number}.jpg", quality=95, exif=tags)
    return folder


def read(annotations, photos):
    [data] = read_parts(annotations, photos).values()
    return data


def converted(data, photos, tmp_path):
    """File name -> pixels and box of its record, and the report."""
    settings = {"num_shards": 1, "processes": 1, "max_bad_fraction": 0.0}
    config = ConversionConfig(image_folder=str(photos), output_prefix=str(tmp_path / "train"), **settings)
    report = convert(data, config, log=lambda line: None)
    index = index_records([str(config.shard_path(0))])
    truth = ground_truth_of_records(index, data.class_names)
    boxes = {one["image_id"]: one["bbox"] for one in truth["annotations"]}
    records = {}
    for image in original_images(index, range(len(index))):
        x, y, width, height = boxes[image.image_id]
        records[image.name] = image.pixels, (x, y, x + width, y + height)
    return records, report


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("open_images", "dota")])  # without sizes
def test_labels_of_upright_photos_give_upright_records(name, photos, tmp_path):
    WRITERS[name](UPRIGHT, tmp_path / "labels")
    records, report = converted(read(tmp_path / "labels", photos), photos, tmp_path)
    assert len(records) == 8
    for file, (pixels, box) in records.items():
        assert pixels.shape[:2] == (120, 72), file
        assert white_box(pixels) == pytest.approx(BOX, abs=1), file
        assert box == pytest.approx(BOX, abs=0.02), file
    assert [finding.file for finding in report.fixed] == [f"{number}.jpg" for number in range(2, 9)]
    assert "rotated upright by its EXIF orientation 6" in report.fixed[4].reason


def write_table(pictures, path):
    rows = [",".join(map(str, (picture.name, *picture.labels[0][1:], "nut"))) for picture in pictures]
    write(path, "\n".join(["filename,xmin,ymin,xmax,ymax,class", *rows]) + "\n")


def test_boxes_tell_where_labels_have_no_size(photos, tmp_path):
    tall = Label("nut", 2, 2, 70, 118)
    write_table([picture._replace(labels=(tall,)) for picture in UPRIGHT[:6]], tmp_path / "tall.csv")
    records, report = converted(read(tmp_path / "tall.csv", photos), photos, tmp_path)
    assert {pixels.shape[:2] for pixels, _ in records.values()} == {(120, 72)}
    assert len(report.fixed) == 5  # also those that are rotated by 180 degrees or mirrored
    write_table([UPRIGHT[0], UPRIGHT[5]], tmp_path / "small.csv")
    records, report = converted(read(tmp_path / "small.csv", photos), photos, tmp_path / "small")
    assert records["6.jpg"][0].shape[:2] == STORED_SIZE
    assert "neither a size nor the boxes tell whether it was labeled upright" in report.noted[-1].reason


def test_sizes_of_stored_pixels_keep_them(photos, tmp_path):
    """One labelme file has the size of the stored pixels, the other that of the upright image."""
    for number, (height, width), points in ((3, (120, 72), [BOX[:2], BOX[2:]]), (6, STORED_SIZE, [(16, 8), (56, 32)])):
        label = {"label": "nut", "shape_type": "rectangle", "points": points}
        content = {"shapes": [label], "imagePath": f"{number}.jpg", "imageHeight": height, "imageWidth": width}
        write(tmp_path / "labels" / f"{number}.json", json.dumps(content))
    records, report = converted(read(tmp_path / "labels", photos), photos, tmp_path)
    assert records["6.jpg"][0].shape[:2] == STORED_SIZE
    assert [finding.file for finding in report.fixed] == ["3.jpg"]


@pytest.mark.parametrize("name", ["coco", "voc", "cvat", "labelme", "csv", "label_studio"])
def test_boxes_decide_where_the_size_is_that_of_stored_pixels(name, photos, tmp_path):
    """The tall box leaves the stored image; images without such a box are as those with one."""
    tall = Label("nut", 2, 2, 70, 118)
    rotated = [picture._replace(width=120, height=72) for picture in UPRIGHT[4:]]
    WRITERS[name]([*rotated[:3], rotated[3]._replace(labels=(tall,))], tmp_path / "labels")
    records, report = converted(read(tmp_path / "labels", photos), photos, tmp_path)
    assert {pixels.shape[:2] for pixels, _ in records.values()} == {(120, 72)}
    assert all(white_box(records[f"{number}.jpg"][0]) == pytest.approx(BOX, abs=1) for number in (5, 6, 7))
    assert len(report.fixed) == 4


def test_a_rotation_by_180_degrees_is_noted(photos, tmp_path):
    WRITERS["coco"](UPRIGHT[2:3], tmp_path / "labels")
    _, report = converted(read(tmp_path / "labels", photos), photos, tmp_path)
    assert "orientation 3, and neither a size nor the boxes tell" in report.noted[-1].reason
    assert report.noted[-1].reason.endswith("taken as labeled in stored pixels")
