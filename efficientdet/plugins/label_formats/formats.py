"""The label formats of this plugin: how their files are recognized, and their readers, imported when needed."""

import re

from dataset.files.file_kinds import FileStart, LabelFormat

_DOTA_LINE = re.compile(r"(imagesource|gsd|acquisition dates):.*|(-?\d[\d.]*(e[+-]?\d+)?\s+){8}[^\W\d].*")
_VISDRONE_LINE = re.compile(r"-?\d+(,-?\d+){7},?")


def _first(start: FileStart) -> dict:
    """Return the first object of a list."""
    entries = start.json
    return entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}


def _is_labelme(start: FileStart) -> bool:
    return isinstance(start.json, dict) and isinstance(start.json.get("shapes"), list)


def _is_label_studio(start: FileStart) -> bool:
    """Return whether a list begins with a task of Label Studio's JSON, or of JSON-MIN."""
    if start.text:
        return start.text[0] == "[" and re.search(r'"(original_width|was_cancelled|lead_time)"', start.text) is not None
    task = _first(start)
    lists = (task.get(name) for name in ("annotations", "completions", "predictions"))
    if isinstance(task.get("data"), dict) and any(isinstance(one, list) for one in lists):
        return True
    regions = [value[0] for value in task.values() if isinstance(value, list) and value]
    return any(isinstance(one, dict) and {"original_width", "original_height"} <= one.keys() for one in regions)


def _matches(start: FileStart, line: re.Pattern) -> bool:
    return bool(start.lines) and all(line.fullmatch(one.strip()) for one in start.lines)


def _is_open_images(start: FileStart) -> bool:
    return bool(start.lines) and {"ImageID", "LabelName", "XMin", "YMin"} <= {*start.lines[0].split(",")}


OPEN_IMAGES = LabelFormat(
    name="open_images",
    title="Open Images",
    value="a csv of Open Images boxes",
    recognizes=_is_open_images,
    reader=f"{__package__}.open_images:read_open_images_file",
    has_ids=True,
)
CVAT = LabelFormat(
    name="cvat",
    title="CVAT",
    value="a CVAT xml",
    recognizes=lambda start: start.xml_root == "annotations",
    reader=f"{__package__}.cvat:read_cvat",
    has_masks=True,
)
LABELME = LabelFormat(
    name="labelme",
    title="labelme",
    value="a labelme json",
    recognizes=_is_labelme,
    reader=f"{__package__}.labelme:read_labelme",
    is_file_per_image=True,
    has_masks=True,
)
LABEL_STUDIO = LabelFormat(
    name="label_studio",
    title="Label Studio",
    value="a Label Studio json",
    recognizes=_is_label_studio,
    reader=f"{__package__}.label_studio:read_label_studio",
    has_masks=True,
)
DOTA = LabelFormat(
    name="dota",
    title="DOTA",
    value="a file of DOTA labels",
    recognizes=lambda start: _matches(start, _DOTA_LINE),
    reader=f"{__package__}.aerial_labels:read_dota",
    is_file_per_image=True,
    has_masks=True,
)
VISDRONE = LabelFormat(
    name="visdrone",
    title="VisDrone",
    value="a file of VisDrone labels",
    recognizes=lambda start: _matches(start, _VISDRONE_LINE),
    reader=f"{__package__}.aerial_labels:read_visdrone",
    is_file_per_image=True,
    has_ids=True,
)
