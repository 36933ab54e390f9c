"""Loggers of MLflow and Weights & Biases."""

import os

from efficientdet.run_log.loggers import Logger
from program_support.errors import InputError


class Mlflow(Logger):
    """A run of MLflow, at MLFLOW_TRACKING_URI or, by default, in the folder of the training."""

    name = "mlflow"

    def __init__(self, config, folder):
        import mlflow

        # A folder needs no database driver; MLflow requires explicit permission for it.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            mlflow.set_tracking_uri((folder.resolve() / "mlruns").as_uri())
        self._mlflow = mlflow
        try:
            mlflow.set_experiment(config.hparams.family.name)
            mlflow.start_run(run_name=folder.name)
            mlflow.log_params({key: str(value)[:500] for key, value in config.hparams.to_dict().items()})
        except mlflow.exceptions.MlflowException as error:
            self.close()
            raise InputError(f"--loggers=mlflow: {' '.join(str(error).split())}") from error

    def scalars(self, step, values):
        self._mlflow.log_metrics({tag: float(value) for tag, value in values.items()}, step=int(step))

    def images(self, step, images):
        for tag, image in images.items():
            self._mlflow.log_image(image, f"{tag}-{step}.png")

    def close(self):
        if self._mlflow.active_run():
            self._mlflow.end_run()


class WeightsAndBiases(Logger):
    """A run of wandb; WANDB_MODE=offline writes only into the folder of the training."""

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
