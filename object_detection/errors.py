"""The one exception that means: what the user gave is at fault."""

import difflib
from collections.abc import Iterable

_NEAR = 0.85


class InputError(ValueError):
    """A file, flag or value from outside is wrong; the entry points print the message and exit with code 2.

    The message is one line that says what was found, what was wanted, and where (file, image id, annotation id).
    """


def nearest_name(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` is a slip of the pen of; None where none is so near that to name it would help.

    Near is a ratio of `difflib` from 0.85 on, whatever the case: `learning_rat` is `learning_rate`, but `grid_mask` is not
    `gamma`, nor `train_file_pattern` `val_file_pattern`.
    """
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=_NEAR)
    return by_folded[found[0]] if found else None
