"""Recognize the kind of a file by its content, so that errors can suggest what to do with it."""

import csv
import glob
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from dataset.files.bounded_files import NOT_FETCHED, FileNotFetched, file_errors, is_separator_line, open_regular_file
from program_support.checked_fields import Limit
from program_support.plugins import BUNDLED, load_plugins, plugin_names

_HEAD_BYTES = 1 << 16
_MOST_PARSED_BYTES = 1 << 26  # a larger JSON file is not for a single image
_LINES_LOOKED_AT = 20
_MOST_FILES = 50  # files of each suffix in a folder
ANNOTATION_SUFFIXES = (
    *(".xml", ".json", ".yaml", ".yml", ".data", ".csv", ".txt"),
    *(".jsonl", ".ndjson", ".manifest", ".labels"),  # none of them is read, but named
)
_FOLDERS_LOOKED_AT = 100
_MOST_LEVELS = 4  # a zip of VOC has VOCdevkit/VOC2012/Annotations
_OF_A_CONVERSION = re.compile(r"(.+)\.(report|classes|instances)\.json")
_IMAGE_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ")
_FTYP = tuple(b"ftyp" + brand for brand in (b"avif", b"avis", b"heic", b"heix", b"mif1"))  # AVIF and HEIC


class FileKind(Enum):
    """Kinds of files besides those of plugins; the value completes "is ..."."""

    COCO = "a COCO json"
    COCO_RESULTS = "a list of COCO results"
    JSON = "json"
    VOC = "a Pascal VOC annotation"
    XML = "xml"
    YOLO_DATA = "a YOLO data.yaml"
    YOLO_LABELS = "a file of YOLO labels"
    YAML = "yaml"
    CSV = "a csv table"
    UNREAD = "labels of a format that is not read"
    IMAGE = "an image"
    ZIP = "a zip archive"

    @property
    def holds_annotations(self) -> bool:
        """Return whether the file holds labels, which can be converted unless the kind is UNREAD."""
        return self not in (
            FileKind.COCO_RESULTS,
            FileKind.JSON,
            FileKind.XML,
            FileKind.YAML,
            FileKind.IMAGE,
            FileKind.ZIP,
        )


class FileStart(NamedTuple):
    """The beginning of a label file: its JSON value, the name of its XML root, or its first 20 lines of text.

    `text` is the beginning of a JSON file that is broken or too large to be parsed here.
    """

    json: Any = None
    text: str = ""
    xml_root: str = ""
    lines: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class LabelFormat:
    """A label format: one of `CORE_FORMATS`, or a plugin of the group `LABEL_FORMATS` under the same name.

    Attributes:
        name: the value of --format.
        title: the name in messages.
        value: what a file of the format is; completes "is ...".
        recognizes: returns whether a file has the format. Formats of the core are recognized by `kinds` instead.
        reader: "module:function", imported when labels are read. The function gets the path and an `ImageFolder`, and
            as keywords `with_masks` and `split`, the split (or None) that the name of the file tells; it returns an
            `AnnotatedDataSet`, whose images may have a `split` of their own.
        is_file_per_image: the path is that of a folder, or of one file. Else the reader is called for each file.
        has_masks: objects may have outlines.
        has_ids: class ids are those of the format, also across data sets; else classes are numbered by name.
    """

    name: str
    title: str
    value: str = ""
    recognizes: Callable[[FileStart], bool] = lambda start: False
    kinds: tuple[FileKind, ...] = ()
    reader: str
    is_file_per_image: bool = False
    has_masks: bool = False
    has_ids: bool = False
    holds_annotations: ClassVar[bool] = True


LABEL_FORMATS = "efficientdet.label_formats"  # group of plugins
_READERS = __name__.replace("files.file_kinds", "conversion.formats")  # a wheel has it below another package
CORE_FORMATS = {
    one.name: one
    for one in (
        LabelFormat(
            name="coco",
            title="COCO",
            kinds=(FileKind.COCO,),
            reader=f"{_READERS}.coco:read_coco_file",
            has_masks=True,
            has_ids=True,
        ),
        LabelFormat(
            name="voc",
            title="Pascal VOC",
            kinds=(FileKind.VOC,),
            reader=f"{_READERS}.voc:read_voc_tree",
            is_file_per_image=True,
        ),
        LabelFormat(
            name="yolo",
            title="YOLO",
            kinds=(FileKind.YOLO_DATA, FileKind.YOLO_LABELS),
            reader=f"{_READERS}.yolo:read_yolo",
            is_file_per_image=True,
            has_masks=True,
            has_ids=True,
        ),
        LabelFormat(
            name="csv",
            title="csv table",
            kinds=(FileKind.CSV,),
            reader=f"{_READERS}.csv_boxes:read_csv_boxes",
        ),
    )
}
FORMAT_NAMES = (*CORE_FORMATS, *BUNDLED.get(LABEL_FORMATS, {}))
FormatName = Annotated[  # of an installed plugin, too
    str,
    Limit(
        lambda name: name in ("auto", *FORMAT_NAMES) or name in plugin_names(LABEL_FORMATS),
        f"one of auto, {', '.join(FORMAT_NAMES)}",
    ),
]


def label_formats() -> dict[str, LabelFormat]:
    """Return all formats by name."""
    return CORE_FORMATS | {one.name: one for one in load_plugins(LABEL_FORMATS)}


def _plugin_format(start: FileStart) -> LabelFormat | None:
    return next((one for one in load_plugins(LABEL_FORMATS) if one.recognizes(start)), None)


def format_of_file(path: str | Path) -> str | None:
    """Return the name of the plugin's format that a file has, or None."""
    kind = kind_of_file(path)
    return kind.name if isinstance(kind, LabelFormat) else None


def kind_of_file(path: str | Path) -> FileKind | LabelFormat | None:
    """Return the kind of a file; None for records and for empty, unknown or unreadable files."""
    return kind_and_advice(path)[0]


def kind_and_advice(path: str | Path) -> tuple[FileKind | LabelFormat | None, str]:
    """Return the kind of a file, and for UNREAD what it is and what to do."""
    try:
        with open_regular_file(path) as file:
            head = file.read(8)
            if _starts_like_records(head, size=os.fstat(file.fileno()).st_size):
                return None, ""
            head += file.read(_HEAD_BYTES - 8)
            if head.startswith(_IMAGE_STARTS) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP") or head[4:12] in _FTYP:
                return FileKind.IMAGE, ""
            if head.startswith(b"PK\x03\x04"):
                return FileKind.ZIP, ""
            text = _text(head)
            if text.startswith(("{", "[")):
                return _kind_of_json(head + file.read(_MOST_PARSED_BYTES), text)
    except FileNotFetched:
        return FileKind.UNREAD, NOT_FETCHED
    except OSError:
        return None, ""
    if text.startswith("<"):
        return _kind_of_xml(text)
    whole_lines = text if len(head) < _HEAD_BYTES else text.rpartition("\n")[0]
    return _kind_of_lines([line for line in whole_lines.splitlines() if line.strip()])


def holds_records(path: str | Path) -> bool:
    """Return whether the file begins with a record length that fits the file."""
    try:
        with open_regular_file(path) as file:
            return _starts_like_records(file.read(8), size=os.fstat(file.fileno()).st_size)
    except OSError:
        return False


def _starts_like_records(head: bytes, *, size: int) -> bool:
    """Return whether the file begins like records; checked first, as a record length may look like text."""
    return len(head) >= 8 and struct.unpack_from("<Q", head)[0] + 16 <= size  # 16 bytes of length and checksums


def annotations_in(folder: str | Path) -> Iterator[tuple[Path, FileKind | LabelFormat]]:
    """Yield files with annotations in a folder, searched three levels deep, with their kinds.

    Raises:
        InputError: for an unreadable folder.
    """
    for place in islice(_folders(Path(folder)), _FOLDERS_LOOKED_AT):
        files = _entries(place)
        for suffix in ANNOTATION_SUFFIXES:
            for path in [file for file in files if file.suffix.lower() == suffix][:_MOST_FILES]:
                kind = kind_of_file(path)
                if kind is not None and kind.holds_annotations:
                    yield path, kind


def _folders(top: Path) -> Iterator[Path]:
    """Yield a folder and its subfolders, three levels deep; links to an ancestor are skipped."""
    level = [top] if top.is_dir() else []
    for _ in range(_MOST_LEVELS):
        yield from level
        level = [
            path
            for place in level
            for path in _entries(place)
            if path.is_dir() and not path.name.startswith(".") and not _leads_above(path)
        ]


def _leads_above(path: Path) -> bool:
    return path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve())


def _entries(folder: Path) -> list[Path]:
    with file_errors(folder):
        return sorted(folder.iterdir())


def is_conversion_output(path: Path) -> bool:
    """Return whether the file is an output of a conversion and not a label file."""
    match = _OF_A_CONVERSION.fullmatch(path.name)
    return match is not None and any(path.parent.glob(f"{glob.escape(match[1])}-*-of-*"))


def _text(head: bytes) -> str:
    """Return the beginning of a text file; "" for other files."""
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text = head.decode(encoding, errors="replace")  # the last character may be cut in two
    return "" if "\0" in text else text.lstrip()


def _kind_of_json(content: bytes, start: str) -> tuple[FileKind | LabelFormat, str]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        try:
            value = json.loads(start.partition("\n")[0])  # JSON Lines
        except (ValueError, RecursionError):
            if plugin := _plugin_format(FileStart(text=start)):
                return plugin, ""
            is_coco = re.search(r'"(images|annotations|categories)"\s*:\s*\[', start) and '"shapes"' not in start
            return (FileKind.COCO if is_coco else FileKind.JSON), ""
    first = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else {}
    if {"image_id", "bbox", "score"} <= first.keys():
        return FileKind.COCO_RESULTS, ""
    is_coco = isinstance(value, dict) and isinstance(value.get("images"), list)
    if is_coco and ("annotations" in value or "categories" in value):
        return FileKind.COCO, ""
    if plugin := _plugin_format(FileStart(json=value)):
        return plugin, ""
    if advice := _unread_json(value):
        return FileKind.UNREAD, advice
    return (FileKind.COCO if is_coco else FileKind.JSON), ""


def _kind_of_xml(text: str) -> tuple[FileKind | LabelFormat, str]:
    without_comments = re.sub(r"<!--.*?-->|<[?!][^>]*>", "", text, flags=re.DOTALL)
    match = re.match(r"\s*<([\w.:-]+)", without_comments)
    root = match[1] if match else ""
    if root == "annotation":
        return FileKind.VOC, ""
    if plugin := _plugin_format(FileStart(xml_root=root)):
        return plugin, ""
    if advice := _unread("xml", root.__eq__):
        return FileKind.UNREAD, advice
    return FileKind.XML, ""


def _kind_of_lines(lines: list[str]) -> tuple[FileKind | LabelFormat | None, str]:
    lines = lines[:_LINES_LOOKED_AT] if not _has_class_names(lines) else lines
    if _has_class_names(lines):
        return FileKind.YOLO_DATA, ""
    if lines and all(map(_is_yolo_label, lines)):
        return FileKind.YOLO_LABELS, ""
    if plugin := _plugin_format(FileStart(lines=lines)):
        return plugin, ""
    if advice := _unread_lines(lines):
        return FileKind.UNREAD, advice
    if _is_table(lines[is_separator_line(lines[0]) if lines else 0 :]):
        return FileKind.CSV, ""
    keyed = [re.match(r"[\w.-]+:(\s|$)|\s*#|\s+\S|- |---\s*$", line) for line in lines]
    return (FileKind.YAML if lines and all(keyed) else None), ""


def _is_table(lines: list[str]) -> bool:
    """Return whether all lines have the same number of fields, at least 4, of which quoted ones may hold separators."""
    for separator in ",;\t":
        try:
            counts = {len(row) for row in csv.reader(lines, delimiter=separator)}
        except csv.Error:
            continue
        if len(lines) > 1 and len(counts) == 1 and counts.pop() > 3:
            return True
    return False


def _has_class_names(lines: list[str]) -> bool:
    """Return whether these are lines of a data.yaml or of Darknet's obj.data; YAML may contain only a list of names."""
    keys = {match[1] for line in lines if (match := re.match(r"(\w+)\s*[:=]", line))}
    lists_names = any(re.match(r"names\s*:\s*([\[{#]|$)", line) for line in lines)
    return "names" in keys and (lists_names or bool(keys & {"nc", "path", "train", "val", "valid", "test"}))


def _is_yolo_label(line: str) -> bool:
    """Return whether a line is a class number and a box (4 numbers, optionally a score) or a polygon, in fractions."""
    number, *rest = line.split()
    if not re.fullmatch(r"\d+(\.0*)?", number) or len(rest) < 4:
        return False
    try:
        return all(-0.5 <= float(value) <= 2 for value in rest)  # 2: of a keypoint that is visible
    except ValueError:
        return False


# Label formats that no converter reads: kind of file, what it is, what to do, and how it is recognized. JSON: keys of
# the outermost object or of a list's first, "all,of,these;or,of,these"; XML: the root; lines: a pattern of all.
_UNREAD = r"""
json | a Datumaro json | convert it with: datum convert -if datumaro -f coco_instances | items,categories
json | a project of VGG Image Annotator (VIA) | choose Annotation > Export Annotations (COCO) | via
json | a project of VGG Image Annotator (VIA) | choose Annotation > Export Annotations | project,metadata,config
json | a FiftyOne json | export COCODetectionDataset or YOLOv5Dataset | sample_fields;classes,labels;samples;filepath
json | a json of Frigate's events | label the snapshots and export COCO or YOLO | id,camera,label,has_snapshot,has_clip
json | a VoTT json | export Pascal VOC instead | asset,regions;assets,tags
json | a Supervisely json | run its app Export to COCO | objects,size;classes,tags
json | a SuperAnnotate json | export COCO instead (superannotate: sa.export_annotation) | instances,metadata
json | a V7 Darwin json | export COCO, Pascal VOC or YOLO instead | annotations,item;annotations,image,dataset
json | a Labelbox export | convert it to COCO, with its COCOConverter | data_row,projects;dataRow
json | a Labelbox export | convert it to COCO, with its COCOConverter | Label,Labeled Data;Label,DataRow ID;Label,ID
json | a Hasty json | export COCO instead | label_classes,images
json | a Cityscapes json | convert it to COCO, with cityscapesscripts | imgHeight,imgWidth,objects
json | a BDD100K json | convert it with: python -m bdd100k.label.to_coco -m det | name,labels;name,frames
json | a Scale AI json | export COCO instead | task_id;params,response
json | a Dataloop json | export COCO instead | datasetId,annotations
json | an Encord json | export COCO instead | data_hash;label_hash
json | a Kili json | export COCO instead | labels,externalId;labels,content
json | a manifest of SageMaker Ground Truth | convert it to COCO | source-ref
json | JSON Lines of Vertex AI | export the CSV of AutoML instead | imageGcsUri
json | JSON Lines of Azure Machine Learning | export COCO from the labeling project instead | image_url,label
json | JSON Lines of Roboflow for PaliGemma or Florence-2 | export COCO instead | image,prefix,suffix
json | JSON Lines of Ultralytics | export YOLO instead, or convert it with convert_ndjson_to_yolo | type,class_names
json | JSON Lines of Hugging Face | write a csv table of file, left, top, right, bottom and class | file_name,objects
json | a file of Edge Impulse's labels | convert it to COCO or YOLO | version,boundingBoxes;version,files
json | a CreateML json | export COCO or Pascal VOC from the labeling tool instead | image,annotations;image,annotation
json | a CreateML json | export COCO or Pascal VOC instead | imagefilename,annotations;imagefilename,annotation
json | a Prodigy export | convert it to COCO | image,spans
json | an annotation file of MMDetection | expected the COCO json that it was made from | metainfo,data_list
json | an annotation file of MMDetection | expected the COCO json that it is from | filename,ann;filename,detection
json | a file of Label Studio's storage, one task | export JSON from the project instead | result,task
xml | an imglab (dlib) xml | export Pascal VOC or COCO instead | dataset
xml | a UA-DETRAC xml | convert it to COCO | sequence
lines | a KITTI label file | convert it to COCO or YOLO | ([A-Za-z_]\S*( -?[\d.]+(e[+-]?\d+)?){14,15}(\n|$))+
lines | a file of MOTChallenge tracks | convert it to COCO | (\d+,-?\d+(,-?[\d.]+){7,8}(\n|$))+
lines | a label file of OIDv4_ToolKit | convert it to Pascal VOC or YOLO | ([A-Za-z][^\d\n]*( -?\d+(\.\d+)?){4}(\n|$))+
lines | a table of VGG Image Annotator (VIA) | export annotations in COCO format | .*region_shape_attributes[\s\S]*
lines | a list of WIDER FACE boxes | convert it to COCO or YOLO | \S+/\S+\.jpg(\n(\S+/\S+\.jpg|\d+|(\d+ ){9}\d+))*
"""


def _unread(kind: str, recognizes: Callable[[str], object]) -> str | None:
    """Return what a file is and what to do, if it has labels that no converter reads."""
    for line in _UNREAD.strip().splitlines():
        kind_of_row, what, advice, test = line.split(" | ")
        if kind == kind_of_row and recognizes(test):
            return f"{what}, which is not read: {advice}"
    return None


def _unread_json(content: Any) -> str | None:
    one = content[0] if isinstance(content, list) and content else content
    if not isinstance(one, dict):
        return None
    keys = {"via"} if "_via_img_metadata" in one or _is_via(one) else {*one}
    return _unread("json", lambda test: any(keys.issuperset(names.split(",")) for names in test.split(";")))


def _unread_lines(lines: list[str]) -> str | None:
    text = "\n".join(line.strip() for line in lines)
    return _unread("lines", lambda pattern: re.fullmatch(pattern, text))


def _is_via(one: dict) -> bool:
    """Return whether an object holds VIA's regions of images by file name and size."""
    images = [*one.values()][:3]
    return bool(images) and all(isinstance(image, dict) and {"filename", "regions"} <= {*image} for image in images)
