"""A TIFF with too many pixels for one record becomes parts, with what each shows of the objects."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from dataset.class_names import ClassNames
from dataset.conversion import shards
from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage, AnnotatedObject
from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.shards import convert, in_parts
from dataset.files import image_windows
from dataset.files.image_windows import open_windows
from dataset.input.tiling import Tiling
from dataset.records.record_index import RecordReader, index_records
from dataset.records.schema import decode_image, parse_record
from efficientdet.inference import tiles
from efficientdet.inference.tiles import LargeImage, TiledDetector
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError

SIZE, PART = (150, 200), 64
FILE_BYTES = np.array([1_000, 2_000_000])
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""
BOXES = [(5, 8, 20, 10), (60, 70, 10, 30), (100, 40, 90, 100)]  # x, y, width, height: the second and third are cut


def data_set(**changes):
    objects = [AnnotatedObject(category_id=1, box_xywh=box) for box in BOXES]
    images = [
        AnnotatedImage(file_name="small.png", image_id=4, size=(40, 50)),
        AnnotatedImage(file_name="aerial/large.tif", image_id=7, size=SIZE, objects=objects),
    ]
    settings = {"source": "test", "images": images, "class_names": ClassNames((1,), ("square",)), "fingerprint": "x"}
    return AnnotatedDataSet(**settings, **{"listed_boxes": len(BOXES), **changes})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for module in (shards, image_windows):
        monkeypatch.setattr(module, "LARGEST_IMAGE_PIXELS", 20_000)
    monkeypatch.setattr(shards, "PART_SIDE", PART)
    monkeypatch.setattr(shards, "_LEAST_BYTES", 1_000)
    (tmp_path / "images/aerial").mkdir(parents=True)
    pixels = np.full((*SIZE, 3), 30, np.uint8)
    for x, y, width, height in BOXES:
        pixels[y : y + height, x : x + width] = 220
    Image.fromarray(pixels).save(tmp_path / "images/aerial/large.tif")
    Image.fromarray(pixels[:40, :50]).save(tmp_path / "images/small.png")
    return tmp_path


def test_each_part_is_a_record_with_its_pixels_and_objects(folder, capsys):
    config = ConversionConfig(
        image_folder=str(folder / "images"),
        output_prefix=str(folder / "train"),
        num_shards=1,
        processes=1,
        keep_annotations=True,
    )
    report = convert(data_set(), config)
    assert "1 images with more than" in capsys.readouterr().out
    assert report.images == 1 + 3 * 4
    index = index_records([str(folder / "train-00000-of-00001.tfrecord")])
    records = [parse_record(payload) for payload in RecordReader(index).read(np.arange(len(index)))]
    names = [record["file_name"].numpy().decode() for record in records]
    assert names[:3] == ["small.png", "aerial/large_0_0.jpg", "aerial/large_0_64.jpg"]
    assert len({int(record["image_id"]) for record in records}) == 13
    crowds = []
    for name, record in zip(names[1:], records[1:], strict=True):
        top, left = map(int, name.removesuffix(".jpg").split("_")[1:])
        image = decode_image(record["encoded"]).numpy()
        assert image.shape[:2] == (min(PART, SIZE[0] - top), min(PART, SIZE[1] - left))
        expected = np.full(image.shape[:2], 30)
        for box, crowd in zip(record["boxes"].numpy(), record["crowd"].numpy(), strict=True):
            y1, x1, y2, x2 = np.rint(box * np.tile(image.shape[:2], 2)).astype(int)
            expected[y1:y2, x1:x2] = 220
            crowds.append(bool(crowd))
        assert (np.abs(image.mean(axis=-1) - expected) < 60).mean() > 0.99  # JPEG's edges
    # the first is complete; 6 of 10 columns and 26 of 30 rows of the second make 52 %; of the third no part has half
    assert sorted(crowds) == [False, False] + [True] * (len(crowds) - 2)
    listed = json.loads((folder / "train.instances.json").read_text())
    assert [image["file_name"] for image in listed["images"]] == names


def test_masks_of_parts_are_refused(folder):
    with pytest.raises(InputError, match=r"large.tif: has more than 20000 pixels .*, which have no masks"):
        in_parts(data_set(), str(folder / "images"), file_bytes=FILE_BYTES, with_masks=True)


def test_other_images_stay_as_they_are(tmp_path):
    data = data_set()
    assert in_parts(data, str(tmp_path), file_bytes=FILE_BYTES, with_masks=True) == (data, 0)


@pytest.mark.parametrize("whole", [False, True])
def test_windows_of_a_file_are_detected_in_as_its_pixels_are(folder, monkeypatch, whole):
    """A detector that finds the brightest pixel; the complete image is reduced to a quarter."""
    monkeypatch.setattr(tiles, "_OVERVIEW_SIDE", 50)
    path = str(folder / "images/aerial/large.tif")
    seen = []

    def detect(images):
        seen.extend(image.shape[:2] for image in images)
        corners = np.float32([np.unravel_index(image[..., 0].argmax(), image.shape[:2]) for image in images])
        boxes = np.concatenate([corners, corners + 8], axis=1)
        return [DetectionRows.of_image(box[None], np.float32([0.9]), np.array([1])) for box in boxes]

    tiled = TiledDetector(detect, Tiling(size=(100, 100), whole=whole), batch_size=4)
    [of_pixels] = tiled([np.asarray(Image.open(path))])
    image = LargeImage(open_windows(path))
    [of_windows] = tiled([image])
    windows = len(seen) // 2
    assert seen[windows:][: windows - whole] == seen[: windows - whole]
    assert seen[-1] == ((38, 50) if whole else (100, 100))
    shared = {tuple(box) for box in of_windows.boxes.tolist()} & {tuple(box) for box in of_pixels.boxes.tolist()}
    assert len(shared) >= len(of_pixels.boxes) - whole
    image.close()


def test_400_million_pixels_are_converted_in_a_gigabyte(tmp_path):
    rasterio = pytest.importorskip("rasterio")
    profile = {"driver": "GTiff", "width": 20_000, "height": 20_000, "count": 3, "dtype": "uint8"}
    (tmp_path / "images").mkdir()
    path = tmp_path / "images/earth.tif"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are no coordinates on the earth
        file = rasterio.open(path, "w", **profile, tiled=True, blockxsize=512, blockysize=512, compress="deflate")
    with file:
        file.write(np.full((3, 300, 300), 200, np.uint8), window=((9000, 9300), (15_000, 15_300)))
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [15_000, 9000, 300, 300], "area": 9e4, "iscrowd": 0}
    labels = {
        "images": [{"id": 1, "file_name": "earth.tif", "width": 20_000, "height": 20_000}],
        "annotations": [annotation],
        "categories": [{"id": 1, "name": "square"}],
    }
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    command = [
        *(sys.executable, "-c", MEASURED),
        *(sys.executable, "dataset/create_tfrecord.py", f"--images={tmp_path / 'images'}", "--val_fraction=0"),
        *(f"--annotations={tmp_path / 'labels.json'}", f"--output_dir={tmp_path / 'records'}", "--num_threads=1"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    index = index_records([str(path) for path in tmp_path.glob("records/train-*.tfrecord")])
    assert len(index) == 100
    objects = [len(parse_record(payload)["boxes"]) for payload in RecordReader(index).read(np.arange(100))]
    assert sum(objects) == 1  # 15,000 to 15,300 and 9,000 to 9,300 are in one part
    assert int(ran.stdout.split()[-1]) < 1_000_000  # kilobytes
