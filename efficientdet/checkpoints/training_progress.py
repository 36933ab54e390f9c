"""How far a training has come: the part of a checkpoint's description that only a training that continues reads."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from program_support.errors import InputError


@dataclass
class TrainingProgress:
    """How far a training has come, beside the numbers in its network; travels as JSON with each checkpoint."""

    images_seen: int = 0  # over all ranks: the position in the endless stream of records
    images_a_step: int = 0  # over all ranks
    ranks: int = 1
    best_ap: float = -1.0
    best_epoch: int = 0
    best_seconds: float = 0.0  # of training when it was found
    seconds: float = 0.0  # of training, evaluations and start of steps included, stops between processes not
    evaluations_since_best: int = 0
    rate_factor: float = 1.0  # halved by each rollback
    rollbacks: int = 0
    planned_seconds: float = 0.0  # of --max_minutes, for which the next three were planned; 0: none
    planned_at: int = 0  # step after which the plan was made
    planned_position: float = 0.0  # in the schedule, of that step
    planned_end: int = 0  # step at which the schedule and the training end; 0: no plan, a step is its own position
    unfinished_epoch: int = 0  # its steps are done, its calibration and evaluation are not; 0: none

    @classmethod
    def from_json(cls, content: Mapping, *, where: str) -> "TrainingProgress":
        """As a checkpoint's description holds it. Raises InputError, with `where`, for anything else."""
        kinds = {item.name: item.type for item in fields(cls)}
        for name, value in content.items():
            kind = kinds.get(name)
            fits = kind is not None and isinstance(value, (int, float) if kind is float else kind)
            if not fits or (isinstance(value, bool) and kind is not bool):
                raise InputError(f"{where}: {name} of run is {value!r}; expected "
                                 + (kind.__name__ if kind else f"only {', '.join(kinds)}"))
        progress = cls(**content)
        if progress.images_seen < 0 or progress.ranks < 1:
            raise InputError(f"{where}: run has {progress.images_seen} images_seen and {progress.ranks} ranks; expected at "
                             "least 0 and 1")
        return progress
