"""Recognize label formats that no converter reads, each by two keys, and name the export to choose instead."""

import re
from collections.abc import Callable
from typing import Any

Test = Callable[[dict], bool]
LinesTest = Callable[[list[str]], bool]


def _every(pattern: str) -> LinesTest:
    """Return a test whether a pattern matches each of the lines."""
    return lambda lines: all(re.fullmatch(pattern, line.strip()) for line in lines)


_COCO = "export COCO instead"
_OBJECTS: list[tuple[str, str, Test]] = [  # what it is, what to do, test of the outermost object or of a list's first
    (
        "a Datumaro json",
        "convert it with: datum convert -if datumaro -f coco_instances",
        lambda one: isinstance(one.get("items"), list) and isinstance(one.get("categories"), dict),
    ),
    (
        "a project or export of VGG Image Annotator (VIA)",
        "choose Annotation > Export Annotations (COCO format)",
        lambda one: "_via_img_metadata" in one or {"project", "metadata", "config"} <= {*one} or _is_via(one),
    ),
    (
        "a VoTT json",
        "export Pascal VOC instead",
        lambda one: {"asset", "regions"} <= {*one} or {"assets", "tags"} <= {*one},
    ),
    (
        "a Supervisely json",
        "run its app Export to COCO",
        lambda one: (
            (isinstance(one.get("objects"), list) and isinstance(one.get("size"), dict))
            or (isinstance(one.get("classes"), list) and "tags" in one)
        ),
    ),
    (
        "a SuperAnnotate json",
        "export COCO instead (superannotate: sa.export_annotation)",
        lambda one: isinstance(one.get("instances"), list) and isinstance(one.get("metadata"), dict),
    ),
    (
        "a V7 Darwin json",
        "export COCO, Pascal VOC or YOLO instead",
        lambda one: "annotations" in one and (isinstance(one.get("item"), dict) or isinstance(one.get("image"), dict)),
    ),
    (
        "a FiftyOne json",
        "export with dataset_type=fiftyone.types.COCODetectionDataset",
        lambda one: (
            (isinstance(one.get("classes"), list) and isinstance(one.get("labels"), dict))
            or isinstance(one.get("samples"), list)
            or "filepath" in one
        ),
    ),
    (
        "a Labelbox export",
        "convert it to COCO, with labelbox.data.serialization.COCOConverter",
        lambda one: (
            {"data_row", "projects"} <= {*one}
            or ("Label" in one and bool({"Labeled Data", "DataRow ID", "ID"} & {*one}))
        ),
    ),
    ("a Hasty json", _COCO, lambda one: {"label_classes", "images"} <= {*one}),
    (
        "a Cityscapes json",
        "convert it to COCO, with cityscapesscripts",
        lambda one: {"imgHeight", "imgWidth", "objects"} <= {*one},
    ),
    (
        "a BDD100K json",
        "convert it with: python -m bdd100k.label.to_coco -m det",
        lambda one: "name" in one and ("labels" in one or "frames" in one),
    ),
    ("a Scale AI json", _COCO, lambda one: "task_id" in one or {"params", "response"} <= {*one}),
    ("a Dataloop json", _COCO, lambda one: {"datasetId", "annotations"} <= {*one}),
    ("an Encord json", _COCO, lambda one: {"data_hash", "label_hash"} & {*one} != set()),
    ("a Kili json", _COCO, lambda one: "labels" in one and {"externalId", "content"} & {*one} != set()),
    (
        "a manifest of SageMaker Ground Truth",
        "convert it to COCO",
        lambda one: "source-ref" in one,
    ),
    (
        "JSON Lines of Vertex AI",
        "export the CSV of AutoML instead",
        lambda one: "imageGcsUri" in one,
    ),
    (
        "a CreateML json",
        "export COCO or Pascal VOC from the labeling tool instead",
        lambda one: {"image", "imagefilename"} & {*one} != set() and {"annotations", "annotation"} & {*one} != set(),
    ),
    ("a Prodigy export", "convert it to COCO", lambda one: {"image", "spans"} <= {*one}),
    (
        "an annotation file of MMDetection",
        "expected the COCO json that it was made from",
        lambda one: {"metainfo", "data_list"} <= {*one} or {"filename", "ann"} <= {*one},
    ),
    (
        "a file of Label Studio's storage, one task",
        "export JSON from the project instead",
        lambda one: {"result", "task"} <= {*one},
    ),
]
_is_wider_face = _every(r"\S+/\S+\.jpg|\d+|(\d+ ){9}\d+ ?")
_LINES: list[tuple[str, str, LinesTest]] = [  # what it is, what to do, test of the lines, of which there is one
    (
        "a KITTI label file",
        "convert it to COCO or YOLO: columns 5 to 8 are the left, top, right and bottom of the box",
        _every(r"[A-Za-z_]\S*( -?[\d.]+(e[+-]?\d+)?){14,15}"),
    ),
    (
        "a DOTA label file",
        "convert it to YOLO, with ultralytics.data.converter.convert_dota_to_yolo_obb",
        _every(r"(imagesource|gsd):.*|(-?[\d.]+ ){8}\S.* [012]"),
    ),
    (
        "a VisDrone annotation",
        "convert it to YOLO, as the VisDrone.yaml of ultralytics does",
        _every(r"-?\d+(,-?\d+){7},?"),
    ),
    (
        "a file of MOTChallenge tracks",
        "convert it to COCO, with tools/dataset_converters/mot2coco.py of MMTracking",
        _every(r"\d+,-?\d+(,-?[\d.]+){7,8}"),
    ),
    (
        "a label file of OIDv4_ToolKit",
        "convert it to Pascal VOC or YOLO: its columns are class, left, top, right and bottom in pixels",
        _every(r"[A-Za-z]\D*( -?\d+(\.\d+)?){4}"),
    ),
    (
        "a table of VGG Image Annotator (VIA)",
        "choose Annotation > Export Annotations (COCO format)",
        lambda lines: "region_shape_attributes" in lines[0],
    ),
    (
        "a list of WIDER FACE boxes",
        "convert it to COCO or YOLO",
        lambda lines: lines[0].strip().endswith(".jpg") and _is_wider_face(lines),
    ),
]
_ROOTS = {
    "dataset": ("an imglab (dlib) xml", "export Pascal VOC or COCO instead"),
    "sequence": ("a UA-DETRAC xml", "convert it to COCO"),
}


def unread_json(content: Any) -> str | None:
    """Return what a JSON content is and what to do, if it is labels that no converter reads."""
    one = content[0] if isinstance(content, list) and content else content
    if not isinstance(one, dict):
        return None
    return next((f"{what}, which is not read: {advice}" for what, advice, test in _OBJECTS if test(one)), None)


def unread_lines(lines: list[str]) -> str | None:
    """Return what lines of text are and what to do, if they are labels that no converter reads."""
    if not lines:
        return None
    return next((f"{what}, which is not read: {advice}" for what, advice, test in _LINES if test(lines)), None)


def unread_xml(root: str) -> str | None:
    """Return what an XML file with this root element is and what to do, if it is labels that no converter reads."""
    return ", which is not read: ".join(_ROOTS[root]) if root in _ROOTS else None


def _is_via(one: dict) -> bool:
    """Return whether an object holds VIA's regions of images by file name and size."""
    images = [*one.values()][:3]
    return bool(images) and all(isinstance(image, dict) and {"filename", "regions"} <= {*image} for image in images)
