"""Records of other tools: their class names, and the names of their images.

Records of TensorFlow's Object Detection API, and of Roboflow, name the class of each object in
image/object/class/text; a label map (.pbtxt) often lies beside them. Their image ids may be text.
"""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from dataset.class_files import read_class_file
from dataset.class_names import ClassNames, class_file_of
from dataset.records.labeled_records import record_places
from dataset.records.record_fields import record_fields
from dataset.records.record_index import RecordIndex, index_records
from program_support.errors import InputError

_TEXT, _LABELS = b"image/object/class/text", b"image/object/class/label"
_NAME, _ID, _ENCODED = b"image/filename", b"image/source_id", b"image/encoded"
NUMERIC_ID = r"[0-9]{1,18}"
_RECORDS_COMPARED = 100  # of a file, with the class names beside it


def label_map_beside(paths: Sequence[str]) -> ClassNames | None:
    """Return the classes of the label map (.pbtxt) in the folders of records, or in the folder above; None without one.

    Raises:
        InputError: for an invalid one and for several with different classes.
    """
    folders = sorted({Path(path).parent for path in paths})
    for places in (folders, sorted({folder.parent for folder in folders})):
        by_file = {path: read_class_file(path) for place in places for path in sorted(place.glob("*.pbtxt"))}
        if len({*by_file.values()}) > 1:
            raise InputError(f"{', '.join(map(str, by_file))}: name different classes; expected one label map")
        if by_file:
            return next(iter(by_file.values()))
    return None


def require_names_beside(paths: Sequence[str], class_names: ClassNames) -> None:
    """Raise InputError if the first file of a prefix names a class otherwise than the file beside the records.

    It is of another conversion, as after a copy, or beside other records only.
    """
    of_id = dict(zip(class_names.category_ids, class_names.names, strict=True))
    for class_file, path in {class_file_of(path): path for path in reversed(paths)}.items():
        named = classes_in_records([path], most=_RECORDS_COMPARED)
        for number, name in zip(named.category_ids, named.names, strict=True) if named else ():
            if of_id.get(number, name) != name:
                raise InputError(
                    f"{path}: class {number} is {name} in its records, and {of_id[number]} in the file of class names; "
                    f"expected {class_file} of the same conversion; copy it with the records, or convert again"
                )


def classes_in_records(paths: Sequence[str], *, most: int | None = None) -> ClassNames | None:
    """Return the classes that the objects of the first `most` records name; None if none do or they cannot be read.

    Raises:
        InputError: for an id with two names.
    """
    try:
        index, names = index_records(paths), dict[int, str]()
    except InputError:
        return None  # reported by the reader
    for number, buffer, start in record_places(index, np.arange(len(index))[:most]):
        try:
            fields = record_fields(buffer, start, start + int(index.lengths[number]), {_TEXT, _LABELS})
        except ValueError:
            continue  # reported by the reader, with the place
        texts, labels = fields.get(_TEXT, []), np.asarray(fields.get(_LABELS, []), np.int64).tolist()
        if len(texts) != len(labels):
            continue
        for label, text in {*zip(labels, texts, strict=True)}:
            name = text.decode("utf-8", "replace").strip()
            if names.setdefault(label, name) != name:
                raise InputError(
                    f"{index.path(number)}: class {label} is named {names[label]} in one record and {name} in another"
                )
    return ClassNames.from_categories([{"id": label, "name": name} for label, name in names.items()]) if names else None


def image_names_of_text_ids(index: RecordIndex) -> list[tuple[str, bytes]]:
    """Return file name and text of the id of each record, or nothing if the ids are numbers.

    An empty id is replaced by the encoded image, as in `parse_record`.
    """
    names: list[tuple[str, bytes]] = []
    for number, buffer, start in record_places(index, np.arange(len(index))):
        fields = record_fields(buffer, start, start + int(index.lengths[number]), {_NAME, _ID, _ENCODED})
        text = b"".join(fields.get(_ID, ()))
        if not names and re.fullmatch(NUMERIC_ID.encode(), text):
            return []
        name = (b"".join(fields.get(_NAME, ())) or text).decode("utf-8", "replace")
        names.append((PurePosixPath(name).name, text or b"".join(fields.get(_ENCODED, ()))))
    return names
