"""Class names and category ids: the only place that knows both numberings.

Inside, classes are 0 .. K-1 in ascending order of the data set's own category ids; records and COCO files hold the ids.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from object_detection.errors import InputError

_SHARD_NAME = re.compile(r"(?P<prefix>.+)-\d{5}-of-\d{5}(\.tfrecord)?")


@dataclass(frozen=True)
class ClassNames:
    """The classes a data set names, in ascending order of category id."""

    category_ids: tuple[int, ...]
    names: tuple[str, ...]

    def __post_init__(self):
        if len(self.category_ids) != len(self.names) or not self.names:
            raise InputError(f"class names: {len(self.category_ids)} ids and {len(self.names)} names; "
                             "wanted the same number, at least one")
        if list(self.category_ids) != sorted(set(self.category_ids)):
            raise InputError(f"class names: category ids {list(self.category_ids)} are not ascending and distinct")

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def from_categories(cls, categories: list[dict]) -> "ClassNames":
        """From COCO's list of `{"id": ..., "name": ...}`, in any order."""
        ordered = sorted((category["id"], str(category["name"])) for category in categories)
        return cls(tuple(i for i, _ in ordered), tuple(name for _, name in ordered))

    def to_categories(self) -> list[dict]:
        """COCO's list of categories."""
        return [{"id": i, "name": name} for i, name in zip(self.category_ids, self.names, strict=True)]

    def write(self, path: str | Path) -> None:
        """Write as `{"categories": [...]}`."""
        Path(path).write_text(json.dumps({"categories": self.to_categories()}, indent=1) + "\n", encoding="utf-8")


def read_class_names(path: str | Path) -> ClassNames:
    """Read any json with COCO's `categories`: a `.classes.json`, an annotation file, or a checkpoint's own.

    Raises InputError, naming the file, where that list is missing or broken.
    """
    try:
        return ClassNames.from_categories(json.loads(Path(path).read_text(encoding="utf-8-sig"))["categories"])
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no list of categories with id and name in it ({error})") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def class_file_of(record_path: str | Path) -> Path:
    """`<prefix>.classes.json` beside a shard `<prefix>-00000-of-00032.tfrecord`."""
    path = Path(record_path)
    match = _SHARD_NAME.fullmatch(path.name)
    return path.with_name((match["prefix"] if match else path.stem) + ".classes.json")


def class_names_of_records(record_paths: list[str]) -> ClassNames | None:
    """The class names beside the shards; None where no shard has any (records made elsewhere).

    Raises InputError where shards of different class sets are mixed.
    """
    files = sorted({class_file_of(path) for path in record_paths})
    found = {path: read_class_names(path) for path in files if path.exists()}
    if len(set(found.values())) > 1:
        raise InputError(f"the records mix different class sets: {', '.join(map(str, found))}")
    return next(iter(found.values()), None)
