"""Build the Kubernetes objects of a training under JAX, one pod per host: TrainJob or JobSet."""

from pods import WEIGHTS, WORKPLACE, Object, Training, indexed_jobset, trainer_objects

_BACKEND = {"name": "KERAS_BACKEND", "value": "jax"}
_COORDINATOR_PORT = 6666
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
NAME = "node"  # of the pods; the Trainer requires it, and gives them its command and variables


def jobset(training: Training) -> list[Object]:
    """Return a JobSet (jobset.x-k8s.io/v1alpha2) whose pods find each other by train.py's variables; pod 0 coordinates.

    If one pod fails, its job fails, and all pods restart and resume from the last checkpoint.
    """
    env = [
        WEIGHTS,
        _BACKEND,
        {
            "name": "JAX_COORDINATOR_ADDRESS",
            "value": f"{training.name}-{NAME}-0-0.{training.name}:{_COORDINATOR_PORT}",
        },
        {"name": "JAX_NUM_PROCESSES", "value": str(training.pods)},
        {"name": "JAX_PROCESS_ID", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
    ]
    container = {"name": NAME, "workingDir": WORKPLACE, "command": training.command, "env": env}
    return [indexed_jobset(training, name=NAME, pod=training.gpu_pod(container, restartPolicy="Never"))]


def trainjob(training: Training) -> list[Object]:
    """Return a TrainingRuntime and its TrainJob (trainer.kubeflow.org/v1alpha1).

    The runtime is the Trainer's `jax-distributed` with the volume, restarts, and the restricted pod security standard.
    Its JAX policy sets the variables that `jobset` sets.
    """
    container = {"name": NAME, "workingDir": WORKPLACE, "env": [WEIGHTS, _BACKEND]}
    pod = training.gpu_pod(container, restartPolicy="Never")
    job = {
        "name": NAME,
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"backoffLimit": 0, "template": {"spec": pod}},
        },
    }
    return trainer_objects(training, policy={"jax": {}}, jobs=[job], trainer={"command": training.command})
