"""Read labels of any format as the splits of one data set: train, val and test, or "" if there are no splits."""

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dataset.class_names import ClassNames
from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage, ReportEntry
from dataset.conversion.class_numbering import (
    common_classes,
    in_one_order,
    named_classes,
    note_of_other_ids,
    with_composed_names,
)
from dataset.conversion.folder_files import FolderFiles, ImageFolder
from dataset.conversion.format_recognition import RecognizedLabels
from dataset.conversion.formats.aerial_labels import read_dota, read_visdrone
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.formats.csv_boxes import read_csv_boxes
from dataset.conversion.formats.cvat import read_cvat
from dataset.conversion.formats.fiftyone import read_fiftyone
from dataset.conversion.formats.frigate import read_frigate
from dataset.conversion.formats.label_studio import read_label_studio
from dataset.conversion.formats.labelme import read_labelme
from dataset.conversion.formats.open_images.open_images_labels import read_open_images
from dataset.conversion.formats.voc_splits import read_voc_splits
from dataset.conversion.formats.yolo.yolo_labels import read_yolo
from dataset.conversion.image_folds import pooled
from dataset.conversion.named_splits import (
    SPLITS,
    split_of_file,
    split_of_folders,
    split_of_root,
    splits_by_name,
    splits_of_file,
    without_held_out,
)
from dataset.conversion.segmentation import reason_to_skip
from dataset.conversion.upright_labels import mark_upright
from dataset.files.bounded_files import csv_rows
from dataset.files.file_kinds import LABEL_FORMATS
from dataset.files.untrusted_values import listed
from program_support.atomic_files import unfinished_folder
from program_support.errors import InputError

DataSplits = dict[str, AnnotatedDataSet]
_NUMBERED = ("coco", "yolo", "open_images", "frigate", "visdrone")  # formats that define class ids
_MOST_BATCHES = 20  # files of labels that are read as one data set
_WITHOUT_MASKS = ("voc", "open_images", "frigate", "fiftyone", "visdrone", "csv")


def read_labels(
    labels: RecognizedLabels,
    annotations: str,
    images: ImageFolder,
    *,
    with_masks: bool,
    label_map: ClassNames | None,
    output_folder: str,
) -> DataSplits:
    """Read labels with consistent class and image ids across all splits.

    Open Images needs `output_folder` for a temporary index.

    Raises:
        InputError: for invalid labels, for a split without boxes, and if masks are requested of a format that has
            none.
    """
    if with_masks and labels.format in _WITHOUT_MASKS:
        raise InputError(
            f"--include_masks: {LABEL_FORMATS[labels.format][0]} labels have only boxes; expected outlines from COCO, "
            "YOLO, CVAT, labelme, Label Studio or DOTA"
        )
    read_file: dict[str, Callable[[str, str | None], AnnotatedDataSet]] = {  # of a split, or of all
        "coco": lambda path, split: read_coco(
            object_annotations_file=path,
            with_segmentation=with_masks,
            file_name=functools.partial(images.named, split=split, label_file=path),
        ),
        "open_images": lambda path, split: _read_open_images(
            path, images, split=split, annotations=annotations, output_folder=output_folder
        ),
        "label_studio": lambda path, split: read_label_studio(path, images, with_masks=with_masks),
        "fiftyone": lambda path, split: read_fiftyone(path, images, split=split),
        "csv": lambda path, split: read_csv_boxes(path, images, split=split),
    }
    if labels.format in read_file:
        by_split = _read_files(labels, annotations, read_file[labels.format])
    elif labels.format == "voc":
        by_split = read_voc_splits(annotations, labels.files, images)
    elif labels.format == "cvat":
        by_split = _read_cvat_files(labels, annotations, images, with_masks=with_masks)
    elif labels.format == "frigate":
        by_split = {"": read_frigate(annotations, images)}
    elif labels.format == "dota":
        by_split = {"": read_dota(annotations, images, with_masks=with_masks)}
    elif labels.format == "visdrone":
        by_split = {"": read_visdrone(annotations, images)}
    else:
        by_split = {"yolo": read_yolo, "labelme": read_labelme}[labels.format](
            annotations, images, with_masks=with_masks
        )
    by_split = _named_splits(by_split, annotations, images)
    by_split = {split: with_composed_names(data) for split, data in by_split.items()}
    if labels.format != "coco":  # COCO has image ids
        by_split = {split: _with_distinct_images(data) for split, data in by_split.items()}
    mark_upright([image for data in by_split.values() for image in data.images], images.folder)
    for data in by_split.values():
        _check_coordinates(data)
        if note := images.note_of_other_names(image.file_name for image in data.images):
            data.noted.append(ReportEntry(kind="image", file=data.source, reason=note))
    if with_masks:
        by_split = {split: _without_unusable(data) for split, data in by_split.items()}
    class_names = label_map or common_classes(by_split, own_numbers=labels.format in _NUMBERED)
    if labels.format in _NUMBERED and not label_map and (note := note_of_other_ids(by_split, class_names)):
        next(iter(by_split.values())).noted.append(ReportEntry(kind="image", file=annotations, reason=note))
    return in_one_order(by_split, class_names, own_image_ids=labels.format == "coco")


def _named_splits(by_split: DataSplits, annotations: str, images: ImageFolder) -> DataSplits:
    """Return the splits by the folders of the images, or the split of the given folder, if the labels define none."""
    if [*by_split] != [""]:
        return by_split
    whole = split_of_root(images.folder) or split_of_root(annotations)
    return splits_by_name(
        by_split[""], [image.split or split_of_folders(image.file_name) or whole for image in by_split[""].images]
    )


def _only_file(labels: RecognizedLabels, annotations: str) -> str:
    if len(labels.files) > 1:
        raise InputError(
            f"--annotations={annotations}: holds {len(labels.files)} files of "
            f"{LABEL_FORMATS[labels.format][0]} labels, {listed(labels.files[:3])}; expected one of them"
        )
    if not labels.files and Path(annotations).is_dir():
        raise InputError(f"--annotations={annotations}: holds no file of {LABEL_FORMATS[labels.format][0]} labels")
    return str(labels.files[0]) if labels.files else annotations


def _read_files(
    labels: RecognizedLabels, annotations: str, read: Callable[[str, str | None], AnnotatedDataSet]
) -> DataSplits:
    """Return a split for each file if file or folder names identify it; a single file may hold several splits.

    A file whose name tells no split is train if the others are held out.
    """
    root = Path(annotations)
    if len(labels.files) <= 1:
        path = _only_file(labels, annotations)
        named = split_of_file(Path(path).relative_to(root).as_posix() if root.is_dir() else Path(path).name)
        return splits_of_file(read(path, None), named)
    of_split: dict[str | None, list[Path]] = {}
    for file in labels.files:
        of_split.setdefault(split_of_file(file.relative_to(root).as_posix()), []).append(file)
    for split, files in of_split.items():
        # COCO also has captions and keypoints.
        instances = [file for file in files if file.name.startswith("instances")]
        of_split[split] = instances if len(instances) == 1 else files
    if [*of_split] == [None]:
        return _pooled({str(file): read(str(file), None) for file in _few(labels, annotations)}, annotations)
    is_rest = "train" not in of_split and None in of_split
    if is_rest:
        of_split["train"] = of_split.pop(None)
    if None in of_split or any(len(files) > 1 for files in of_split.values()):
        raise _several_files(labels, annotations)
    by_split = {
        split: read(str(of_split[split][0]), None if is_rest and split == "train" else split)
        for split in SPLITS
        if split in of_split
    }
    return without_held_out(by_split) if is_rest else by_split


def _read_cvat_files(
    labels: RecognizedLabels, annotations: str, images: ImageFolder, *, with_masks: bool
) -> DataSplits:
    if len(labels.files) <= 1:
        return read_cvat(_only_file(labels, annotations), images, with_masks=with_masks)
    files = {str(file): read_cvat(str(file), images, with_masks=with_masks) for file in _few(labels, annotations)}
    if any([*by_split] != [""] for by_split in files.values()):
        raise _several_files(labels, annotations)
    return _pooled({file: by_split[""] for file, by_split in files.items()}, annotations)


def _few(labels: RecognizedLabels, annotations: str) -> list[Path]:
    """Return the files if they are batches of one data set; of many, those that identify the format are a sample."""
    if len(labels.files) > _MOST_BATCHES:
        raise _several_files(labels, annotations)
    return labels.files


def _pooled(by_file: DataSplits, annotations: str) -> DataSplits:
    """Return the images of several files as one split; classes are the same if their names are.

    Raises:
        InputError: an image is in two files.
    """
    times = Counter(name for data in by_file.values() for name in {image.file_name for image in data.images})
    if shared := sorted(name for name, count in times.items() if count > 1):
        raise InputError(
            f"--annotations={annotations}: {len(shared)} images, such as {shared[0]}, are in several of the "
            f"{len(by_file)} files {listed(by_file)}; expected one of them"
        )
    in_order = in_one_order(by_file, common_classes(by_file, own_numbers=True), own_image_ids=False)
    return {"": functools.reduce(pooled, in_order.values())}


def _several_files(labels: RecognizedLabels, annotations: str) -> InputError:
    return InputError(
        f"--annotations={annotations}: holds {len(labels.files)} files of {LABEL_FORMATS[labels.format][0]} labels, "
        f"{listed(labels.files[:3])}; expected one of them, one each named train, val and test, or up to "
        f"{_MOST_BATCHES} without these names"
    )


def _read_open_images(
    path: str, images: ImageFolder, *, split: str | None, annotations: str, output_folder: str
) -> AnnotatedDataSet:
    """Read with class descriptions in the same folder if present, else use labels as names."""
    root = Path(annotations) if Path(annotations).is_dir() else Path(annotations).parent
    tables = FolderFiles(root, (".csv",))
    descriptions = next(
        (str(tables.path(name)) for name in tables.names if _describes_classes(str(tables.path(name)))), None
    )
    if descriptions is None:
        data = read_csv_boxes(path, images, split=split)
        if codes := [name for name in named_classes(data).names if name.startswith(("/m/", "/g/"))]:
            raise InputError(
                f"{path}: has labels such as {codes[0]}; expected class-descriptions-boxable.csv in its folder, "
                "with their names"
            )
        return data
    try:
        with unfinished_folder(Path(output_folder, "labels.index")) as folder:
            data = read_open_images(
                object_annotations_file=path, class_descriptions_file=descriptions, index_folder=folder
            )
            split_images = [
                AnnotatedImage(
                    file_name=images.named(image.file_name, split=split),
                    objects=image.objects,
                    in_shares=True,
                )
                for image in data.images
            ]
    except OSError as error:
        raise InputError(f"cannot write to {output_folder}: {error}") from error
    for image in split_images:
        images.in_pixels(image)
    return replace(data, images=split_images)


def _describes_classes(path: str) -> bool:
    try:
        row = next(csv_rows(path), (1, []))[1]
    except InputError:
        return False
    return len(row) == 2 and (row[0].startswith("/m/") or row == ["LabelName", "DisplayName"])


def _with_distinct_images(data: AnnotatedDataSet) -> AnnotatedDataSet:
    """Return the split with the first annotation of each image; others are skipped, as copies of another file."""
    times = Counter(image.file_name for image in data.images)
    first: dict[str, AnnotatedImage] = {}
    repeated = [image for image in data.images if first.setdefault(image.file_name, image) is not image]
    skipped = [
        ReportEntry(
            kind="image",
            file=data.source,
            reason=f"{times[image.file_name]} of its annotations are of the image {image.file_name}, expected one; "
            "remove copies that name the image of another file",
        )
        for image in repeated
    ]
    return replace(data, images=[*first.values()], skipped=[*data.skipped, *skipped]) if repeated else data


def _check_coordinates(data: AnnotatedDataSet) -> None:
    """Raise InputError for boxes that are fractions where pixels are expected."""
    boxes = [one.box_xywh for image in data.images for one in image.objects if not image.in_shares]
    if boxes and all(0 <= x <= x + width <= 1 and 0 <= y <= y + height <= 1 for x, y, width, height in boxes):
        raise InputError(f"{data.source}: its boxes are from 0 to 1, fractions of the image's sides; expected pixels")


def _without_unusable(data: AnnotatedDataSet) -> AnnotatedDataSet:
    """Return the split without objects whose outlines are invalid masks; they are reported as skipped."""
    skipped: list[ReportEntry] = []
    for image in data.images:
        reasons = [reason_to_skip(one.segmentation) for one in image.objects]
        skipped += [ReportEntry(kind="box", file=image.file_name, reason=reason) for reason in filter(None, reasons)]
        image.objects = [one for one, reason in zip(image.objects, reasons, strict=True) if reason is None]
        image.refused += sum(reason is not None for reason in reasons)
    return replace(data, skipped=[*data.skipped, *skipped])
