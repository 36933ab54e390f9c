"""Make videos with known tracks: drawn objects that cross and hide each other, or a view that moves over a photo.

`python benchmarks/moving_objects.py --output_dir=FOLDER [--frames=250] [--seed=0]` draws objects of `dataset.synthetic`
that leave the frame and come in again.

`python benchmarks/moving_objects.py --output_dir=FOLDER --photo=FILE --labels=COCO.json [--frames=100]` moves a view of
half of the photo's width from its left to its right side, as a microscope's stage does.

Both write `video.mp4` (25 frames per second) and `gt.txt`, the tracks in the format of the MOT Challenge.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from dataset.synthetic_images.scenes import draw_ground
from dataset.synthetic_images.shapes import KINDS, Kind, draw_sprite

FRAMES_PER_SECOND = 25
_LEAST_VISIBLE = 0.25  # share of an object that is visible where it has a known box
_SIDE = 0.25  # longer side of the objects, share of the frame's shorter side, times 0.7 to 1.3
_KINDS = [kind for kind in KINDS if kind.name in ("ball", "fish", "star")]


class KnownBox(NamedTuple):
    """One object in one frame."""

    track_id: int  # from 1
    category_id: int
    box: tuple[float, float, float, float]  # x, y, width, height in pixels, clipped to the frame
    visible: float  # share of the object's pixels


@dataclass
class MovingObject:
    """An object that moves on a line with a swing across it."""

    kind: Kind
    sprite: np.ndarray  # [rows, columns, 4] uint8
    start: np.ndarray  # y, x of the upper left corner in frame `first`
    step: np.ndarray  # pixels per frame
    swing: float  # pixels
    period: float  # frames
    first: int
    track_id: int

    def corner(self, frame: int) -> tuple[int, int]:
        """Return the upper left corner (y, x) in a frame, in whole pixels."""
        age = frame - self.first
        across = self.step[::-1] / np.hypot(*self.step) * (1, -1)
        place = self.start + age * self.step + across * self.swing * math.sin(2 * math.pi * age / self.period)
        return round(place[0]), round(place[1])


@dataclass
class Sequence:
    """A drawn sequence; iterating yields the pixels and the known boxes of each frame. The same seed, the same bytes.

    Objects that were drawn later hide earlier ones. A new object comes in wherever one has left the frame.
    """

    size: tuple[int, int] = (240, 320)  # height, width
    frames: int = 250
    objects: int = 9  # at a time
    seed: int = 0
    _random: np.random.Generator = field(init=False)
    _count: int = field(init=False, default=0)

    def __iter__(self) -> Iterator[tuple[np.ndarray, list[KnownBox]]]:
        """Yield [height, width, 3] uint8 RGB and the objects with at least a quarter visible."""
        self._random, self._count = np.random.default_rng(self.seed), 0
        ground = draw_ground(self.size, self._random)
        moving = [self._enter(0, inside=True) for _ in range(self.objects)]
        for frame in range(self.frames):
            moving = [one if self._is_near(one, frame) else self._enter(frame) for one in moving]
            yield self._drawn(ground, sorted(moving, key=lambda one: one.track_id), frame)

    def _enter(self, frame: int, *, inside: bool = False) -> MovingObject:
        random, size = self._random, np.array(self.size)
        kind = _KINDS[random.integers(len(_KINDS))]
        sprite = draw_sprite(kind, side=min(size) * _SIDE * random.uniform(0.7, 1.3), random=random)
        shape = np.array(sprite.shape[:2])
        from_left = random.random() < 0.5
        start = random.uniform(0.05, 0.95, 2) * size - shape / 2
        if not inside:
            start[1] = -shape[1] + 1 if from_left else size[1] - 1
        speed = random.uniform(0.003, 0.009) * size[1]  # pixels per frame
        angle = random.uniform(-0.35, 0.35)
        step = speed * np.array([math.sin(angle), math.cos(angle) * (1 if from_left else -1)])
        self._count += 1
        return MovingObject(
            kind,
            sprite,
            start,
            step,
            random.uniform(0, 0.06) * size[0],
            random.uniform(30, 80),
            frame,
            self._count,
        )

    def _is_near(self, one: MovingObject, frame: int) -> bool:
        top, left = one.corner(frame)
        rows, columns = one.sprite.shape[:2]
        return -rows < top < self.size[0] and -columns < left < self.size[1]

    def _drawn(self, ground: np.ndarray, moving: list[MovingObject], frame: int) -> tuple[np.ndarray, list[KnownBox]]:
        pixels, shown = ground.copy(), np.zeros(self.size, np.int64)
        for one in moving:
            window, part = self._window(one, frame)
            opacity = part[..., 3:].astype(np.float32) / 255
            pixels[window] = (pixels[window] * (1 - opacity) + part[..., :3] * opacity + 0.5).astype(np.uint8)
            shown[window][part[..., 3] >= 128] = one.track_id
        known = []
        for one in moving:
            (y, x), _ = self._window(one, frame)
            visible = (shown == one.track_id).sum() / (one.sprite[..., 3] >= 128).sum()
            if visible >= _LEAST_VISIBLE:
                box = (float(x.start), float(y.start), float(x.stop - x.start), float(y.stop - y.start))
                known.append(KnownBox(one.track_id, one.kind.category_id, box, float(visible)))
        return pixels, known

    def _window(self, one: MovingObject, frame: int) -> tuple[tuple[slice, slice], np.ndarray]:
        """Return where an object lies in the frame, and that part of its sprite."""
        (top, left), (rows, columns), (height, width) = one.corner(frame), one.sprite.shape[:2], self.size
        y, x = slice(max(top, 0), min(top + rows, height)), slice(max(left, 0), min(left + columns, width))
        return (y, x), one.sprite[y.start - top : y.stop - top, x.start - left : x.stop - left]


@dataclass(frozen=True)
class MovingView:
    """A view of half of a labeled photo's width that moves over it; iterating is as for `Sequence`."""

    photo: Path
    labels: dict  # the content of a COCO file
    frames: int = 100

    def __iter__(self) -> Iterator[tuple[np.ndarray, list[KnownBox]]]:
        """Yield [height, width, 3] uint8 RGB and the objects of which at least a quarter of the box shows."""
        pixels = cv2.imread(str(self.photo))[..., ::-1]
        [image_id] = [one["id"] for one in self.labels["images"] if one["file_name"] == self.photo.name]
        objects = [one for one in self.labels["annotations"] if one["image_id"] == image_id]
        width = pixels.shape[1] // 2
        for frame in range(self.frames):
            left = round((pixels.shape[1] - width) * frame / max(self.frames - 1, 1))
            known = []
            for track_id, one in enumerate(objects, start=1):
                x, y, box_width, height = one["bbox"]
                start, end = max(x - left, 0), min(x + box_width - left, width)
                if (visible := (end - start) / box_width) >= _LEAST_VISIBLE:
                    known.append(KnownBox(track_id, one["category_id"], (start, y, end - start, height), visible))
            yield np.ascontiguousarray(pixels[:, left : left + width]), known


def mot_lines(frames: list[list[KnownBox]]) -> str:
    """Return known tracks as a gt.txt of the MOT Challenge; all of class 1, which its metrics count."""
    return "".join(
        f"{number},{one.track_id},{','.join(f'{value:.2f}' for value in one.box)},1,1,{one.visible:.2f}\n"
        for number, known in enumerate(frames, start=1)
        for one in known
    )


def main() -> None:
    """Write the video and its tracks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", required=True, help="Output folder.")
    parser.add_argument("--frames", type=int, help="Number of frames. Default: 250, of a photo 100.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed.")
    parser.add_argument("--photo", type=Path, help="Photo over which the view moves. Default: drawn objects.")
    parser.add_argument("--labels", type=Path, help="COCO file with the labels of the photo.")
    options = parser.parse_args()
    frames: Sequence | MovingView = Sequence(frames=options.frames or 250, seed=options.seed)
    if options.photo:
        frames = MovingView(options.photo, json.loads(options.labels.read_text()), options.frames or 100)
    folder = Path(options.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    writer, known = None, []
    for pixels, boxes in frames:
        if writer is None:
            codec, size = cv2.VideoWriter.fourcc(*"mp4v"), pixels.shape[1::-1]
            writer = cv2.VideoWriter(str(folder / "video.mp4"), codec, FRAMES_PER_SECOND, size)
        writer.write(np.ascontiguousarray(pixels[..., ::-1]))
        known.append(boxes)
    assert writer is not None
    writer.release()
    (folder / "gt.txt").write_text(mot_lines(known))
    tracks = len({box.track_id for boxes in known for box in boxes})
    print(f"{folder}/video.mp4: {len(known)} frames; {folder}/gt.txt: {tracks} tracks")


if __name__ == "__main__":
    main()
