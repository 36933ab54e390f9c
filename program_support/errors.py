"""The one exception that means: what the user gave is at fault."""

import difflib
import unicodedata
from collections.abc import Iterable

_NEAR = 0.85
# Characters that turn the direction of the text after them (UAX 9): what is read is then not what stands there
DIRECTION_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_NOT_SHOWN = {"Cc", "Cs", "Zl", "Zp"}  # controls, among them a terminal's escape; half surrogate pairs; ends of lines


class InputError(ValueError):
    """A file, flag or value from outside is wrong; the entry points print the message and exit with code 2.

    The message is one line that says what was found, what was requested, and where (file, image id, annotation id).
    """


def printable(text: str) -> str:
    """Return a text with the characters escaped that would act on a terminal or on the text around it, as in `repr`."""
    return "".join(character.encode("unicode_escape").decode() if character in DIRECTION_CONTROLS
                   or unicodedata.category(character) in _NOT_SHOWN else character for character in text)


def nearest_name(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` is a slip of the pen of; None where none is so near that to name it would help.

    Near is a ratio of `difflib` from 0.85 on, whatever the case: `learning_rat` is `learning_rate`, but `grid_mask` is not
    `gamma`, nor `train_file_pattern` `val_file_pattern`.
    """
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=_NEAR)
    return by_folded[found[0]] if found else None
