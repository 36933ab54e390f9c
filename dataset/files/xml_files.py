"""Parse XML files of any text encoding, without entities, which annotations do not need."""

import codecs
import os
import re
import xml.etree.ElementTree as ElementTree

from dataset.files.bounded_files import NOT_UTF_8, decoded_text, read_regular_file
from dataset.files.untrusted_values import shown
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
    try:
        content = read_regular_file(path)
        root = parse_xml(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
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
