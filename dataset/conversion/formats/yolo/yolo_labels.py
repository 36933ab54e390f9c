"""Read YOLO labels: a text file per image, a line per object, in fractions of the image's width and height.

Format: https://docs.ultralytics.com/datasets/detect, /segment. A line is a class number and the box (center x, center
y, width, height) or the outline (x, y, x, y, ..) of an object; an image without a file has no objects.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from dataset.conversion.annotations import (
    LEAST_SHARE,
    MOST_SHARE,
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    ReportEntry,
    SplitContent,
    box_around,
)
from dataset.conversion.folder_files import FolderFiles, ImageFolder, best_path_matches
from dataset.conversion.formats.yolo.yolo_layout import YoloLayout, yolo_layout
from dataset.conversion.named_splits import names_by_split, split_of_folders
from dataset.files.bounded_files import read_text_file
from dataset.files.file_kinds import FileKind, kind_of_file
from dataset.files.image_files import IMAGE_SUFFIXES
from dataset.files.untrusted_values import error_context, listed, number_in_text, shown
from program_support.errors import InputError

_MOST_READ = 1000  # label files, evenly spaced
_IN_THEIR_BOX = 0.95  # of the keypoints
_CLASS_NUMBER = re.compile(r"(\d{1,8})(\.0*)?", re.ASCII)  # some tools write every number as a float


def read_yolo(annotations: str, images: ImageFolder, *, with_masks: bool) -> dict[str, AnnotatedDataSet]:
    """Read each split of the data set, or all of it as the split "" if it has none.

    Category ids are the class numbers. Labels of images with EXIF rotation are assumed to be upright, as in
    ultralytics.

    Raises:
        InputError: with file, line and value, for an invalid label and for an unknown class.
    """
    layout = yolo_layout(Path(annotations), images)
    root = Path(annotations) if Path(annotations).is_dir() else Path(annotations).parent
    labels = FolderFiles(root, (".txt",))
    label_of = _labels_of(sorted({name for names in layout.images.values() for name in names}), labels, images)
    if [*layout.images] == [""]:
        names = layout.images[""]
        splits = [split_of_folders(label_of.get(name, "")) for name in names]
        layout = replace(layout, images=names_by_split(names, splits, where="the label files"))
    if not layout.has_keypoints and (count := _numbers_of_poses(labels, sorted({*label_of.values()}))):
        reason = (
            f"lines of {count} numbers that are a box and keypoints in it, and no kpt_shape in a data.yaml: read as "
            "pose labels, of which the boxes are used"
        )
        note = ReportEntry(kind="image", file=str(labels.folder), reason=reason)
        layout = replace(layout, has_keypoints=True, noted=[*layout.noted, note])
    by_split = {
        split: _read_split(split, layout, images=images, labels=labels, label_of=label_of, with_masks=with_masks)
        for split in layout.images
    }
    missing: dict[str | None, list[AnnotatedImage]] = {split: [] for split in by_split}
    for label in _labels_without_image(labels, taken={*label_of.values()}, images=images):
        split = next(iter(by_split)) if len(by_split) == 1 else split_of_folders(label)
        if split in missing:
            name = str(PurePosixPath(label).with_suffix(".jpg"))
            missing[split].append(AnnotatedImage(file_name=name))
        else:  # its split is unknown if there are several
            note = ReportEntry(kind="image", file=label, reason="a label file without an image")
            next(iter(by_split.values())).noted.append(note)
    by_split = {split: replace(data, images=[*data.images, *missing[split]]) for split, data in by_split.items()}
    if not any(data.listed_boxes for data in by_split.values()):
        raise InputError(
            f"{annotations}: {len(label_of)} label files were found for the {len(images.names)} images of "
            f"{images.folder}, and they contain no boxes"
        )
    return by_split


def _read_split(
    split: str,
    layout: YoloLayout,
    *,
    images: ImageFolder,
    labels: FolderFiles,
    label_of: dict[str, str],
    with_masks: bool,
) -> AnnotatedDataSet:
    hasher = hashlib.sha256(layout.content)
    split_content, without = SplitContent(noted=list(layout.noted)), 0
    for name in layout.images[split]:
        image = AnnotatedImage(file_name=name, in_shares=True, is_upright=True)
        label = label_of.get(name)
        if label is None:
            without += 1
        else:
            try:
                text, content = read_text_file(labels.path(label))
            except InputError as error:
                split_content.skipped.append(ReportEntry(kind="image", file=name, reason=str(error)))
                continue
            hasher.update(hashlib.sha256(label.encode() + b"\0" + content).digest())
            _add_objects(text, image, split_content, file=str(labels.path(label)), layout=layout, with_masks=with_masks)
        images.in_pixels(image)
        split_content.images.append(image)
    if without:
        reason = f"{without} of {len(split_content.images)} images have no label file: used as images without objects"
        split_content.note(str(labels.folder), reason)
    return split_content.data_set(source=layout.source, class_names=layout.class_names, fingerprint=hasher.hexdigest())


def _numbers_of_poses(labels: FolderFiles, names: Sequence[str]) -> int | None:
    """Return the numbers on a line of pose labels, all of which are a class, a box and 2 or 3 numbers a keypoint.

    None for other labels: outlines have different lengths, or points outside of what would be their box.
    """
    lines = []
    for name in names[:: max(1, len(names) // _MOST_READ)]:
        try:
            text, _ = read_text_file(labels.path(name))
            lines += [[number_in_text(field, where="") for field in line.split()] for line in text.splitlines()]
        except InputError:  # the reader reports it
            continue
    rows = [line[1:] for line in lines if len(line) > 5]
    if not rows or len({*map(len, rows)}) > 1:
        return None
    numbers = np.array(rows)  # [N, 4 + keypoints]
    is_pose = any(_are_poses(numbers[:, :4], numbers[:, 4:], values=values) for values in (2, 3))
    return len(rows[0]) + 1 if is_pose else None


def _are_poses(boxes: np.ndarray, keypoints: np.ndarray, *, values: int) -> bool:
    """Return whether rows are boxes [N, 4] in the image and keypoints of x, y and 3 `values` also of a visibility."""
    if keypoints.shape[1] % values:
        return False
    centers, sizes = boxes[:, :2], boxes[:, 2:]
    are_boxes = (sizes > 0).all() and (np.abs(centers - 0.5) + sizes / 2 < 0.55).all()
    points = keypoints.reshape(len(boxes), -1, values)
    if not are_boxes or (keypoints.shape[1] == 4 and _are_rotated_boxes(np.hstack([boxes, keypoints]))):
        return False
    if values == 3:
        return bool(np.isin(points[..., 2], (0, 1, 2)).all())
    is_inside = (np.abs(points - centers[:, None]) <= 0.6 * sizes[:, None]).all(2)
    return bool((is_inside | (points == 0).all(2)).mean() >= _IN_THEIR_BOX)  # 0 0 is a keypoint that is not labeled


def _are_rotated_boxes(outlines: np.ndarray) -> bool:
    """Return whether rows of four corners [N, 8] are parallelograms."""
    corners = outlines.reshape(-1, 4, 2)
    return np.allclose(corners[:, 0] + corners[:, 2], corners[:, 1] + corners[:, 3], atol=1e-3)


def _labels_of(names: list[str], labels: FolderFiles, images: ImageFolder) -> dict[str, str]:
    """Return the label file of each image that has one.

    If images with the same name in several folders match the same file, it belongs to the image whose folders match
    best.

    Raises:
        InputError: that is ambiguous.
    """
    claims: dict[str, list[str]] = defaultdict(list)
    for name in names:
        for label_name in (_label_name(name, images), _label_name(f"{name}.txt", images)):  # a.txt, else a.jpg.txt
            if label := labels.find(label_name, split=split_of_folders(name)):
                claims[label].append(name)
                break
    unlabeled = {*names}.difference(*claims.values())
    for label in [label for label in labels.names if label not in claims]:
        uploads = (images.find_upload(str(PurePosixPath(label).with_suffix(suffix))) for suffix in IMAGE_SUFFIXES)
        if image := next((image for image in uploads if image in unlabeled), None):
            claims[label].append(image)
            unlabeled.remove(image)
    label_files: dict[str, str] = {}
    for label, claimants in claims.items():
        best = best_path_matches(label, [_label_name(name, images) for name in claimants])
        owners = [name for name in claimants if _label_name(name, images) in best]
        if len(owners) > 1:
            raise InputError(
                f"{labels.path(label)}: matches several images, {listed(owners)}; expected image names that "
                "differ in more than the suffix, or label folders named like the image folders"
            )
        label_files[owners[0]] = label
    labeled = {PurePosixPath(name).parent for name in label_files}
    for label, claimants in claims.items():
        for name in claimants:
            if PurePosixPath(name).parent not in labeled:
                raise InputError(
                    f"{labels.path(label)}: belongs to another image of the same name, and no image in the folder "
                    f"of {name} has labels; expected an empty label file for an image without objects"
                )
    return label_files


def _label_name(name: str, images: ImageFolder) -> str:
    """Return ultralytics' label path of an image: images/../a.jpg has labels/../a.txt."""
    components = [images.folder.resolve().name, *PurePosixPath(name).with_suffix(".txt").parts]
    if "images" in components:
        components[len(components) - 1 - components[::-1].index("images")] = "labels"
    return "/".join(components)


def _labels_without_image(labels: FolderFiles, *, taken: set[str], images: ImageFolder) -> Iterator[str]:
    """Yield the label files without an image."""
    stems = {PurePosixPath(name).stem for name in images.names}
    for label in labels.names:
        alone = label not in taken and PurePosixPath(label).stem not in stems
        if alone and kind_of_file(labels.path(label)) is FileKind.YOLO_LABELS:
            yield label


def _add_objects(
    text: str, image: AnnotatedImage, split_content: SplitContent, *, file: str, layout: YoloLayout, with_masks: bool
) -> None:
    known = frozenset(layout.class_names.category_ids)
    for number, line in enumerate(text.splitlines(), start=1):
        if fields := line.split():
            with split_content.skipping(file=file, image=image), error_context(f"line {number}"):
                image.objects.append(
                    _object(fields, known=known, has_keypoints=layout.has_keypoints, with_masks=with_masks)
                )


def _object(fields: list[str], *, known: frozenset[int], has_keypoints: bool, with_masks: bool) -> AnnotatedObject:
    number = _CLASS_NUMBER.fullmatch(fields[0])
    class_number = int(number[1]) if number else -1
    if class_number not in known:
        raise InputError(f"has class {shown(fields[0])}; the classes are numbered {min(known)} to {max(known)}")
    shares = [_share(field) for field in fields[1:]]
    if has_keypoints:
        shares = shares[:4]
    if len(shares) == 4:
        if with_masks:
            raise InputError("is a box, and --include_masks needs outlines")
        x, y, width, height = shares
        return AnnotatedObject(category_id=class_number, box_xywh=(x - width / 2, y - height / 2, width, height))
    if len(shares) < 6 or len(shares) % 2:
        raise InputError(
            f"has {len(shares)} numbers after its class, expected 4 (a box) or at least 3 pairs of x and y (an "
            "outline); lines with a score are predictions"
        )
    return AnnotatedObject(
        category_id=class_number,
        box_xywh=box_around(shares),
        segmentation=[shares] if with_masks else None,
    )


def _share(text: str) -> float:
    share = number_in_text(text, where="a coordinate")
    if not LEAST_SHARE <= share <= MOST_SHARE:
        raise InputError(f"has {shown(text)}, expected fractions of the image's sides, 0 to 1, not pixels")
    return share
