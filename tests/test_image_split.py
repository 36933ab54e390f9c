"""Which images become val: a share of every class, near-duplicates together, the same for the same seed."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from dataset.class_names import ClassNames
from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage, AnnotatedObject, ReportEntry
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.image_split import alike_groups, split_off, stratified_groups
from dataset.conversion.image_statistics import near_duplicates, thumbnail
from program_support.errors import InputError


def alone(count):
    return [[number] for number in range(count)]


def chosen(classes, *, fraction, seed=0, groups=None):
    names = [f"{number}.jpg" for number in range(len(classes))]
    return sorted(
        place
        for group in stratified_groups(classes, groups or alone(len(classes)), names, fraction=fraction, seed=seed)
        for place in group
    )


def test_every_class_has_its_share():
    random = np.random.default_rng(1)
    classes = [{number for number, share in enumerate((0.9, 0.3, 0.1)) if random.random() < share} for _ in range(400)]
    total = Counter(label for labels in classes for label in labels or {None})
    for seed in range(3):
        found = chosen(classes, fraction=0.2, seed=seed)
        count = Counter(label for place in found for label in classes[place] or {None})
        assert len(found) == pytest.approx(80, abs=2)
        assert {label: count[label] / total[label] for label in total} == {
            label: pytest.approx(0.2, abs=0.04) for label in total
        }
    assert chosen(classes, fraction=0.2, seed=1) == chosen(classes, fraction=0.2, seed=1) != found


def test_few_images_change_their_split_if_others_are_added():
    classes = [{number % 3} for number in range(400)]
    before, after = ({*chosen(classes[:count], fraction=0.1)} for count in (350, 400))
    assert len(after) == 40
    assert len({place for place in after if place < 350} - before) <= 8  # of a permutation of all images about 32


def test_training_keeps_an_image_of_every_class():
    assert chosen([{0}, {1}, {2}, {3}], fraction=0.5) == []
    assert len(chosen([{0}, {0}, {1}, {1}], fraction=0.5)) == 2
    classes = [{number % 5} for number in range(10)]  # no class is due an image, all together are
    assert len(chosen(classes, fraction=0.1)) == 1


def test_groups_stay_together():
    groups = [[0, 3], [1], [2, 4, 5], [6], [7], [8], [9]]
    for seed in range(6):
        found = {*chosen([{0}] * 10, fraction=0.3, seed=seed, groups=groups)}
        assert all(found.isdisjoint(group) or found.issuperset(group) for group in groups)
        assert 2 <= len(found) <= 4


def test_alike_groups_join_chains():
    scenes = np.random.default_rng(0).integers(0, 256, (2, 16, 40), np.uint8)
    frames = [
        np.asarray(Image.fromarray(scenes[0]).resize((400, 160), Image.Resampling.BICUBIC))[:, left : left + 170]
        for left in range(14)
    ]  # a cell has 10 pixels
    film = [thumbnail(np.repeat(frame[..., None], 3, axis=2)) for frame in frames]
    assert near_duplicates([film[0], film[-1]]) == []
    assert alike_groups([None, *film, None, scenes[1, :, :17]]) == [[0], [*range(1, 15)], [15], [16]]
    assert alike_groups([]) == []


def object_of(category_id):
    return AnnotatedObject(category_id=category_id, box_xywh=(1, 1, 5, 5))


@pytest.fixture
def data(tmp_path):
    """Twelve images, of which 10 and 11 are copies of 0 and 1; one file is no image."""
    for number in range(12):
        noise = np.random.default_rng(number % 10).integers(0, 256, (8, 8, 3), np.uint8)
        picture = Image.fromarray(noise).resize((60 + number, 50), Image.Resampling.BICUBIC)
        picture.save(tmp_path / f"{number:02}.jpg", quality=80 + number)
    (tmp_path / "12.jpg").write_text("no image")
    images = [
        AnnotatedImage(
            image_id=number, file_name=f"{number:02}.jpg", size=None, objects=[object_of(number % 2)] * (number % 3)
        )
        for number in range(13)
    ]
    return AnnotatedDataSet(
        source="here",
        images=images,
        class_names=ClassNames((0, 1), ("a", "b")),
        fingerprint="f",
        listed_boxes=15,
        skipped=[ReportEntry(kind="box", file="x", reason="lost")],
    )


def test_split_of_files(data, tmp_path):
    for seed in range(4):
        train, val, alike = split_off(data, ImageFolder(tmp_path), fraction=0.3, seed=seed)
        places = {image.image_id for image in val.images}
        assert {image.image_id for image in train.images} == {*range(13)} - places
        assert alike == 2
        assert (0 in places, 1 in places) == (10 in places, 11 in places)
        assert val.listed_boxes == sum(len(image.objects) for image in val.images)
        assert train.listed_boxes + val.listed_boxes == 15
        assert (train.skipped, val.skipped) == (data.skipped, [])
        assert len({data.fingerprint, train.fingerprint, val.fingerprint}) == 3


def test_images_stay_in_the_split_of_an_earlier_conversion(data, tmp_path):
    """Image 10 is a copy of 0, and 11 of 1: new images join their earlier copies."""
    folder = ImageFolder(tmp_path)
    earlier = {"00.jpg": "val", "01.jpg": "train", "02.jpg": "val", "03.jpg": "val", "gone.jpg": "val"}
    for seed in range(4):
        _, val, _ = split_off(data, folder, fraction=0.3, seed=seed, earlier=earlier)
        places = {image.image_id for image in val.images}
        assert places == {0, 2, 3, 10}  # 4 of 13 images: no room for others
        _, val, _ = split_off(data, folder, fraction=0.6, seed=seed, earlier=earlier)
        places = {image.image_id for image in val.images}
        assert places > {0, 2, 3, 10}
        assert not places & {1, 11}
    with pytest.raises(
        InputError, match=r"^none of the 1 images that were in val is left, such as gone\.jpg, and no ot"
    ):
        split_off(
            data,
            folder,
            fraction=0.3,
            seed=0,
            earlier={f"{n:02}.jpg": "train" for n in range(13)} | {"gone.jpg": "val"},
        )


@pytest.mark.parametrize(("chosen", "groups"), [(slice(0, 13), 11), (slice(2, 3), 1), (slice(0, 11, 10), 1)])
def test_nothing_to_keep_aside(data, tmp_path, chosen, groups):
    """A small fraction, one image, and an image with its copy."""
    some = replace(data, images=data.images[chosen])
    expected = f"of {len(some.images)} images in {groups} groups of near-duplicates, none can be used for validation"
    with pytest.raises(InputError, match=expected):
        split_off(some, ImageFolder(tmp_path), fraction=0.01, seed=0)
