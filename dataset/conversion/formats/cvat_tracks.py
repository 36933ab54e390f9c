"""Read the tracks of "CVAT for video 1.1" as images with shapes, for frames that exist as image files.

A shape holds from its frame to the next one of its track, moved linearly between both, or to the end of the video. It
ends at a shape with outside="1", towards which it moves as well, as in CVAT (TrackManager.get_interpolated_shapes).
"""

import xml.etree.ElementTree as ElementTree
from bisect import bisect_right
from typing import NamedTuple

from dataset.conversion.annotations import SplitContent
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.formats.cvat_frames import cvat_tasks, images_of_frames
from dataset.files.untrusted_values import error_context, is_set, number_in_text, shown
from program_support.errors import InputError

_MOVING = ("xtl", "ytl", "xbr", "ybr", "rotation", "cx", "cy", "rx", "ry")


class _Keyframe(NamedTuple):
    frame: int
    is_outside: bool
    shape: ElementTree.Element


def frames_of_tracks(
    root: ElementTree.Element, images: ImageFolder, *, path: str, content: SplitContent
) -> list[ElementTree.Element]:
    """Return the frames with an image file as elements of "CVAT for images 1.1".

    `content` receives invalid shapes and the number of interpolated ones.

    Raises:
        InputError: as `images_of_frames` does.
    """
    nodes = []
    for task in cvat_tasks(root, path):
        tracks = [
            _keyframes(track, task.frames, path=path, content=content)
            for track in root.iterfind("track")
            if task.task_id in (None, track.get("task_id"))
        ]
        if task.task_id and not tracks:
            continue
        last = max((keyframes[-1].frame for _, keyframes in tracks if keyframes), default=0)
        frames = task.frames or range(last + 1)
        split = {"subset": task.subset} if task.subset else {}
        for frame, name in sorted(images_of_frames(task, frames, images, path=path).items()):
            node = ElementTree.Element("image", {"name": name, **task.shape, **split})
            for label, keyframes in tracks:
                if (shape := _shape_at(frame, keyframes, content)) is not None:
                    node.append(ElementTree.Element(shape.tag, {**shape.attrib, "label": label}))
            nodes.append(node)
    return nodes


def _keyframes(
    track: ElementTree.Element, frames: range | None, *, path: str, content: SplitContent
) -> tuple[str, list[_Keyframe]]:
    """Return the label of a track and its shapes in the order of their frames."""
    keyframes = []
    for shape in track:
        with content.skipping(file=path), error_context(f"track {shown(track.get('id'))}: {shape.tag}"):
            frame = number_in_text(shape.get("frame", ""), where="frame")
            if frame % 1 or not 0 <= frame < 10**9:
                raise InputError(f"has frame {frame:g}, expected a frame number")
            for name in _MOVING:
                if name in shape.attrib:
                    number_in_text(shape.attrib[name], where=name)
            is_outside = is_set(shape.get("outside"), "outside")
            if frames is not None and int(frame) not in frames and not is_outside:
                raise InputError(f"has frame {frame:g}, which is none of the task: start_frame, frame_filter, size")
            keyframes.append(_Keyframe(int(frame), is_outside, shape))
    return track.get("label", ""), sorted(keyframes, key=lambda keyframe: keyframe.frame)


def _shape_at(number: int, keyframes: list[_Keyframe], content: SplitContent) -> ElementTree.Element | None:
    """Return the shape of a track in a frame, or None where the track does not show."""
    place = bisect_right(keyframes, number, key=lambda keyframe: keyframe.frame)
    if place == 0 or keyframes[place - 1].is_outside:
        return None
    frame, _, shape = keyframes[place - 1]
    if frame == number:
        return shape
    content.notes["shapes are interpolated between the keyframes of their track"] += 1
    if place == len(keyframes):
        return shape
    following = keyframes[place]
    share = (number - frame) / (following.frame - frame)
    moved = {}
    for name in _MOVING:
        if name in shape.attrib and name in following.shape.attrib:
            start, end = float(shape.attrib[name]), float(following.shape.attrib[name])
            moved[name] = str(start + share * (end - start))
    return ElementTree.Element(shape.tag, {**shape.attrib, **moved})
