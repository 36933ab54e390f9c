import codecs

import pytest

from dataset.files.xml_and_yaml import parse_xml

NAMES = {
    "gb2312": "猫",
    "GBK": "貓",
    "gb18030": "貓",
    "shift_jis": "猫",
    "Shift-JIS": "ネコ",
    "euc-jp": "猫",
    "big5": "貓",
    "euc-kr": "고양이",
    "windows-1251": "кот",
    "koi8-r": "кот",
    "iso-8859-1": "kätzchen",
    "utf-8": "猫",
    "utf-16": "猫",
    "utf-32": "猫",
}


def document(encoding, name):
    return f'<?xml version="1.0" encoding="{encoding}"?>\n<a>{name}</a>'


@pytest.mark.parametrize(("encoding", "name"), NAMES.items())
def test_declared_encodings(encoding, name):
    assert parse_xml(document(encoding, name).encode(encoding)).text == name


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
def test_byte_order_marks(mark, encoding):
    assert parse_xml(mark + "<a>猫</a>".encode(encoding)).text == "猫"


def test_windows_says_gb2312_and_writes_gbk():
    assert parse_xml(document("gb2312", "貓").encode("gbk")).text == "貓"
    assert parse_xml(document("shift_jis", "①").encode("cp932")).text == "①"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (document("klingon", "x").encode(), "declares the encoding 'klingon', which is unknown"),
        (document("zlib", "x").encode(), "declares the encoding 'zlib', which is unknown"),
        (document("unicode_escape", "x").encode(), "declares the encoding 'unicode_escape', which is unknown"),
        (
            document("utf-32", "x").encode(),
            "declares the encoding 'utf-32', which is unknown or does not match the file",
        ),
        (document("gbk", "x").encode() + b"\x81", "is not valid gbk"),
        (document("utf-8", "ö").encode("latin-1"), "is not UTF-8 text"),
        (document("", "x").encode(), "declares the encoding '', which is unknown"),
        (b"<a>&#xD800;</a>", "is not XML"),
        (b"<a>&undefined;</a>", "undefined entity"),
        (b"", "is not XML"),
        (b"<a>" * 50_000 + b"</a>" * 49_999, "is not XML"),
    ],
)
def test_what_is_no_xml(content, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        parse_xml(content)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", "gbk"])
@pytest.mark.parametrize(
    "entity", ['<!ENTITY b "bbb">', '<!ENTITY b SYSTEM "file:///etc/passwd">', '<!ENTITY % b "c">']
)
def test_entities_are_refused(entity, encoding):
    text = f"<?xml version='1.0' encoding='{encoding}'?><!DOCTYPE a [{entity}]><a>x</a>"
    with pytest.raises(ValueError, match="declares entities"):
        parse_xml(text.encode(encoding))


def test_a_document_type_alone_is_harmless():
    assert parse_xml(b"<!DOCTYPE a SYSTEM 'http://127.0.0.1:9/a.dtd'><a>x</a>").text == "x"


def test_depth_is_no_limit():
    assert parse_xml(b"<a>" * 100_000 + b"</a>" * 100_000).tag == "a"
