"""The exception for invalid user input, failures that are only warnings, and messages of C libraries."""

import contextlib
import difflib
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator

_MIN_SIMILARITY = 0.85
# Characters that change the direction of the following text (UAX 9), so that the displayed text differs from the actual
# one
DIRECTION_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ESCAPED_CATEGORIES = {
    "Cc",
    "Cs",
    "Zl",
    "Zp",
}  # controls, including a terminal's escape; lone surrogates; line separators


class InputError(ValueError):
    """A file, flag or value given by the user is invalid; the entry points print the message and exit with code 2.

    The message is one line: where (file, image id, annotation id), what was found, what was expected, what to do.
    """


@contextlib.contextmanager
def only_warning(what: str, log: Callable[[str], object]) -> Iterator[None]:
    """Log an exception of the block as a warning about `what`, without which a training or an export is complete."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, InputError | OSError) else f"{type(error).__name__}: "
        log(f"warning: {what}: {kind}{printable(' '.join(str(error).split()))}; the weights are not affected")


def printable(text: str) -> str:
    """Return a text with characters escaped that would affect a terminal or the text around it, as in `repr`."""
    return "".join(
        character.encode("unicode_escape").decode()
        if character in DIRECTION_CONTROLS or unicodedata.category(character) in _ESCAPED_CATEGORIES
        else character
        for character in text
    )


def nearest_name(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that `name` is probably a misspelling of; None if none is similar enough to suggest.

    Similar means a `difflib` ratio of at least 0.85, ignoring case: `learning_rat` is `learning_rate`, but `grid_mask`
    is not `gamma`, nor `train_file_pattern` `val_file_pattern`.
    """
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=_MIN_SIMILARITY)
    return by_folded[matches[0]] if matches else None


@contextlib.contextmanager
def silenced_stderr() -> Iterator[None]:
    """Discard what the process, C libraries included, writes to stderr in the block."""
    real, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(real, 2)
        os.close(real)
        os.close(nowhere)
