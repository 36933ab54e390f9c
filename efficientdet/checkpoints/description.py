"""What a checkpoint's numbers mean: the JSON beside its bundle, and inside every exported model.

Beside a bundle the JSON also says which bundle it describes (`bundles`, digests of the `.index`), has a checksum of its
own, and, while one bundle takes another's place, holds what it says of the one before (`replaces`): the rename of the
`.index` alone then decides which of the two is read, numbers and description together.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_origin

from efficientdet.families.removed_hyperparameters import with_current_names
from program_support.atomic_files import write_text
from program_support.errors import InputError

DESCRIPTION_SUFFIX = ".json"


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a bundle's numbers mean."""

    model_name: str
    hparams: dict[str, Any]
    categories: list[dict]  # COCO's list of id and name
    weights: str  # "raw", "averaged", or "raw and averaged"
    global_step: int = 0
    steps_per_epoch: int = 0
    run: dict[str, Any] = field(default_factory=dict)  # where a training stood: see training.state.TrainingProgress
    score_thresholds: dict[str, Any] = field(default_factory=dict)  # measured ones: see `score_thresholds.thresholds_to_store`
    # Not of the numbers but of the file: the place in the order of writing in its folder, 1 the first, 0 out of that order or
    # unknown; and the name of the checkpoint in this folder that the training had written or read before.
    save_number: int = field(default=0, compare=False)
    continues: str = field(default="", compare=False)

    @property
    def images_seen(self) -> int:
        """How many images the training had seen."""
        found = self.run.get("images_seen", 0)
        return found if isinstance(found, int) else 0

    def write(self, path: str | Path) -> None:
        """Write as JSON; the file appears whole or not at all."""
        write_text(path, json.dumps(vars(self), indent=1) + "\n")


def bundle_digest(prefix: str | Path) -> str | None:
    """Of a bundle's `.index`, which has the checksum of every array; None where there is no such file."""
    try:
        return hashlib.sha256(Path(f"{prefix}.index").read_bytes()).hexdigest()[:32]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{prefix}.index: cannot be read ({error.strerror})") from error


def read_description(prefix: str | Path) -> Description | None:
    """What stands beside a bundle; None where nothing does (a checkpoint of another tool).

    Raises InputError where it is damaged or belongs to another bundle.
    """
    path, digest = Path(f"{prefix}{DESCRIPTION_SUFFIX}"), bundle_digest(prefix)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        _compare_checksum(content)
        candidates = [(content.get("bundles"), content)]
        if replaced := content.get("replaces"):
            candidates.append((replaced["bundles"], replaced["description"]))
        for bundles, described in candidates:
            if None in (bundles, digest) or digest in bundles:  # before there were digests any bundle would do
                return None if described is None else description_of(described)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise InputError(f"{path}: is no description of a checkpoint ({error})") from error
    raise InputError(f"{path}: does not belong to {prefix}.index: one of them is damaged or was replaced without the other")


def write_description(prefix: str | Path, description: Description, *, bundles: Sequence[str],
                      replaces: Mapping | None = None) -> None:
    """Write the JSON beside the bundles with these digests, of which one is about to stand there; see `said_of`."""
    content = {**vars(description), "bundles": list(bundles), **({"replaces": dict(replaces)} if replaces else {})}
    content = json.loads(json.dumps(content))  # as it will be read: lists for tuples
    write_text(f"{prefix}{DESCRIPTION_SUFFIX}", json.dumps({**content, "checksum": _checksum(content)}, indent=1) + "\n")


def store_thresholds(prefix: str | Path, thresholds: Mapping[str, Any]) -> None:
    """Replace the score thresholds in the description of a bundle.

    Raises InputError where the bundle has no description (a checkpoint of another tool), or it cannot be written.
    """
    digest, description = bundle_digest(prefix), read_description(prefix)
    if description is None:
        raise InputError(f"{prefix}: has no {DESCRIPTION_SUFFIX} file to store score thresholds in, as checkpoints of this "
                         "project have; export.py --val_file_pattern=GLOB stores them in the files that it writes")
    try:
        write_description(prefix, replace(description, score_thresholds=dict(thresholds)), bundles=[digest])
    except OSError as error:
        raise InputError(f"{prefix}{DESCRIPTION_SUFFIX}: cannot be written ({error.strerror})") from error


def said_of(prefix: str | Path) -> dict | None:
    """What is said of the bundle that stands there now, to be kept while another takes its place; None where none stands."""
    digest = bundle_digest(prefix)
    if digest is None:
        return None
    try:
        description = read_description(prefix)
    except InputError:
        return None  # as little as now will be known of it then
    return {"bundles": [digest], "description": vars(description) if description else None}


def _compare_checksum(content: Mapping) -> None:
    stated = content.get("checksum")
    if stated is not None and stated != _checksum({key: value for key, value in content.items() if key != "checksum"}):
        raise ValueError("its checksum says that it has changed since it was written; if you changed it, remove the line "
                         "of the checksum")


def _checksum(content: Mapping) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def description_of(content: Mapping) -> Description:
    """From what JSON holds. Raises TypeError or AttributeError where something is missing or of another kind."""
    known = {key: value for key, value in content.items() if key not in ("bundles", "replaces", "checksum")}
    description = Description(**known)
    for item in fields(Description):
        value, wanted = getattr(description, item.name), get_origin(item.type) or item.type
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise TypeError(f"{item.name} is {value!r}; expected {wanted.__name__}")
    for category in description.categories:
        if not isinstance(category, dict) or not isinstance(category.get("id"), int) or "name" not in category:
            raise TypeError(f"a category is {category!r}; expected an id and a name")
    _check_thresholds(description.score_thresholds)
    return replace(description, hparams=with_current_names(description.hparams))


def _check_thresholds(thresholds: Mapping) -> None:
    """Raise TypeError for anything but {} or {"overall": score, "classes": {name: score}}."""
    if not thresholds:
        return
    classes = thresholds.get("classes")
    scores = [thresholds.get("overall"), *(classes.values() if isinstance(classes, dict) else [None])]
    if not all(isinstance(score, float) and 0 <= score <= 1 for score in scores):
        raise TypeError(f"score_thresholds is {str(thresholds)[:200]!r}; expected overall and classes, scores from 0 to 1")
