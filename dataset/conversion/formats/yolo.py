"""Read YOLO labels: a text file per image, a line per object, in fractions of the image's width and height.

Format: https://docs.ultralytics.com/datasets/detect, /segment. A line is a class number and the box (center x, center
y, width, height) or the outline (x, y, x, y, ..) of an object; an image without a file has no objects. Class names,
splits and images are those of the layouts of ultralytics, Roboflow, labelImg and Darknet.
"""

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from dataset.class_names import ClassNames, read_class_file, read_class_names
from dataset.conversion.annotations import (
    LEAST_SHARE,
    MOST_SHARE,
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    LabelCollector,
    box_around,
)
from dataset.conversion.folder_files import FolderFiles, ImageFolder, best_path_matches
from dataset.conversion.named_splits import HELD_OUT, names_by_split, split_of_folders
from dataset.files.bounded_files import read_text_file
from dataset.files.file_kinds import FileKind, kind_of_file
from dataset.files.image_files import IMAGE_SUFFIXES
from dataset.files.untrusted_values import LARGEST_ID, error_context, listed, number_in_text, shown
from dataset.files.xml_and_yaml import read_yaml
from program_support.errors import InputError

_NOTES = "notes.json"  # of Label Studio, whose classes.txt may have another order
_NAME_FILES = ("classes.txt", "obj.names", "_darknet.labels")
_LABEL_MAP = ".pbtxt"
_SUFFIXES = (".yaml", ".yml", ".data", ".txt", ".names", ".labels", ".json", _LABEL_MAP)
_SPLIT_KEYS = {"train": "train", "val": "val", "valid": "val", "test": "test"}
_MOST_READ = 1000  # label files, evenly spaced
_IN_THEIR_BOX = 0.95  # of the keypoints
_CLASS_NUMBER = re.compile(r"(\d{1,8})(\.0*)?", re.ASCII)  # some tools write every number as a float


def read_yolo(annotations: str, images: ImageFolder, *, with_masks: bool, split: str | None) -> AnnotatedDataSet:
    """Read the data set; category ids are the class numbers.

    Labels of images with EXIF rotation are assumed to be upright, as in ultralytics.

    Raises:
        InputError: with file, line and value, for an invalid label and for an unknown class.
    """
    collector = LabelCollector(source=annotations)
    layout = _Layout(Path(annotations), images, collector)
    class_names, by_split = layout.class_names(), layout.images_by_split()
    root = Path(annotations) if Path(annotations).is_dir() else Path(annotations).parent
    labels = FolderFiles(root, (".txt",))
    label_of = _labels_of(sorted({name for names in by_split.values() for name in names}), labels, images)
    if [*by_split] == [""]:
        splits = [split_of_folders(label_of.get(name, "")) for name in by_split[""]]
        by_split = names_by_split(by_split[""], splits, where="the label files")
    has_keypoints = "kpt_shape" in layout.settings
    if not has_keypoints and (count := _numbers_of_poses(labels, sorted({*label_of.values()}))):
        collector.note(
            f"lines of {count} numbers that are a box and keypoints in it, and no kpt_shape in a data.yaml: read as "
            "pose labels, of which the boxes are used",
            file=str(labels.folder),
        )
        has_keypoints = True
    known, without = frozenset(class_names.category_ids), Counter[str]()
    for split_name, names in by_split.items():
        collector.split = split_name or None
        for name in names:
            image = AnnotatedImage(file_name=name, in_shares=True, is_upright=True, split=split_name or None)
            with collector.skipping(file=name):
                if label := label_of.get(name):
                    text, content = read_text_file(labels.path(label))
                    collector.hasher.update(hashlib.sha256(label.encode() + b"\0" + content).digest())
                    for number, line in enumerate(text.splitlines(), start=1):
                        if fields := line.split():
                            with collector.skipping(f"line {number}", file=str(labels.path(label)), image=image):
                                image.objects.append(
                                    _object(fields, known=known, has_keypoints=has_keypoints, with_masks=with_masks)
                                )
                else:
                    without[split_name] += 1
                collector.images.append(image)
    for split_name, count in without.items():
        collector.split = split_name or None
        reason = f"{count} of {len(by_split[split_name])} images have no label file: used as images without objects"
        collector.note(reason, file=str(labels.folder))
    collector.split = None
    data = collector.data_set(class_names)
    if not data.listed_boxes:
        raise InputError(
            f"{annotations}: {len(label_of)} label files were found for the {len(images.names)} images of "
            f"{images.folder}, and they contain no boxes"
        )
    for label in _labels_without_image(labels, taken={*label_of.values()}, images=images):
        named = next(iter(by_split)) if len(by_split) == 1 else split_of_folders(label)
        if named in by_split:
            name = str(PurePosixPath(label).with_suffix(".jpg"))
            collector.images.append(AnnotatedImage(file_name=name, split=named or None))
        else:  # its split is unknown if there are several
            collector.note("a label file without an image", file=label)
    return collector.data_set(class_names)


class _Layout:
    """Class names and splits of a data.yaml, an obj.data, a file of class names, or a folder that contains one of them.

    For a folder without such a file, as labels/ of many data sets, the files beside it are taken.
    """

    def __init__(self, annotations: Path, images: ImageFolder, collector: LabelCollector):
        self._given, self._images, self._collector = annotations, images, collector
        self._root = annotations if annotations.is_dir() else annotations.parent
        self._files = FolderFiles(self._root, _SUFFIXES)
        is_named = not annotations.is_dir() or any(names_classes(self._files.path(name)) for name in self._files.names)
        if not is_named and (beside := class_files_beside(annotations)):
            self._root = beside[0].parent
            self._files = FolderFiles(self._root, _SUFFIXES)
            others = self._root.glob(f"*{_LABEL_MAP}")
            self._files.names = [path.name for path in (*beside, *others)]  # not those of folders below it

    def images_by_split(self) -> dict[str, list[str]]:
        """Return the images of each split ("" if there are no splits) relative to the image folder."""
        splits: dict[str, list[str]] = {}
        without_images: list[tuple[str, str]] = []
        for key, split in _SPLIT_KEYS.items():
            if (value := self.settings.get(key)) in (None, "", []):
                continue
            for entry in value if isinstance(value, list) else [value]:
                if not isinstance(entry, str):
                    raise InputError(f"{self._data_file}: {key} is {shown(value)}, expected folders or lists of images")
                images = [*self._images_in(entry, split)]
                if not images:
                    without_images.append((key, entry))
                for name, held_out in images:
                    splits.setdefault(held_out or split, []).append(name)
        if not splits and any(key in self.settings for key in _SPLIT_KEYS):
            raise InputError(
                f"{self._data_file}: none of the images that it names is in {self._images.folder}; expected "
                "--images=FOLDER with the folders that train, val and test name"
            )
        for key, entry in without_images:
            reason = f"{key} is {shown(entry)}, which has no image in {self._images.folder}"
            if key == "train":
                raise InputError(f"{self._data_file}: {reason}; expected a folder or a list of images")
            self._collector.note(f"{reason}: ignored", file=str(self._data_file))
        if splits:
            return {split: sorted({*names}) for split, names in splits.items()}
        names = self._images.names
        return names_by_split(names, map(split_of_folders, names), where=str(self._images.folder))

    @cached_property
    def _data_file(self) -> Path | None:
        """Return the data.yaml or obj.data."""
        if self._given.is_file():
            return self._given if kind_of_file(self._given) is FileKind.YOLO_DATA else None
        candidates = [name for name in self._files.names if _is_data_file(self._files.path(name))]
        outermost = [name for name in candidates if name.count("/") == min(other.count("/") for other in candidates)]
        if len(outermost) > 1:
            raise InputError(f"{self._root}: holds {listed(outermost)}; expected one of them as --annotations")
        return self._files.path(outermost[0]) if outermost else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return the content of the data.yaml or obj.data."""
        if self._data_file is None:
            return {}
        if self._data_file.suffix == ".data":
            text, content = read_text_file(self._data_file)
            settings = {
                key.strip(): value.strip()
                for key, mark, value in (line.partition("=") for line in text.splitlines())
                if mark
            }
        else:
            settings, content = read_yaml(self._data_file)
        self._collector.hasher.update(content)
        if not isinstance(settings, dict):
            raise InputError(f"{self._data_file}: holds {shown(settings)}, expected names, train and val")
        return settings

    def class_names(self) -> ClassNames:
        """Return the class names; the source of the data set is the file that has them."""
        names = self.settings.get("names")
        path = self._data_file
        if names is None or isinstance(names, str):
            path = self._name_file(names)
            names, content = _names_in(path)
            self._collector.hasher.update(content)
        pairs = enumerate(names) if isinstance(names, list) else names.items() if isinstance(names, dict) else ()
        with error_context(f"{path}: names"):
            numbered = [{"id": int(key) if _is_number(key) else key, "name": name} for key, name in pairs]
            if not numbered:
                raise InputError(f"is {shown(names)}, expected a list of class names")
            class_names = ClassNames.from_categories(numbered)
        self._compare_with_other_files(Path(str(path)), class_names)
        self._collector.source = str(path)
        return class_names

    def _compare_with_other_files(self, path: Path, class_names: ClassNames) -> None:
        """Refuse another file with other names for the same numbers, or note it if the user or Label Studio decides."""
        names = class_names.by_id()
        others = [self._files.path(name) for name in self._files.names if _lists_names(self._files.path(name))]
        if self._given.name == "labels":
            others += [other for other in class_files_beside(self._given) if other.suffix != ".data"]
        for other in dict.fromkeys(others):
            try:
                listed_names, _ = _names_in(other)
            except InputError:  # it is not used
                continue
            other_names = listed_names if isinstance(listed_names, dict) else dict(enumerate(listed_names))
            differing = [
                number for number in names if _key(other_names.get(number, names[number])) != _key(names[number])
            ]
            if differing and other != path:
                number = differing[0]
                reason = f"class {number} is {shown(other_names[number])} here and {shown(names[number])} in {path}"
                is_decided = path == self._given or path.name == _NOTES
                if not is_decided:
                    raise InputError(f"{other}: {reason}; expected the same names: correct or remove one of the two")
                self._collector.note(f"{reason}, which counts", file=str(other))

    def _name_file(self, named: str | None) -> Path:
        if named is None and self._given.is_file() and _lists_names(self._given):
            return self._given
        for name in [named] if named else [_NOTES, *_NAME_FILES]:
            candidates = [
                other
                for other in self._files.names
                if PurePosixPath(other).name == PurePosixPath(name).name
                and (name != _NOTES or _lists_names(self._files.path(other)))
            ]
            if len({read_text_file(self._files.path(other))[0].strip() for other in candidates}) > 1:
                raise InputError(f"{self._root}: {listed(candidates)} hold different class names; expected one of them")
            if candidates:
                return self._files.path(candidates[0])
        raise InputError(
            f"{self._root}: YOLO labels without class names: looked for a data.yaml and {', '.join(_NAME_FILES)}; "
            f"expected {shown(named) if named else 'one of them'} next to the labels or one folder above"
        )

    def _images_in(self, entry: str, split: str) -> Iterator[tuple[str, str | None]]:
        """Yield each image of a folder or a list, and the held-out split that a folder below the folder names for it.

        Both are searched only inside the data and image folders, regardless of `path` and `..`: Roboflow's
        ../train/images is train/images.
        """
        parts = [part for part in PurePosixPath(entry.replace("\\", "/")).parts if part not in ("/", "..", ".")]
        is_of_windows = bool(parts) and re.fullmatch("[A-Za-z]:", parts[0]) is not None
        # For an absolute path of another machine, match its end; the last folder alone would be ambiguous.
        tails = (
            [parts[start:] for start in range(len(parts) - 1)] if entry.startswith("/") or is_of_windows else [parts]
        )
        if entry.endswith(".txt"):
            if listing := self._files.find(entry):
                text, content = read_text_file(self._files.path(listing))
                self._collector.hasher.update(content)
                for line in filter(None, map(str.strip, text.splitlines())):
                    place = f"{self._files.path(listing)}: {shown(line)}"
                    inside = "/".join(part for part in PurePosixPath(line).parts if part not in ("/", ".."))
                    with error_context(place):
                        yield self._images.named(inside, split=split), None
            return
        folder = self._images.folder.resolve()
        for tail in tails:
            for base in (self._root, folder, folder.parent):
                listed_folder = base.resolve().joinpath(*tail)
                if listed_folder.is_dir():
                    for name in self._images.names:
                        if (folder / name).is_relative_to(listed_folder):
                            below = split_of_folders((folder / name).relative_to(listed_folder).as_posix())
                            yield name, below if below in HELD_OUT else None
                    return


def names_classes(path: Path) -> bool:
    """Return whether a file names the classes of YOLO's labels."""
    return (_lists_names(path) and path.suffix != _LABEL_MAP) or _is_data_file(path)


def class_files_beside(labels: Path) -> list[Path]:
    """Return the files beside a folder of YOLO's labels that name their classes."""
    return sorted(path for path in labels.resolve().parent.glob("*.*") if names_classes(path))


def _lists_names(path: Path) -> bool:
    """Return whether a file has only names, as those that tools write beside a data.yaml or instead of it."""
    if path.name != _NOTES:
        return path.name in _NAME_FILES or path.suffix == _LABEL_MAP
    try:
        return bool(read_class_names(path))
    except InputError:
        return False


def _names_in(path: Path) -> tuple[list[str] | dict[Any, str], bytes]:
    """Return the names in a file other than obj.data, in the order of their numbers or by number, and its content."""
    if path.name == _NOTES:
        return read_class_names(path).by_id(), path.read_bytes()
    text, content = read_text_file(path)
    if path.suffix in (_LABEL_MAP, ".yaml", ".yml"):
        return [*read_class_file(path).names], content
    return [line.strip() for line in text.rstrip().splitlines()], content


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _is_data_file(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml", ".data") and kind_of_file(path) is FileKind.YOLO_DATA


def _is_number(key: Any) -> bool:
    return isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= len(str(LARGEST_ID))


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
