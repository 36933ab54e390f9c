"""Class names, splits and images of a YOLO data set, in the layouts of ultralytics, Roboflow, labelImg and Darknet."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from dataset.class_files import read_class_file
from dataset.class_names import ClassNames, read_class_names
from dataset.conversion.annotations import ReportEntry
from dataset.conversion.folder_files import FolderFiles, ImageFolder
from dataset.conversion.named_splits import HELD_OUT, names_by_split, split_of_folders
from dataset.files.bounded_files import read_text_file
from dataset.files.file_kinds import FileKind, kind_of_file
from dataset.files.untrusted_values import LARGEST_ID, error_context, listed, shown
from dataset.files.yaml_files import read_yaml
from program_support.errors import InputError

_NOTES = "notes.json"  # of Label Studio, whose classes.txt may have another order
_NAME_FILES = ("classes.txt", "obj.names", "_darknet.labels")
_LABEL_MAP = ".pbtxt"
_SUFFIXES = (".yaml", ".yml", ".data", ".txt", ".names", ".labels", ".json", _LABEL_MAP)
_SPLIT_KEYS = {"train": "train", "val": "val", "valid": "val", "test": "test"}


@dataclass(frozen=True, kw_only=True)
class YoloLayout:
    """Class names, and the images of each split ("" if there are no splits) relative to the image folder."""

    source: str  # the file that names the classes
    content: bytes  # all files that define the layout
    class_names: ClassNames
    images: dict[str, list[str]]
    has_keypoints: bool
    noted: list[ReportEntry] = field(default_factory=list)


def yolo_layout(annotations: Path, images: ImageFolder) -> YoloLayout:
    """Read the layout from a data.yaml, an obj.data, a file of class names, or a folder that contains one of them.

    For a folder without such a file, as labels/ of many data sets, the files beside it are taken.
    """
    return _LayoutReader(annotations, images).layout()


class _LayoutReader:
    def __init__(self, annotations: Path, images: ImageFolder):
        self._given, self._images = annotations, images
        self._root = annotations if annotations.is_dir() else annotations.parent
        self._files = FolderFiles(self._root, _SUFFIXES)
        is_named = not annotations.is_dir() or any(names_classes(self._files.path(name)) for name in self._files.names)
        if not is_named and (beside := class_files_beside(annotations)):
            self._root = beside[0].parent
            self._files = FolderFiles(self._root, _SUFFIXES)
            others = self._root.glob(f"*{_LABEL_MAP}")
            self._files.names = [path.name for path in (*beside, *others)]  # not those of folders below it
        self._read: list[bytes] = []
        self._noted: list[ReportEntry] = []
        self._without_images: list[tuple[str, str]] = []  # keys and values of splits

    def layout(self) -> YoloLayout:
        settings = self._settings()
        source, names = self._class_names(settings)
        splits: dict[str, list[str]] = {}
        for key, split in _SPLIT_KEYS.items():
            if settings.get(key) not in (None, "", []):
                for name, held_out in self._images_of(key, settings[key]):
                    splits.setdefault(held_out or split, []).append(name)
        splits = {split: sorted({*listed}) for split, listed in splits.items() if listed}
        if settings and not splits and any(key in settings for key in _SPLIT_KEYS):
            raise InputError(
                f"{self._data_file}: none of the images that it names is in {self._images.folder}; expected "
                "--images=FOLDER with the folders that train, val and test name"
            )
        for key, entry in self._without_images:
            reason = f"{key} is {shown(entry)}, which has no image in {self._images.folder}"
            if key == "train":
                raise InputError(f"{self._data_file}: {reason}; expected a folder or a list of images")
            self._noted.append(ReportEntry(kind="image", file=str(self._data_file), reason=f"{reason}: ignored"))
        names_in_folder = self._images.names
        return YoloLayout(
            source=source,
            content=b"\0".join(self._read),
            class_names=names,
            has_keypoints="kpt_shape" in settings,
            images=splits
            or names_by_split(names_in_folder, map(split_of_folders, names_in_folder), where=str(self._images.folder)),
            noted=self._noted,
        )

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

    def _settings(self) -> dict[str, Any]:
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
        self._read.append(content)
        if not isinstance(settings, dict):
            raise InputError(f"{self._data_file}: holds {shown(settings)}, expected names, train and val")
        return settings

    def _class_names(self, settings: dict[str, Any]) -> tuple[str, ClassNames]:
        names = settings.get("names")
        path = self._data_file
        if names is None or isinstance(names, str):
            path = self._name_file(names)
            names, content = _names_in(path)
            self._read.append(content)
        pairs = enumerate(names) if isinstance(names, list) else names.items() if isinstance(names, dict) else ()
        with error_context(f"{path}: names"):
            numbered = [{"id": int(key) if _is_number(key) else key, "name": name} for key, name in pairs]
            if not numbered:
                raise InputError(f"is {shown(names)}, expected a list of class names")
            class_names = ClassNames.from_categories(numbered)
        self._compare_with_other_files(Path(str(path)), class_names)
        return str(path), class_names

    def _compare_with_other_files(self, path: Path, class_names: ClassNames) -> None:
        """Refuse another file with other names for the same numbers, or note it if the user or Label Studio decides."""
        names = dict(zip(class_names.category_ids, class_names.names, strict=True))
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
                self._noted.append(ReportEntry(kind="image", file=str(other), reason=f"{reason}, which counts"))

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

    def _images_of(self, key: str, value: Any) -> Iterator[tuple[str, str | None]]:
        """Yield each image, and the held-out split that a folder below the listed one names for it."""
        entries = value if isinstance(value, list) else [value]
        for entry in entries:
            if not isinstance(entry, str):
                raise InputError(f"{self._data_file}: {key} is {shown(value)}, expected folders or lists of images")
            images = list(self._images_in(entry, _SPLIT_KEYS[key]))
            if not images:
                self._without_images.append((key, entry))
            yield from images

    def _images_in(self, entry: str, split: str) -> Iterator[tuple[str, str | None]]:
        """Yield the images of a folder or a list as `_images_of` does.

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
                self._read.append(content)
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
        class_names = read_class_names(path)
        return dict(zip(class_names.category_ids, class_names.names, strict=True)), path.read_bytes()
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
