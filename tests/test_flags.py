"""Which of a flag, its default and --hparams decides."""

import pytest
from absl import flags

from efficientdet.configuration.model_config import hyperparameters
from efficientdet.options.train import TrainOptions
from program_support.command_line import define_flags_of, options_of_flags


@pytest.mark.parametrize(
    ("words", "rate", "warmup_init"),
    [
        ([], None, 0.0001),
        (["--hparams=learning_rate=0.08,lr_warmup_init=0.5"], 0.08, 0.5),
        (["--lr=2.2", "--hparams=learning_rate=0.08,lr_warmup_init=0.5"], 2.2, 0.5),
        (["--warmup_value=0.25", "--hparams=learning_rate=0.08,lr_warmup_init=0.5"], 0.08, 0.25),
    ],
)
def test_a_given_flag_wins_over_hparams_and_these_over_a_default(words, rate, warmup_init):
    values = flags.FlagValues()
    define_flags_of(TrainOptions, values=values)
    values(["train.py", *words])
    hparams = hyperparameters(options_of_flags(TrainOptions, values), learning_rate="lr", lr_warmup_init="warmup_value")
    assert (hparams.learning_rate, hparams.lr_warmup_init) == (rate, warmup_init)
