"""The manifests of scripts/k8s/ and scripts/retinanet/, by the schemas of their operators and of Kubernetes."""

import copy
import subprocess
import time
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from command_lines import outcomes
from kubernetes_schemas import schema_of
from launching import records_never_opened
from text_tables import rows

ROOT = Path(__file__).parents[1]
K8S, RETINANET = ROOT / "scripts" / "k8s", ROOT / "scripts" / "retinanet"
MPIJOBS = [K8S / "mpijob.yaml", *sorted(RETINANET.glob("job_*.yaml"))]
JOBS = [K8S / "trainjob.yaml", *MPIJOBS]
DEFINITIONS = {
    "MPIJob": ("kubeflow.org_mpijobs.yaml", "v2beta1"),
    "RayJob": ("ray.io_rayjobs.yaml", "v1"),
    "TrainJob": ("trainer.kubeflow.org_trainjobs.yaml", "v1alpha1"),
    "TrainingRuntime": ("trainer.kubeflow.org_trainingruntimes.yaml", "v1alpha1"),
}
RESTRICTED = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def objects(path):
    return list(yaml.safe_load_all(path.read_text()))


def validate(thing):
    kubernetes_validate.validate(thing, kubernetes_validate.latest_version(), strict=True)


def all_found(thing, key):
    """Return all values of a key, at any depth."""
    inner = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list) else ()
    found = [thing[key]] if isinstance(thing, dict) and key in thing else []
    return found + [value for one in inner for value in all_found(one, key)]


def pods(thing):
    """Return the specs of all pods of an object."""
    templates = [template["spec"] for template in all_found(thing, "template")]
    return [spec for spec in templates if "containers" in spec] or [thing["spec"]]


def command(things):
    """Return the arguments of train.py."""
    found = [words for key in ("command", "args") for words in all_found(things, key) if "train.py" in words]
    return found[-1]


def flags_of(things):
    words = command(things)
    return dict(word.removeprefix("--").split("=", 1) for word in words[words.index("train.py") + 1 :])


@pytest.fixture(scope="module")
def check(request):
    folder = request.getfixturevalue("data_folder") / "kubernetes"
    schemas = {kind: schema_of(folder / name, version) for kind, (name, version) in DEFINITIONS.items()}
    return lambda thing: jsonschema.Draft202012Validator(schemas[thing["kind"]]).validate(thing)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_the_operators_and_kubernetes_take_all_objects(check, path):
    """https://kubernetes.io/docs/concepts/security/pod-security-standards: the restricted standard."""
    things = objects(path)
    for thing in things:
        check(thing)
        wrong = copy.deepcopy(thing)
        wrong["spec"]["numHosts"] = 4
        with pytest.raises(jsonschema.ValidationError):
            check(wrong)
    for job in all_found(things, "replicatedJobs"):
        for one in job:
            validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **one["template"]})
    for pod in [pod for thing in things if thing["kind"] != "TrainJob" for pod in pods(thing)]:
        if "restartPolicy" not in pod:  # the operator's
            validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod})
        assert pod["securityContext"].items() > RESTRICTED.items()
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 1000  # the image's user
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container["securityContext"] == CONTAINER
            assert (container["image"], container["imagePullPolicy"]) == ("effdet_tf2:latest", "IfNotPresent")
            mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
            assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
            assert mounts["/pvc"]["persistentVolumeClaim"]["claimName"] == "efficientdet"
            requests = container["resources"]["requests"]
            gpus = int(requests["nvidia.com/gpu"])
            assert requests == {"cpu": f"{8 * gpus}", "memory": f"{80 * gpus}Gi", "nvidia.com/gpu": f"{gpus}"}
            assert container["resources"]["limits"] == requests


def test_the_rayjob_is_what_kuberay_and_kubernetes_take(check):
    job = yaml.safe_load((K8S / "rayjob.yaml").read_text())
    check(job)
    cluster = job["spec"]["rayClusterSpec"]
    cluster["headGroupSpec"]["numHosts"] = 4
    with pytest.raises(jsonschema.ValidationError):
        check(job)
    assert f"ray=={cluster['rayVersion']}\n" in (ROOT / "requirements.lock").read_text()
    assert cluster["headGroupSpec"]["rayStartParams"].items() >= {"num-cpus": "0", "num-gpus": "0"}.items()
    [group] = cluster["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
    for pod in pods(job):
        validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod})
        assert pod["securityContext"].items() > RESTRICTED.items()
        assert [container["securityContext"] for container in pod["containers"]] == [CONTAINER]


@pytest.mark.parametrize("path", MPIJOBS, ids=lambda path: path.name)
def test_an_mpijob_needs_the_quota_of_its_gpus(path):
    """The launcher runs in the first of the pods, of which each has one GPU."""
    [job] = objects(path)
    assert job["spec"]["runLauncherAsWorker"]
    gpus = sum(replica["replicas"] for replica in job["spec"]["mpiReplicaSpecs"].values())
    assert f"-{gpus}gpu" in job["metadata"]["name"]
    words = command(job)
    assert words[words.index("-n") + 1] == str(gpus)
    assert words[words.index("odls_base_sigkill_timeout") + 1] == "60"


def test_under_jax_a_pod_is_a_host_with_all_its_gpus():
    """The Trainer tells its pods where to meet; two values of a variable would be a conflict."""
    runtime, job = objects(K8S / "trainjob.yaml")
    [container] = pods(runtime)[0]["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert environment == {"KERAS_BACKEND": "jax", "EFFICIENTDET_WEIGHTS": "/pvc/weights"}
    assert (container["name"], container["resources"]["limits"]["nvidia.com/gpu"]) == ("node", "8")
    assert runtime["spec"]["mlPolicy"] == {"numNodes": job["spec"]["trainer"]["numNodes"], "jax": {}}
    assert runtime["spec"]["template"]["spec"]["failurePolicy"]["maxRestarts"] > 0
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]


def test_train_py_takes_the_flags_of_each_job(tmp_path):
    """All its checks before TensorFlow done, with records that are never opened."""
    records_never_opened(tmp_path)
    here = {"training_file_pattern": "train-*", "val_file_pattern": "val-*", "model_dir": "out", "val_json_file": ""}
    cases = [
        ["train", *(f"--{flag}={value}" for flag, value in {**flags_of(objects(path)), **here}.items())]
        for path in JOBS
    ]
    for path, outcome in zip(JOBS, outcomes(cases, cwd=tmp_path), strict=True):
        assert outcome["wanted"] is not None, (path, outcome["stderr"])


# Published pairs (mlperf-detectors.md, 1.3): GPUs, GB -> images of a GPU, rate, epochs at most.
T9K = {
    key: tuple(values)
    for key, *values in rows(r"""
(4, 24) | 14 | 6e-05 | 20
(4, 40) | 36 | 0.0001 | 10
(4, 80) | 72 | 0.0001 | 10
(8, 24) | 14 | 0.0001 | 10
(8, 40) | 36 | 0.0001 | 10
(8, 80) | 72 | 0.0001 | 10
""")
}


@pytest.mark.parametrize(("gpus", "gpu_memory"), T9K)
def test_the_six_jobs_of_retinanet(gpus, gpu_memory):
    path = RETINANET / f"job_{gpus}GPU{gpu_memory}GB.yaml"
    batch, rate, epochs = T9K[gpus, gpu_memory]
    flags = flags_of(yaml.safe_load(path.read_text()))
    assert (int(flags["batch_size"]), float(flags["lr"]), int(flags["num_epochs"])) == (batch, rate, epochs)
    assert (flags["target_ap"], flags["eval_period"], flags["warmup_epochs"]) == ("0.34", "1", "0")
    assert flags["training_file_pattern"] == "/pvc/openimages/train-*"
    assert flags["mlperf_log"] == f"{flags['model_dir']}/mlperf.log,-"  # the pod's log has eval_accuracy


@pytest.mark.parametrize(("folder", "storage"), [(K8S, "200Gi"), (RETINANET, "1Ti")])
def test_the_volume_and_the_pod_that_prepares_the_data(folder, storage):
    claim, pod = (yaml.safe_load((folder / name).read_text()) for name in ("volume.yaml", "data_preparation.yaml"))
    validate(claim)
    validate(pod)
    assert claim["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": storage}}}
    assert all_found(pod, "claimName") == [claim["metadata"]["name"]]
    assert pod["spec"]["securityContext"].items() > RESTRICTED.items()
    words = all_found(pod, "command")
    assert f"/pvc/{'openimages' if folder == RETINANET else 'coco'}" in words[-1]
    assert (words[0][2:] == ["resnext50_32x4d", "/pvc/weights"]) == (folder == RETINANET)


def test_the_data_pod_keeps_a_shell():
    """It waits after its work, ends at SIGTERM, and fails as its work fails."""
    [words] = all_found(yaml.safe_load((K8S / "data_preparation.yaml").read_text()), "command")
    assert words[4:] == ["bash", "dataset/get_coco.sh", "/pvc/coco"]
    with subprocess.Popen([*words[:4], "echo", "done"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "done\n"
        assert "kubectl exec -it efficientdet-data -- bash" in process.stdout.readline()
        time.sleep(0.2)  # until it waits
        assert process.poll() is None
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert subprocess.run([*words[:4], "bash", "-c", "exit 3"]).returncode == 3


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_the_queue_is_a_commented_block(path):
    """A user of a queue uncomments it, as in the published jobs."""
    text = path.read_text()
    start = text.index("  labels: {}\n")
    block = text[start : text.index("spec:", start)].splitlines()
    uncommented = "\n".join(line.replace("# ", "", 1) for line in block[2:])
    *_, job = yaml.safe_load_all(text.replace("\n".join(block), uncommented))
    labels = job["metadata"]["labels"]
    assert labels == {"kueue.x-k8s.io/queue-name": "default"}
