import math

import numpy as np
import pytest
from text_tables import rows

from efficientdet.families.registry import hyperparameters_of
from efficientdet.optimization.optimizer import Schedule


def from_epochs(peak, *, steps_per_epoch, **hparams):
    return Schedule.from_hyperparameters(
        hyperparameters_of("efficientdet-d0", hparams), peak_learning_rate=peak, steps_per_epoch=steps_per_epoch
    )


def schedule(**changes):
    return Schedule(**{"peak_learning_rate": 0.8, "warmup_init": 0.2, "warmup_steps": 4, "total_steps": 12, **changes})


def test_values_by_hand():
    rate = schedule()
    wanted = {
        0: 0.2,
        1: 0.35,
        2: 0.5,
        3: 0.65,
        4: 0.8,
        6: 0.4 * (1 + math.sqrt(0.5)),
        8: 0.4,
        10: 0.4 * (1 - math.sqrt(0.5)),
        12: 0.0,
    }
    assert {step: rate(step) for step in wanted} == pytest.approx(wanted, abs=1e-15)


# The reference's recipes: reference/efficientdet.md 2.1, "Derived schedule facts".
@pytest.mark.parametrize(
    ("peak", "warmup_epochs", "num_epochs", "steps_per_epoch", "warmup_steps", "total_steps", "at_200", "at_300"),
    rows(r"""
2.2 | 25 | 400 | 75 | 1875 | 30000 | 1.215 | 0.364
1.1 | 25 | 400 | 145 | 3625 | 58000 | 0.6075 | 0.182
0.7 | 5 | 300 | 235 | 1175 | 70500 | 0.1804 | 0.0
0.4 | 5 | 300 | 375 | 1875 | 112500 | 0.1031 | 0.0
1.5 | 90 | 350 | 59 | 5310 | 20650 | 0.9295 | 0.1328
1.0 | 90 | 350 | 94 | 8460 | 32900 | 0.6197 | 0.0885
"""),
)
def test_the_recipes(peak, warmup_epochs, num_epochs, steps_per_epoch, warmup_steps, total_steps, at_200, at_300):
    rate = from_epochs(
        peak,
        steps_per_epoch=steps_per_epoch,
        lr_warmup_init=0.008,
        lr_warmup_epoch=warmup_epochs,
        num_epochs=num_epochs,
    )
    assert (rate.warmup_steps, rate.total_steps) == (warmup_steps, total_steps)
    assert rate(200 * steps_per_epoch) == pytest.approx(at_200, abs=6e-4)
    assert rate(300 * steps_per_epoch) == pytest.approx(at_300, abs=6e-4)


def test_random_schedules_against_the_formula():
    generator = np.random.default_rng(0)
    for _ in range(200):
        warmup, cosine = generator.integers(1, 1000, 2).tolist()
        peak, init = generator.random(2).tolist()
        rate = schedule(peak_learning_rate=peak, warmup_init=init, warmup_steps=warmup, total_steps=warmup + cosine)
        step = int(generator.integers(0, warmup + cosine))
        wanted = (
            np.interp(step, [0, warmup], [init, peak])
            if step < warmup
            else peak * np.cos(np.pi / 2 * (step - warmup) / cosine) ** 2
        )
        assert rate(step) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("steps_per_epoch", "wanted"), [(7, 500), (1000, 500), (3000, 1500)])
def test_short_epochs_warm_up_for_a_number_of_steps(steps_per_epoch, wanted):
    rate = from_epochs(
        1.0, steps_per_epoch=steps_per_epoch, lr_warmup_epoch=0.5, lr_warmup_least_steps=500, num_epochs=100
    )
    assert rate.warmup_steps == wanted


@pytest.mark.parametrize("total_steps", [4, 2])
def test_all_warmup_stays_at_the_peak(total_steps):
    rate = schedule(total_steps=total_steps)
    assert rate(2) == pytest.approx(0.5)
    assert rate(4) == rate(1000) == 0.8


def test_steps_drop_twice_after_the_warm_up():
    """SSD's, at epochs 40 and 50 of 65, ten steps each."""
    rate = from_epochs(
        0.8,
        steps_per_epoch=10,
        lr_decay_method="stepwise",
        lr_warmup_init=0.0,
        lr_warmup_epoch=2,
        first_lr_drop_epoch=40,
        second_lr_drop_epoch=50,
        num_epochs=65,
    )
    wanted = {0: 0.0, 10: 0.4, 20: 0.8, 399: 0.8, 400: 0.08, 499: 0.08, 500: 0.008, 649: 0.008, 10**6: 0.008}
    assert {step: rate(step) for step in wanted} == pytest.approx(wanted, rel=1e-12)


def test_constant_after_the_warm_up():
    rate = schedule(method="constant")
    assert [rate(step) for step in (0, 2, 4, 5, 12, 1000)] == pytest.approx([0.2, 0.5, 0.8, 0.8, 0.8, 0.8])


def test_cosines_end_at_a_fraction_of_the_peak():
    """Half way between the peak of 0.8 and a hundredth of it, then at the hundredth."""
    rate = schedule(total_steps=16, end_factor=0.01)
    assert [rate(10), rate(16), rate(21)] == pytest.approx([0.404, 0.008, 0.008])
