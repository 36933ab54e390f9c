"""Conversion with images, labels and records at remote addresses: equal to a local one, resumed, and refused."""

import json
import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import forked_programs
import numpy as np
import pytest
import s3fs
from label_sets import NAMES, Label, Picture, draw, write_coco, write_yolo
from PIL import Image
from s3_server import BUCKET, s3_server

from dataset.conversion.conversion_options import ConvertOptions
from dataset.create_tfrecord import convert_labels
from efficientdet.plugins.cluster import storage
from efficientdet.plugins.cluster.remote_files import cache_folder
from program_support.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "dataset" / "create_tfrecord.py"
PICTURES = [
    Picture(
        f"{'ab'[number % 2]}/p {number}.{'png' if number == 7 else 'jpg'}",
        40,
        30,
        (Label(NAMES[number % 3], 4, 5, 20, 25),),
    )
    for number in range(12)
]
DEEP, ROTATED, EMPTY = PICTURES[7], PICTURES[4], PICTURES[6]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data set with an image of 12 bits, one with EXIF rotation and an empty file."""
    folder = tmp_path_factory.mktemp("data")
    draw(PICTURES, folder / "photos")
    write_coco(PICTURES, folder / "labels.json")
    Image.fromarray((np.arange(1200).reshape(30, 40) * 3).astype(np.uint16)).save(folder / "photos" / DEEP.name)
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.open(folder / "photos" / ROTATED.name)
    image.rotate(90, expand=True).save(folder / "photos" / ROTATED.name, exif=exif)
    (folder / "photos" / EMPTY.name).write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def server():
    with pytest.MonkeyPatch.context() as patch, s3_server(patch) as system:
        yield system


@pytest.fixture
def bucket(server, data, tmp_path, monkeypatch):
    monkeypatch.setenv("EFFICIENTDET_REMOTE_CACHE", str(tmp_path / "cache"))
    s3fs.S3FileSystem.clear_instance_cache()
    server.invalidate_cache()
    if server.exists(f"{BUCKET}/records"):
        server.rm(f"{BUCKET}/records", recursive=True)
    server.put(str(data) + "/", f"{BUCKET}/data/", recursive=True)
    return server


def options(place, output, **changes):
    settings = {"annotations": f"{place}/labels.json", "num_shards": 3, "num_threads": 1, "max_bad_fraction": 0.2}
    return ConvertOptions(images=f"{place}/photos", output_dir=str(output), **settings | changes)


def convert(*arguments, **changes):
    return convert_labels(options(*arguments, **changes), start=lambda: None)


def local_files(folder):
    return contents(
        {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file() and path.name[0] != "."}
    )


def remote_files(system):
    system.invalidate_cache()
    return contents(
        {
            path.rpartition("/")[2]: system.cat_file(path)
            for path in system.ls(f"{BUCKET}/records", detail=False)
            if system.isfile(path)
        }
    )


def contents(files):
    """The report without where the data came from."""
    reports = {name: json.loads(content) for name, content in files.items() if name.endswith(".report.json")}
    for report in reports.values():
        del report["made_from"]
    return files | reports


@pytest.fixture(scope="module")
def expected(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("expected")
    convert(data, folder)
    found = local_files(folder)
    assert sum(name.endswith(".tfrecord") for name in found) == 6
    assert found["train.report.json"]["images"] + found["val.report.json"]["images"] == 11
    return found


def test_all_at_remote_addresses_is_as_all_on_disk(bucket, expected, capsys):
    """Nothing of the images or records remains on the disk, and a rerun changes nothing."""
    convert(f"s3://{BUCKET}/data", f"s3://{BUCKET}/records")
    assert f"wrote    3 shards s3://{BUCKET}/records/train-*.tfrecord" in capsys.readouterr().out
    assert remote_files(bucket) == expected
    stored = [path for path in cache_folder().rglob("*") if path.is_file() and path.stat().st_blocks]
    assert not [path for path in stored if path.suffix in (".jpg", ".png", ".tfrecord", ".finished")]
    shards = [f"{BUCKET}/records/{name}" for name in expected if name.endswith(".tfrecord")]
    before = [bucket.info(path)["LastModified"] for path in shards]
    convert(f"s3://{BUCKET}/data", f"s3://{BUCKET}/records")
    assert capsys.readouterr().out.count("3 of 3 shards are complete and reused") == 2
    bucket.invalidate_cache()
    assert [bucket.info(path)["LastModified"] for path in shards] == before
    assert remote_files(bucket) == expected


@pytest.fixture(scope="module")
def without_val(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("without_val")
    convert(data, folder, val_fraction=0, num_shards=2)
    return local_files(folder)


def test_a_worker_needs_no_file_of_the_machine_that_started_it(bucket, without_val, tmp_path, monkeypatch):
    def on_another_machine(tasks, config):
        elsewhere = tmp_path / "elsewhere"
        tasks = [
            replace(
                task,
                finished_path=elsewhere / task.finished_path.name,
                state_path=elsewhere / task.state_path.parent.name / task.state_path.name,
            )
            for task in tasks
        ]
        (tmp_path / "tasks").write_bytes(pickle.dumps(tasks))
        program = (
            "import pickle, sys\nfrom dataset.conversion.convert import convert_shard\n"
            "for task in pickle.load(open(sys.argv[1], 'rb')): convert_shard(task, image_done=lambda: None)"
        )
        (tmp_path / "worker.py").write_text(program)
        environment = {"PYTHONPATH": str(ROOT), "EFFICIENTDET_REMOTE_CACHE": str(tmp_path / "worker")}
        worker = [sys.executable, tmp_path / "worker.py", tmp_path / "tasks"]
        done = forked_programs.run(worker, env=os.environ | environment, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert not elsewhere.exists()

    monkeypatch.setattr("dataset.conversion.shards.convert_shards", on_another_machine)
    convert(f"s3://{BUCKET}/data", f"s3://{BUCKET}/records", val_fraction=0, num_shards=2)
    assert remote_files(bucket) == without_val


def test_another_machine_resumes(bucket, data, expected, tmp_path, monkeypatch):
    uploaded, upload = [], storage.upload_shard

    def upload_two(task):
        if len(uploaded) == 2:
            raise InputError("the network is gone")
        uploaded.append(task.finished_path.name)
        upload(task)

    monkeypatch.setattr(storage, "upload_shard", upload_two)
    with pytest.raises(InputError, match="the network is gone"):
        convert(data, f"s3://{BUCKET}/records")
    assert {*remote_files(bucket)} == {*uploaded}
    monkeypatch.setenv("EFFICIENTDET_REMOTE_CACHE", str(tmp_path / "other"))
    first = {*uploaded}
    uploaded.clear()
    monkeypatch.setattr(
        storage,
        "upload_shard",
        lambda task: (uploaded.append(task.finished_path.name), upload(task)),
    )
    convert(data, f"s3://{BUCKET}/records")
    assert len(uploaded) == 4
    assert not first & {*uploaded}
    assert remote_files(bucket) == expected


@pytest.mark.parametrize("failing", [PICTURES[0], DEEP, ROTATED])  # read for splits, the white level, rotation
@pytest.mark.parametrize("fraction", [0, 0.1])
def test_a_network_error_is_no_unreadable_image(bucket, monkeypatch, failing, fraction):
    fetch = s3fs.S3FileSystem.cat_file

    def lost(self, path, **settings):
        if path.endswith(failing.name):
            raise ConnectionResetError("connection lost")
        return fetch(self, path, **settings)

    monkeypatch.setattr(s3fs.S3FileSystem, "cat_file", lost)
    message = f"^s3://bucket/data/photos/{failing.name}: cannot be read .connection lost.; check the network"
    with pytest.raises(InputError, match=message):
        convert(f"s3://{BUCKET}/data", f"s3://{BUCKET}/records", val_fraction=fraction)
    assert not bucket.glob(f"{BUCKET}/records/*.tfrecord")


def test_labels_beside_the_images_and_output_on_disk(bucket, tmp_path):
    draw(PICTURES, tmp_path / "set" / "images")
    write_yolo(PICTURES, tmp_path / "set" / "labels")
    bucket.put(f"{tmp_path}/set/", f"{BUCKET}/set/", recursive=True)
    for place, output in ((tmp_path, "here"), (f"s3://{BUCKET}", "there")):
        convert_labels(
            ConvertOptions(images=f"{place}/set", output_dir=str(tmp_path / output), num_threads=1), start=lambda: None
        )
    assert local_files(tmp_path / "here") == local_files(tmp_path / "there")


@pytest.mark.parametrize(
    ("images", "annotations", "output", "message"),
    [
        ("s3://unknown/photos", "s3://bucket/data/labels.json", "out", "s3://unknown/photos: there is no such bucket"),
        (
            "s3://bucket/none",
            "s3://bucket/data/labels.json",
            "out",
            "s3://bucket/none: there is no such bucket, folder",
        ),
        ("s3://bucket/data/photos", "s3://bucket/none.json", "out", "s3://bucket/none.json: there is no such bucket"),
        (
            "s3://bucket/data/photos",
            "s3://bucket/data/labels.json",
            "s3://unknown/x",
            "s3://unknown/x: there is no such",
        ),
        ("s3://bucket/data/photos", "s3://bucket/data/photos", "out", "no labels of a known format"),
    ],
)
def test_wrong_addresses_are_one_line(bucket, tmp_path, images, annotations, output, message):
    output = output if "://" in output else str(tmp_path / output)
    with pytest.raises(InputError, match=message) as error:
        convert_labels(ConvertOptions(images=images, annotations=annotations, output_dir=output), start=lambda: None)
    assert "\n" not in str(error.value)
