"""Description of a checkpoint: model, hyperparameters and classes as JSON, beside a bundle and in every exported model.

Beside a bundle the JSON also has the digests of the `.index` files it belongs to (`bundles`) and a checksum. While a
bundle is being replaced, it also has the description of the previous one (`replaces`), so that renaming the `.index`
switches arrays and description at the same time.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from dataset.class_names import ClassNames
from dataset.files.pixel_values import FULL_RANGE, WHITE_LEVEL, ValueRange
from dataset.input.tiling import Tiling
from efficientdet.families.hyperparameters import REMOVED_FROM_ALL, REMOVED_VALUES
from program_support.atomic_files import write_text
from program_support.errors import InputError

DESCRIPTION_SUFFIX = ".json"
_BESIDE = ("bundles", "replaces", "checksum", "continues")  # keys beside a description; the last of earlier versions
DESCRIPTION_FILE = "description.json"  # file name inside a SavedModel's folder
SCORE_CALIBRATION = "score_calibration"  # in score_thresholds: the three numbers of the `ScoreMap` of each class


@dataclass(frozen=True, kw_only=True)
class Description:
    """Description of a checkpoint."""

    model_name: str
    hparams: dict[str, Any]
    categories: list[dict]  # COCO's list of id and name
    weights: str  # "raw", "averaged", or "raw and averaged"
    global_step: int = 0
    steps_per_epoch: int = 0
    run: dict[str, Any] = field(default_factory=dict)  # progress of the training: see TrainingProgress
    # Measured score thresholds: see `score_thresholds.thresholds_to_store`.
    score_thresholds: dict[str, Any] = field(default_factory=dict)
    # The number of the checkpoint in the order of writing in its folder, from 1; 0: unknown.
    save_number: int = field(default=0, compare=False)

    @property
    def class_names(self) -> ClassNames:
        """The classes of the training.

        Raises:
            InputError: a name is invalid.
        """
        return ClassNames.from_categories(self.categories)

    @property
    def value_range(self) -> ValueRange:
        """Values of images with more than 8 bits per channel that become 0 and 255, see `as_rgb`."""
        levels = self.hparams.get("black_level", 0), self.hparams.get("white_level", WHITE_LEVEL)
        is_range = all(type(level) in (int, float) and math.isfinite(level) for level in levels)
        return ValueRange(*levels) if is_range and levels[0] < levels[1] else FULL_RANGE

    @property
    def tiling(self) -> Tiling | None:
        """The tiles in which it was trained and detects; None: complete images."""
        return Tiling.of_hyperparameters(self.hparams)

    def write(self, path: str | Path) -> None:
        """Write the description as JSON, atomically."""
        write_text(path, json.dumps(vars(self), indent=1) + "\n")


def bundle_digest(prefix: str | Path) -> str | None:
    """Return the digest of a bundle's `.index`, which has the checksum of every array; None without such a file."""
    try:
        return hashlib.sha256(Path(f"{prefix}.index").read_bytes()).hexdigest()[:32]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{prefix}.index: cannot be read ({error.strerror})") from error


def read_description(prefix: str | Path) -> Description | None:
    """Return the description of a bundle; None for a third-party checkpoint without one.

    Raises:
        InputError: it is damaged or belongs to another bundle.
    """
    path, digest = Path(f"{prefix}{DESCRIPTION_SUFFIX}"), bundle_digest(prefix)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        _compare_checksum(content)
        candidates = [(content["bundles"], content)]
        if replaced := content.get("replaces"):
            candidates.append((replaced["bundles"], replaced["description"]))
        for bundles, described in candidates:
            if digest is None or digest in bundles:
                return None if described is None else description_of(described)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise InputError(f"{path}: is not a valid description of a checkpoint ({error})") from error
    raise InputError(
        f"{path}: does not belong to {prefix}.index: one of them is damaged or was replaced without the other"
    )


def write_description(
    prefix: str | Path, description: Description, *, bundles: Sequence[str], replaces: Mapping | None = None
) -> None:
    """Write the JSON for the bundles with these digests. `replaces`: see `replaced_description`."""
    content = {**vars(description), "bundles": list(bundles), **({"replaces": dict(replaces)} if replaces else {})}
    content = json.loads(json.dumps(content))  # tuples become lists, which is how they will be read
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=1) + "\n"
    write_text(f"{prefix}{DESCRIPTION_SUFFIX}", text)


def store_thresholds(prefix: str | Path, thresholds: Mapping[str, Any]) -> None:
    """Replace the score thresholds in the description of a bundle; what is not among them stays.

    Raises:
        InputError: the bundle has no description (a third-party checkpoint) or cannot be written.
    """
    digest, description = bundle_digest(prefix), read_description(prefix)
    if description is None:
        raise InputError(
            f"{prefix}: has no {DESCRIPTION_SUFFIX} file for score thresholds, unlike checkpoints of this "
            "project; export.py --val_file_pattern=GLOB stores them in the exported files"
        )
    assert digest is not None  # the caller has found the checkpoint by its index
    try:
        stored = {**description.score_thresholds, **thresholds}
        write_description(prefix, replace(description, score_thresholds=stored), bundles=[digest])
    except OSError as error:
        raise InputError(f"{prefix}{DESCRIPTION_SUFFIX}: cannot be written ({error.strerror})") from error


def replaced_description(prefix: str | Path) -> dict | None:
    """Return the `replaces` entry of `write_description` for the existing bundle, or None without a readable one."""
    digest = bundle_digest(prefix)
    if digest is None:
        return None
    try:
        description = read_description(prefix)
    except InputError:
        return None  # an unreadable description is not kept
    return {"bundles": [digest], "description": vars(description) if description else None}


def _compare_checksum(content: Mapping) -> None:
    stated = content.get("checksum")
    if stated is not None and stated != _checksum({key: value for key, value in content.items() if key != "checksum"}):
        raise ValueError(
            "checksum mismatch: the file has changed since it was written; if you edited it, remove its line `checksum`"
        )


def _checksum(content: Mapping) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def description_of(content: Mapping) -> Description:
    """Return the description from its JSON, without hyperparameters of trainings that were removed since.

    Raises:
        TypeError, AttributeError: for missing or invalid values.
    """
    known = {key: value for key, value in content.items() if key not in _BESIDE}
    description = Description(**known)
    for name, hint in get_type_hints(Description).items():
        value, expected = getattr(description, name), get_origin(hint) or hint
        if not isinstance(value, expected) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}; expected {expected.__name__}")
    for category in description.categories:
        if not isinstance(category, dict) or not isinstance(category.get("id"), int) or "name" not in category:
            raise TypeError(f"a category is {category!r}; expected an id and a name")
    _check_thresholds(description.score_thresholds)
    hparams = {
        key: value
        for key, value in description.hparams.items()
        if key not in REMOVED_FROM_ALL and f"{key}={value}" not in REMOVED_VALUES
    }
    return replace(description, hparams=hparams)


def _check_thresholds(thresholds: Mapping) -> None:
    """Raise TypeError for anything but {} or {"overall": score, "classes": {name: score}}."""
    if not thresholds:
        return
    classes = thresholds.get("classes")
    scores = [thresholds.get("overall"), *(classes.values() if isinstance(classes, dict) else [None])]
    if not all(isinstance(score, float) and 0 <= score <= 1 for score in scores):
        raise TypeError(
            f"score_thresholds is {str(thresholds)[:200]!r}; expected overall and classes, scores from 0 to 1"
        )
    maps = thresholds.get(SCORE_CALIBRATION, {})
    if not isinstance(maps, dict) or not all(map(_is_score_map, maps.values())):
        raise TypeError(f"{SCORE_CALIBRATION} is {str(maps)[:200]!r}; expected three finite numbers for each class")


def _is_score_map(values: Any) -> bool:
    """Return whether these are a, b and c of a `ScoreMap` that rises with the score."""
    if not isinstance(values, list) or not all(isinstance(value, float) and math.isfinite(value) for value in values):
        return False
    return len(values) == 3 and min(values[:2]) >= 0 and max(values[:2]) > 0
