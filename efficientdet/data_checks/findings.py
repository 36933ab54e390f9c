"""Findings of the data check: a sentence, a severity, suggested settings and the images concerned."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from program_support.errors import printable


@dataclass(frozen=True)
class Finding:
    """A finding: `about` is its name in the JSON, `settings` are hyperparameters that fix it, `images` are examples.

    `line` is printed and contains names of files and classes; control characters are escaped in it.
    """

    about: str
    is_warning: bool  # it reduces accuracy or speed; otherwise information
    line: str
    _: KW_ONLY
    settings: Mapping[str, Any] = field(default_factory=dict)
    images: Sequence[str] = ()

    def __post_init__(self):
        object.__setattr__(self, "line", printable(self.line))

    @property
    def level(self) -> str:
        """Return `warning` or `note`."""
        return "warning" if self.is_warning else "note"


def as_hparams(settings: Mapping[str, Any]) -> str:
    """Return hyperparameters in the format of --hparams."""
    return ",".join(f"{key}={_value(value)}" for key, value in settings.items())


def share(part: float) -> str:
    """Return a share in percent, such as 25%, or 0.4% for a small one."""
    return f"{100 * part:.0f}%" if part >= 0.02 or part == 0 else f"{100 * part:.2g}%"


def counted(count: int, one: str, several: str) -> str:
    """Return a count with its noun, such as 1 pair or 3 pairs."""
    return f"{count} {one if count == 1 else several}"


def named(names: Sequence[str], most: int = 3) -> str:
    """Return the first names and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _value(value: Any) -> str:
    return "*".join(f"{item:g}" for item in value) if isinstance(value, tuple) else str(value)
