"""Parsing of `--hparams`: text, or the YAML file that it names."""

import ast
from collections import Counter
from collections.abc import Mapping
from typing import Any

from dataset.class_files import class_names_from, parse_class_names
from dataset.class_names import COCO_2017, ClassNames
from dataset.files.untrusted_values import error_context, shown
from dataset.files.yaml_files import ValueLoader, read_yaml
from efficientdet.families.hyperparameters import flattened
from program_support.errors import InputError


def parse_overrides(text: str | Mapping[str, Any]) -> dict[str, Any]:
    """Parse `a=1,b.c=2,x=1*2*3`, the path of a .yaml file, or a mapping to flat overrides with Python values."""
    if not text:
        return {}
    if isinstance(text, Mapping):
        return {key: value for name, values in text.items() for key, value in flattened(name, values).items()}
    if "=" not in text or text.endswith((".yaml", ".yml")):
        return _read_yaml(text)
    items = []
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise InputError(
                f"--hparams: {shown(item)} in {shown(text)}; expected comma-separated key=value items, or a .yaml file"
            )
        items.append((key, tuple(map(_literal, value.split("*"))) if "*" in value else _literal(value)))
    return _distinct(items, where=shown(text)[1:-1])


def split_label_map(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], ClassNames | None]:
    """Return overrides without google/automl's `label_map`, and its classes: a mapping, a file of names or "coco"."""
    others = {key: value for key, value in overrides.items() if key.partition(".")[0] != "label_map"}
    mapping = {key.removeprefix("label_map."): str(value) for key, value in overrides.items() if key not in others}
    if not mapping or overrides.get("label_map", "") is None:
        return others, None
    with error_context("hparam label_map:"):
        value = overrides.get("label_map")
        if value == "coco":
            return others, COCO_2017
        return others, parse_class_names(value) if isinstance(value, str) else class_names_from(value or mapping)


def _literal(text: str) -> Any:
    lowered = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in lowered:
        return lowered[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        content, _ = read_yaml(path, loader=ValueLoader)
    except InputError as error:
        raise InputError(f"--hparams={error}; expected a .yaml file or key=value items") from error
    if not isinstance(content, dict):
        raise InputError(f"--hparams={path}: holds {type(content).__name__}; expected a mapping of keys to values")
    flat = _distinct([item for key, values in content.items() for item in flattened(key, values).items()], where=path)
    # As in the reference, text is parsed again: YAML reads 4e-5 and quoted numbers as text.
    return {key: _literal(value) if isinstance(value, str) else value for key, value in flat.items()}


def _distinct(items: list[tuple[str, Any]], *, where: str) -> dict[str, Any]:
    """Return the items as a dictionary.

    Raises:
        InputError: for a duplicate key.
    """
    mapping = dict(items)
    if len(mapping) < len(items):
        key = Counter(key for key, _ in items).most_common(1)[0][0]
        values = ", ".join(shown(value) for other, value in items if other == key)
        raise InputError(f"--hparams={where}: gives {shown(key)} more than once ({values}); expected each key once")
    return mapping
