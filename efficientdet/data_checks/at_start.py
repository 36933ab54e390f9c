"""The quick part of the data check, which a training runs on its records before it starts, and --suggest."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from dataset.records.labeled_records import LabeledImages, labeled_records
from dataset.records.record_index import index_records
from efficientdet.data_checks.examination import quick_findings
from efficientdet.data_checks.findings import Finding, as_hparams
from efficientdet.data_checks.label_checks import CROWDS_ADVICE, unusable_classes, unusable_objects, usable_objects
from efficientdet.families.hyperparameters import with_overrides
from efficientdet.options.train import TrainingConfig
from program_support.errors import InputError

_FILES, _RECORDS = 8, 1000  # numbers of files and records in the sample, evenly spaced: shards are shuffled


def with_suggestions(config: TrainingConfig, *, log: Callable[[str], None]) -> TrainingConfig:
    """Check a sample of the records and log the findings; return the configuration, with --suggest fixed.

    Findings are warnings and suggestions. A hyperparameter that the user set keeps its value. Records that cannot be
    read are reported later, when all are indexed and verified.

    Raises:
        InputError: no object can be used.
    """
    if config.benchmark:
        return config
    findings = [*_training_findings(config), *_validation_findings(config)]
    actionable = [finding for finding in findings if finding.is_warning or finding.settings]
    suggested = {
        key: value
        for finding in actionable
        for key, value in finding.settings.items()
        if key not in config.hparams_given
    }
    for finding in actionable:
        log(f"{finding.level}: {finding.line}")
    if not suggested:
        return config
    if not config.suggest:
        log(f"--suggest, or --hparams={as_hparams(suggested)}, applies it")
        return config
    log(f"--suggest sets {as_hparams(suggested)}")
    hparams, given = with_overrides(config.hparams, suggested), config.hparams_given.union(suggested)
    return dataclasses.replace(config, hparams=hparams, hparams_given=given)


def _training_findings(config: TrainingConfig) -> list[Finding]:
    sample = _examined(config, config.records, trains=True)
    if sample is None:
        return []
    images, is_complete = sample
    findings = quick_findings(images, config.hparams, fixed=config.hparams_given)
    return [finding for finding in findings if is_complete or finding.about != "absent classes"]


def _validation_findings(config: TrainingConfig) -> list[Finding]:
    """Return findings about classes whose AP cannot be measured; a COCO json replaces the labels of the records."""
    if not config.evaluates or config.val_json_file:
        return []
    sample = _examined(config, config.val_records, trains=False)
    return [] if sample is None else [*unusable_classes(sample[0], config.hparams, trains=False)]


def _examined(config: TrainingConfig, paths: Sequence[str], *, trains: bool) -> tuple[LabeledImages, bool] | None:
    """Return a sample of the records and whether it is all of them; None if they cannot be read.

    All are read if the sample has a class without usable objects.

    Raises:
        InputError: no object is usable.
    """
    chosen = paths[:: -(-len(paths) // _FILES)]
    try:
        index = index_records(chosen)
        numbers = np.unique(np.linspace(0, len(index) - 1, min(_RECORDS, len(index))).astype(int))
        images = labeled_records(index, config.class_names, numbers)
        is_complete = len(chosen) == len(paths) and len(numbers) == len(index)
        is_usable = usable_objects(images, config.hparams, trains=trains).any()
        if not is_complete and (not is_usable or any(unusable_classes(images, config.hparams, trains=trains))):
            images, is_complete = labeled_records(index_records(paths), config.class_names), True
    except InputError:
        return None
    if not usable_objects(images, config.hparams, trains=trains).any():
        raise InputError(_nothing_usable(images, config, paths, trains=trains))
    return images, is_complete


def _nothing_usable(images: LabeledImages, config: TrainingConfig, paths: Sequence[str], *, trains: bool) -> str:
    where = f"{paths[0]}{' and others' if len(paths) > 1 else ''}"
    without = "" if trains else ", or --training_mode=train300, which does not evaluate"
    if not len(images.boxes):
        return f"{where}: the {len(images)} images have no objects; expected records with labels{without}"
    use, kinds = (
        "trained on" if trains else "counted in the AP",
        unusable_objects(images, config.hparams, trains=trains),
    )
    return f"{where}: none of the {len(images.boxes)} objects can be {use} ({kinds}); {CROWDS_ADVICE}{without}"
