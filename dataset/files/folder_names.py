"""Names of classes as names of folders, on every file system."""

import unicodedata
from collections.abc import Sequence

from dataset.files.image_files import distinct_stem

_FORBIDDEN = set('<>:"/\\|?*')  # by Windows
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in "123456789¹²³")}
_MOST_BYTES = 120


def folder_names(names: Sequence[str]) -> list[str]:
    """A folder name for each name, no two alike but for their case.

    What some file system forbids, and what cannot be printed, is `_`; no blank or dot stands at an end, so that none is hidden
    or leads elsewhere.
    """
    used: set[str] = set()
    return [distinct_stem(_allowed(name), used) for name in names]


def _allowed(name: str) -> str:
    letters = (letter if letter not in _FORBIDDEN and unicodedata.category(letter)[0] != "C" else "_"
               for letter in unicodedata.normalize("NFC", name))
    cut = "".join(letters).strip(" .").encode()[:_MOST_BYTES].decode(errors="ignore").strip(" .")
    return f"_{cut}" if not cut or cut.split(".")[0].strip().casefold() in _DEVICES else cut
