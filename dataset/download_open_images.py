"""Download the images of Open Images that have a box of the selected classes; a step of dataset/get_open_images.sh.

    python dataset/download_open_images.py --object_annotations_file=open_images/validation-annotations-bbox.csv \
        --class_descriptions_file=open_images/class-descriptions-boxable.csv --classes=Apple,Banana --max_images=1000 \
        --split=validation --image_dir=open_images/validation --image_ids_file=open_images/validation.images.txt
"""

import contextlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

if __name__ == "__main__" and not __package__:  # run by path: sys.path[0] is dataset/, not the repository
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from absl import flags

from dataset.create_open_images_tfrecord import define_choice_flags, read_choice
from dataset.files.untrusted_values import allowing_fraction
from program_support import command_line
from program_support.atomic_files import unfinished_folder, write_text
from program_support.checked_fields import Count, Share, between
from program_support.command_line import define_flag
from program_support.errors import InputError
from program_support.progress import Progress

SITE = "https://open-images-dataset.s3.amazonaws.com"  # the bucket in the documentation of the data set
_CONTINUE = "run this again to resume"
_TRIES, _FIRST_PAUSE_SECONDS, _TIMEOUT_SECONDS = 5, 0.5, 60.0
_MISSING = (403, 404, 410)  # S3 returns 403 for a missing object if listing is not permitted
_TEMPORARY_ERRORS = (408, 425, 429, 500, 502, 503, 504)
_JPEG_START = b"\xff\xd8"


def define_flags() -> None:
    """Define the flags of this script."""
    define_choice_flags()
    flags.DEFINE_enum(
        "split", None, ["train", "validation", "test"], "Split of the images in the CSV file.", required=True
    )
    flags.DEFINE_string("image_dir", "", "Output folder for the images.")
    flags.DEFINE_string("image_ids_file", "", "Output text file for the ids of the images, one per line.")
    define_flag(
        "max_images", Count | None, None, "Maximum number of images, in the order of their (random) ids. Default: all."
    )
    define_flag("connections", Annotated[int, between(1, 1024)], 32, "Number of parallel downloads.")
    flags.DEFINE_string("site", SITE, "Base URL of the images (train/ID.jpg and so on).")
    define_flag("max_bad_fraction", Share, 0.01, "Maximum fraction of the images that the server may lack.")


def main() -> None:
    """Download the images that the flags select."""
    values = flags.FLAGS
    if not values.image_dir:
        raise InputError("give --image_dir")
    folder = Path(values.image_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(folder / "index") as index_folder:
            images = read_choice(index_folder).images[: values.max_images]
            if values.image_ids_file:
                write_text(
                    values.image_ids_file, "".join(f"{image.file_name.removesuffix('.jpg')}\n" for image in images)
                )
            missing = download_images(
                (image.file_name for image in images),
                folder,
                total=len(images),
                connections=values.connections,
                site=f"{values.site.rstrip('/')}/{values.split}",
                max_bad_fraction=values.max_bad_fraction,
            )
        listed = folder.with_name(f"{folder.name}.missing.txt")
        write_text(listed, "".join(f"{name}\n" for name in missing))
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error}; run this again to resume") from error
    print(
        f"images   {len(images) - len(missing)} in {folder}"
        + (f"; the server lacks {len(missing)}, listed in {listed}" if missing else "")
    )


def download_images(
    names: Iterable[str], folder: Path, *, total: int, site: str, connections: int, max_bad_fraction: float
) -> list[str]:
    """Download `site`/NAME to `folder`/NAME for all names; return the names that the server does not have.

    Raises:
        InputError: more than the allowed fraction is missing, the server cannot be reached or a response is not a JPEG.
        OSError: a file cannot be written.
    """
    missing: list[str] = []
    running: deque[tuple[str, Future]] = deque()

    def collect_oldest() -> None:
        name, future = running.popleft()
        if not future.result():
            missing.append(name)
            _check_missing(missing, total, site=site, max_bad_fraction=max_bad_fraction)
        progress.advance(images=1)

    with (
        unfinished_folder(folder / "images") as parts,
        _threads(connections) as pool,
        Progress("download", total=total, noun="image", slow_start=True) as progress,
    ):
        for name in names:
            running.append((name, pool.submit(_download, f"{site}/{name}", folder / name, parts)))
            if len(running) >= 4 * connections:  # submit only a few in advance: there may be millions
                collect_oldest()
        while running:
            collect_oldest()
    return missing


@contextlib.contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Provide threads that start no further downloads after an error."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _download(url: str, path: Path, parts: Path) -> bool:
    """Download one image unless it exists; return False if the server does not have it."""
    with contextlib.suppress(OSError):
        if path.stat().st_size:
            return True
    content = _content(url)
    if content is None:
        return False
    if not content.startswith(_JPEG_START):
        raise InputError(f"{url}: the response is not a JPEG, it begins with {content[:40]!r}; check for a proxy page")
    part = parts / path.name
    part.write_bytes(content)
    os.replace(part, path)
    return True


def _content(url: str) -> bytes | None:
    """Return the content of a URL, None if it does not exist; temporary errors are retried."""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _MISSING:
                return None
            reason = f"the server returned {error.code} ({error.reason})"
            if error.code not in _TEMPORARY_ERRORS:
                break
        except (
            OSError,
            http.client.HTTPException,
        ) as error:  # no connection, unknown host, proxy error, truncated response
            reason = str(getattr(error, "reason", "") or error) or type(error).__name__
        except ValueError as error:
            raise InputError(f"{url}: is not a valid URL ({error})") from error
    raise InputError(f"{url}: download failed ({reason}); {_CONTINUE}")


def _check_missing(missing: list[str], total: int, *, site: str, max_bad_fraction: float) -> None:
    if len(missing) > max_bad_fraction * total:
        fraction = allowing_fraction(len(missing), total)
        raise InputError(
            f"{site}: the server returned 404, 410 or 403 for {len(missing)} of {total} images, such as {missing[0]}; "
            f"expected at most {max_bad_fraction:.2%}; to accept this, set --max_bad_fraction={fraction} or more; "
            f"{_CONTINUE}"
        )


if __name__ == "__main__":
    define_flags()
    command_line.run(main, ends_at_once=True)
