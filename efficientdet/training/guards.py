"""Trainings that cannot succeed are stopped, with the reason."""

from dataclasses import dataclass

import numpy as np

from program_support.errors import InputError

IMAGES_TO_SEE_A_POSITIVE = 1000
SKIPS_IN_A_ROW = 30  # loss scaling halves with each: from 2^15 down to nothing
_COLLAPSED = 0.2  # of the best AP so far,
_WORTH_LOSING = 0.05  # once that was an AP at all


class NotFinite(InputError):
    """Loss, gradient, weights or average are no numbers any more."""


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What a message about a step should name."""

    step: int
    learning_rate: float
    image_ids: np.ndarray  # of this rank

    def __str__(self) -> str:
        ids = ", ".join(map(str, self.image_ids[:8].tolist())) + (", .." if len(self.image_ids) > 8 else "")
        return f"step {self.step}, learning rate {self.learning_rate:.4g}, images {ids}"


class StepGuard:
    """Looks at the report of every step; the same on every rank, as reports are."""

    def __init__(self, *, images_a_step: int):
        self._images_a_step, self._images, self._positives, self._skips = images_a_step, 0, 0.0, 0

    def check(self, report: dict[str, float], facts: StepFacts) -> None:
        """Raises NotFinite, or InputError where the first 1,000 images had no positive anchor."""
        if not report["finite"]:
            terms = ", ".join(f"{name} {value:.4g}" for name, value in report.items() if name.endswith("loss"))
            raise NotFinite(f"the loss, a gradient, a weight or an average is not finite at {facts} ({terms}; gradient norm "
                            f"{report['gradient_norm']:.4g}, loss scale {report.get('loss_scale', 1.0):g}): lower --lr, "
                            "lengthen --warmup_epochs, use --precision=float32, or --on_nan=rollback")
        self._skips = 0 if report["applied"] else self._skips + 1
        if self._skips >= SKIPS_IN_A_ROW:
            raise NotFinite(f"gradients overflowed in {self._skips} steps in a row, the last at {facts}: lower --lr, or use "
                            "--precision=float32")
        self._positives += report.get("positives", 1.0)
        self._images += self._images_a_step
        if not self._positives and self._images >= IMAGES_TO_SEE_A_POSITIVE:
            raise InputError(f"no positive anchor in the first {self._images} images: the records hold no boxes (were they "
                             "made from captions_*.json?) or none that any anchor overlaps (see hparam anchor_scale)")


def check_collapse(average_precision: float, *, best: float, epoch: int) -> None:
    """Raises InputError where the AP has fallen to next to nothing after it was something."""
    if best >= _WORTH_LOSING and average_precision < _COLLAPSED * best:
        raise InputError(f"epoch {epoch}: AP fell to {average_precision:.4f} after {best:.4f}: the training has collapsed; "
                         "go on from emackpt-best with --pretrained_ckpt and a lower --lr")
