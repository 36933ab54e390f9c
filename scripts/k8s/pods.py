"""Build the parts that all trainings on Kubernetes share: pods, indexed jobs, and the Trainer's objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipes import recipe_of

Object = dict[str, Any]

WORKPLACE = "/workspace/effdet-tf2"
PYTHON = ".venv/bin/python"
WEIGHTS = {"name": "EFFICIENTDET_WEIGHTS", "value": "/pvc/weights"}
RESTARTS = 20  # a stopped training saves a checkpoint; each restart resumes from it
# Kubernetes' restricted pod security standard. The image's user is 1000. OnRootMismatch: the owner of each file is not
# checked at every start.
SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "fsGroup": 1000,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True, kw_only=True)
class Training:
    """Validated settings of a training job."""

    name: str
    namespace: str
    model: str
    gpus: int
    gpus_per_pod: int = 1
    batch_size: int  # per GPU
    epochs: int
    image: str
    claim: str
    queue: str | None
    priority: str | None
    extra: Sequence[str] = ()  # flags of train.py that come last and override the others

    @property
    def pods(self) -> int:
        """Return the number of pods with GPUs, one process each."""
        return self.gpus // self.gpus_per_pod

    @property
    def command(self) -> list[str]:
        """Return the command of one process."""
        recipe, data = recipe_of(self.model), f"/pvc/{recipe_of(self.model).data}"
        mlperf = [f"--mlperf_log=/pvc/runs/{self.name}/mlperf.log,-"] if recipe.is_mlperf else []  # - is the pod's log
        annotations = [f"--val_json_file={data}/{recipe.annotations}"] if recipe.annotations else []
        return [
            PYTHON,
            "train.py",
            "--training_mode=traineval",
            f"--training_file_pattern={data}/train-*",
            f"--val_file_pattern={data}/{recipe.validation}",
            *annotations,
            f"--model_name={self.model}",
            f"--model_dir=/pvc/runs/{self.name}",
            "--backbone_init=imagenet",
            f"--batch_size={self.batch_size}",
            f"--eval_batch_size={self.batch_size}",
            f"--num_epochs={self.epochs}",
            *recipe.flags(self.gpus * self.batch_size),
            *mlperf,
            *self.extra,
        ]

    @property
    def metadata(self) -> Object:
        """Return the metadata of the object; Kueue admits it by its label."""
        labels = {"kueue.x-k8s.io/queue-name": self.queue} if self.queue is not None else {}
        return {"name": self.name, "namespace": self.namespace, "labels": labels}

    def pod(self, container: Object, **more: Any) -> Object:
        """Return a pod of one container with this training's priority."""
        priority = {"priorityClassName": self.priority} if self.priority is not None else {}
        return {
            **priority,
            "terminationGracePeriodSeconds": 120,
            "securityContext": SECURITY,
            **more,
            "containers": [{**image_of(self.image), "securityContext": CONTAINER_SECURITY, **container}],
        }

    def gpu_pod(self, container: Object, **more: Any) -> Object:
        """Return the pod of one process: its GPUs, the volume, and shared memory for NCCL."""
        gpus = self.gpus_per_pod
        return self.pod(
            {
                **container,
                "resources": resources_of(cpu=str(8 * gpus), memory=f"{80 * gpus}Gi", gpus=gpus),
                "volumeMounts": [
                    {"name": "data", "mountPath": "/pvc"},
                    {"name": "shared-memory", "mountPath": "/dev/shm"},
                ],
            },
            **more,
            volumes=[volume_of(self.claim), {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
        )


def indexed_jobset(training: Training, *, name: str, pod: Object) -> Object:
    """Return a JobSet of one indexed job with the training's number of pods; all pods restart if one fails."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": training.metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": RESTARTS},
            "replicatedJobs": [
                {
                    "name": name,
                    "replicas": 1,
                    "template": {
                        "spec": {
                            "completionMode": "Indexed",
                            "parallelism": training.pods,
                            "completions": training.pods,
                            "backoffLimit": 0,
                            "template": {"spec": pod},
                        }
                    },
                }
            ],
        },
    }


def trainer_objects(
    training: Training, *, policy: Object, jobs: Sequence[Object], trainer: Object, **more: Any
) -> list[Object]:
    """Return the TrainingRuntime of the jobs, and the TrainJob that runs the command of `trainer` in it.

    The cluster's own runtimes have neither restarts nor the volume.
    """
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": training.name, "namespace": training.namespace},
        "spec": {
            "mlPolicy": {"numNodes": training.pods, **policy},
            "template": {
                "spec": {
                    "network": {"publishNotReadyAddresses": True},
                    "failurePolicy": {"maxRestarts": RESTARTS},
                    **more,
                    "replicatedJobs": jobs,
                }
            },
        },
    }
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": training.metadata,
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": training.name},
            "trainer": {"numNodes": training.pods, "image": training.image, **trainer},
        },
    }
    return [runtime, job]


def resources_of(*, cpu: str, memory: str, gpus: int = 0) -> Object:
    """Return requests and limits, which are equal."""
    resources: Mapping[str, str] = {"cpu": cpu, "memory": memory, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {"requests": resources, "limits": resources}


def image_of(name: str) -> Object:
    """Return the image of a container, with IfNotPresent: an image `latest` would be pulled even if the node has it."""
    return {"image": name, "imagePullPolicy": "IfNotPresent"}


def volume_of(claim: str) -> Object:
    """Return the volume of data, weights and runs."""
    return {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
