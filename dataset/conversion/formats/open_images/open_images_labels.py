"""Read the CSV files of Open Images V4 to V7 without keeping their rows in memory."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dataset.conversion.annotations import AnnotatedDataSet, NothingUsable, ReportEntry
from dataset.conversion.formats.open_images.open_images_classes import SelectedClasses, selected_classes
from dataset.conversion.formats.open_images.open_images_index import BoxIndex, IndexedImages
from dataset.conversion.formats.open_images.open_images_rows import boxes_in
from dataset.files.bounded_files import csv_rows
from dataset.files.untrusted_values import listed
from program_support.errors import InputError
from program_support.progress import Progress
from program_support.signals import DeferredSignals

# Number of images of V6 with a box of MLPerf's 264 classes.
EXPECTED_IMAGES = {"mlperf-train": 1_170_301, "mlperf-validation": 24_781}
_MIB = 1 << 20


def read_open_images(
    *,
    object_annotations_file: str,
    class_descriptions_file: str,
    index_folder: Path,
    classes: str = "",
    hierarchy_file: str = "",
    with_descendants: bool = False,
    image_ids_file: str = "",
    expect: str = "",
) -> AnnotatedDataSet:
    """Return the images with at least one box of the selected classes, in the order of their names, with these boxes.

    `image_ids_file` restricts them to the listed images. The images are stored in `index_folder`, which must exist as
    long as the data set is used. Image ids count from 1.

    Raises:
        InputError: a file is invalid, or `expect`, a key of `EXPECTED_IMAGES`, has another number of images.
        Interrupted: for a signal.
    """
    selected = selected_classes(
        classes,
        class_descriptions_file=class_descriptions_file,
        hierarchy_file=hierarchy_file,
        with_descendants=with_descendants,
    )
    chosen = _read_image_ids(image_ids_file) if image_ids_file else None
    tally: Counter[str] = Counter()
    skipped: list[ReportEntry] = []
    choice = [selected.class_names.to_categories(), sorted(selected.category_of.items()), chosen and sorted(chosen)]
    hasher = hashlib.sha256(json.dumps(choice).encode())
    with _reading_progress(object_annotations_file) as line_read:

        def taken(line: bytes) -> None:
            hasher.update(line)
            line_read(line)

        rows = csv_rows(object_annotations_file, taken=taken)
        index, repeated = BoxIndex.build(
            index_folder / "boxes",
            boxes_in(
                rows,
                object_annotations_file,
                category_of=selected.category_of,
                chosen=chosen,
                tally=tally,
                skipped=skipped,
            ),
        )
    images = IndexedImages(index, range(1, index.count_images() + 1))
    if not images:
        of_listed = f" in an image of {image_ids_file}" if image_ids_file else ""
        if skipped:
            raise NothingUsable(object_annotations_file, skipped)
        raise InputError(f"{object_annotations_file}: contains no boxes of the selected classes{of_listed}")
    if expect:
        _check_number(len(images), expect, path=object_annotations_file, classes=len(selected.class_names))
    noted = [ReportEntry(kind="box", file=object_annotations_file, reason=text) for text in _odd_rows(repeated, tally)]
    noted += _odd_classes(selected, class_descriptions_file)
    if chosen is not None:
        noted += _images_without_boxes(len(chosen) - len(images), len(chosen), image_ids_file)
    return AnnotatedDataSet(
        source=object_annotations_file,
        images=images,
        class_names=selected.class_names,
        fingerprint=hasher.hexdigest(),
        listed_boxes=index.count_boxes() + len(skipped),
        skipped=skipped,
        noted=noted,
    )


def _check_number(images: int, expect: str, *, path: str, classes: int) -> None:
    if images != EXPECTED_IMAGES[expect]:
        raise InputError(
            f"{path}: {images} images have a box of the {classes} classes; expected {EXPECTED_IMAGES[expect]} by "
            f"--expect={expect}: another split or version, or truncated"
        )


@contextmanager
def _reading_progress(path: str) -> Iterator[Callable[[bytes], None]]:
    """Show the progress of reading a file, whose lines are passed to the yielded function; may be interrupted."""
    size = os.stat(path).st_size if os.path.exists(path) else 0
    with (
        Progress("read", total=-(-size // _MIB), noun="MiB", slow_start=True) as progress,
        DeferredSignals() as signals,
    ):
        rest = 0

        def line_read(line: bytes) -> None:
            nonlocal rest
            rest += len(line)
            if rest >= _MIB:
                progress.advance(rest // _MIB)
                rest %= _MIB
                signals.check()

        yield line_read


def _read_image_ids(path: str) -> set[str]:
    """Read one image per line, as ImageID or, as in the official lists, train/ImageID."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    image_ids = {line.strip().rpartition("/")[2] for line in lines} - {""}
    if not image_ids:
        raise InputError(f"{path}: contains no image ids")
    return image_ids


def _odd_rows(repeated: int, tally: Counter[str]) -> Iterator[str]:
    if repeated:
        yield f"{repeated} rows duplicate another row (image, class, box and IsGroupOf): duplicates are ignored"
    if tally["low"]:
        yield f"{tally['low']} boxes have a Confidence between 0 and 1: converted like all other boxes"
    if tally["none"]:
        yield f"{tally['none']} rows have Confidence 0 (object absent): ignored"


def _images_without_boxes(count: int, listed_images: int, path: str) -> list[ReportEntry]:
    if not count:
        return []
    reason = f"{count} of {listed_images} images have no boxes of the selected classes and are not converted"
    return [ReportEntry(kind="image", file=path, reason=reason)]


def _odd_classes(selected: SelectedClasses, path: str) -> list[ReportEntry]:
    if not selected.renamed:
        return []
    reason = f"class names differ from the list for the same labels: {listed(selected.renamed)}"
    return [ReportEntry(kind="class", file=path, reason=reason)]
