"""Build the Kubernetes objects of a training over Horovod: MPIJob, JobSet or TrainJob, one pod per GPU.

Also the volume and the pod that prepares the data, which are those of a training under JAX too.
"""

from pods import (
    CONTAINER_SECURITY,
    PYTHON,
    RESTARTS,
    SECURITY,
    WEIGHTS,
    WORKPLACE,
    Object,
    Training,
    image_of,
    indexed_jobset,
    resources_of,
    trainer_objects,
    volume_of,
)
from recipes import backbone_of, recipe_of

_HOME = "/home/effdet"
_RENDEZVOUS_PORT = 29500
_NO_PROXY = "localhost,127.0.0.1,.svc,.cluster.local"


def mpijob(training: Training) -> list[Object]:
    """Return an MPIJob (mpi-operator 0.6, kubeflow.org/v2beta1): one pod per GPU, the first of which is the launcher.

    A launcher of its own would need more than the quota of the GPUs' pods.
    """
    without_istio = {"annotations": {"sidecar.istio.io/inject": "false"}}
    launcher = training.gpu_pod(
        {"name": "launcher", "workingDir": WORKPLACE, **_mpirun(training), "env": [WEIGHTS]},
    )
    workers = {
        "Worker": {
            "replicas": training.gpus - 1,
            "restartPolicy": "Never",
            "template": {"metadata": without_istio, "spec": training.gpu_pod({"name": "worker", **_SSHD})},
        }
    }
    return [
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": training.metadata,
            "spec": {
                "slotsPerWorker": 1,
                "sshAuthMountPath": f"{_HOME}/.ssh",
                "runLauncherAsWorker": True,
                "launcherCreationPolicy": "WaitForWorkersReady",
                "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": RESTARTS},
                "mpiReplicaSpecs": {
                    "Launcher": {
                        "replicas": 1,
                        "restartPolicy": "OnFailure",
                        "template": {"metadata": without_istio, "spec": launcher},
                    },
                    **(workers if training.gpus > 1 else {}),
                },
            },
        }
    ]


def jobset(training: Training) -> list[Object]:
    """Return a JobSet (jobset.x-k8s.io/v1alpha2): an indexed job of one pod per GPU; pod 0 serves the rendezvous.

    The pods run rank.py. If one fails, its job fails, and all pods restart and resume from the last checkpoint.
    """
    first = f"{training.name}-ranks-0-0.{training.name}"
    command = [PYTHON, "scripts/k8s/rank.py", f"--size={training.gpus}", f"--meet_at={first}:{_RENDEZVOUS_PORT}", "--"]
    pod = training.gpu_pod(
        {"name": "rank", "workingDir": WORKPLACE, "command": [*command, *training.command], "env": [WEIGHTS]},
        restartPolicy="Never",
    )
    return [indexed_jobset(training, name="ranks", pod=pod)]


def trainjob(training: Training) -> list[Object]:
    """Return a TrainingRuntime with an MPI policy and the TrainJob that uses it (trainer.kubeflow.org/v1alpha1).

    The Trainer passes keys and host file only to containers called `node`, so the launcher's has that name too.
    """
    node = training.gpu_pod({"name": "node", **_SSHD}, restartPolicy="Never")
    launcher = training.pod(
        {"name": "node", "workingDir": WORKPLACE, "env": [WEIGHTS], "resources": resources_of(cpu="2", memory="4Gi")},
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
    policy = {
        "mpi": {
            "numProcPerNode": 1,
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": f"{_HOME}/.ssh",
            "runLauncherAsNode": False,
        }
    }
    return trainer_objects(
        training,
        policy=policy,
        jobs=jobs,
        trainer={"numProcPerNode": 1, **_mpirun(training)},
        successPolicy={"operator": "All", "targetReplicatedJobs": ["launcher"]},
    )


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
    """Return the pod that downloads a model's data and pretrained weights into the volume, and then waits for a shell.

    OnFailure: a restarted pod resumes downloads and shards.
    """
    name = f"{model.removesuffix('-dle').rpartition('-')[0]}-data"
    end = f'echo "complete; a shell: kubectl exec -it {name} -- bash; the end: kubectl delete pod {name}"'
    waiting = f"trap 'kill $! 2>/dev/null; exit 0' TERM; \"$@\" || exit; {end}; sleep infinity & wait"
    recipe, backbone = recipe_of(model), backbone_of(model)
    script, *words = recipe.preparation
    environment = {
        **({"http_proxy": proxy, "https_proxy": proxy, "no_proxy": _NO_PROXY} if proxy is not None else {}),
        **recipe.environment,
    }
    env = {"env": [{"name": name, "value": value} for name, value in environment.items()]} if environment else {}
    container = {
        **image_of(image),
        "workingDir": WORKPLACE,
        "securityContext": CONTAINER_SECURITY,
        **env,
        "volumeMounts": [{"name": "data", "mountPath": "/pvc"}],
    }
    weights = {
        "initContainers": [
            {
                "name": "weights",
                **container,
                "command": ["bash", "scripts/get_weights.sh", backbone, "/pvc/weights"],
                "resources": resources_of(cpu="1", memory="2Gi"),
            }
        ]
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "restartPolicy": "OnFailure",
                "securityContext": SECURITY,
                **(weights if backbone else {}),
                "containers": [
                    {
                        "name": "data",
                        **container,
                        "command": ["bash", "-c", waiting, "data", "bash", script, f"/pvc/{recipe.data}", *words],
                        "resources": resources_of(cpu="8", memory="32Gi"),
                    }
                ],
                "volumes": [volume_of(claim)],
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
            *("-n", str(training.gpus), "-x", "PATH", "-x", "LD_LIBRARY_PATH", "-x", WEIGHTS["name"]),
            *training.command,
        ],
    }
