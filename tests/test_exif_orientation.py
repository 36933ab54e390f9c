import asyncio
import io
import json

import numpy as np
import pytest
from PIL import Image, ImageOps

from dataset.class_names import ClassNames
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.sharding.shards import ConversionConfig, convert
from dataset.files.image_files import read_image, upright_boxes, upright_image
from dataset.input.ground_truth import ground_truth_of_records
from dataset.input.pipeline import original_images
from dataset.records.record_files import expand_glob
from dataset.records.record_index import index_records
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.inference.calibration import calibration_of_files
from efficientdet.inference.detect import Detector
from efficientdet.options.serve import RequestLimits
from efficientdet.prediction import image_annotation as annotate_module
from efficientdet.prediction.annotate import AnnotationConfig, annotate
from efficientdet.prediction.inputs import Inputs
from efficientdet.serving.batching import Batcher, Metrics, ServedModel
from efficientdet.serving.request_body import EncodedImage
from object_detection.coco.results import DetectionRows

STORED = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turns_as_pillow_does(orientation):
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(STORED).save(file, "PNG", exif=exif)
    wanted = np.asarray(ImageOps.exif_transpose(Image.open(file)))
    np.testing.assert_array_equal(upright_image(STORED, orientation), wanted)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_go_with_their_pixels(orientation):
    for top, left, bottom, right in ((0, 0, 1, 1), (1, 2, 4, 3), (0, 5, 5, 7)):
        marked = np.zeros((5, 7), np.uint8)
        marked[top:bottom, left:right] = 1
        rows, columns = np.nonzero(upright_image(marked, orientation))
        found = upright_boxes(np.float32([[top, left, bottom, right]]), orientation, size=(5, 7))
        assert found.tolist() == [[rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]]


# Every entry point, with a detector that finds the bounds of what is white

ORIENTATIONS = range(1, 9)
NAMES = ClassNames((8,), ("patch",))
SIZE, PATCH = (48, 96), (12, 50, 24, 86)  # height and width, and yxyx of what is white, in stored pixels


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Files of one image with each of the orientations."""
    folder = tmp_path_factory.mktemp("photographs")
    stored, (top, left, bottom, right) = np.full((*SIZE, 3), 60, np.uint8), PATCH
    stored[top:bottom, left:right] = 255
    for orientation in ORIENTATIONS:
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(stored).save(folder / f"{orientation}.jpg", quality=100, subsampling=0, exif=exif)
    return [folder / f"{orientation}.jpg" for orientation in ORIENTATIONS]


def white(image):
    """[y_min, x_min, y_max, x_max]"""
    rows, columns = np.nonzero(image.min(axis=-1) > 240)
    return [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]


def detect(images):
    return [DetectionRows.of_image(np.float32([white(image)]), np.float32([0.9]), np.array([8])) for image in images]


def upright(file):
    """Pillow's: the box of what is white, and height and width."""
    with Image.open(file) as image:
        pixels = np.asarray(ImageOps.exif_transpose(image))
    return white(pixels), pixels.shape[:2]


def test_load_detector_detects_upright(photographs):
    for file, found in zip(photographs, Detector(detect, NAMES, batch_size=3).predict(photographs), strict=True):
        y_min, x_min, y_max, x_max = upright(file)[0]
        assert found.boxes.tolist() == [[x_min, y_min, x_max, y_max]]


def test_load_detector_takes_pixels_in_memory_as_they_are(photographs):
    with Image.open(photographs[5]) as image:
        for given in (image, np.asarray(image)):
            [found] = Detector(detect, NAMES, batch_size=1).predict(given)
            assert found.boxes[:, [1, 0, 3, 2]].tolist() == [[*PATCH]]


def test_infer_detects_upright(photographs, tmp_path, monkeypatch):
    monkeypatch.setattr(annotate_module, "open_model", lambda config, **_: Detector(detect, NAMES, ScoreThresholds()))
    annotate(AnnotationConfig(inputs=Inputs(images=tuple(map(str, photographs))), output_dir=str(tmp_path)))
    results = {result["file_name"]: result for result in json.loads((tmp_path / "detections.json").read_text())}
    for file in photographs:
        y_min, x_min, y_max, x_max = upright(file)[0]
        assert results[file.name]["bbox"] == [x_min, y_min, x_max - x_min, y_max - y_min]


def test_the_server_detects_upright(photographs):
    async def served():
        model = ServedModel(detect=detect, class_names=NAMES, name="model")
        batcher = Batcher(model, RequestLimits(), Metrics())
        running = asyncio.create_task(batcher.run())
        found = await batcher.detect([EncodedImage(file.read_bytes(), SIZE[0] * SIZE[1]) for file in photographs])
        running.cancel()
        return found

    for file, found in zip(photographs, asyncio.run(served()), strict=True):
        assert ([*map(int, found.rows.boxes[0])], found.size) == upright(file)


def test_images_of_export_and_of_8_bit_ranges_are_upright(photographs):
    for file, pixels in zip(photographs, calibration_of_files([*map(str, photographs)]).read(), strict=True):
        assert (white(pixels), pixels.shape[:2]) == upright(file)
        np.testing.assert_array_equal(pixels, read_image(str(file)))


def test_records_have_stored_pixels_as_their_labels(photographs, tmp_path):
    top, left, bottom, right = PATCH
    (tmp_path / "a.json").write_text(
        json.dumps(
            {
                "images": [
                    {"id": number, "file_name": file.name, "height": SIZE[0], "width": SIZE[1]}
                    for number, file in zip(ORIENTATIONS, photographs, strict=True)
                ],
                "annotations": [
                    {
                        "id": number,
                        "image_id": number,
                        "category_id": 8,
                        "iscrowd": 0,
                        "bbox": [left, top, right - left, bottom - top],
                        "area": (right - left) * (bottom - top),
                    }
                    for number in ORIENTATIONS
                ],
                "categories": NAMES.to_categories(),
            }
        )
    )
    convert(
        read_coco(object_annotations_file=str(tmp_path / "a.json")),
        ConversionConfig(
            image_folder=str(photographs[0].parent),
            output_prefix=str(tmp_path / "train"),
            num_shards=1,
            processes=1,
            max_bad_fraction=0,
        ),
    )
    index = index_records(expand_glob(str(tmp_path / "train-*")))
    boxes = {
        annotation["image_id"]: annotation["bbox"]
        for annotation in ground_truth_of_records(index, NAMES)["annotations"]
    }
    for image in original_images(index, range(len(index))):
        assert image.pixels.shape[:2] == SIZE
        assert white(image.pixels) == [*PATCH]
        assert boxes[image.image_id] == pytest.approx([left, top, right - left, bottom - top], abs=1e-4)
    assert len(index) == len(photographs)
