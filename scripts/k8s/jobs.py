"""Build the Kubernetes objects of a training: MPIJob, JobSet or TrainJob, and the pod that prepares its data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipes import backbone_of, recipe_of

Object = dict[str, Any]

_WORKPLACE = "/workspace/effdet-tf2"
_HOME = "/home/effdet"
_PYTHON = ".venv/bin/python"
_WEIGHTS = {"name": "EFFICIENTDET_WEIGHTS", "value": "/pvc/weights"}
_RESTARTS = 20  # a stopped training saves a checkpoint; each restart resumes from it
_RENDEZVOUS_PORT = 29500
_NO_PROXY = "localhost,127.0.0.1,.svc,.cluster.local"
# Kubernetes' restricted pod security standard. The image's user is 1000. OnRootMismatch: the owner of each file is not
# checked at every start.
_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "fsGroup": 1000,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True, kw_only=True)
class Training:
    """Validated settings of a training job."""

    name: str
    namespace: str
    model: str
    gpus: int
    batch_size: int  # per GPU
    epochs: int
    image: str
    claim: str
    queue: str | None
    priority: str | None
    extra: Sequence[str] = ()  # flags of train.py that come last and override the others

    @property
    def command(self) -> list[str]:
        """Return the command of one rank."""
        recipe, data = recipe_of(self.model), f"/pvc/{recipe_of(self.model).data}"
        mlperf = [f"--mlperf_log=/pvc/runs/{self.name}/mlperf.log,-"] if recipe.is_mlperf else []  # - is the pod's log
        annotations = [f"--val_json_file={data}/{recipe.annotations}"] if recipe.annotations else []
        return [
            _PYTHON,
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
            "securityContext": _SECURITY,
            **more,
            "containers": [{**_image(self.image), "securityContext": _CONTAINER_SECURITY, **container}],
        }

    def gpu_pod(self, container: Object, **more: Any) -> Object:
        """Return the pod of one rank: a GPU, the volume, and shared memory for NCCL."""
        return self.pod(
            {
                **container,
                "resources": _resources(cpu="8", memory="80Gi", gpus=1),
                "volumeMounts": [
                    {"name": "data", "mountPath": "/pvc"},
                    {"name": "shared-memory", "mountPath": "/dev/shm"},
                ],
            },
            **more,
            volumes=[_volume(self.claim), {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
        )


def mpijob(training: Training) -> list[Object]:
    """Return an MPIJob (mpi-operator, kubeflow.org/v2beta1): a launcher, and a worker for each GPU."""
    without_istio = {"annotations": {"sidecar.istio.io/inject": "false"}}
    launcher = training.pod(
        {
            "name": "launcher",
            "workingDir": _WORKPLACE,
            **_mpirun(training),
            "env": [_WEIGHTS],
            "resources": _resources(cpu="2", memory="4Gi"),
        }
    )
    worker = training.gpu_pod({"name": "worker", **_SSHD})
    return [
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": training.metadata,
            "spec": {
                "slotsPerWorker": 1,
                "sshAuthMountPath": f"{_HOME}/.ssh",
                "launcherCreationPolicy": "WaitForWorkersReady",
                "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": _RESTARTS},
                "mpiReplicaSpecs": {
                    "Launcher": {
                        "replicas": 1,
                        "restartPolicy": "OnFailure",
                        "template": {"metadata": without_istio, "spec": launcher},
                    },
                    "Worker": {
                        "replicas": training.gpus,
                        "restartPolicy": "Never",
                        "template": {"metadata": without_istio, "spec": worker},
                    },
                },
            },
        }
    ]


def jobset(training: Training) -> list[Object]:
    """Return a JobSet (jobset.x-k8s.io/v1alpha2): an indexed job of one pod per GPU; pod 0 serves the rendezvous.

    The pods run rank.py. If one fails, its job fails, and all pods restart and resume from the last checkpoint.
    """
    first = f"{training.name}-ranks-0-0.{training.name}"
    command = [_PYTHON, "scripts/k8s/rank.py", f"--size={training.gpus}", f"--meet_at={first}:{_RENDEZVOUS_PORT}", "--"]
    pod = training.gpu_pod(
        {"name": "rank", "workingDir": _WORKPLACE, "command": [*command, *training.command], "env": [_WEIGHTS]},
        restartPolicy="Never",
    )
    return [
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": training.metadata,
            "spec": {
                "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                "failurePolicy": {"maxRestarts": _RESTARTS},
                "replicatedJobs": [
                    {
                        "name": "ranks",
                        "replicas": 1,
                        "template": {
                            "spec": {
                                "completionMode": "Indexed",
                                "parallelism": training.gpus,
                                "completions": training.gpus,
                                "backoffLimit": 0,
                                "template": {"spec": pod},
                            }
                        },
                    }
                ],
            },
        }
    ]


def trainjob(training: Training) -> list[Object]:
    """Return a TrainingRuntime with an MPI policy and the TrainJob that uses it (trainer.kubeflow.org/v1alpha1).

    The Trainer passes keys and host file only to containers called `node`, so the launcher's has that name too.
    """
    node = training.gpu_pod({"name": "node", **_SSHD}, restartPolicy="Never")
    launcher = training.pod(
        {"name": "node", "workingDir": _WORKPLACE, "env": [_WEIGHTS], "resources": _resources(cpu="2", memory="4Gi")},
        restartPolicy="Never",
    )
    jobs = [
        {"name": "node", "template": {"spec": {"backoffLimit": 0, "template": {"spec": node}}}},
        {
            "name": "launcher",
            "dependsOn": [{"name": "node", "status": "Ready"}],
            "template": {
                "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                "spec": {"backoffLimit": 0, "template": {"spec": launcher}},
            },
        },
    ]
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": training.name, "namespace": training.namespace},
        "spec": {
            "mlPolicy": {
                "numNodes": training.gpus,
                "mpi": {
                    "numProcPerNode": 1,
                    "mpiImplementation": "OpenMPI",
                    "sshAuthMountPath": f"{_HOME}/.ssh",
                    "runLauncherAsNode": False,
                },
            },
            "template": {
                "spec": {
                    "network": {"publishNotReadyAddresses": True},
                    "failurePolicy": {"maxRestarts": _RESTARTS},
                    "successPolicy": {"operator": "All", "targetReplicatedJobs": ["launcher"]},
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
            "trainer": {"numNodes": training.gpus, "numProcPerNode": 1, "image": training.image, **_mpirun(training)},
        },
    }
    return [runtime, job]


def volume(model: str, *, namespace: str, claim: str, storage_class: str | None) -> list[Object]:
    """Return the PersistentVolumeClaim that all pods of a training read and write, on several nodes at once."""
    storage_class_name = {"storageClassName": storage_class} if storage_class is not None else {}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": namespace},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                **storage_class_name,
                "resources": {"requests": {"storage": recipe_of(model).storage}},
            },
        }
    ]


def data_preparation(model: str, *, namespace: str, image: str, claim: str, proxy: str | None) -> list[Object]:
    """Return the pod that downloads a model's data and pretrained weights into the volume.

    OnFailure: a restarted pod resumes downloads and shards.
    """
    recipe, backbone = recipe_of(model), backbone_of(model)
    script, *words = recipe.preparation
    environment = {
        **({"http_proxy": proxy, "https_proxy": proxy, "no_proxy": _NO_PROXY} if proxy is not None else {}),
        **recipe.environment,
    }
    env = {"env": [{"name": name, "value": value} for name, value in environment.items()]} if environment else {}
    container = {
        **_image(image),
        "workingDir": _WORKPLACE,
        "securityContext": _CONTAINER_SECURITY,
        **env,
        "volumeMounts": [{"name": "data", "mountPath": "/pvc"}],
    }
    weights = {
        "initContainers": [
            {
                "name": "weights",
                **container,
                "command": ["bash", "scripts/get_weights.sh", backbone, "/pvc/weights"],
                "resources": _resources(cpu="1", memory="2Gi"),
            }
        ]
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{model.removesuffix('-dle').rpartition('-')[0]}-data", "namespace": namespace},
            "spec": {
                "restartPolicy": "OnFailure",
                "securityContext": _SECURITY,
                **(weights if backbone else {}),
                "containers": [
                    {
                        "name": "data",
                        **container,
                        "command": ["bash", script, f"/pvc/{recipe.data}", *words],
                        "resources": _resources(cpu="8", memory="32Gi"),
                    }
                ],
                "volumes": [_volume(claim)],
            },
        }
    ]


_SSHD = {
    "command": ["/usr/sbin/sshd"],
    "args": ["-De", "-f", f"{_HOME}/.sshd_config"],
    "readinessProbe": {"tcpSocket": {"port": 2222}, "initialDelaySeconds": 2},
}


def _mpirun(training: Training) -> Object:
    """Return the launcher's command.

    OpenMPI kills its processes one second after SIGTERM, which is too soon for a checkpoint; hence the timeout.
    """
    return {
        "command": ["mpirun"],
        "args": [
            *("--bind-to", "none", "--map-by", "slot"),
            *("--mca", "pml", "ob1", "--mca", "btl", "^openib"),
            *("--mca", "odls_base_sigkill_timeout", "60"),
            *("-n", str(training.gpus), "-x", "PATH", "-x", "LD_LIBRARY_PATH", "-x", _WEIGHTS["name"]),
            *training.command,
        ],
    }


def _resources(*, cpu: str, memory: str, gpus: int = 0) -> Object:
    resources: Mapping[str, str] = {"cpu": cpu, "memory": memory, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {"requests": resources, "limits": resources}


def _image(name: str) -> Object:
    """Return a container with IfNotPresent: an image `latest` would be pulled even if the node has it."""
    return {"image": name, "imagePullPolicy": "IfNotPresent"}


def _volume(claim: str) -> Object:
    return {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
