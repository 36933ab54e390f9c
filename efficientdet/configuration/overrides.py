"""The text of `--hparams`, or the file that it names, as keys with Python values."""

import ast
from pathlib import Path
from typing import Any

import yaml

from efficientdet.configuration.hyperparameters import flattened
from object_detection.errors import InputError


def parse_overrides(text: str) -> dict[str, Any]:
    """`a=1,b.c=2,x=1*2*3` or the path of a .yaml file -> flat overrides with Python values."""
    if not text:
        return {}
    if "=" not in text or text.endswith((".yaml", ".yml")):
        return _read_yaml(text)
    overrides = {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise InputError(f"--hparams: {item!r} in {text!r}; wanted key=value items with commas between, or a .yaml file")
        overrides[key] = tuple(map(_literal, value.split("*"))) if "*" in value else _literal(value)
    return overrides


def _literal(text: str) -> Any:
    lowered = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in lowered:
        return lowered[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


class _YamlLoader(yaml.SafeLoader):
    """Safe; also reads the tuples that the reference's own files hold."""


_YamlLoader.add_constructor("tag:yaml.org,2002:python/tuple",
                            lambda loader, node: tuple(loader.construct_sequence(node, deep=True)))


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_YamlLoader)
    except OSError as error:
        raise InputError(f"--hparams={path}: cannot be read ({error.strerror}); wanted a .yaml file or key=value") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"--hparams={path}: is not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise InputError(f"--hparams={path}: holds {type(content).__name__}; wanted a mapping of keys to values")
    flat = {inner: value for key, values in content.items() for inner, value in flattened(key, values).items()}
    # Text as the reference reads it: YAML takes 4e-5, and whatever stands in quotes, for text.
    return {key: _literal(value) if isinstance(value, str) else value for key, value in flat.items()}
