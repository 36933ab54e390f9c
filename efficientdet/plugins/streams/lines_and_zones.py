"""Lines and zones in a frame, and the tracked objects that cross or enter them, by class."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dataset.class_names import ClassNames
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError

_NUMBER = re.compile(r"\d{1,6}(\.\d{0,6})?|\.\d{1,6}", re.ASCII)
_NAME = re.compile(r"[^\W_][\w .-]{0,39}")
_MARGIN = 0.1  # distance from a line, in sides of an object, below which its box may tremble without being counted
_MOST_CORNERS = 100
_LINE_COLOR, _EDGE_COLOR = (255, 225, 0), (0, 0, 0)  # RGB
_LINE_FRACTION, _FONT_FRACTION = 1 / 160, 1 / 28  # shares of the frame's shorter side
_SMALLEST_FONT = 10  # pixels


@dataclass
class CountLine:
    """A line, and how many objects have crossed it in each direction.

    The center of an object's box crosses the line. Seen from the first point to the second, `entered` counts crossings
    from left to right: downwards over a line from left to right, to the right over a line from the bottom to the top.

    Attributes:
        name: name in images and files.
        points: [2, 2] x, y in pixels or, if none is above 1, fractions of the frame's width and height.
        entered, left: numbers of objects by class name.
    """

    name: str
    points: np.ndarray
    entered: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    _last: dict[int, np.ndarray] = field(default_factory=dict, repr=False)  # by track: last place beside the line

    @classmethod
    def parse(cls, text: str, *, number: int) -> "CountLine":
        """Parse `X1,Y1,X2,Y2` or `NAME:X1,Y1,X2,Y2`; the default name is that of the `number`.

        Raises:
            InputError: for anything else.
        """
        name, points = _name_and_points(text, f"line {number}", flag="count_line", expected="[NAME:]X1,Y1,X2,Y2")
        if len(points) != 2 or (points[0] == points[1]).all():
            raise InputError(f"--count_line={text}: expected [NAME:]X1,Y1,X2,Y2, two different points")
        return cls(name, points)

    def update(self, centers: np.ndarray, sides: np.ndarray, track_ids: Sequence[int], classes: Sequence[str]) -> None:
        """Count the objects that have crossed the line.

        Args:
            centers: [N, 2] x, y of the objects in pixels, as `points`.
            sides: [N] mean side of the objects.
            track_ids: N identities.
            classes: N class names.
        """
        start, end = self.points
        along = end - start
        for center, side, track_id, name in zip(centers, sides, track_ids, classes, strict=True):
            distance = _cross(along, center - start) / np.hypot(*along)
            if abs(distance) < _MARGIN * side:
                continue
            before = self._last.get(track_id)
            self._last[track_id] = center
            if before is None or (_cross(along, before - start) > 0) == (distance > 0):
                continue
            if _cross(center - before, start - before) * _cross(center - before, end - before) <= 0:
                (self.entered if distance > 0 else self.left)[name] += 1

    def forget(self, live_ids: set[int]) -> None:
        """Forget the tracks that have ended."""
        self._last = {track_id: place for track_id, place in self._last.items() if track_id in live_ids}

    def to_json(self) -> dict[str, Any]:
        """Return the counts by class."""
        return {"name": self.name, "in": dict(self.entered), "out": dict(self.left)}

    def short_text(self) -> str:
        """Return the name and the counts of all classes."""
        return f"{self.name}: in {self.entered.total()}, out {self.left.total()}"

    def __str__(self) -> str:
        return f"{self.name}: in {_by_class(self.entered)}, out {_by_class(self.left)}"


@dataclass
class Zone:
    """A zone, and how many objects are and were in it.

    An object is in the zone while the center of its box is.

    Attributes:
        name: name in images and files.
        points: [P, 2] x, y of the corners, in pixels or fractions as in `CountLine`.
        inside: numbers of objects by class name, in the last frame.
        visitors: numbers of different objects by class name, since the beginning.
        most: highest number of objects at a time.
    """

    name: str
    points: np.ndarray
    inside: Counter[str] = field(default_factory=Counter)
    visitors: Counter[str] = field(default_factory=Counter)
    most: int = 0
    _seen: set[int] = field(default_factory=set, repr=False)

    @classmethod
    def parse(cls, text: str, *, number: int) -> "Zone":
        """Parse `[NAME:]X1,Y1,X2,Y2`, two opposite corners of a rectangle, or all corners of a polygon.

        Raises:
            InputError: for anything else.
        """
        expected = "[NAME:]X1,Y1,X2,Y2 (a rectangle) or [NAME:]X1,Y1,X2,Y2,X3,Y3,... (a polygon)"
        name, points = _name_and_points(text, f"zone {number}", flag="zone", expected=expected)
        if len(points) == 2:
            (left, top), (right, bottom) = points
            points = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
        others = np.roll(points, -1, axis=0)
        if not 3 <= len(points) <= _MOST_CORNERS or not abs(_cross(points, others).sum()) > 0:
            raise InputError(f"--zone={text}: has no area; expected {expected}")
        return cls(name, points)

    def update(self, centers: np.ndarray, sides: np.ndarray, track_ids: Sequence[int], classes: Sequence[str]) -> None:
        """Count the objects in the zone; for the arguments see `CountLine.update`."""
        inside = [one for one in zip(centers, track_ids, classes, strict=True) if self._contains(one[0])]
        self.inside = Counter(name for _, _, name in inside)
        self.most = max(self.most, len(inside))
        for _, track_id, name in inside:
            if track_id not in self._seen:
                self._seen.add(track_id)
                self.visitors[name] += 1

    def forget(self, live_ids: set[int]) -> None:
        """Forget the tracks that have ended."""
        self._seen &= live_ids

    def to_json(self) -> dict[str, Any]:
        """Return the counts by class."""
        counts = {"inside": dict(self.inside), "visitors": dict(self.visitors), "most_at_once": self.most}
        return {"name": self.name, **counts}

    def short_text(self) -> str:
        """Return the name and the counts of all classes."""
        return f"{self.name}: {self.inside.total()} of {self.visitors.total()}"

    def __str__(self) -> str:
        return f"{self.name}: {_by_class(self.visitors)}, at most {self.most} at a time"

    def _contains(self, place: np.ndarray) -> bool:
        """Return whether a ray to the right crosses an odd number of sides."""
        x, y = place
        crossed = False
        for (x1, y1), (x2, y2) in zip(self.points, np.roll(self.points, -1, axis=0), strict=True):
            if (y1 > y) != (y2 > y) and x < x1 + (y - y1) / (y2 - y1) * (x2 - x1):
                crossed = not crossed
        return crossed


class TrackCounts:
    """Counts of the tracked objects of one video that cross lines and enter zones.

        counts = TrackCounts(lines=["gate:0.5,1,0.5,0"], zones=["0,0,320,240"])

    Attributes:
        lines, zones: see `CountLine` and `Zone`, in the order of the arguments.
    """

    def __init__(self, *, lines: Sequence[str] = (), zones: Sequence[str] = ()):
        """Start with counts of 0.

        Args:
            lines: `[NAME:]X1,Y1,X2,Y2` each, in pixels or fractions of the frame.
            zones: `[NAME:]X1,Y1,X2,Y2` (a rectangle) or `[NAME:]X1,Y1,X2,Y2,X3,Y3,...` (a polygon) each.

        Raises:
            InputError: a line or zone has another form, or two have the same name.
        """
        self.lines = [CountLine.parse(text, number=number) for number, text in enumerate(lines, start=1)]
        self.zones = [Zone.parse(text, number=number) for number, text in enumerate(zones, start=1)]
        self._size: tuple[int, int] | None = None
        names = Counter(one.name for one in self.all)
        if names and names.most_common(1)[0][1] > 1:
            raise InputError(
                f"two lines or zones have the name {names.most_common(1)[0][0]!r}; expected different names"
            )

    @property
    def all(self) -> "list[CountLine | Zone]":
        """The lines and the zones."""
        return [*self.lines, *self.zones]

    def update(
        self, rows: DetectionRows, class_names: ClassNames, *, live_ids: set[int], size: tuple[int, int]
    ) -> None:
        """Count the tracked objects of the next frame.

        Args:
            rows: detections with `track_ids`.
            class_names: names of the categories.
            live_ids: the tracks that have not ended.
            size: height and width of the frame.

        Raises:
            InputError: a line or zone lies outside the first frame.
        """
        if self._size is None:
            self._size = size
            for one in self.all:
                one.points = _in_pixels(one, size)
        assert rows.track_ids is not None
        name_of = dict(zip(class_names.category_ids, class_names.names, strict=True))
        classes = [name_of[number] for number in rows.category_ids.tolist()]
        centers = (rows.boxes[:, [1, 0]] + rows.boxes[:, [3, 2]]).astype(np.float64) / 2
        sides = (rows.boxes[:, 2:] - rows.boxes[:, :2]).astype(np.float64).mean(axis=1)
        for one in self.all:
            one.update(centers, sides, rows.track_ids.tolist(), classes)
            one.forget(live_ids)

    def drawn(self, pixels: np.ndarray) -> np.ndarray:
        """Return a frame [h, w, 3] uint8 with lines, zones and counts."""
        if not self.all:
            return pixels
        canvas = Image.fromarray(pixels)
        draw, side = ImageDraw.Draw(canvas), min(canvas.size)
        width = max(2, round(side * _LINE_FRACTION))
        font = ImageFont.load_default(max(_SMALLEST_FONT, round(side * _FONT_FRACTION)))
        for one in self.all:
            corners = [(float(x), float(y)) for x, y in one.points]
            draw.line([*corners, corners[0]], fill=_LINE_COLOR, width=width)
            x, y = one.points.mean(axis=0).tolist()
            draw.text((x, y), one.short_text(), _LINE_COLOR, font, "mm", stroke_width=width, stroke_fill=_EDGE_COLOR)
        return np.asarray(canvas)

    def to_json(self) -> dict[str, Any]:
        """Return all counts by class."""
        return {"lines": [one.to_json() for one in self.lines], "zones": [one.to_json() for one in self.zones]}

    def __str__(self) -> str:
        return "\n".join(map(str, self.all))


def _in_pixels(one: CountLine | Zone, size: tuple[int, int]) -> np.ndarray:
    """Return the points of a line or zone in pixels of a frame (height, width)."""
    height, width = size
    if one.points.max() <= 1:
        return one.points * (width, height)
    if (one.points.min(axis=0) >= (width, height)).any():
        raise InputError(f"{one.name}: lies outside the frames, which have {width}x{height} pixels")
    return one.points


def _name_and_points(text: str, default_name: str, *, flag: str, expected: str) -> tuple[str, np.ndarray]:
    """Return the name and the points [P, 2] of a flag's value."""
    head, separator, tail = text.rpartition(":")
    name, numbers = (head.strip() if separator else default_name), tail.split(",")
    if not _NAME.fullmatch(name) or len(numbers) % 2 or not all(_NUMBER.fullmatch(one.strip()) for one in numbers):
        raise InputError(f"--{flag}={text}: expected {expected} in pixels or fractions of the frame")
    points = np.array([float(one) for one in numbers]).reshape(-1, 2)
    if points.max() > 1 and ((points > 0) & (points < 1)).any():
        raise InputError(f"--{flag}={text}: mixes pixels and fractions of the frame; expected one of them")
    return name, points


def _cross(first: np.ndarray, second: np.ndarray) -> Any:
    """Return the cross product of vectors [..., 2]: above 0 where the second points to the right of the first."""
    return first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]


def _by_class(counts: Counter[str]) -> str:
    listed = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    return f"{counts.total()} ({listed})" if listed else "0"
