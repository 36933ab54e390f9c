"""YAML files of others as text, lists and dictionaries: no aliases, no tags, no key given twice."""

import os
from typing import Any

import yaml

from dataset.files.bounded_files import read_regular_file
from dataset.files.foreign_values import shown
from object_detection.errors import InputError

_MOST_BYTES = 1 << 20  # PyYAML reads a MiB in a few seconds


class _PlainLoader(yaml.BaseLoader):
    """Leaves `yes`, 007 and dates the text that they are, for they may be names. Refuses aliases, by which a short file can
    stand for one without bound, and keys of which one would vanish."""

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            raise InputError("uses aliases, which can grow without bound; wanted plain YAML")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            raise InputError(f"gives a key twice: {shown([key.value for key, _ in node.value])}")
        return found


def read_yaml(path: str | os.PathLike) -> tuple[Any, bytes]:
    """What a YAML file in UTF-8 of at most a MiB holds, every scalar as text, and its bytes. Raises InputError, naming the
    file."""
    try:
        content = read_regular_file(path)
        if len(content) > _MOST_BYTES:
            raise InputError(f"is of {len(content)} bytes, wanted at most {_MOST_BYTES}")
        return yaml.load(content.decode("utf-8-sig"), Loader=_PlainLoader), content
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except RecursionError as error:
        raise InputError(f"{path}: is nested too deeply to be read") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}: is not YAML ({' '.join(str(error).split())[:120]})") from error
