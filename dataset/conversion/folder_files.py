"""Files in a folder tree, found by the names that annotations of any tool use."""

import base64
import contextlib
import os
import re
import shlex
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, unquote_plus

from dataset.conversion.annotations import AnnotatedImage, checked_file_name, checked_name, in_hundredths
from dataset.conversion.named_splits import split_of_folders
from dataset.conversion.upright_labels import stored_shape
from dataset.files.image_files import IMAGE_SUFFIXES, UNREAD_SUFFIXES, note_of_unread
from dataset.files.untrusted_values import error_context, listed, shown
from program_support.errors import InputError
from program_support.remote_addresses import address_of, is_remote, storage

_SUFFIXES = sorted(IMAGE_SUFFIXES, key=lambda suffix: (suffix not in (".jpg", ".jpeg", ".png"), suffix))
_LONGEST_MISSING = 1000  # characters of a name in a report; an address with a signature may be longer
_OF_AN_UPLOAD = re.compile("[0-9a-f]{8}-(.+)")
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{1,4}$")


class FolderFiles:
    """Files by name relative to a folder, with '/'. Hidden files and folders are ignored; links are followed."""

    def __init__(self, folder: str | Path, suffixes: Collection[str]):
        self.folder = Path(folder)
        self._suffixes = {*suffixes}

    @cached_property
    def names(self) -> list[str]:
        """Return all files with the suffixes, in ascending order.

        Raises:
            InputError: for an unreadable folder and for a name that cannot be stored.
        """
        if is_remote(self.folder):
            return sorted(
                checked_file_name(name)
                for name in storage().listing(address_of(self.folder))
                if os.path.splitext(name)[1].lower() in self._suffixes
            )
        names, seen = [], {os.path.realpath(self.folder)}

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
            names += [
                str(below / name)
                for name in files
                if not name.startswith(".") and os.path.splitext(name)[1].lower() in self._suffixes
            ]
        if others := [name for name in names if not _is_utf8(name)]:
            raise InputError(
                f"{self.folder}: {len(others)} files have names that are not UTF-8, such as {shown(others[0])}; rename "
                f"them, for example with convmv -r --notest -f latin1 -t utf8 {shlex.quote(str(self.folder))}"
            )
        with error_context(f"{self.folder}: a file below it"):
            return sorted(map(checked_file_name, names))

    @cached_property
    def _of_upload(self) -> dict[str, list[str]]:
        paths = defaultdict(list)
        for name in self.names:
            paths[_uploaded(_parts(name)[-1])].append(name)
        return paths

    @cached_property
    def _of_last_name(self) -> dict[str, list[str]]:
        paths = defaultdict(list)
        for name in self.names:
            paths[_parts(name)[-1]].append(name)
        return paths

    def path(self, name: str) -> Path:
        """Return the path of a file with this relative name."""
        return self.folder / name

    def find(self, name: str, *, split: str | None = None, label_file: str | None = None) -> str | None:
        """Return the file that matches a name or path of the annotations, or None.

        Files in folders named like other splits than `split` are excluded. Tools write paths of other machines, of
        Windows or of another folder: among the files with this name, the one whose folders match best is returned, and
        among several of these the one nearest to `label_file`, if that lies among the images, or in the folder.

        Raises:
            InputError: several match equally.
        """
        if not (parts := _parts(name)):
            return None
        candidates = [
            other
            for other in self._of_last_name.get(parts[-1], ())
            if not split or split_of_folders(other) in (split, None)
        ]
        if len(candidates) <= 1:
            return next(iter(candidates), None)
        matches = self._nearest(best_path_matches(name, candidates), label_file)
        return name if name in matches else self._only(name, matches)

    def find_upload(self, name: str) -> str | None:
        """Return the file that Label Studio stores under a name: 8 digits, then a name without blanks or parentheses.

        Raises:
            InputError: several match.
        """
        upload = _OF_AN_UPLOAD.fullmatch("".join(_parts(name)[-1:]))
        candidates = self._of_upload.get(upload[1]) if upload else None
        return self._only(name, candidates) if candidates else None

    def _nearest(self, names: list[str], label_file: str | None) -> list[str]:
        """Return those in the innermost folder that has one and, also deeper, the file of the labels."""
        if len(names) == 1 or not label_file:
            return names
        folder, file = self.folder.resolve(), Path(label_file).resolve()
        for place in file.relative_to(folder).parents if file.is_relative_to(folder) else ():
            if nearest := [name for name in names if PurePosixPath(name).is_relative_to(place)]:
                return nearest
        return names

    def _only(self, name: str, matches: list[str]) -> str:
        if len(matches) > 1:
            raise InputError(
                f"{self.folder}: {shown(name)} is ambiguous, it matches {listed(matches)}; expected annotations that "
                "include the folder, or only that folder"
            )
        return matches[0]


def best_path_matches(name: str, others: Sequence[str]) -> list[str]:
    """Return the paths that share the longest suffix of components with `name`."""
    agreement = [_common_suffix(_parts(other), _parts(name)) for other in others]
    return [other for other, parts in zip(others, agreement, strict=True) if parts == max(agreement)]


def _name_forms(name: str) -> list[str]:
    """Return a name, the path in a URL or in Label Studio's ?d=PATH or ?fileuri=BASE64, and each unquoted."""
    path, mark, query = name.partition("?")
    values = parse_qs(query) if mark else {}
    forms = [name, *values.get("d", ()), *filter(None, map(_of_base64, values.get("fileuri", ()))), path]
    return [*forms, *map(unquote, forms), *(unquote_plus(unquote(form)) for form in forms)]  # some are quoted twice


def is_labeled_region(region: Any) -> bool:
    """Return whether a region of a Label Studio task has a label."""
    value = region.get("value") if isinstance(region, dict) else None
    return isinstance(value, dict) and any(name.endswith("labels") for name in value)


def image_reference(task: dict) -> str | None:
    """Return the image of a Label Studio task, a value of its data.

    Its key is often the name of the tag that the regions are in, or `image`; else the first one that names an image.
    """
    data, annotations = task.get("data"), task.get("annotations")
    texts = {key: value for key, value in data.items() if isinstance(value, str)} if isinstance(data, dict) else {}
    results = [one.get("result") for one in annotations or () if isinstance(one, dict)]
    regions = [region for result in results if isinstance(result, list) for region in result]
    named = [
        key
        for key, text in texts.items()
        if any(PurePosixPath(form).suffix.lower() in IMAGE_SUFFIXES for form in _name_forms(text))
    ]
    tags = {str(region.get("to_name")) for region in regions if is_labeled_region(region)}
    key = next(filter(texts.__contains__, [*(tags & {*named}), "image", *named, *texts]), None)
    return None if key is None else texts[key]


def _of_base64(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(f"{text.replace(' ', '+')}==").decode()
    except ValueError:
        return ""


def _uploaded(name: str) -> str:
    """Return the name that Django's get_valid_filename makes."""
    return re.sub(r"[^-\w.]", "", name.strip().replace(" ", "_"))


def _stems(names: Iterable[str]) -> Iterator[str]:
    """Yield names to which a suffix can be added: complete, and without what looks like a suffix."""
    for name in names:
        yield name
        yield _SUFFIX.sub("", name)


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


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
        self._annotated: dict[str, str] = {}

    def report_unread(self) -> None:
        """Warn of images in a format that is not read.

        Raises:
            InputError: there are no others.
        """
        if not (note := note_of_unread(FolderFiles(self.folder, UNREAD_SUFFIXES).names)):
            return
        if not self.names:
            raise InputError(f"{self.folder}: {note}; there are no other images")
        print(f"warning: {note}")

    def named(self, name: object, *others: str, split: str | None = None, label_file: str | None = None) -> str:
        """Return the image that an annotated name refers to: the same name, the unquoted name, or the same stem.

        `others` are tried after `name`, for example the name of the label file. If no image matches, a name inside the
        folder is returned, and the conversion reports it as missing.

        Raises:
            InputError: to which the caller adds the context, for a name that no file can have and for a second name
                of the same image.
        """
        names = [checked_name(one).removeprefix(f"{self.folder.resolve()}/") for one in (name, *others) if one]
        if not names:
            raise InputError(f"has file name {shown(name)}: expected a name relative to the image folder")
        matched, annotated = self._match(names, split, label_file)
        if (other := self._named.setdefault(matched, annotated)) != annotated:
            raise InputError(
                f"names {shown(annotated)}, and an earlier entry {shown(other)}: both match {shown(matched)}, "
                f"the only such file; expected both in {self.folder}, or annotations without one of them"
            )
        return matched

    def of_label_file(self, label: str, inner: str, *, split: str | None) -> tuple[str, str | None]:
        """Return the image of a label file (its path without a suffix) that names the image `inner`, and a note.

        Images are renamed with their label files, whose content keeps the former name: where both names are images,
        that of the label file counts, and the note says so. Without an image of its name, `inner` counts.

        Raises:
            InputError: as `named` does.
        """
        if PurePosixPath(inner.replace("\\", "/")).stem == PurePosixPath(label).name:
            return self.named(inner, label, split=split), None
        matched = self.named(label, inner, split=split)
        other = None
        with contextlib.suppress(InputError):  # it matches several
            other = self.find(inner, split=split)
        if other in (None, matched):
            return matched, None
        inner = PurePosixPath(inner.replace("\\", "/")).name
        return matched, f"names {shown(inner)}, which exists, too: taken as the labels of {matched}, as it is called"

    def _match(self, names: list[str], split: str | None, label_file: str | None) -> tuple[str, str]:
        """Return the image and the name that it matches."""
        if match := self.find(names[0], split=split, label_file=label_file):
            return match, names[0]
        for name in names:
            forms = _name_forms(name)
            for form in dict.fromkeys([*forms, *(stem + suffix for stem in _stems(forms) for suffix in _SUFFIXES)]):
                if match := self.find(form, split=split, label_file=label_file):
                    if _parts(names[0])[-1:] not in (_parts(match)[-1:], _parts(PurePosixPath(match).stem)):
                        self._annotated[match] = names[0]
                    return match, name
        for name in names:
            if match := next(filter(None, map(self.find_upload, _name_forms(name))), None):
                self._annotated[match] = names[0]
                return match, name
        parts = [part for part in names[0].replace("\\", "/").split("/") if part not in ("", ".", "..")]
        missing = "/".join(parts) or "unnamed"
        if len(missing) > _LONGEST_MISSING:
            raise InputError(f"has file name {shown(names[0])}, which is not in {self.folder}")
        return (missing if PurePosixPath(missing).suffix else f"{missing}.jpg"), names[0]

    def note_of_other_names(self, names: Iterable[str]) -> str | None:
        """Return a note if images are annotated under another name, which was unquoted or lacks the right suffix."""
        if not (renamed := [name for name in names if name in self._annotated]):
            return None
        example = f"{shown(self._annotated[renamed[0]])} is {shown(renamed[0])}"
        return f"{len(renamed)} images have another name in the annotations: {example}"

    def size(self, name: str, *, upright: bool = False) -> tuple[int, int] | None:
        """Return (height, width) from the header, of the stored or the upright image; None if it is not an image."""
        shape = stored_shape(self.path(name))
        return None if shape is None else shape.upright_size if upright else shape.size

    def in_pixels(self, image: AnnotatedImage) -> None:
        """Set the size of an image that is `in_shares`; convert its boxes to pixels, unless its file is unreadable."""
        size = self.size(image.file_name, upright=image.is_upright)
        if size is not None and min(size) > 0:
            image.size, image.in_shares = size, False
            image.objects = [in_hundredths(one, size) for one in image.objects]
