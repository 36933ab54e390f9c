"""Annotations as the format readers return them, and clipping of objects to the actual image size."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from dataset.class_names import ClassNames, checked_class_name
from dataset.files.untrusted_values import error_context, finite_number, number_in_text, shown, storable_text
from program_support.errors import InputError

# A coordinate outside this range is not a fraction of the image's side, but probably pixels.
LEAST_SHARE, MOST_SHARE = -1.0, 2.0
LARGEST_COORDINATE = 1e9  # pixels; the corners of a larger rotated box could overflow
LONGEST_NAME = 4096  # characters of a path
ROTATED = "rotated boxes became the boxes around them"
_ELLIPSE_CORNERS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatedObject:
    """One object as in its file, not clipped; the box is in pixels, or in fractions if its image is `in_shares`."""

    category_id: int
    box_xywh: tuple[float, float, float, float]
    annotation_id: int | None = None
    area: float | None = None
    is_crowd: bool = False
    is_difficult: bool = False
    segmentation: Any = None


@dataclass(kw_only=True, slots=True)
class AnnotatedImage:
    """One image as its file describes it; `size` is (height, width), or None if unknown.

    `image_id`: 0 until `in_one_order` numbers the images, unless the format has ids.
    `in_shares`: the boxes are fractions of width and height, converted to pixels when the size is known. `is_upright`:
    the tool labels images after EXIF rotation. `refused`: the number of objects that the reader skipped as unusable.
    `split`: train, val or test if the annotation file names it. `part`: the window (top, left, bottom, right) of the
    file that is the image, and `record_name` its name in the record; None: the complete file, with its own name.
    """

    file_name: str
    image_id: int = 0
    size: tuple[int, int] | None = None
    objects: list[AnnotatedObject] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    in_shares: bool = False
    is_upright: bool = False
    refused: int = 0
    split: str | None = None
    part: tuple[int, int, int, int] | None = None
    record_name: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportEntry:
    """An entry of the conversion report: a correction, a skipped item or a note; `kind` is image or box."""

    kind: str
    file: str
    reason: str
    image_id: int | None = None
    annotation_id: int | None = None
    split: str | None = None  # of what was read, until the data set is divided


@dataclass(frozen=True, kw_only=True)
class AnnotatedDataSet:
    """Images with their objects in the order of their file; a list, or a sequence stored on disk.

    `fingerprint` changes if any of the input changes. `skipped` and `noted` are the reader's findings. `split_from`:
    listed images and boxes of the data set that was split, of which --max_bad_fraction is a fraction.
    """

    source: str
    images: Sequence[AnnotatedImage]
    class_names: ClassNames | None
    fingerprint: str
    listed_boxes: int
    skipped: list[ReportEntry] = field(default_factory=list)
    noted: list[ReportEntry] = field(default_factory=list)
    split_from: tuple[int, int] | None = None

    @property
    def listed_images(self) -> int:
        """Return the number of images in the annotations, with those that the reader skipped."""
        return len(self.images) + sum(finding.kind == "image" for finding in self.skipped)


class NothingUsable(InputError):
    """All entries of a label file were skipped; `findings` are the reasons."""

    def __init__(self, source: str, findings: Sequence[ReportEntry]):
        examples = "; ".join(f"{finding.file}: {finding.reason}" for finding in findings[:3])
        more = f"; and {len(findings) - 3} more" if len(findings) > 3 else ""
        skipped = f", {len(findings)} entries are skipped: {examples}{more}" if findings else ""
        super().__init__(f"{source}: contains no boxes{skipped}")
        self.findings = findings


@dataclass(kw_only=True, slots=True)
class LabelCollector:
    """Collects images, classes and findings while a reader reads labels.

    `hasher` is updated with all that is read. `notes` counts what was derived, by reason. `split`: the split of what is
    being read, which findings belong to; None: all.
    """

    source: str
    images: list[AnnotatedImage] = field(default_factory=list)
    skipped: list[ReportEntry] = field(default_factory=list)
    noted: list[ReportEntry] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    split: str | None = None
    hasher: Any = field(default_factory=hashlib.sha256)
    _ids: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def skipping(
        self, where: str = "", *, file: str = "", kind: str = "image", image: AnnotatedImage | None = None
    ) -> Iterator[None]:
        """Skip the entry that the block reads if it raises InputError, whose message after `where` is the reason.

        image: the image whose box the entry is. file: default: the source.
        """
        try:
            yield
        except InputError as error:
            if image is not None:
                image.refused += 1
                kind = "box"
            file = file or self.source
            reason = f"{where} {error}".strip().removeprefix(f"{file}: ")
            self.skipped.append(ReportEntry(kind=kind, file=file, reason=reason, split=self.split))

    def note(self, reason: str, *, file: str = "", kind: str = "image", image_id: int | None = None) -> None:
        """Add a note on an image or a box of a file, or of the source."""
        file = file or self.source
        self.noted.append(ReportEntry(kind=kind, file=file, image_id=image_id, reason=reason, split=self.split))

    def id_of(self, name: str) -> int:
        """Return the id of a class: 1, 2, ... in order of appearance; whitespace around its name is stripped.

        Raises:
            InputError: for an empty name, and as `checked_class_name` does.
        """
        if not name.strip():
            raise InputError("has no class name")
        return self._ids.setdefault(checked_class_name(name), len(self._ids) + 1)

    def named_data_set(self) -> AnnotatedDataSet:
        """Return the data set with the classes that `id_of` has numbered.

        Raises:
            NothingUsable: there are no boxes.
        """
        if not self._ids:
            raise NothingUsable(self.source, self.skipped)
        with error_context(f"{self.source}:"):
            return self.data_set(ClassNames.numbered([*self._ids]))

    def data_set(self, class_names: ClassNames | None) -> AnnotatedDataSet:
        """Return the data set; skipped boxes count as listed."""
        counted = [
            ReportEntry(kind="box", file=self.source, reason=f"{count} {reason}")
            for reason, count in self.notes.items()
        ]
        return AnnotatedDataSet(
            source=self.source,
            images=self.images,
            class_names=class_names,
            fingerprint=self.hasher.hexdigest(),
            listed_boxes=sum(len(image.objects) for image in self.images)
            + sum(finding.kind == "box" for finding in self.skipped),
            skipped=self.skipped,
            noted=[*self.noted, *counted],
        )


def checked_name(name: Any) -> str:
    """Return a file name that can be stored and is no longer than a path can be, else raise InputError."""
    try:
        if not storable_text(name, "file name"):
            raise InputError("has file name ''")
    except InputError as error:
        raise InputError(f"{error}: expected a name relative to the image folder") from error
    if len(name) > LONGEST_NAME:  # such as an image in base64
        raise InputError(f"has file name {shown(name)}, expected at most {LONGEST_NAME} characters")
    return name


def checked_file_name(name: Any) -> str:
    """Return `name` if it is inside the image folder.

    Raises:
        InputError: otherwise; the caller adds the context.
    """
    depth = 0
    for part in PurePath(checked_name(name)).parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "/":
            raise InputError(f"has file name {shown(name)}, which is outside the image folder")
    return name


def coordinate(value: Any, where: str) -> float:
    """Return a number, or the number in a text, of at most `LARGEST_COORDINATE`, else raise InputError."""
    number = number_in_text(value, where=where) if isinstance(value, str) else finite_number(value, where)
    if abs(number) > LARGEST_COORDINATE:
        raise InputError(f"{where} is {number:g}, expected at most {LARGEST_COORDINATE:g}")
    return number


def outline_of(points: Any) -> list[float]:
    """Return a list of pairs as x, y, x, y, ..; raise InputError for another value."""
    if not isinstance(points, list) or not points or any(not isinstance(one, list) or len(one) != 2 for one in points):
        raise InputError(f"has points {shown(points)}, expected a list of pairs of x and y")
    return [coordinate(value, "in its points") for point in points for value in point]


def box_around(outline: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the box (x, y, width, height) around the points x, y, x, y, .. of an outline."""
    left, top = min(outline[::2]), min(outline[1::2])
    return left, top, max(outline[::2]) - left, max(outline[1::2]) - top


def box_around_rotated(box_xywh: Sequence[float], degrees: float) -> tuple[float, float, float, float]:
    """Return the box around a box (x, y, width, height) that is rotated about its center."""
    return box_around(rotated_corners(box_xywh, degrees))


def rotated_corners(
    box_xywh: Sequence[float], degrees: float, *, center: tuple[float, float] | None = None
) -> list[float]:
    """Return the corners of a rotated box as x, y, x, y, ..; positive angles are clockwise in the image."""
    x, y, width, height = box_xywh
    if max(map(abs, box_xywh)) > LARGEST_COORDINATE:
        raise InputError(f"has the rotated box {_shown(tuple(box_xywh))}, expected at most {LARGEST_COORDINATE:g}")
    if degrees and min(width, height) <= 0:
        raise InputError(f"has the rotated box {_shown(tuple(box_xywh))}, which has no area")
    center = center or (x + width / 2, y + height / 2)
    outline = [x, y, x + width, y, x + width, y + height, x, y + height]
    return rotated_outline(outline, degrees, center=center)


def rotated_outline(outline: Sequence[float], degrees: float, *, center: tuple[float, float]) -> list[float]:
    """Return the points x, y, x, y, .. of an outline, rotated about `center`, clockwise in the image."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    rotated = []
    for x, y in zip(outline[::2], outline[1::2], strict=True):
        right, down = x - center[0], y - center[1]
        rotated += [center[0] + right * cosine - down * sine, center[1] + right * sine + down * cosine]
    return rotated


def ellipse_outline(center: tuple[float, float], radii: tuple[float, float], degrees: float = 0.0) -> list[float]:
    """Return points x, y, x, y, .. of an ellipse with these radii along x and y, rotated clockwise in the image."""
    angles = [2 * math.pi * corner / _ELLIPSE_CORNERS for corner in range(_ELLIPSE_CORNERS)]
    (x, y), (across, down) = center, radii
    if min(radii) <= 0:
        raise InputError(f"has the radii {across:g} and {down:g}, expected more than 0")
    outline = [side for angle in angles for side in (x + across * math.cos(angle), y + down * math.sin(angle))]
    return rotated_outline(outline, degrees, center=center)


def size_of_texts(height: str | None, width: str | None) -> tuple[int, int] | None:
    """Return (height, width) in pixels; None if one is missing or 0, as some tools write an unknown size.

    Raises:
        InputError: for other numbers than whole ones above 0.
    """
    if not height or not width:
        return None
    sides = number_in_text(height, where="its height"), number_in_text(width, where="its width")
    if 0 in sides:
        return None
    if any(side % 1 or not 1 <= side <= LARGEST_COORDINATE for side in sides):
        raise InputError(f"has the size {shown(width)} x {shown(height)}, expected whole numbers of pixels")
    return int(sides[0]), int(sides[1])


def in_pixels(annotation: AnnotatedObject, size: tuple[int, int]) -> AnnotatedObject:
    """Convert an object from fractions to pixels of an image of (height, width)."""
    height, width = size
    x, y, box_width, box_height = annotation.box_xywh
    return replace(annotation, box_xywh=(x * width, y * height, box_width * width, box_height * height))


def in_hundredths(annotation: AnnotatedObject, size: tuple[int, int]) -> AnnotatedObject:
    """Convert box and polygons as `in_pixels` does, rounded to hundredths of a pixel.

    This restores coordinates that were pixels before a tool wrote fractions: 6 digits, the usual precision, resolve
    hundredths of a pixel in images of up to 6,000 pixels per side.
    """
    height, width = size
    x, y, box_width, box_height = annotation.box_xywh
    left, right = round(x * width, 2), round((x + box_width) * width, 2)
    top, bottom = round(y * height, 2), round((y + box_height) * height, 2)
    polygons = annotation.segmentation and [
        [round(share * (height if place % 2 else width), 2) for place, share in enumerate(polygon)]
        for polygon in annotation.segmentation
    ]
    return replace(
        annotation, box_xywh=(left, top, round(right - left, 2), round(bottom - top, 2)), segmentation=polygons
    )


def fitted_object(annotation: AnnotatedObject, size: tuple[int, int]) -> tuple[AnnotatedObject | None, str | None]:
    """Clip an object to an image of (height, width) pixels.

    Returns (object, None) if it is unchanged, (object, reason) if it was changed and (None, reason) if no area is left.
    A missing area is set to the area of the box.
    """
    height, width = size
    x, y, box_width, box_height = annotation.box_xywh
    if box_width <= 0 or box_height <= 0:
        return None, f"box {_shown(annotation.box_xywh)} (x, y, width, height) has no area"
    left, top = max(x, 0.0), max(y, 0.0)
    right, bottom = min(x + box_width, float(width)), min(y + box_height, float(height))
    if right <= left or bottom <= top:
        return None, f"box {_shown(annotation.box_xywh)} (x, y, width, height) lies outside the {width}x{height} image"
    reasons = []
    box = annotation.box_xywh
    if not math.isclose((right - left) * (bottom - top), box_width * box_height, rel_tol=1e-9):
        box = (left, top, right - left, bottom - top)
        reasons.append(f"box {_shown(annotation.box_xywh)} clipped to {_shown(box)} of the {width}x{height} image")
    area = box[2] * box[3]
    if annotation.area is not None and annotation.area > 0 and (reasons or annotation.area <= width * height):
        area = min(annotation.area, area) if reasons else annotation.area  # the clipped part has no area in the image
    elif annotation.area is not None:
        reasons.append(f"area {annotation.area:g} replaced by that of the box, {area:g}")
    return replace(annotation, box_xywh=box, area=area), "; ".join(reasons) or None


def _shown(numbers: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{number:g}" for number in numbers) + "]"
