"""Images of 16 bits whose values use 12 bits, and of floats: conversion, training and readers scale them equally."""

import asyncio
import json

import cv2
import numpy as np
import pytest
from PIL import Image

from dataset import create_tfrecord
from dataset.class_names import ClassNames
from dataset.conversion.conversion_options import ConvertOptions
from dataset.files.image_files import read_image
from dataset.files.pixel_values import FULL_RANGE, WHITE_LEVEL, ValueRange, value_range_for
from dataset.input.pipeline import original_images
from dataset.records.record_files import expand_glob, value_range_of_records
from dataset.records.record_index import index_records
from efficientdet.checkpoints.description import Description
from efficientdet.inference.calibration import calibration_of_files
from efficientdet.inference.detect import Detector
from efficientdet.operations import train_model
from efficientdet.options.serve import RequestLimits
from efficientdet.options.train import TrainOptions
from efficientdet.prediction import image_annotation as annotate_module
from efficientdet.prediction.annotate import AnnotationConfig, annotate
from efficientdet.prediction.inputs import Inputs
from efficientdet.serving.batching import Batcher, Metrics, ServedModel
from efficientdet.serving.request_body import EncodedImage
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError

SIDE = 48
NAMES = ClassNames((1,), ("patch",))


class StartedError(Exception):
    """A training would start now; with its configuration."""


def store(path, bright, *, colors):
    """Write an image whose left half is 0 and whose right half is `bright`, of 16 bits per channel."""
    values = np.zeros((SIDE, SIDE), np.uint16)
    values[:, SIDE // 2 :] = bright
    cv2.imwrite(str(path), np.repeat(values[..., None], 3, axis=-1) if colors else values)


@pytest.fixture(scope="module", params=[False, True], ids=["gray", "colors"])
def folder(request, tmp_path_factory):
    """A YOLO folder with two splits; the brightest image is in one of them, another has 2048, half of the range."""
    folder = tmp_path_factory.mktemp("photos")
    for split, bright in (("train", 4095), ("train", 2048), ("val", 900)):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        store(folder / "images" / split / f"{bright}.png", bright, colors=request.param)
        (folder / "labels" / split / f"{bright}.txt").write_text("0 0.75 0.5 0.5 1\n")
    (folder / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [patch]\n")
    return folder


@pytest.fixture(scope="module")
def records(folder):
    create_tfrecord.convert_labels(
        ConvertOptions(images=str(folder), output_dir=str(folder / "records"), num_threads=1)
    )
    return {split: expand_glob(f"{folder}/records/{split}-*") for split in ("train", "val")}


def brightness(pixels):
    """Return the value of the right half."""
    return round(float(pixels[8:-8, SIDE // 2 + 8 : -8].mean()))


def test_all_splits_have_one_range(folder, records):
    found = {}
    for split in ("train", "val"):
        index = index_records(records[split])
        found |= {image.name: brightness(image.pixels) for image in original_images(index, range(len(index)))}
        assert value_range_of_records(records[split]) == ValueRange(white=4095)
    assert {name.rpartition("/")[2]: value for name, value in found.items()} == {
        "4095.png": 255,
        "2048.png": 128,
        "900.png": 56,
    }


def test_a_training_stores_the_range_and_every_reader_uses_it(folder, records, tmp_path, monkeypatch):
    def stop(config):
        raise StartedError(config)

    monkeypatch.setattr("efficientdet.training.loop.train", stop)
    options = TrainOptions(
        training_file_pattern=f"{folder}/records/train-*",
        val_file_pattern=f"{folder}/records/val-*",
        model_dir=str(tmp_path / "model"),
    )
    with pytest.raises(StartedError) as started:
        train_model.train(options)
    hparams = started.value.args[0].hparams
    described = Description(
        model_name=hparams.model_name, hparams=hparams.to_dict(), categories=NAMES.to_categories(), weights="raw"
    )
    seen = []

    def detect(images):
        seen.extend(map(brightness, images))
        box = np.float32([[0, 0, 9, 9]])
        return [DetectionRows.of_image(box, np.float32([0.9]), np.array([1])) for _ in images]

    detector = Detector.described(detect, described)
    file = folder / "images" / "val" / "900.png"
    with open(file, "rb") as stream, Image.open(file) as image:
        found = [detector.predict(one)[0] for one in (str(file), stream, image)]
    assert brightness(np.asarray(found[0].draw())) == 56
    monkeypatch.setattr(annotate_module, "open_model", lambda config, **_: detector)
    annotate(AnnotationConfig(inputs=Inputs(images=(str(file),)), output_dir=str(tmp_path / "out")))

    async def served():
        model = ServedModel(detect=detect, class_names=NAMES, name="model", value_range=detector.value_range)
        batcher = Batcher(model, RequestLimits(), Metrics())
        running = asyncio.create_task(batcher.run())
        await batcher.detect([EncodedImage(file.read_bytes(), SIDE * SIDE)])
        running.cancel()

    asyncio.run(served())
    assert seen == [56] * 5


def test_calibration_has_the_range_of_its_images(folder):
    files = sorted(map(str, folder.glob("images/train/*.png")))
    assert [brightness(pixels) for pixels in calibration_of_files(files).read()] == [128, 255]


@pytest.mark.parametrize(
    ("values", "level"),
    [((1023,), 1023), ((900, 5000), 8191), ((200,), 255), ((1 << 14,), WHITE_LEVEL), ((), WHITE_LEVEL)],
)
def test_the_level_has_all_bits_of_the_largest_value(tmp_path, values, level):
    for value in values:
        store(tmp_path / f"{value}.png", value, colors=False)
    Image.new("RGB", (4, 4), (255, 255, 255)).save(tmp_path / "eight_bits.png")
    (tmp_path / "damaged.png").write_bytes(b"\x89PNG")
    warnings = []
    assert value_range_for([*tmp_path.iterdir()], log=warnings.append) == ValueRange(white=level)
    assert [f"{max(values)} as their largest value: {level} becomes white" in line for line in warnings] == [True] * (
        level < WHITE_LEVEL
    )


def test_records_of_different_ranges_are_refused(tmp_path):
    for number, level in ((1, 1023), (2, 2046), (3, WHITE_LEVEL)):
        (tmp_path / f"part{number}.report.json").write_text(json.dumps({"made_from": {"--white_level": level}}))
    shards = [str(tmp_path / f"part{number}-00000-of-00001.tfrecord") for number in (1, 2, 3)]
    assert value_range_of_records(shards[1:]) == ValueRange(white=2046)  # the third have all bits or none
    with pytest.raises(InputError, match=r"--white_level: 0 to 1023 \(.*part1.*\), 0 to 2046 \(.*part2"):
        value_range_of_records(shards)


@pytest.fixture
def celsius(tmp_path):
    """A YOLO folder with images of floats from -20 to 60; the right halves are 60, 22 and -100 (below the range)."""
    for name, value in (("hot", 60), ("warm", 22), ("cold", -100)):
        values = np.full((SIDE, SIDE), -20, np.float32)
        values[:, SIDE // 2 :] = value
        values[0, 0] = np.nan
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(values).save(tmp_path / "images" / f"{name}.tif")
        (tmp_path / f"{name}.txt").write_text("0 0.75 0.5 0.5 1\n")
    (tmp_path / "data.yaml").write_text("names: [patch]\n")
    return tmp_path


def converted(folder, **options):
    create_tfrecord.convert_labels(
        ConvertOptions(images=str(folder), output_dir=str(folder / "records"), num_threads=1, **options)
    )
    return expand_glob(f"{folder}/records/train-*")


def test_floats_have_the_range_of_the_conversion(celsius):
    records = converted(celsius, black_level=-20, white_level=60.0, val_fraction=0)
    index = index_records(records)
    found = {image.name.rpartition("/")[2]: brightness(image.pixels) for image in original_images(index, range(3))}
    assert found == {"hot.tif": 255, "warm.tif": 134, "cold.tif": 0}
    assert value_range_of_records(records) == (-20, 60)
    described = Description(
        model_name="x", hparams={"black_level": -20, "white_level": 60.0}, categories=[], weights="raw"
    )
    assert described.value_range == (-20, 60)
    pixels = read_image(str(celsius / "images" / "warm.tif"), value_range=described.value_range)
    assert (brightness(pixels), pixels[0, 0].tolist()) == (134, [0, 0, 0])


def test_a_range_is_not_empty(celsius):
    with pytest.raises(InputError, match=r"--black_level=60: expected less than --white_level=60"):
        converted(celsius, black_level=60, white_level=60)


@pytest.mark.parametrize("levels", [{"white_level": "x"}, {"black_level": 70_000}, {"white_level": float("nan")}, {}])
def test_a_description_with_an_impossible_range_has_the_full_one(levels):
    described = Description(model_name="x", hparams=levels, categories=[], weights="raw")
    assert described.value_range == FULL_RANGE
