"""The script as a user calls it: from anywhere, without PYTHONPATH."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from text_tables import rows

SCRIPT = Path(__file__).resolve().parent.parent / "dataset" / "create_coco_tfrecord.py"


def call(*arguments, cwd):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def data(tmp_path):
    Image.new("RGB", (64, 48)).save(tmp_path / "a.jpg")
    (tmp_path / "a.json").write_text(
        json.dumps(
            {
                "images": [{"id": 1, "file_name": "a.jpg", "width": 64, "height": 48}],
                "categories": [{"id": 4, "name": "thing"}],
                "annotations": [{"id": 1, "image_id": 1, "category_id": 4, "bbox": [1, 2, 3, 4]}],
            }
        )
    )
    (tmp_path / "data.yaml").write_text("train: images\nnames: [thing]\n")
    return tmp_path


def test_converts_quietly(data):
    done = call("--image_dir=.", "--object_annotations_file=a.json", "--output_file_prefix=out/train", cwd=data)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "images   1, 0 of them without boxes",
        "boxes    1 (1 small, 0 medium, 0 large), 0 crowds",
        "classes  1: thing 1",
        "wrote    1 shard out/train-*.tfrecord, out/train.report.json, out/train.classes.json",
    ]
    assert [path.name for path in (data / "out").glob("train-*")] == ["train-00000-of-00001.tfrecord"]


MISTAKES = rows("""
--imag_dir=. | unknown flag --imag_dir; the nearest is --image_dir
--image_dir=. --num_shards=0 | num_shards
--image_dir=. --max_bad_fraction=2 | max_bad_fraction
--image_dir=nowhere --object_annotations_file=a.json | nowhere: no such folder
--image_dir=. | --object_annotations_file
--image_dir=. --object_annotations_file=b.json | b.json: cannot be read
--image_dir=. --caption_annotations_file=a.json | captions alone
--image_dir=. --object_annotations_file=data.yaml | data.yaml: is not json
--image_dir=. stray | unexpected argument 'stray'
""")


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_end_in_one_line_before_tensorflow(data, arguments, message, monkeypatch):
    (data / "tensorflow.py").write_text("raise SystemExit('tensorflow was imported')")
    monkeypatch.setenv("PYTHONPATH", str(data))
    done = call("--output_file_prefix=out/train", *arguments.split(), cwd=data)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("create_coco_tfrecord.py: error: ")
    assert message in done.stderr
    assert not (data / "out").exists()
