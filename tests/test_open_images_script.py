"""create_open_images_tfrecord.py as a program: how its rows reach the processes, and how it ends."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked_programs
import pytest
from PIL import Image
from test_get_open_images import HEADER, box
from text_tables import rows

from dataset.conversion import shards
from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.convert import convert_shard
from dataset.input.ground_truth import ground_truth_of_records
from dataset.records.record_index import index_records
from efficientdet.plugins.label_formats.open_images import read_open_images

SCRIPT = Path(__file__).resolve().parent.parent / "dataset" / "create_open_images_tfrecord.py"
COMMAND = [
    sys.executable,
    str(SCRIPT),
    "--image_dir=images",
    "--object_annotations_file=boxes.csv",
    "--class_descriptions_file=classes.csv",
    "--output_file_prefix=out/train",
]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(6):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(tmp_path / "images" / f"{number}.jpg")
    (tmp_path / "boxes.csv").write_text(HEADER + "".join(box(str(number)) for number in range(6)))
    (tmp_path / "classes.csv").write_text("/m/014j1m,Apple\n/m/0898b,Zebra\n")
    (tmp_path / "coco.json").write_text('{"images": [], "annotations": [], "categories": []}')
    return tmp_path


def call(place, *arguments):
    return forked_programs.run([*COMMAND, *arguments], env=os.environ, cwd=place)


def test_the_index_travels_to_other_processes(place, monkeypatch):
    """As tasks do, of which each process makes its own; without their start, which takes long."""

    def pickled(tasks, _):
        for task in tasks:
            content = pickle.dumps(task)
            assert len(content) < 2000  # the way to the rows, and no row
            convert_shard(pickle.loads(content), image_done=lambda: None)

    monkeypatch.setattr(shards, "convert_shards", pickled)
    (place / "index").mkdir()
    data = read_open_images(
        object_annotations_file=str(place / "boxes.csv"),
        index_folder=place / "index",
        class_descriptions_file=str(place / "classes.csv"),
    )
    shards.convert(
        data,
        ConversionConfig(
            image_folder=str(place / "images"),
            output_prefix=str(place / "out" / "train"),
            num_shards=3,
            processes=2,
            max_bad_fraction=0,
        ),
    )
    found = [
        ground_truth_of_records(index_records([str(path)]), data.class_names)["images"]
        for path in sorted((place / "out").glob("*.tfrecord"))
    ]
    assert [[image["file_name"] for image in images] for images in found] == [
        ["0.jpg", "3.jpg"],
        ["1.jpg", "4.jpg"],
        ["2.jpg", "5.jpg"],
    ]


MISTAKES = rows("""
--object_annotations_file= | --object_annotations_file is required
--class_descriptions_file= | --class_descriptions_file is required
--object_annotations_file=coco.json | coco.json: is not a CSV of Open Images boxes
--object_annotations_file=images | images: cannot be read (it is a folder)
--object_annotations_file=classes.csv | classes.csv: is not a CSV of Open Images boxes: its first line lacks
--class_descriptions_file=boxes.csv | boxes.csv: line 1 is 'ImageID,
--object_annotations_file=/dev/zero | /dev/zero: cannot be read (it is a device)
--image_dir=nowhere | nowhere: no such folder
--expect=coco | expect
--output_file_prefix=boxes.csv/train | cannot write to the folder of boxes.csv/train
--classes=Zebraa | no class 'Zebraa'; the nearest is Zebra
""")


@pytest.mark.parametrize(("argument", "message"), MISTAKES)
def test_mistakes_end_in_one_line(place, argument, message):
    done = call(place, argument)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert message in done.stderr
    assert not [path for path in place.rglob("*") if "train" in path.name]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_it_reads_leaves_nothing(place, number, code):
    for count in (100_000, 1_600_000):  # a busy machine may have read the first before the signal is sent
        with (place / "boxes.csv").open("w") as file:
            file.write(HEADER)
            file.writelines(box(f"{image:08x}") for image in range(count))
        printed, errors = place / "printed", place / f"errors-{count}"
        run = forked_programs.ForkedProgram(COMMAND, env=os.environ, cwd=place, stdout=printed, stderr=errors)
        deadline = time.monotonic() + 60
        while not list(place.glob("out/.train.index.*/boxes")) and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        run.send_signal(number)
        returned = run.wait(timeout=60)
        if returned != 2:
            break
    assert returned == code, errors.read_text()
    assert errors.read_text() == "interrupted; finished shards are kept; run the same command to resume\n"
    assert list((place / "out").iterdir()) == []


def test_what_a_killed_run_leaves_is_removed_by_the_next(place):
    killed = subprocess.Popen([sys.executable, "-c", "pass"])
    killed.wait()
    host = os.uname().nodename
    left = place / "out" / f".train.index.{host}.{killed.pid}.unfinished"
    left.mkdir(parents=True)
    (left / "boxes").touch()
    assert call(place, "--expect=mlperf-train").returncode == 2
    assert list((place / "out").iterdir()) == []
