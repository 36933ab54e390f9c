"""Weights & Biases; WANDB_MODE=offline writes only into the folder of the training."""

from efficientdet.run_log.loggers import Logger
from program_support.errors import InputError


class WeightsAndBiases(Logger):
    """A run of wandb."""

    name = "wandb"

    def __init__(self, config, folder):
        import wandb

        self._wandb = wandb
        try:
            self._run = wandb.init(
                project=config.hparams.family.name, name=folder.name, dir=str(folder), config=config.hparams.to_dict()
            )
        except wandb.Error as error:
            raise InputError(f"--loggers=wandb: {' '.join(str(error).split())}") from error
        # wandb's own step must increase: it would drop steps that a training repeats after it was killed.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step, values):
        self._run.log({"step": int(step), **values})

    def images(self, step, images):
        self._run.log({"step": int(step), **{tag: self._wandb.Image(image) for tag, image in images.items()}})

    def close(self):
        self._run.finish()
