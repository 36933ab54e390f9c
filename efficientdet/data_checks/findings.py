"""What the doctor says: a sentence each, how much it matters, what fixes it and which images it is about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from program_support.errors import printable

WARNING, NOTE = "warning", "note"  # costs accuracy or time as it is; worth knowing


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`about` is its name in the JSON; `settings` are hyperparameters that fix it; `images` are some of those concerned.

    `line` is printed, and names files and classes: what would act on a terminal is escaped in it.
    """

    about: str
    level: str
    line: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    images: Sequence[str] = ()

    def __post_init__(self):
        object.__setattr__(self, "line", printable(self.line))


def as_hparams(settings: Mapping[str, Any]) -> str:
    """Hyperparameters as --hparams takes them."""
    return ",".join(f"{key}={_value(value)}" for key, value in settings.items())


def share(part: float) -> str:
    """Such as 25 %, or 0.4 % of what is little."""
    return f"{100 * part:.0f} %" if part >= 0.02 or part == 0 else f"{100 * part:.2g} %"


def counted(count: int, one: str, several: str) -> str:
    """Such as 1 pair or 3 pairs."""
    return f"{count} {one if count == 1 else several}"


def named(names: Sequence[str], most: int = 3) -> str:
    """Some of them, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _value(value: Any) -> str:
    return "*".join(f"{item:g}" for item in value) if isinstance(value, tuple) else str(value)
