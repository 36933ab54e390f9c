"""Which files a glob pattern names; free of TensorFlow, so that a wrong pattern is told before its slow import."""

import glob
import re
from pathlib import Path

from object_detection.errors import InputError

_SHARD_NAME = re.compile(r"(?P<prefix>.*)-\d{5}-of-(?P<total>\d{5})(?P<suffix>\.tfrecord)?")
_NAMES_SHOWN = 5


def expand_glob(pattern: str | Path) -> list[str]:
    """The files a pattern names, sorted, so that every rank numbers the records alike.

    Raises InputError where nothing matches (with what the folder does hold), and where the shards of two conversions
    lie together: every image would be read twice.
    """
    paths = sorted(path for path in glob.glob(str(pattern)) if Path(path).is_file())
    if not paths:
        raise InputError(f"{pattern}: no file matches; {_what_stands_in(Path(pattern).parent)}")
    totals: dict[str, set[str]] = {}
    for path in paths:
        if match := _SHARD_NAME.fullmatch(path):
            totals.setdefault(match["prefix"], set()).add(match["total"])
    for prefix, found in totals.items():
        if len(found) > 1:
            counts = " and of ".join(str(int(total)) for total in sorted(found))
            raise InputError(f"{pattern}: {prefix} are shards of several conversions, of {counts}; wanted one of them")
    return paths


def _what_stands_in(folder: Path) -> str:
    if glob.has_magic(str(folder)):
        return f"{folder} is itself a pattern"
    if not folder.is_dir():
        return f"there is no folder {folder}"
    names = sorted(path.name for path in folder.iterdir())
    if not names:
        return f"the folder {folder} is empty"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"the folder {folder} holds {', '.join(names[:_NAMES_SHOWN])}{more}"
