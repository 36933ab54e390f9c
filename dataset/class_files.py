"""Class names in files of this project and of other tools: JSON, YAML, label maps (.pbtxt) and lists of names."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dataset.class_names import ClassNames, class_names_in
from dataset.files.bounded_files import read_json, read_text_file
from dataset.files.untrusted_values import LARGEST_ID, error_context, shown
from dataset.files.yaml_files import read_yaml
from program_support.errors import InputError

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
    categories = [{"id": number, "name": name} for number, name in pairs if str(name).strip() not in _BACKGROUND]
    if not categories:
        raise InputError(f"holds {shown(content)}; expected class names: a list, or a mapping of ids and names")
    return ClassNames.from_categories(categories)


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
