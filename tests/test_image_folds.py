"""Folds of a cross-validation: classes and images in equal shares, groups together, a shard of records for each."""

import json
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import forked_programs
import numpy as np
import pytest
from label_sets import NAMES, PICTURES, Label, Picture, draw, write_coco, write_yolo

from dataset.class_names import ClassNames
from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage, AnnotatedObject
from dataset.conversion.conversion_options import ConvertOptions
from dataset.conversion.image_split import pooled, stratified_folds
from dataset.input.ground_truth import ground_truth_of_records
from dataset.records.record_files import expand_glob
from dataset.records.record_index import index_records
from program_support.errors import InputError

SCRIPT = Path(__file__).resolve().parent.parent / "dataset" / "create_tfrecord.py"


def folds_of(classes, *, folds=5, seed=0, groups=None):
    names = [f"{number}.jpg" for number in range(len(classes))]
    groups = groups or [[number] for number in range(len(classes))]
    return stratified_folds(classes, groups, names, folds=folds, seed=seed)


def test_every_fold_has_its_share_of_every_class_and_of_the_images():
    random = np.random.default_rng(1)
    shares = (0.9, 0.3, 0.1, 0.02)
    classes = [{number for number, share in enumerate(shares) if random.random() < share} for _ in range(400)]
    total = Counter(label for labels in classes for label in labels or {None})
    for seed in range(3):
        found = folds_of(classes, seed=seed)
        assert np.bincount(found).tolist() == pytest.approx([80] * 5, abs=3)
        for fold in range(5):
            places = np.flatnonzero(found == fold)
            count = Counter(label for place in places for label in classes[place] or {None})
            assert {label: count[label] for label in total} == {
                label: pytest.approx(number / 5, abs=max(1, 0.06 * number)) for label, number in total.items()
            }
    assert np.array_equal(folds_of(classes, seed=1), folds_of(classes, seed=1))
    assert not np.array_equal(folds_of(classes, seed=1), folds_of(classes, seed=2))


def test_two_images_of_a_class_are_in_two_folds():
    classes = [{0}] * 20 + [{0, 1}] * 2
    for seed in range(4):
        found = folds_of(classes, seed=seed)
        assert found[20] != found[21]
        assert np.bincount(found).tolist() == pytest.approx([4.4] * 5, abs=0.7)


def test_groups_stay_together_and_small_ones_balance_large_ones():
    random = np.random.default_rng(2)
    sizes = [30, 20, 20, 10, *random.integers(1, 6, 40).tolist()]
    numbers = random.permutation(sum(sizes))
    groups = [part.tolist() for part in np.split(numbers, np.cumsum(sizes)[:-1])]
    found = folds_of([{int(number % 2)} for number in range(len(numbers))], groups=groups)
    assert all(len({*found[group]}) == 1 for group in groups)
    assert np.bincount(found).tolist() == pytest.approx([len(numbers) / 5] * 5, abs=5)


def objects(*category_ids):
    return [AnnotatedObject(category_id=number, box_xywh=(1, 1, 5, 5)) for number in category_ids]


def test_pooled_splits_have_each_image_once_under_an_id_of_its_own():
    """As in Roboflow's exports, whose splits both number their images from 0, and ultralytics' coco128."""
    images = [AnnotatedImage(file_name=f"{name}.jpg", image_id=n, objects=objects(0)) for n, name in enumerate("ace")]
    others = [AnnotatedImage(file_name=f"{name}.jpg", image_id=n, objects=objects(1, 1)) for n, name in enumerate("bc")]
    train = AnnotatedDataSet(
        source="here", images=images, class_names=ClassNames((0, 1), ("a", "b")), fingerprint="f", listed_boxes=3
    )
    data = pooled(train, replace(train, images=others, listed_boxes=4, fingerprint="g"))
    assert [(image.file_name, image.image_id) for image in data.images] == [
        ("a.jpg", 1),
        ("b.jpg", 2),
        ("c.jpg", 3),
        ("e.jpg", 4),
    ]
    assert [len(image.objects) for image in data.images] == [1, 2, 1, 1]
    assert data.listed_boxes == 5


def convert(folder, *arguments):
    command = [sys.executable, str(SCRIPT), "--images=photos", "--output_dir=records", *arguments]
    return forked_programs.run(command, env=os.environ, cwd=folder)


def file_names(folder, pattern):
    names = ClassNames((0, 1, 2), NAMES)
    content = ground_truth_of_records(index_records(expand_glob(folder / "records" / pattern)), names)
    return {image["file_name"] for image in content["images"]}


def test_a_fold_is_a_shard_and_a_pattern_leaves_it_out(tmp_path):
    """Three photos each of eight sites; the test split stays apart, and val is divided with train."""
    pictures = [
        Picture(f"{split}/site{site}_{number}.jpg", 40, 30, (Label(NAMES[site % 2], 4, 5, 20, 25),))
        for site, split in enumerate(["train"] * 6 + ["val"] * 2)
        for number in range(3)
    ]
    draw([*pictures, PICTURES[0]._replace(name="test/a.jpg")], tmp_path / "photos")
    for split in ("train", "val"):
        part = [picture for picture in pictures if picture.name.startswith(split)]
        write_yolo(part, tmp_path / "photos")
    write_yolo([PICTURES[0]._replace(name="test/a.jpg")], tmp_path / "photos")
    done = convert(tmp_path, "--folds=3", "--group_by=(site[0-9])_")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "split: 24 images of train and val in 3 folds of at least 6, each a shard of train, stratified by class "
        "(--folds=3, --split_seed=0); 16 images are in the same fold as another of their group" in done.stdout
    )
    everything = {picture.name for picture in pictures}
    assert file_names(tmp_path, "train-*") == everything
    assert file_names(tmp_path, "test-*") == {"test/a.jpg"}
    assert not list((tmp_path / "records").glob("val*"))
    for fold in range(3):
        held_out = file_names(tmp_path, f"train-0000{fold}-of-*")
        assert file_names(tmp_path, f"train-0000[!{fold}]-of-*") == everything - held_out
        sites = {re.search("site.", name)[0] for name in held_out}
        assert sites.isdisjoint(re.search("site.", name)[0] for name in everything - held_out)
    content = json.loads((tmp_path / "records" / "train.instances.json").read_text())
    assert {image["file_name"] for image in content["images"]} == everything
    again = convert(tmp_path, "--folds=3", "--group_by=(site[0-9])_")
    assert "3 of 3 shards are complete and reused" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--group_by=folder"], "--folds=4: 4 images in 1 groups that stay together fill 1 folds; expected fewer"),
        (["--group_by=(site[0-9])"], "--group_by=(site[0-9]): matches no file name, such as a.jpg"),
    ],
)
def test_groups_that_give_no_folds_end_in_one_line(tmp_path, arguments, line):
    draw(PICTURES, tmp_path / "photos")
    write_coco(PICTURES, tmp_path / "photos" / "coco.json")
    done = convert(tmp_path, "--folds=4", *arguments)
    assert done.returncode == 2
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("value", ["site_[0-9]", "(a)(b)", "(a"])
def test_an_expression_without_one_group_is_refused(value):
    with pytest.raises(InputError, match="expected folder, or a regular expression with one group"):
        ConvertOptions(group_by=value)
