"""Files in a folder tree, found by the names that annotations of any tool use."""

import os
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from PIL import Image

from dataset.conversion.annotations import AnnotatedImage, checked_file_name, in_hundredths
from dataset.conversion.named_splits import split_of_folders
from dataset.files.bounded_files import open_regular_file
from dataset.files.image_files import IMAGE_SUFFIXES
from dataset.files.image_formats import DECODING_ERRORS, FORMATS
from dataset.files.untrusted_values import listed, shown
from program_support.errors import InputError


class FolderFiles:
    """Files by name relative to a folder, with '/'. Hidden files and folders are ignored; links are followed."""

    def __init__(self, folder: str | Path, suffixes: Collection[str]):
        self.folder = Path(folder)
        self._suffixes = {*suffixes}

    @cached_property
    def names(self) -> list[str]:
        """Return all files with the suffixes, in ascending order.

        Raises InputError for an unreadable folder and for a name that cannot be stored.
        """
        found, seen = [], {os.path.realpath(self.folder)}

        def is_new(path: str) -> bool:
            if (real := os.path.realpath(path)) in seen:
                return False
            seen.add(real)
            return True

        for place, folders, files in os.walk(self.folder, onerror=_raise_unreadable, followlinks=True):
            paths = [os.path.join(place, name) for name in sorted(folders) if not name.startswith(".")]
            paths = [path for path in sorted(paths, key=os.path.islink) if is_new(path)]  # a link may lead upwards
            folders[:] = map(os.path.basename, paths)
            below = PurePosixPath(os.path.relpath(place, self.folder))
            found += [
                str(below / name)
                for name in files
                if not name.startswith(".") and os.path.splitext(name)[1].lower() in self._suffixes
            ]
        return sorted(checked_file_name(name, where=f"{self.folder}: a file below it") for name in found)

    @cached_property
    def _of_last_name(self) -> dict[str, list[str]]:
        found = defaultdict(list)
        for name in self.names:
            found[_parts(name)[-1]].append(name)
        return found

    def path(self, name: str) -> Path:
        """Return the path of a file with this relative name."""
        return self.folder / name

    def find(self, name: str, *, split: str | None = None) -> str | None:
        """Return the file that matches a name or path of the annotations, or None.

        Files in folders named like other splits than `split` are excluded. Tools write paths of other machines, of
        Windows or of another folder: among the files with this name, the one whose folders match best is returned.
        Raises InputError if several match equally.
        """
        if not (parts := _parts(name)):
            return None
        candidates = [
            other
            for other in self._of_last_name.get(parts[-1], ())
            if not split or split_of_folders(other) in (split, None)
        ]
        if len(candidates) <= 1 or name in candidates:
            return name if name in candidates else next(iter(candidates), None)
        best = best_path_matches(name, candidates)
        if len(best) > 1:
            raise InputError(
                f"{self.folder}: {shown(name)} is ambiguous, it matches {listed(best)}; expected annotations that "
                "include the folder, or only that folder"
            )
        return best[0]


def best_path_matches(name: str, others: Sequence[str]) -> list[str]:
    """Return the paths that share the longest suffix of components with `name`."""
    agreement = [_common_suffix(_parts(other), _parts(name)) for other in others]
    return [other for other, parts in zip(others, agreement, strict=True) if parts == max(agreement)]


def _raise_unreadable(error: OSError) -> None:
    raise InputError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _parts(name: str) -> list[str]:
    """Return the components of a path without `.` and `..`.

    They are case-folded because some file systems ignore case, and composed because macOS decomposes letters.
    """
    letters = unicodedata.normalize("NFC", name).casefold().replace("\\", "/")
    return [part for part in letters.split("/") if part not in ("", ".", "..")]


def _common_suffix(parts: list[str], others: list[str]) -> int:
    pairs = zip(reversed(parts), reversed(others), strict=False)
    return next((count for count, (one, other) in enumerate(pairs) if one != other), min(len(parts), len(others)))


class ImageFolder(FolderFiles):
    """Images in a folder tree; remembers the annotated name by which each was found."""

    def __init__(self, folder: str | Path):
        super().__init__(folder, IMAGE_SUFFIXES)
        self._named: dict[str, str] = {}

    def named(self, name: object, *, where: str, split: str | None = None) -> str:
        """Return the image that matches an annotated name, with or without suffix.

        If there is none, the name itself is returned, and the conversion reports it as missing. Raises InputError,
        starting with `where`, for an unknown name outside the folder and for a second name of the same image.
        """
        inside = name.removeprefix(f"{self.folder.resolve()}/") if isinstance(name, str) else ""
        match = self._found(inside, split) if inside else None
        checked = inside if match else checked_file_name(inside or name, where=where)
        found = match or checked
        if (other := self._named.setdefault(found, checked)) != checked:
            raise InputError(
                f"{where} names {shown(checked)}, and an earlier entry {shown(other)}: both match {shown(found)}, "
                f"the only such file; expected both in {self.folder}, or annotations without one of them"
            )
        return found

    def _found(self, name: str, split: str | None) -> str | None:
        suffixes = [""] if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES else ["", *sorted(IMAGE_SUFFIXES)]
        return next(filter(None, (self.find(name + suffix, split=split) for suffix in suffixes)), None)

    def _size(self, name: str) -> tuple[int, int] | None:
        """Return (height, width) from the header; None if the file is not an image."""
        try:
            with (
                warnings.catch_warnings(),
                open_regular_file(self.path(name)) as file,
                Image.open(file, formats=FORMATS) as image,
            ):
                warnings.simplefilter("ignore")  # about metadata
                return image.size[::-1]
        except DECODING_ERRORS:
            return None

    def in_pixels(self, image: AnnotatedImage) -> None:
        """Set the size of an image that is `in_shares`; convert its boxes to pixels, unless its file is unreadable."""
        size = self._size(image.file_name)
        if size is not None and min(size) > 0:
            image.size, image.in_shares = size, False
            image.objects = [in_hundredths(one, size) for one in image.objects]
