"""Read labels of aerial images that are a text file per image: DOTA's, and those of VisDrone's images (VisDrone-DET).

DOTA (https://captain-whu.github.io/DOTA/dataset.html), v1.0 to v2.0: optional lines such as `imagesource:` and `gsd:`,
then x1 y1 x2 y2 x3 y3 x4 y4 class difficult, the corners of an oriented box in pixels; difficult is 0, 1 or 2.

VisDrone (http://aiskyeye.com/evaluate/results-format/): left,top,width,height,score,category,truncation,occlusion.
Score 0 marks what the benchmark ignores; category 0 is a region with objects of any class, 11 (others) objects that
are like those of the ten classes. The benchmark counts detections there neither as right nor as wrong.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from dataset.class_names import ClassNames
from dataset.conversion.annotations import (
    ROTATED,
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    LabelCollector,
    NothingUsable,
    box_around,
    coordinate,
)
from dataset.conversion.folder_files import FolderFiles, ImageFolder
from dataset.conversion.named_splits import split_of_folders
from dataset.files.bounded_files import read_text_file
from dataset.files.file_kinds import format_of_file
from dataset.files.untrusted_values import number_of_text, shown
from program_support.errors import InputError

VISDRONE_NAMES = (  # ids 1 to 11; the last one is a class only where its objects count
    *("pedestrian", "people", "bicycle", "car", "van", "truck", "tricycle", "awning-tricycle", "bus", "motor"),
    "others",
)
_REGION, _OTHERS = 0, len(VISDRONE_NAMES)
_DOTA_HEADERS = ("imagesource:", "gsd:", "acquisition dates:")


def read_dota(annotations: str, images: ImageFolder, *, with_masks: bool, split: str | None) -> AnnotatedDataSet:
    """Read DOTA's labels, of a folder tree or of one image, as the boxes around their outlines.

    Invalid files and lines are skipped. Images of folders named like splits have that split.

    Raises:
        InputError: there are no boxes.
    """
    labels = LabelCollector(source=annotations)

    def objects_of(line: str) -> Iterator[AnnotatedObject]:
        if line.lower().startswith(_DOTA_HEADERS):
            return
        fields = line.split()
        is_flagged = len(fields) > 9 and fields[-1] in ("0", "1", "2")
        name = " ".join(fields[8 : -1 if is_flagged else None])
        if not name or not isinstance(number_of_text(name), str):
            raise InputError(f"is {shown(line)}, expected x1 y1 x2 y2 x3 y3 x4 y4 class difficult")
        outline = [coordinate(field, "a coordinate") for field in fields[:8]]
        if len({*outline[::2]}) > 2 or len({*outline[1::2]}) > 2:
            labels.notes[ROTATED] += 1
        yield AnnotatedObject(
            category_id=labels.id_of(name),
            box_xywh=box_around(outline),
            is_difficult=is_flagged and fields[-1] != "0",
            segmentation=[outline] if with_masks else None,
        )

    _read_files(labels, images, name="dota", objects_of=objects_of)
    return labels.named_data_set()


def read_visdrone(annotations: str, images: ImageFolder, *, with_masks: bool, split: str | None) -> AnnotatedDataSet:
    """Read VisDrone's labels as `read_dota` does. The ids of classes are the category numbers.

    Ignored regions and ignored objects of other classes become a crowd box of each of the ten classes.

    Raises:
        InputError: there are no boxes.
    """
    labels, used = LabelCollector(source=annotations), set(range(1, _OTHERS))

    def objects_of(line: str) -> Iterator[AnnotatedObject]:
        fields = [field.strip() for field in line.rstrip(", \t").split(",")]
        if len(fields) != 8:
            raise InputError(f"has {len(fields)} fields, expected 8: left,top,width,height,score,..")
        left, top, width, height = (coordinate(field, "a coordinate") for field in fields[:4])
        if fields[4] not in ("0", "1"):
            raise InputError(f"has score {shown(fields[4])}, expected 0 or 1; other scores are those of a detector")
        is_ignored, number = fields[4] == "0", number_of_text(fields[5])
        if number not in range(_REGION, _OTHERS + 1):
            raise InputError(f"has category {shown(fields[5])}, expected {_REGION} to {_OTHERS}")
        is_of_any_class = number == _REGION or (number == _OTHERS and is_ignored)
        if is_of_any_class:
            labels.notes["ignored regions and objects became crowds of each class"] += 1
        else:
            used.add(int(number))
        for category_id in range(1, _OTHERS) if is_of_any_class else [int(number)]:
            yield AnnotatedObject(
                category_id=category_id, box_xywh=(left, top, width, height), is_crowd=is_ignored or is_of_any_class
            )

    _read_files(labels, images, name="visdrone", objects_of=objects_of)
    numbers = tuple(sorted(used))
    return labels.data_set(ClassNames(numbers, tuple(VISDRONE_NAMES[number - 1] for number in numbers)))


def _read_files(
    labels: LabelCollector, images: ImageFolder, *, name: str, objects_of: Callable[[str], Iterable[AnnotatedObject]]
) -> None:
    """Add the image of each label file.

    A file without the name of an image and of another format than `name` is not of this data set.
    """
    path = Path(labels.source)
    files = FolderFiles(path if path.is_dir() else path.parent, (".txt",))
    stems = {PurePosixPath(image).stem for image in images.names}
    for label in files.names if path.is_dir() else [path.name]:
        file = str(files.path(label))
        if PurePosixPath(label).stem not in stems and format_of_file(file) != name:
            labels.note(f"is not a file of {name} labels: ignored", file=file)
            continue
        with labels.skipping(file=file):
            text, encoded = read_text_file(file)
            labels.hasher.update(hashlib.sha256(label.encode() + b"\0" + encoded).digest())
            split = split_of_folders(label)
            image = AnnotatedImage(file_name=images.named(label.removesuffix(".txt"), split=split), split=split)
            for number, line in enumerate(text.splitlines(), start=1):
                if line.strip():
                    with labels.skipping(f"line {number}", file=file, image=image):
                        image.objects += objects_of(line.strip())
            labels.images.append(image)
    if not any(image.objects for image in labels.images):
        raise NothingUsable(labels.source, labels.skipped)
