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
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    NothingUsable,
    SplitContent,
    box_around,
)
from dataset.conversion.class_numbering import ClassNumbering
from dataset.conversion.folder_files import FolderFiles, ImageFolder
from dataset.conversion.named_splits import split_of_folders
from dataset.conversion.segmentation import LARGEST_COORDINATE
from dataset.files.bounded_files import read_text_file
from dataset.files.file_kinds import FileKind, kind_of_file
from dataset.files.untrusted_values import error_context, number_in_text, shown
from program_support.errors import InputError

VISDRONE_NAMES = (  # ids 1 to 11; the last one is a class only where its objects count
    "pedestrian",
    "people",
    "bicycle",
    "car",
    "van",
    "truck",
    "tricycle",
    "awning-tricycle",
    "bus",
    "motor",
    "others",
)
_REGION, _OTHERS = 0, len(VISDRONE_NAMES)
_DOTA_HEADERS = ("imagesource:", "gsd:", "acquisition dates:")
_DIFFICULT = ("0", "1", "2")
_CORNERS = 8  # numbers
_FIELDS_OF_VISDRONE = 8

LineReader = Callable[[str], Iterable[AnnotatedObject]]


def read_dota(annotations: str, images: ImageFolder, *, with_masks: bool) -> AnnotatedDataSet:
    """Read DOTA's labels, of a folder tree or of one image, as the boxes around their outlines.

    Invalid files and lines are skipped. Images of folders named like splits have that split.

    Raises:
        InputError: there are no boxes.
    """
    classes, content = ClassNumbering(), SplitContent()

    def objects_of(line: str) -> Iterator[AnnotatedObject]:
        if line.lower().startswith(_DOTA_HEADERS):
            return
        fields = line.split()
        is_flagged = len(fields) > _CORNERS + 1 and fields[-1] in _DIFFICULT
        name = " ".join(fields[_CORNERS : -1 if is_flagged else None])
        if not name or _number(name) is not None:
            raise InputError(f"is {shown(line)}, expected x1 y1 x2 y2 x3 y3 x4 y4 class difficult")
        outline = [_pixels(field) for field in fields[:_CORNERS]]
        if len({*outline[::2]}) > 2 or len({*outline[1::2]}) > 2:
            content.notes["rotated boxes became the boxes around them"] += 1
        yield AnnotatedObject(
            category_id=classes.id_of(name),
            box_xywh=box_around(outline),
            is_difficult=is_flagged and fields[-1] != "0",
            segmentation=[outline] if with_masks else None,
        )

    fingerprint = _read_files(annotations, images, content, kind=FileKind.DOTA, objects_of=objects_of)
    class_names = classes.class_names(annotations, content)
    return content.data_set(source=annotations, class_names=class_names, fingerprint=fingerprint)


def read_visdrone(annotations: str, images: ImageFolder) -> AnnotatedDataSet:
    """Read VisDrone's labels as `read_dota` does. The ids of classes are the category numbers.

    Ignored regions and ignored objects of other classes become a crowd box of each of the ten classes.

    Raises:
        InputError: there are no boxes.
    """
    content, used = SplitContent(), set(range(1, _OTHERS))

    def objects_of(line: str) -> Iterator[AnnotatedObject]:
        fields = [field.strip() for field in line.rstrip(", \t").split(",")]
        if len(fields) != _FIELDS_OF_VISDRONE:
            raise InputError(
                f"has {len(fields)} fields, expected {_FIELDS_OF_VISDRONE}: left,top,width,height,score,.."
            )
        left, top, width, height = map(_pixels, fields[:4])
        if fields[4] not in ("0", "1"):
            raise InputError(f"has score {shown(fields[4])}, expected 0 or 1; other scores are those of a detector")
        is_ignored, number = fields[4] == "0", _number(fields[5])
        if number is None or not _REGION <= number <= _OTHERS or number % 1:
            raise InputError(f"has category {shown(fields[5])}, expected {_REGION} to {_OTHERS}")
        is_of_any_class = number == _REGION or (number == _OTHERS and is_ignored)
        if is_of_any_class:
            content.notes["ignored regions and objects became crowds of each class"] += 1
        else:
            used.add(int(number))
        for category_id in range(1, _OTHERS) if is_of_any_class else [int(number)]:
            yield AnnotatedObject(
                category_id=category_id, box_xywh=(left, top, width, height), is_crowd=is_ignored or is_of_any_class
            )

    fingerprint = _read_files(annotations, images, content, kind=FileKind.VISDRONE, objects_of=objects_of)
    categories = [{"id": number, "name": VISDRONE_NAMES[number - 1]} for number in sorted(used)]
    return content.data_set(
        source=annotations, class_names=ClassNames.from_categories(categories), fingerprint=fingerprint
    )


def _read_files(
    annotations: str, images: ImageFolder, content: SplitContent, *, kind: FileKind, objects_of: LineReader
) -> str:
    """Add the image of each label file to the content, and return the fingerprint of the files.

    A file without the name of an image and of another kind is not of this data set.
    """
    path, hasher = Path(annotations), hashlib.sha256()
    files = FolderFiles(path if path.is_dir() else path.parent, (".txt",))
    stems = {PurePosixPath(name).stem for name in images.names}
    for name in files.names if path.is_dir() else [path.name]:
        file = str(files.path(name))
        if PurePosixPath(name).stem not in stems and kind_of_file(file) is not kind:
            content.note(file, f"is not {kind.value}: ignored")
            continue
        with content.skipping(kind="image", file=file):
            text, encoded = read_text_file(file)
            hasher.update(hashlib.sha256(name.encode() + b"\0" + encoded).digest())
            split = split_of_folders(name)
            image = AnnotatedImage(file_name=images.named(name.removesuffix(".txt"), split=split), split=split)
            for number, line in enumerate(text.splitlines(), start=1):
                if line.strip():
                    with content.skipping(file=file, image=image), error_context(f"line {number}"):
                        image.objects += objects_of(line.strip())
            content.images.append(image)
    if not any(image.objects for image in content.images):
        raise NothingUsable(annotations, content.skipped)
    return hasher.hexdigest()


def _number(text: str) -> float | None:
    """Return the number that a field is, or None."""
    try:
        return number_in_text(text, where="")
    except InputError:
        return None


def _pixels(text: str) -> float:
    number = number_in_text(text, where="a coordinate")
    if abs(number) > LARGEST_COORDINATE:
        raise InputError(f"has the coordinate {shown(text)}, expected at most {LARGEST_COORDINATE:g}")
    return number
