"""Read events of Frigate: one box for each snapshot, as fractions of the camera's image.

Events are the reply of `GET /api/events`, or the single one of `/api/events/ID`. `data.box` is [x, y, width, height] of
the frame that the snapshot shows, each divided by the side of the image that the camera's stream has for detection.
Before Frigate 0.13, `box` had corners in pixels of the object's last frame, which the snapshot does not show.

Sources: frigate/events/maintainer.py, frigate/util/builtin.py (`to_relative_box`), frigate/track/tracked_object.py
(`write_snapshot_to_disk`) in https://github.com/blakeblackshear/frigate;
https://docs.frigate.video/configuration/snapshots (names of the files, clean copy); issue 2574 (the older boxes).
"""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dataset.conversion.annotations import (
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    LabelCollector,
    box_in_shares,
)
from dataset.conversion.folder_files import FolderFiles, ImageFolder
from dataset.files.bounded_files import read_json
from dataset.files.untrusted_values import is_set, shown, storable_text
from efficientdet.plugins.label_formats.formats import is_frigate_event
from program_support.errors import InputError

_CLEAN_COPIES = ("-clean.webp", "-clean.png")  # .png of older versions
_SHAPE_TOLERANCE = 0.02  # of width / height, as `snapshots.height` rounds


def read_frigate(annotations: str, images: ImageFolder, *, with_masks: bool, split: str | None) -> AnnotatedDataSet:
    """Read the events of a JSON file, or of all JSON files in a folder tree, as images with one box.

    The image of an event is its clean copy, else its snapshot, of which a warning is printed. Events without a snapshot
    or a box, false positives and events in progress are not used. Invalid events are skipped.

    Raises:
        InputError: there are no usable events.
    """
    labels, unused = LabelCollector(source=annotations), Counter[str]()
    events = {repr(event["id"]): event for event in _events(labels)}  # pages may overlap
    if not events and not labels.skipped:
        raise InputError(f"{annotations}: has no events of Frigate, the reply of GET /api/events")
    for event in sorted(events.values(), key=lambda event: str(event["label"])):  # ids in alphabetical order
        with labels.skipping(f"event {shown(event['id'])}"):
            if reason := _reason_not_to_use(event):
                unused[reason] += 1
                continue
            name, box = storable_text(event["label"], "label"), box_in_shares(event["data"]["box"], "data.box")
            image = AnnotatedImage(file_name=_image_name(event, images), in_shares=True)
            _check_shape(image, event["data"], images)
            image.objects.append(AnnotatedObject(category_id=labels.id_of(name), box_xywh=box))
            labels.images.append(image)
    for reason, count in unused.items():
        labels.note(f"{count} of {len(events)} events {reason}: not used")
    if not labels.images and not labels.skipped:
        raise InputError(f"{annotations}: none of its {len(events)} events can be used: they {'; '.join(unused)}")
    data = labels.named_data_set()
    _warn([image.file_name for image in data.images if images.size(image.file_name)])
    return data


def _events(labels: LabelCollector) -> Iterator[dict]:
    path = Path(labels.source)
    folder = FolderFiles(path, (".json",))
    for file in map(folder.path, folder.names) if path.is_dir() else [path]:
        with labels.skipping(file=str(file)):
            value = read_json(str(file), hasher=labels.hasher)
            events = value if isinstance(value, list) else [value]
            if not any(map(is_frigate_event, events)):  # another JSON file
                continue
            for index, event in enumerate(events):
                with labels.skipping(f"entry {index}", file=str(file)):
                    if not is_frigate_event(event):
                        raise InputError(
                            f"is {shown(event)}, expected an event with id, camera, label, has_snapshot and has_clip"
                        )
                    yield event


def _reason_not_to_use(event: dict) -> str | None:
    """Return the reason, or None for an event with a snapshot and its box."""
    if not is_set(event["has_snapshot"], "has_snapshot"):
        return "have no snapshot"
    if is_set(event.get("false_positive"), "false_positive"):
        return "are false positives"
    if event.get("end_time") is None:
        return "are in progress"
    data = event.get("data")
    if isinstance(data, dict) and data.get("box") is not None:
        return None
    if event.get("box") is not None:
        return "are of Frigate before 0.13 and have no data.box but a box in pixels, of another frame than the snapshot"
    return "have no box, as those of sounds and those made by hand"


def _image_name(event: dict, images: ImageFolder) -> str:
    """Return the clean copy of an event, else its snapshot, which may be missing."""
    stem = f"{storable_text(event['camera'], 'camera')}-{storable_text(event['id'], 'id')}"
    clean = (images.find(stem + suffix) for suffix in _CLEAN_COPIES)
    return next(filter(None, clean), None) or images.named(f"{stem}.jpg")


def _is_clean(file_name: str) -> bool:
    return file_name.lower().endswith(_CLEAN_COPIES)


def _check_shape(image: AnnotatedImage, data: dict, images: ImageFolder) -> None:
    """Raise InputError for a snapshot that was cropped.

    A region is a square of pixels, so its fractions of width and height have the shape of the camera's image.
    """
    size = images.size(image.file_name)
    if _is_clean(image.file_name) or size is None or not min(size) or data.get("region") is None:
        return
    *_, width, height = box_in_shares(data["region"], "data.region")
    if min(width, height) > 0 and not math.isclose(size[1] / size[0], height / width, rel_tol=_SHAPE_TOLERANCE):
        raise InputError(
            f"has a snapshot of {size[1]}x{size[0]} and a camera with width / height {height / width:.2f}: "
            "snapshots.crop was set, and the box is that of the complete image; expected a clean copy"
        )


def _warn(names: list[str]) -> None:
    """Warn of boxes drawn in images, and of objects without a label."""
    if drawn := [name for name in names if not _is_clean(name)]:
        print(
            f"warning: {len(drawn)} of {len(names)} snapshots, such as {drawn[0]}, have no clean copy: Frigate draws "
            "the box on a snapshot unless snapshots.bounding_box is False, and a detector learns what is drawn; leave "
            "them out, or set snapshots.clean_copy for new ones"
        )
    print(
        "warning: an event labels one object, as Frigate's model found it: label the other objects of its snapshot and "
        "correct wrong labels before training"
    )
