"""Recognize label formats that no converter reads, by keys or lines, and name the export to choose instead."""

import re
from collections.abc import Callable
from typing import Any

LinesTest = Callable[[list[str]], bool]


def _every(pattern: str) -> LinesTest:
    """Return a test whether a pattern matches each of the lines."""
    return lambda lines: all(re.fullmatch(pattern, line.strip()) for line in lines)


_COCO, _VIA = "export COCO instead", "choose Annotation > Export Annotations (COCO format)"
_OBJECTS = (  # what it is, what to do, keys of the outermost object or of a list's first: "all,of,these|or,of,these"
    ("a Datumaro json", "convert it with: datum convert -if datumaro -f coco_instances", "items,categories"),
    ("a project or export of VGG Image Annotator (VIA)", _VIA, "_via_img_metadata|project,metadata,config"),
    (
        "a FiftyOne json",
        "export it with dataset_type=fiftyone.types.COCODetectionDataset or YOLOv5Dataset",
        "sample_fields|classes,labels|samples|filepath",
    ),
    (
        "a json of Frigate's events",
        "label the snapshots in a labeling program and export COCO or YOLO",
        "id,camera,label,has_snapshot,has_clip",
    ),
    ("a VoTT json", "export Pascal VOC instead", "asset,regions|assets,tags"),
    ("a Supervisely json", "run its app Export to COCO", "objects,size|classes,tags"),
    ("a SuperAnnotate json", "export COCO instead (superannotate: sa.export_annotation)", "instances,metadata"),
    ("a V7 Darwin json", "export COCO, Pascal VOC or YOLO instead", "annotations,item|annotations,image,dataset"),
    (
        "a Labelbox export",
        "convert it to COCO, with labelbox.data.serialization.COCOConverter",
        "data_row,projects|dataRow|Label,Labeled Data|Label,DataRow ID|Label,ID",
    ),
    ("a Hasty json", _COCO, "label_classes,images"),
    ("a Cityscapes json", "convert it to COCO, with cityscapesscripts", "imgHeight,imgWidth,objects"),
    ("a BDD100K json", "convert it with: python -m bdd100k.label.to_coco -m det", "name,labels|name,frames"),
    ("a Scale AI json", _COCO, "task_id|params,response"),
    ("a Dataloop json", _COCO, "datasetId,annotations"),
    ("an Encord json", _COCO, "data_hash|label_hash"),
    ("a Kili json", _COCO, "labels,externalId|labels,content"),
    ("a manifest of SageMaker Ground Truth", "convert it to COCO", "source-ref"),
    ("JSON Lines of Vertex AI", "export the CSV of AutoML instead", "imageGcsUri"),
    ("JSON Lines of Azure Machine Learning", "export COCO from the labeling project instead", "image_url,label"),
    ("JSON Lines of Roboflow for PaliGemma or Florence-2", _COCO, "image,prefix,suffix"),
    (
        "JSON Lines of Ultralytics",
        "export YOLO instead, or convert it with ultralytics.data.converter.convert_ndjson_to_yolo",
        "type,class_names",
    ),
    (
        "JSON Lines of Hugging Face",
        "write a csv table with a line for each box: file, left, top, right, bottom, class (objects.bbox has left, "
        "top, width and height)",
        "file_name,objects",
    ),
    (
        "a file of Edge Impulse's labels",
        "convert it to COCO or YOLO: each of its boxes has label, x, y, width and height in pixels",
        "version,boundingBoxes|version,files",
    ),
    (
        "a CreateML json",
        "export COCO or Pascal VOC from the labeling tool instead",
        "image,annotations|image,annotation|imagefilename,annotations|imagefilename,annotation",
    ),
    ("a Prodigy export", "convert it to COCO", "image,spans"),
    (
        "an annotation file of MMDetection",
        "expected the COCO json that it was made from",
        "metainfo,data_list|filename,ann|filename,detection",
    ),
    ("a file of Label Studio's storage, one task", "export JSON from the project instead", "result,task"),
)
_is_wider_face = _every(r"\S+/\S+\.jpg|\d+|(\d+ ){9}\d+ ?")
_LINES: list[tuple[str, str, LinesTest]] = [  # what it is, what to do, test of the lines, of which there is one
    (
        "a KITTI label file",
        "convert it to COCO or YOLO: columns 5 to 8 are the left, top, right and bottom of the box",
        _every(r"[A-Za-z_]\S*( -?[\d.]+(e[+-]?\d+)?){14,15}"),
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
        _VIA,
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
    keys = {"_via_img_metadata"} if _is_via(one) else {*one}
    for what, advice, alternatives in _OBJECTS:
        if any(keys.issuperset(names.split(",")) for names in alternatives.split("|")):
            return f"{what}, which is not read: {advice}"
    return None


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
