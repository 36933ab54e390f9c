"""Notes on COCO annotation files: entries that can be converted but are unusual."""

from collections import Counter
from collections.abc import Iterator

from dataset.conversion.annotations import AnnotatedImage, ReportEntry
from dataset.files.untrusted_values import number_of_text


def odd_images(images: list[AnnotatedImage]) -> Iterator[ReportEntry]:
    """Yield notes on images that share a file, and on images without a size."""
    times = Counter(image.file_name for image in images)
    for image in images:
        if times[image.file_name] > 1:
            yield ReportEntry(
                kind="image",
                file=image.file_name,
                image_id=image.image_id,
                reason=f"{times[image.file_name]} image ids share this file",
            )
        if image.size is None:
            yield ReportEntry(
                kind="image",
                file=image.file_name,
                image_id=image.image_id,
                reason="the annotation file has no size: taken from the image",
            )


def odd_annotations(annotations: list[dict], path: str) -> Iterator[ReportEntry]:
    """Yield notes on detections, and on ids that are harmless in records but give wrong results in pycocotools."""
    if scored := sum("score" in entry for entry in annotations):
        reason = f"{scored} of {len(annotations)} annotations have a score, as detections do: taken as labels"
        yield ReportEntry(kind="box", file=path, reason=reason)
    ids = (number_of_text(entry.get("id")) for entry in annotations)
    times = Counter(int(one) for one in ids if type(one) is int or (type(one) is float and one.is_integer()))
    for annotation_id, count in times.items():
        if count > 1:
            yield ReportEntry(
                kind="box",
                file=path,
                annotation_id=annotation_id,
                reason=f"{count} annotations share this id: pycocotools would confuse them",
            )
    if 0 in times:
        yield ReportEntry(
            kind="box",
            file=path,
            annotation_id=0,
            reason="annotation id 0: pycocotools counts a match with it as a miss",
        )
