"""The quick part of the data check, which a training runs on its records before it starts, and --suggest."""

import dataclasses

import numpy as np

from dataset.records.labeled_records import labeled_records
from dataset.records.record_index import index_records
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.data_checks.examination import quick_findings
from efficientdet.data_checks.findings import WARNING, as_hparams
from efficientdet.families.hyperparameters import with_overrides
from program_support.errors import InputError

_FILES, _RECORDS = 8, 1000  # numbers of files and records in the sample, evenly spaced: shards are shuffled


def with_suggestions(config: TrainingConfig) -> tuple[TrainingConfig, list[str]]:
    """Check a sample of the records; return the configuration, with --suggest fixed, and a line for each finding.

    Findings are warnings and suggestions. A hyperparameter that the user set keeps its value. Records that cannot be
    read are reported later, when all are indexed and verified.
    """
    if config.benchmark:
        return config, []
    paths = config.records[:: -(-len(config.records) // _FILES)]
    try:
        index = index_records(paths)
        numbers = np.unique(np.linspace(0, len(index) - 1, min(_RECORDS, len(index))).astype(int))
        images = labeled_records(index, config.class_names, numbers)
    except InputError:
        return config, []
    found = [
        finding
        for finding in quick_findings(images, config.hparams, fixed=config.hparams_given)
        if finding.level == WARNING or finding.settings
    ]
    suggested = {
        key: value for finding in found for key, value in finding.settings.items() if key not in config.hparams_given
    }
    lines = [f"{finding.level}: {finding.line}" for finding in found]
    if not suggested:
        return config, lines
    if not config.suggest:
        return config, [*lines, f"--suggest, or --hparams={as_hparams(suggested)}, applies it"]
    changed = dataclasses.replace(
        config, hparams=with_overrides(config.hparams, suggested), hparams_given=config.hparams_given | suggested.keys()
    )
    return changed, [*lines, f"--suggest sets {as_hparams(suggested)}"]
