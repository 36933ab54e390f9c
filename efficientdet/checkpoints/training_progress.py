"""Progress of a training: the part of a checkpoint's description that is read on resuming."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_type_hints

from program_support.errors import InputError


@dataclass
class TrainingProgress:
    """Progress of a training; stored as JSON in each checkpoint."""

    images_seen: int = 0  # sum over the processes: position in the endless stream of records
    global_batch_size: int = 0
    ranks: int = 1  # number of processes with batch statistics of their own
    best_ap: float = -1.0
    best_epoch: int = 0
    best_seconds: float = 0.0  # training time of the best evaluation
    seconds: float = 0.0  # training time with evaluations and compilation, without interruptions
    evaluations_since_best: int = 0
    rate_factor: float = 1.0  # learning rate multiplier; reduced by rollbacks and by lr_decay_method=plateau
    rollbacks: int = 0
    planned_seconds: float = 0.0  # time budget of the plan in the next three fields; 0: none
    planned_at: int = 0  # step after which the plan was made
    planned_position: float = 0.0  # position of that step in the schedule
    planned_end: int = 0  # step at which the schedule and the training end; 0: no plan
    unfinished_epoch: int = 0  # epoch without its calibration and evaluation; 0: none

    @classmethod
    def from_json(cls, content: Mapping, *, where: str) -> "TrainingProgress":
        """Return the progress from a checkpoint's description.

        Raises:
            InputError: naming `where`, for invalid values.
        """
        kinds = get_type_hints(cls)
        for name, value in content.items():
            kind = kinds.get(name)
            fits = kind is not None and isinstance(value, (int, float) if kind is float else kind)
            if not fits or (isinstance(value, bool) and kind is not bool):
                raise InputError(
                    f"{where}: {name} of run is {value!r}; expected "
                    + (kind.__name__ if kind else f"only {', '.join(kinds)}")
                )
        progress = cls(**content)
        if progress.images_seen < 0 or progress.ranks < 1:
            raise InputError(
                f"{where}: run has {progress.images_seen} images_seen and {progress.ranks} ranks; expected at "
                "least 0 and 1"
            )
        return progress
