"""Class names and category ids, the mapping between class indices and category ids, and files that name classes.

Class indices are 0 .. K-1 in ascending order of the data set's category ids; records and COCO files hold category ids.
Files of this project and of other tools are read: JSON, YAML, label maps (.pbtxt) and lists of names.
"""

import json
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dataset.files.bounded_files import read_json, read_text_file
from dataset.files.untrusted_values import LARGEST_ID, error_context, listed, shown, storable_text, whole_number
from program_support.atomic_files import write_text
from program_support.errors import InputError, printable

LONGEST_CLASS_NAME = 200  # characters; the longest names of public data sets have fewer than 100
_SHARD_NAME = re.compile(r"(?P<prefix>.+)-\d{5}-of-\d{5}(\.tfrecord)?")


@dataclass(frozen=True)
class ClassNames:
    """The classes of a data set in ascending order of category id, with distinct names.

    Label maps, VOC files and results identify a class by its name: training would treat the boxes of two classes with
    the same name as each other's background.
    """

    category_ids: tuple[int, ...]
    names: tuple[str, ...]

    def __post_init__(self):
        if len(self.category_ids) != len(self.names) or not self.names:
            raise InputError(
                f"class names: {len(self.category_ids)} ids and {len(self.names)} names; "
                "expected the same number, at least one"
            )
        if list(self.category_ids) != sorted(set(self.category_ids)):
            raise InputError(
                f"class names: category ids {shown(list(self.category_ids))} are not ascending and distinct"
            )
        if len(set(self.names)) < len(self.names):
            name = Counter(self.names).most_common(1)[0][0]
            ids = [number for number, other in zip(self.category_ids, self.names, strict=True) if other == name]
            raise InputError(
                f"class names: {shown(name)} is the name of categories {shown(ids)}, expected distinct names: "
                "give both the same id, or rename or delete one"
            )

    def __len__(self) -> int:
        return len(self.names)

    def by_id(self) -> dict[int, str]:
        """Return the names by category id."""
        return dict(zip(self.category_ids, self.names, strict=True))

    def by_name(self) -> dict[str, int]:
        """Return the category ids by name."""
        return dict(zip(self.names, self.category_ids, strict=True))

    def has_names_of(self, other: "ClassNames") -> bool:
        """Return whether both have the same class names, regardless of category ids and order."""
        return set(self.names) == set(other.names)

    @classmethod
    def numbered(cls, names: Sequence[str]) -> "ClassNames":
        """Return names with category ids 1, 2, ..."""
        return cls(tuple(range(1, len(names) + 1)), tuple(names))

    @classmethod
    def from_categories(cls, categories: list[dict]) -> "ClassNames":
        """Create from COCO's list of `{"id": ..., "name": ...}` in any order; whitespace around names is stripped."""
        ordered = sorted(_id_and_name(entry, index) for index, entry in enumerate(categories))
        return cls(tuple(i for i, _ in ordered), tuple(name for _, name in ordered))

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[Any, Any]]) -> "ClassNames":
        """Create from pairs of id and name as `from_categories` does."""
        return cls.from_categories([{"id": number, "name": name} for number, name in pairs])

    def to_categories(self) -> list[dict]:
        """Return COCO's list of categories: dictionaries with `id` and `name`, in ascending order of id."""
        return [{"id": number, "name": name} for number, name in self.by_id().items()]

    def numbered_from_one(self) -> "ClassNames":
        """Return the classes with ids from 1 on, in their order: CVAT reads no class 0 (issue 4750 of CVAT)."""
        shift = max(0, 1 - self.category_ids[0])
        return replace(self, category_ids=tuple(number + shift for number in self.category_ids))

    def write(self, path: str | Path) -> None:
        """Write `{"categories": [...]}` atomically.

        Raises:
            OSError: the file cannot be written.
        """
        write_text(path, json.dumps({"categories": self.to_categories()}, indent=1) + "\n")


def read_class_names(path: str | Path) -> ClassNames:
    """Read a JSON file with COCO's `categories`: a `.classes.json`, an annotation file or the metadata of a checkpoint.

    Raises:
        InputError: with the file name if the list is missing or invalid.
    """
    return class_names_in(read_json(str(path)), path)


def class_names_in(content: Any, path: str | Path) -> ClassNames:
    """Return the class names in the content of a JSON file.

    Raises:
        InputError: as `read_class_names` does.
    """
    with error_context(f"{path}:"):
        if not isinstance(content, dict) or not isinstance(content.get("categories"), list):
            raise InputError("holds no list of categories with id and name")
        return ClassNames.from_categories(content["categories"])


def _id_and_name(entry: object, index: int) -> tuple[int, str]:
    with error_context(f"categories[{index}]"):
        if not isinstance(entry, dict):
            raise InputError(f"is {shown(entry)}, expected an object")
        category_id = whole_number(entry.get("id"), "id", least=-LARGEST_ID)
    with error_context(f"category {category_id}"):
        return category_id, checked_class_name(entry.get("name"))


def checked_class_name(value: Any) -> str:
    """Return a class name without whitespace around it.

    Raises:
        InputError: for other values than a line of text; the caller adds the context.
    """
    name = storable_text(value, "name").strip()
    if len(name) > LONGEST_CLASS_NAME:
        raise InputError(f"has a name of {len(name)} characters, {shown(name)}; expected at most {LONGEST_CLASS_NAME}")
    if not name or printable(name) != name:
        raise InputError(f"has name {shown(name)}, expected text of one line without control characters")
    return name


def note_of_alike_names(names: Sequence[str]) -> str | None:
    """Return what is to be said of classes whose names differ only in case, spaces or punctuation; None without any."""
    groups = defaultdict(list)
    for name in names:
        letters = unicodedata.normalize("NFKC", name.casefold())
        groups["".join(letter for letter in letters if letter.isalnum())].append(name)
    if not (same := [" = ".join(map(repr, group)) for group in groups.values() if len(group) > 1]):
        return None
    return (
        f"class names differ only in case or spaces: {listed(same)}; merge them if they are one class: each treats the "
        "objects of the other as background"
    )


def class_file_of(record_path: str | Path) -> Path:
    """Return the path `<prefix>.classes.json` for a shard `<prefix>-00000-of-00032.tfrecord`."""
    return beside_records(record_path, ".classes.json")


def beside_records(record_path: str | Path, suffix: str) -> Path:
    """Return the path `<prefix><suffix>` of a file that a conversion writes next to its shards."""
    path = Path(record_path)
    match = _SHARD_NAME.fullmatch(path.name)
    return path.with_name((match["prefix"] if match else path.stem) + suffix)


def class_names_of_records(record_paths: list[str]) -> ClassNames | None:
    """Return the class names stored next to the shards, or None if there are none (records of other tools).

    Raises:
        InputError: the shards have different class sets.
    """
    files = sorted({class_file_of(path) for path in record_paths})
    by_file = {path: read_class_names(path) for path in files if path.exists()}
    if len(set(by_file.values())) > 1:
        raise InputError(f"the records mix different class sets: {', '.join(map(str, by_file))}")
    return next(iter(by_file.values()), None)


_COCO_2017 = (
    "1 person|2 bicycle|3 car|4 motorcycle|5 airplane|6 bus|7 train|8 truck|9 boat|10 traffic light|11 fire hydrant|"
    "13 stop sign|14 parking meter|15 bench|16 bird|17 cat|18 dog|19 horse|20 sheep|21 cow|22 elephant|23 bear|"
    "24 zebra|25 giraffe|27 backpack|28 umbrella|31 handbag|32 tie|33 suitcase|34 frisbee|35 skis|36 snowboard|"
    "37 sports ball|38 kite|39 baseball bat|40 baseball glove|41 skateboard|42 surfboard|43 tennis racket|44 bottle|"
    "46 wine glass|47 cup|48 fork|49 knife|50 spoon|51 bowl|52 banana|53 apple|54 sandwich|55 orange|56 broccoli|"
    "57 carrot|58 hot dog|59 pizza|60 donut|61 cake|62 chair|63 couch|64 potted plant|65 bed|67 dining table|"
    "70 toilet|72 tv|73 laptop|74 mouse|75 remote|76 keyboard|77 cell phone|78 microwave|79 oven|80 toaster|81 sink|"
    "82 refrigerator|84 book|85 clock|86 vase|87 scissors|88 teddy bear|89 hair drier|90 toothbrush"
)

# Published COCO checkpoints do not store class names; they use these.
COCO_2017 = ClassNames.from_pairs(
    (int(number), name) for number, _, name in (entry.partition(" ") for entry in _COCO_2017.split("|"))
)


CLASS_FILE_SUFFIXES = (".json", ".pbtxt", ".yaml", ".yml", ".txt", ".names")
_KEYS = ("names", "label_map", "classes")  # ultralytics', google/automl's and others' keys
_BACKGROUND = ("background", "__background__", "???")  # the first name of lists that count the background
_NUMBERED_LINE = re.compile(r"(\d{1,18})\s*[:,\s]\s*(\S.*)")
_TOKEN = re.compile(r"""#[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[{}<>]|[^\s{}<>:,;#"']+""")


def read_class_file(path: str | os.PathLike[str]) -> ClassNames:
    """Return the classes of a file with one of CLASS_FILE_SUFFIXES.

    JSON and YAML may have COCO's `categories`, a list of names, or a mapping from ids to names or from names to ids,
    also below `names`, `label_map` or `classes`. Lists are numbered from 1. An entry named "background" is no class.

    Raises:
        InputError: the file cannot be read or names no classes.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in CLASS_FILE_SUFFIXES:
        raise InputError(f"{path}: expected a file of class names with a suffix of {', '.join(CLASS_FILE_SUFFIXES)}")
    if suffix == ".json":
        content = read_json(str(path))
    elif suffix in (".yaml", ".yml"):
        from dataset.files.xml_and_yaml import read_yaml  # PyYAML takes 15 ms to import

        content, _ = read_yaml(path)
    else:
        content = _entries_of_text(path, is_label_map=suffix == ".pbtxt")
    if isinstance(content, dict) and isinstance(content.get("categories"), list):
        return class_names_in(content, Path(path))
    with error_context(f"{path}:"):
        return class_names_from(content)


def parse_class_names(given: str | os.PathLike[str] | Sequence[str]) -> ClassNames:
    """Return the classes of a list of names, of comma-separated names, or of a file.

    Raises:
        InputError: for others.
    """
    if isinstance(given, os.PathLike) or (isinstance(given, str) and given.lower().endswith(CLASS_FILE_SUFFIXES)):
        return read_class_file(os.fspath(given))
    return class_names_from(given.split(",") if isinstance(given, str) else list(given))


def class_names_from(content: Any) -> ClassNames:
    """Return the classes of a list of names or of a mapping, see `read_class_file`.

    Raises:
        InputError: for others.
    """
    if isinstance(content, dict):
        nested = next((content[key] for key in _KEYS if isinstance(content.get(key), list | dict)), None)
        if nested is not None:
            return class_names_from(nested)
        pairs = _ids_and_names(content)
    elif isinstance(content, list) and all(isinstance(name, str) for name in content):
        first = 0 if content and content[0].strip() in _BACKGROUND else 1
        pairs = list(enumerate(content, start=first))
    else:
        pairs = []
    classes = [(number, name) for number, name in pairs if str(name).strip() not in _BACKGROUND]
    if not classes:
        raise InputError(f"holds {shown(content)}; expected class names: a list, or a mapping of ids and names")
    return ClassNames.from_pairs(classes)


def _ids_and_names(content: Mapping) -> list[tuple[int, Any]]:
    """Return the pairs of a mapping from ids to names, or from names to ids; none for any other mapping."""
    for pairs in (list(content.items()), [(value, key) for key, value in content.items()]):
        if all(_is_id(number) and isinstance(name, str) for number, name in pairs):
            return [(int(number), name) for number, name in pairs]
    return []


def _is_id(value: Any) -> bool:
    if isinstance(value, str):  # keys of JSON, scalars of YAML
        return value.isascii() and value.isdecimal() and len(value) <= len(str(LARGEST_ID))
    return type(value) is int


def _entries_of_text(path: str | os.PathLike[str], *, is_label_map: bool) -> list[str] | dict[int, str]:
    text, _ = read_text_file(path)
    if is_label_map:
        with error_context(f"{path}:"):
            return _label_map_items(_TOKEN.findall(text))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    numbered = [_NUMBERED_LINE.fullmatch(line) for line in lines]
    by_number = {int(line[1]): line[2] for line in numbered if line}
    return by_number if lines and len(by_number) == len(lines) else lines


def _label_map_items(tokens: Iterable[str]) -> dict[int, str]:
    """Return display_name, else name, of each item by its id in a StringIntLabelMap of TensorFlow's detection API."""
    names: dict[int, str] = {}
    item: dict[str, str] = {}
    depth, key = 0, ""
    for token in tokens:
        if token in "{<":
            depth, key = depth + 1, ""
            item = {} if depth == 1 else item
        elif token in "}>":
            depth -= 1
            if depth == 0:
                if not _is_id(item.get("id")) or not (name := item.get("display_name") or item.get("name")):
                    raise InputError(f"has the item {shown(item)}; expected an id and a name")
                if int(item["id"]) in names:
                    raise InputError(f"gives the id {item['id']} twice")
                names[int(item["id"])] = name
        elif depth == 1 and not token.startswith("#"):
            if key:
                item[key], key = re.sub(r"\\(.)", r"\1", token[1:-1]) if token[0] in "\"'" else token, ""
            else:
                key = token
    return names
