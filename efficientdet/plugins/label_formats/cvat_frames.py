"""Find the image of each frame of a CVAT task. "CVAT for video 1.1" has the numbers of frames and no names of images.

CVAT numbers the frames of a video as start_frame + k * step, and images in the order of their names. In a project, the
frames of a task follow those of the earlier tasks of its subset (ProjectData.abs_frame_id).
"""

import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dataset.conversion.folder_files import ImageFolder
from program_support.errors import InputError

_DIGITS = re.compile(r"(\d+)", re.ASCII)
_FRAME = re.compile(r"(frame_(\d{6,9}))(\.\w+)?", re.ASCII)
_STEP = re.compile(r"step\s*=\s*0*([1-9]\d{0,8})", re.ASCII)
_ADVICE = "an export as 'CVAT for images 1.1' with its images, or only the images of the task, in a folder of its name"
_ADVICE_ON_VIDEO = "the number of the frame in each name (ffmpeg -i VIDEO -start_number 0 frame_%06d.png)"


class CvatTask(NamedTuple):
    """A task or a job; `frames` is None if the file does not tell them, `of_images` false for a video."""

    task_id: str | None
    frames: range | None
    of_images: bool
    subset: str  # of a project
    words: list[str]  # names that may be those of its images' folder
    shape: dict[str, str]  # width and height


class _Series(NamedTuple):
    """Images that may be the frames: those whose names differ in one number, or those of a folder."""

    text: str
    names: list[str]
    numbers: list[int] | None = None


def cvat_tasks(root: ElementTree.Element, path: str) -> list[CvatTask]:
    """Return the tasks of a project, the task or the job that a file describes."""
    projects = root.findall("meta/project/tasks/task")
    nodes = projects or root.findall("meta/task") or root.findall("meta/job") or [root]
    tasks, last_frame = [], Counter[str]()
    for node in nodes:
        filtered = _STEP.search(node.findtext("frame_filter") or "")
        subset = node.findtext("subset") or "" if projects else ""
        step, size = int(filtered[1]) if filtered else 1, _count(node, "size")
        first = last_frame[subset] + _count(node, "start_frame")
        end = first + size * step
        names = [node.findtext(name) or root.findtext(f"meta/{name}") or "" for name in ("source", "name")]
        task = CvatTask(
            task_id=node.findtext("id") if projects else None,
            frames=range(first, end, step) if size else None,
            of_images=node.findtext("mode") == "annotation",
            subset=subset,
            words=[
                *names,
                *(PurePosixPath(name.replace("\\", "/")).stem for name in names),
                *(subset, Path(path).stem, Path(path).resolve().parent.name),
            ],
            shape={
                side: node.findtext(f"original_size/{side}") or root.findtext(f"meta/original_size/{side}") or ""
                for side in ("width", "height")
            },
        )
        tasks.append(task)
        if projects:
            last_frame[subset] = end
    return tasks


def _count(node: ElementTree.Element, name: str) -> int:
    text = (node.findtext(name) or "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def images_of_frames(task: CvatTask, frames: range, images: ImageFolder, *, path: str) -> dict[int, str]:
    """Return the image of each frame that has one.

    The name of the video, the task or the XML file decides among folders. The frame is the number in the names of a
    video's images if all images are its frames or all its frames are images, else the place in the order of the names
    where the numbers of frames and images agree.

    Raises:
        InputError: no image is a frame, or several readings disagree.
    """
    words = [] if task.of_images and len(images.names) == len(frames) else task.words
    folders = [str(PurePosixPath(name).parent) for name in images.names]
    series = [*_all_series([images.names[place] for place in _chosen(folders, words)])]
    chosen = [series[place] for place in _chosen([one.text for one in series], words)]
    readings = [reading for one in chosen if (reading := _reading(one, frames, of_images=task.of_images))]
    doubts = [reading for reading in readings if isinstance(reading, str)]
    found = [reading for reading in readings if isinstance(reading, dict)]
    if not doubts and any(reading != found[0] for reading in found):
        other = next(reading for reading in found if reading != found[0])
        first, second = (next(iter(reading.values())) for reading in (found[0], other))
        doubts.append(f"its first image may be {first} or {second}")
    if doubts or not found:
        step = f" in steps of {frames.step}" if frames.step > 1 else ""
        unclear = f"the names of the {len(images.names)} images in {images.folder} do not tell which these are"
        reason = doubts[0] if doubts else unclear
        advice = f"expected {_ADVICE}" if task.of_images else f"expected {_ADVICE}, or {_ADVICE_ON_VIDEO}"
        raise InputError(f"{path}: has the frames {frames[0]} to {frames[-1]}{step}, and {reason}; {advice}")
    return found[0]


def name_frames(root: ElementTree.Element, nodes: list[ElementTree.Element], images: ImageFolder, *, path: str) -> None:
    """Set the names of a video's images, which CVAT calls frame_000007, to those of their files if these are others.

    Raises:
        InputError: as `images_of_frames` does.
    """
    task, *others = cvat_tasks(root, path)
    numbered = [(match, node) for node in nodes if (match := _FRAME.fullmatch(node.get("name", "")))]
    stems = Counter(PurePosixPath(name).stem for name in images.names)
    is_named = all(stems[match[1]] == 1 for match, _ in numbered)
    if others or task.of_images or task.frames is None or len(numbered) < len(nodes) or is_named:
        return
    found = images_of_frames(task, task.frames, images, path=path)
    for match, node in numbered:
        node.set("name", found.get(int(match[2]), match[0]))


def _chosen(texts: list[str], words: list[str]) -> list[int]:
    """Return the places of the texts that the words name, first by a complete folder name, then by a part of a text."""
    places = [*range(len(texts))]
    for word in filter(None, map(_words_of, words)):
        for test in (_is_component, _is_part):
            if named := [place for place in places if test(word, texts[place])]:
                places = named
                break
    return places


def _words_of(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFC", text).casefold())


def _is_component(words: list[str], text: str) -> bool:
    return words in map(_words_of, text.split("/"))


def _is_part(words: list[str], text: str) -> bool:
    others = _words_of(text)
    return any(others[start : start + len(words)] == words for start in range(len(others)))


def _all_series(names: list[str]) -> Iterator[_Series]:
    """Yield images whose names differ in one number, and all images of a folder and of the tree."""
    keys = {name: _numbers_by_rest(PurePosixPath(name).stem) for name in names}
    counts = Counter(rest for rest, _ in {pair for pairs in keys.values() for pair in pairs})
    groups: dict[str, list[tuple[int, str]]] = defaultdict(list)
    by_folder: dict[str, list[str]] = defaultdict(list)
    for name, pairs in keys.items():
        by_folder[str(PurePosixPath(name).parent)].append(name)
        rest, number = max(pairs, key=lambda pair: counts[pair[0]], default=("", 0))
        if pairs and (len(pairs) == 1 or counts[rest] > 1):
            groups[rest].append((number, name))
    known = set()
    for rest, members in groups.items():
        is_shared = len({number for number, _ in members}) < len(members)
        divided: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for number, name in sorted(members):
            divided[str(PurePosixPath(name).parent) if is_shared else ""].append((number, name))
        for folder, part in divided.items():
            numbers, part_names = [number for number, _ in part], [name for _, name in part]
            if len({*numbers}) == len(numbers):
                known.add(frozenset(part_names))
                yield _Series(f"{folder}/{rest}", part_names, numbers)
    for folder, folder_names in {**by_folder, "": names}.items():
        if (content := frozenset(folder_names)) not in known:
            known.add(content)
            yield _Series(folder, folder_names)


def _numbers_by_rest(stem: str) -> list[tuple[str, int]]:
    """Return each number in a name, with the rest of the name."""
    pieces = _DIGITS.split(stem)
    return [
        ("/".join(("".join(pieces[:place]), "".join(pieces[place + 1 :]))), int(pieces[place]))
        for place in range(1, len(pieces), 2)
    ]


def _reading(series: _Series, frames: range, *, of_images: bool) -> dict[int, str] | str | None:
    """Return the images of the frames, why they are in doubt, or None if these images are not the frames."""
    names, numbers = series.names, series.numbers
    is_complete = len(names) == len(frames)
    if of_images or numbers is None:
        if not is_complete:
            return None
        for frame, name, other in zip(frames, sorted(names), sorted(names, key=_natural), strict=True):
            if name != other:
                return f"frame {frame} is {name} in the order of the names and {other} in that of their numbers"
        return dict(zip(frames, sorted(names), strict=True))
    common, common_from_1 = ({one for one in numbers if one - shift in frames} for shift in (0, 1))
    is_by_number, is_from_1 = (len(one) in (len(frames), len(numbers)) for one in (common, common_from_1))
    if (is_by_number or is_from_1) and not is_complete and 1 in numbers and 0 not in numbers:
        first = names[numbers.index(1)]
        return f"{first} is frame 1 by its number, and frame 0 if the numbers count from 1"
    if is_by_number:
        return {number: name for number, name in zip(numbers, names, strict=True) if number in common}
    if not is_complete:
        return None
    if common and numbers not in ([*range(len(numbers))], [*range(1, len(numbers) + 1)]):
        number = min(common)
        place = numbers.index(number)
        return f"{names[place]} is frame {number} by its number and frame {frames[place]} by its place"
    return dict(zip(frames, names, strict=True))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in _DIGITS.split(name)]
