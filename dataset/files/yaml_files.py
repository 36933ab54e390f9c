"""Read untrusted YAML files as text, lists and dictionaries: no aliases, no tags, no duplicate keys."""

import os
from collections import Counter
from typing import Any

import yaml

from dataset.files.bounded_files import NOT_UTF_8, decoded_text, read_regular_file
from dataset.files.untrusted_values import shown
from program_support.errors import InputError

_MOST_BYTES = 1 << 20  # PyYAML reads a MiB in a few seconds


class _Plain(yaml.composer.Composer, yaml.constructor.BaseConstructor):
    """Rejects aliases, which can expand without bound, and duplicate keys, which would be dropped silently."""

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            raise InputError("uses aliases, which can grow without bound; expected plain YAML")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            twice = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)).most_common(1)
            raise InputError(f"gives a key twice: {shown(twice[0][0]) if twice else 'a list or mapping'}")
        return mapping


class _TextLoader(_Plain, yaml.BaseLoader):
    """Keeps all scalars as text, including `yes`, 007 and dates, because they may be names."""


class ValueLoader(_Plain, yaml.SafeLoader):
    """Reads numbers, booleans and null as in YAML 1.1, and the tuples that Python programs write."""


ValueLoader.add_constructor(
    "tag:yaml.org,2002:python/tuple", lambda loader, node: tuple(loader.construct_sequence(node, deep=True))
)


def read_yaml(path: str | os.PathLike, *, loader: type = _TextLoader) -> tuple[Any, bytes]:
    """Return the content of a regular UTF-8 YAML file of at most 1 MiB, and its bytes.

    Scalars are text, or as `loader` reads them.

    Raises:
        InputError: with the file name.
    """
    try:
        content = read_regular_file(path)
        if len(content) > _MOST_BYTES:
            raise InputError(f"has {len(content)} bytes, expected at most {_MOST_BYTES}")
        return yaml.load(decoded_text(content), Loader=loader), content
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {NOT_UTF_8}") from error
    except RecursionError as error:
        raise InputError(f"{path}: is nested too deeply to parse") from error
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
    ) as error:  # such as `!!timestamp 5`, `!!bool x`
        raise InputError(f"{path}: is not YAML ({' '.join(str(error).split())[:120]})") from error
