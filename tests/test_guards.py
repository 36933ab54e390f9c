import numpy as np
import pytest

from efficientdet.training.guards import SKIPS_IN_A_ROW, NotFinite, StepFacts, StepGuard, check_collapse
from program_support.errors import InputError

FACTS = StepFacts(step=7, learning_rate=0.08, image_ids=np.arange(100, 110))


def report(**changes):
    return {
        "cls_loss": 1.0,
        "loss": 1.0,
        "gradient_norm": 2.0,
        "positives": 3.0,
        "applied": 1.0,
        "finite": 1.0,
        **changes,
    }


def test_not_finite_names_step_rate_scale_and_images():
    with pytest.raises(
        NotFinite,
        match=r"step 7, learning rate 0\.08, images 100, .*107, \.\. "
        r"\(cls_loss nan.*gradient norm 2, loss scale 32768\)",
    ):
        StepGuard(global_batch_size=4).check(report(finite=0.0, cls_loss=float("nan"), loss_scale=32768.0), FACTS)


def test_one_overflow_is_normal_many_in_a_row_are_not():
    guard = StepGuard(global_batch_size=4)
    for _ in range(3):
        for _ in range(SKIPS_IN_A_ROW - 1):
            guard.check(report(applied=0.0), FACTS)
        guard.check(report(), FACTS)  # an applied step starts the count again
    for _ in range(SKIPS_IN_A_ROW - 1):
        guard.check(report(applied=0.0), FACTS)
    with pytest.raises(NotFinite, match=f"overflowed in {SKIPS_IN_A_ROW} consecutive steps, the last at step 7"):
        guard.check(report(applied=0.0), FACTS)


def test_no_positive_anchor():
    guard = StepGuard(global_batch_size=500)
    guard.check(report(positives=0.0), FACTS)
    with pytest.raises(InputError, match="no positive anchor in the first 1000 images"):
        guard.check(report(positives=0.0), FACTS)


def test_one_positive_anchor_is_enough():
    guard = StepGuard(global_batch_size=500)
    for positives in (1.0, 0.0, 0.0, 0.0):
        guard.check(report(positives=positives), FACTS)


@pytest.mark.parametrize(("ap", "best"), [(0.0, -1.0), (0.0, 0.04), (0.09, 0.3), (0.3, 0.1)])
def test_low_is_not_collapsed(ap, best):
    check_collapse(ap, best=best, epoch=3)


@pytest.mark.parametrize(("ap", "best"), [(0.0, 0.06), (0.05, 0.3), (-1.0, 0.3)])
def test_collapse(ap, best):
    with pytest.raises(InputError, match="epoch 3: AP fell to"):
        check_collapse(ap, best=best, epoch=3)
