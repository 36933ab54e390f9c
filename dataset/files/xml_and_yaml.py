"""Parse untrusted XML and YAML files.

XML: any text encoding, without entities, which annotations do not need. YAML: text, lists and dictionaries, without
aliases, tags and duplicate keys.
"""

import codecs
import os
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from typing import Any

import yaml

from dataset.files.bounded_files import NOT_UTF_8, decoded_text, file_errors, read_regular_file, read_text_file
from dataset.files.untrusted_values import error_context, shown
from program_support.errors import InputError

_DECLARED_ENCODING = re.compile(rb"""(?:\xef\xbb\xbf)?<\?xml\s[^>]*?encoding\s*=\s*["']([^"'>]*)["']""")
_NOT_FOR_FILES = {"idna", "unicode-escape", "raw-unicode-escape"}
# Windows declares the first but writes the second, a superset.
_SUPERSETS = {"gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "cp950"}


def read_xml(path: str | os.PathLike, *, root_tag: str, what: str) -> tuple[ElementTree.Element, bytes]:
    """Return the root of a file, which must be `root_tag`, and its bytes.

    Raises:
        InputError: with the file name.
    """
    with file_errors(path):
        content = read_regular_file(path)
    try:
        root = parse_xml(content)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    if root.tag != root_tag:
        raise InputError(f"{path}: is not {what}: found <{shown(root.tag)[1:-1]}> at the top, expected <{root_tag}>")
    return root, content


def parse_xml(content: bytes) -> ElementTree.Element:
    """Return the root of an XML file, decoded by its declaration or byte order mark, else as UTF-8.

    Raises:
        ValueError: with a one-line reason.
    """
    text = _decoded(content)
    if "<!ENTITY" in text:
        raise ValueError("declares entities, which can grow without bound; expected plain XML")
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"is not XML ({str(error)[:120]})") from error


def _decoded(content: bytes) -> str:
    declaration = _DECLARED_ENCODING.match(content[:1000])
    name = declaration[1].decode("ascii", "replace") if declaration else "utf-8"
    if (codec := _ascii_superset(name)) is None:
        raise ValueError(
            f"declares the encoding {shown(name)}, which is unknown or does not match the file; expected UTF-8"
        )
    try:
        if codec == "utf-8":
            return decoded_text(content)
        try:
            return content.decode(codec)
        except UnicodeDecodeError:
            return content.decode(_SUPERSETS.get(codec, codec))
    except UnicodeDecodeError as error:
        raise ValueError(NOT_UTF_8 if codec == "utf-8" else f"is not valid {codec} ({str(error)[:120]})") from error


def _ascii_superset(name: str) -> str | None:
    """Return Python's name of a text encoding if it is a superset of ASCII, else None."""
    try:
        codec = codecs.lookup(name).name
        return codec if b"<?xml?>".decode(codec) == "<?xml?>" and codec not in _NOT_FOR_FILES else None
    except (LookupError, ValueError):
        return None


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
    text, content = read_text_file(path)
    if len(content) > _MOST_BYTES:
        raise InputError(f"{path}: has {len(content)} bytes, expected at most {_MOST_BYTES}")
    try:
        with error_context(f"{path}:"):
            return yaml.load(text, Loader=loader), content
    except InputError:
        raise
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
