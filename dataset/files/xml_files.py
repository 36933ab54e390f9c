"""Parse XML files of any text encoding, without entities, which annotations do not need."""

import codecs
import os
import re
import xml.etree.ElementTree as ElementTree

from dataset.files.bounded_files import NOT_UTF_8, read_regular_file
from dataset.files.untrusted_values import shown
from program_support.errors import InputError

_DECLARED_ENCODING = re.compile(rb"""(?:\xef\xbb\xbf)?<\?xml\s[^>]*?encoding\s*=\s*["']([^"'>]*)["']""")
_READ_BY_EXPAT = {"utf-8", "utf-16", "us-ascii", "iso-8859-1"}
# Byte order marks, and "<" without one; those of UTF-32 come first because they begin with those of UTF-16.
_WIDE_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (b"<\0\0\0", "utf-32-le"),
    (b"\0\0\0<", "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (b"<\0", "utf-16-le"),
    (b"\0<", "utf-16-be"),
)
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
    """Return the root of an XML file, decoded by its byte order mark or declaration, else as UTF-8.

    Raises:
        ValueError: with a one-line reason.
    """
    text = _decoded(content)
    if b"<!ENTITY" in text if isinstance(text, bytes) else "<!ENTITY" in text:
        raise ValueError("declares entities, which can grow without bound; expected plain XML")
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        if isinstance(text, bytes) and not _is_utf_8(text):
            raise ValueError(NOT_UTF_8) from error
        raise ValueError(f"is not XML ({str(error)[:120]})") from error


def _is_utf_8(content: bytes) -> bool:
    try:
        return bool(content.decode()) or True
    except UnicodeDecodeError:
        return False


def _decoded(content: bytes) -> bytes | str:
    """Return text, or bytes that the parser decodes itself."""
    for mark, encoding in _WIDE_ENCODINGS:
        if content.startswith(mark):
            return _text(content, encoding)
    declaration = _DECLARED_ENCODING.match(content[:1000])
    if declaration is None:
        return content
    name = declaration[1].decode("ascii", "replace")
    if name.lower() in _READ_BY_EXPAT:
        return content
    if (codec := _ascii_superset(name)) is None:
        raise ValueError(
            f"declares the encoding {shown(name)}, which is unknown or does not match the file; expected UTF-8"
        )
    return _text(content.removeprefix(codecs.BOM_UTF8), codec)


def _ascii_superset(name: str) -> str | None:
    """Return Python's name of a text encoding if it is a superset of ASCII, else None."""
    try:
        codec = codecs.lookup(name).name
        return codec if b"<?xml?>".decode(codec) == "<?xml?>" and codec not in _NOT_FOR_FILES else None
    except (LookupError, ValueError):
        return None


def _text(content: bytes, encoding: str) -> str:
    try:
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            return content.decode(_SUPERSETS.get(encoding, encoding))
    except UnicodeError as error:
        raise ValueError(f"is not valid {encoding} ({str(error)[:120]})") from error
