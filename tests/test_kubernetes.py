"""The objects that render.py writes, by the schemas of their operators and of Kubernetes; and the files kept of it."""

import copy
import shlex
import subprocess
import sys
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
sys.path.insert(0, str(K8S))  # scripts are no package
from render import main, render  # noqa: E402

MODELS = ("efficientdet-d0", "retinanet-resnext50", "retinanet-resnet18", "ssd300-resnet34", "mask-rcnn-resnet50")
ENGINES = ("horovod", "jax")
DEFINITIONS = {
    "MPIJob": ("kubeflow.org_mpijobs.yaml", "v2beta1"),
    "RayJob": ("ray.io_rayjobs.yaml", "v1"),
    "TrainJob": ("trainer.kubeflow.org_trainjobs.yaml", "v1alpha1"),
    "TrainingRuntime": ("trainer.kubeflow.org_trainingruntimes.yaml", "v1alpha1"),
}
RESTRICTED = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def rendered(extra=(), **options):
    flags = {"gpus": 8, "gpu_memory": 40, **options}
    return render([*(f"--{name}={value}" for name, value in flags.items() if value is not None), "--", *extra])


def objects(extra=(), **options):
    return list(yaml.safe_load_all(rendered(extra, **options)))


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


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gpus", [1, 256])
def test_the_schemas_of_the_operators_take_all_objects(check, engine, gpus):
    for thing in objects(engine=engine, gpus=gpus, queue="team-a", priority="high"):
        check(thing)
        wrong = copy.deepcopy(thing)
        wrong["spec"]["numHosts"] = 4
        with pytest.raises(jsonschema.ValidationError):
            check(wrong)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", MODELS)
def test_pods_and_jobs_are_what_kubernetes_takes(engine, model):
    """https://kubernetes.io/docs/concepts/security/pod-security-standards: the restricted standard."""
    image = "registry.example.com:5000/team/effdet_tf2:1"
    things = objects(engine=engine, model=model, priority="high", queue="team-a", image=image)
    labels = [thing["metadata"]["labels"] for thing in things if thing["kind"] != "TrainingRuntime"]
    assert labels == [{"kueue.x-k8s.io/queue-name": "team-a"}]
    for job in all_found(things, "replicatedJobs"):
        for one in job:
            validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **one["template"]})
    for pod in [pod for thing in things if thing["kind"] != "TrainJob" for pod in pods(thing)]:
        if "restartPolicy" not in pod:  # the operator's
            validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod})
        assert pod["priorityClassName"] == "high"
        assert pod["securityContext"].items() > RESTRICTED.items()
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 1000  # the image's user
        for container in pod["containers"]:
            assert container["securityContext"] == CONTAINER
            assert (container["image"], container["imagePullPolicy"]) == (image, "IfNotPresent")


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


@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_an_mpijob_needs_the_quota_of_its_gpus(gpus):
    """8 CPU and 80 GiB each; the launcher runs in the first of the pods."""
    [job] = objects(gpus=gpus)
    assert job["spec"]["runLauncherAsWorker"]
    replicas = job["spec"]["mpiReplicaSpecs"].values()
    assert sum(replica["replicas"] for replica in replicas) == gpus
    for pod in pods(job):
        [container] = pod["containers"]
        wanted = {"cpu": "8", "memory": "80Gi", "nvidia.com/gpu": "1"}
        assert container["resources"] == {"requests": wanted, "limits": wanted}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        assert mounts["/pvc"]["persistentVolumeClaim"]["claimName"] == "efficientdet"


@pytest.mark.parametrize(("gpus", "given", "hosts", "of_each"), [(32, None, 4, 8), (4, None, 1, 4), (32, 4, 8, 4)])
def test_under_jax_a_pod_is_a_host_with_all_its_gpus(gpus, given, hosts, of_each):
    """The Trainer tells its pods where to meet; two values of a variable would be a conflict."""
    things = objects(engine="jax", gpus=gpus, gpu_memory=80, gpus_per_host=given, name="mine")
    [container] = pods(things[0])[0]["containers"]
    limits = {"cpu": str(8 * of_each), "memory": f"{80 * of_each}Gi", "nvidia.com/gpu": str(of_each)}
    assert container["resources"] == {"requests": limits, "limits": limits}
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert environment == {"KERAS_BACKEND": "jax", "EFFICIENTDET_WEIGHTS": "/pvc/weights"}
    assert container["name"] == "node"
    assert things[0]["spec"]["mlPolicy"] == {"numNodes": hosts, "jax": {}}
    assert things[0]["spec"]["template"]["spec"]["failurePolicy"]["maxRestarts"] > 0
    assert things[1]["spec"]["trainer"]["numNodes"] == hosts
    assert things[1]["spec"]["runtimeRef"]["name"] == things[0]["metadata"]["name"]
    flags = flags_of(things)
    assert int(flags["batch_size"]) * gpus == min(200 * gpus, 2048)  # per GPU, as over Horovod
    assert flags["eval_batch_size"] == flags["batch_size"]


@pytest.mark.parametrize("model", MODELS)
def test_both_engines_run_the_same_program(model):
    assert flags_of(objects(model=model)) == flags_of(objects(engine="jax", model=model))


def test_train_py_takes_the_flags_of_each_model(tmp_path):
    """All its checks before TensorFlow done, with records that are never opened."""
    records_never_opened(tmp_path)
    here = {"training_file_pattern": "train-*", "val_file_pattern": "val-*", "model_dir": "out", "val_json_file": ""}
    cases = [
        ["train", *(f"--{flag}={value}" for flag, value in {**flags_of(objects(model=model)), **here}.items())]
        for model in MODELS
    ]
    for model, outcome in zip(MODELS, outcomes(cases, cwd=tmp_path), strict=True):
        assert outcome["wanted"] is not None, (model, outcome["stderr"])


@pytest.mark.parametrize(
    ("model", "gpus", "gpu_memory", "wanted"),
    [
        ("efficientdet-d0", 8, 40, {"batch_size": "80", "lr_per_64": "0.088"}),
        ("efficientdet-d0", 8, 80, {"batch_size": "200", "warmup_epochs": "25"}),
        ("efficientdet-d0", 4, 24, {"batch_size": "40", "warmup_epochs": "5"}),
        ("efficientdet-d0", 256, 80, {"batch_size": "8"}),
        ("efficientdet-d0", 4096, 80, {"batch_size": "1"}),
        # MLPerf's reference rate, 0.02 for 16 images; NVIDIA's eight A100 train 96 at 0.12
        ("mask-rcnn-resnet50", 8, 80, {"batch_size": "12", "lr": "0.12", "target_ap": "0.377"}),
    ],
)
def test_batch_and_rate(model, gpus, gpu_memory, wanted):
    things = objects(model=model, gpus=gpus, gpu_memory=gpu_memory)
    assert flags_of(things).items() >= wanted.items()
    words = command(things)
    assert words[words.index("-n") + 1] == str(gpus)
    assert words[words.index("odls_base_sigkill_timeout") + 1] == "60"


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
    assert path.read_text() == rendered(model="retinanet-resnext50", gpus=gpus, gpu_memory=gpu_memory, epochs=epochs)
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


def test_the_queue_is_a_commented_block():
    """A user of a queue uncomments it, as in the published jobs."""
    text = (RETINANET / "job_4GPU40GB.yaml").read_text()
    block = text[text.index("  labels: {}\n") : text.index("spec:")].splitlines()
    uncommented = "\n".join(line.replace("# ", "", 1) for line in block[2:])
    labels = yaml.safe_load(text.replace("\n".join(block), uncommented))["metadata"]["labels"]
    assert labels == {"kueue.x-k8s.io/queue-name": "default"}
    assert objects()[0]["metadata"]["labels"] == {}


@pytest.mark.parametrize("name", ["null", "true", "on", "n", "yes", "123", "1e3", "0x1f"])
def test_names_that_yaml_would_read_as_something_else(name):
    """PyYAML reads 1e3 and n as text; kubectl does not, so they are quoted."""
    text = rendered(queue=name, namespace=name, claim=name)
    assert f'namespace: "{name}"' in text or f"namespace: '{name}'" in text
    [job] = yaml.safe_load_all(text)
    assert (job["metadata"]["namespace"], *job["metadata"]["labels"].values()) == (name, name)
    assert all_found(job, "claimName") == [name, name]


@pytest.mark.parametrize(
    ("engine", "gpus", "ending"),
    [("horovod", 8, "-launcher"), ("horovod", 4096, "-worker-4095"), ("jax", 32, "-node-0-3")],
)
def test_the_longest_name_leaves_room_for_the_names_of_hosts(engine, gpus, ending):
    longest = 63 - len(ending)
    assert objects(engine=engine, gpus=gpus, name="a" * longest)[0]["metadata"]["name"] == "a" * longest
    with pytest.raises(ValueError, match=f"at most {longest}"):
        objects(engine=engine, gpus=gpus, name="a" * (longest + 1))


def run_main(monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "argv", ["render.py", *words])
    main()
    return capsys.readouterr()


def test_files_name_the_command_that_writes_them_for_another_cluster(monkeypatch, capsys):
    kept = [path.read_text() for path in RETINANET.glob("job_*.yaml")]
    for text in [*kept, rendered(engine="jax", gpus=32, gpu_memory=80, gpus_per_host=4)]:
        line = next(line for line in text.splitlines() if "For your cluster: " in line)
        line = line.replace("REGISTRY", "r.example.com").replace("=NAME", "=team-a")
        out, err = run_main(monkeypatch, capsys, shlex.split(line.partition("render.py ")[2]))
        assert err == ""
        for old, new in zip(yaml.safe_load_all(text), yaml.safe_load_all(out), strict=True):
            assert {**new, "metadata": old["metadata"], "spec": None} == {**old, "spec": None}
            if "labels" in new["metadata"]:
                assert new["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"}


def test_warnings(monkeypatch, capsys):
    no_registry = run_main(monkeypatch, capsys, ["--gpus=1", "--gpu_memory=40"]).err
    assert "effdet_tf2:latest names no registry" in no_registry
    job = ["--model=retinanet-resnext50", "--gpus=4", "--gpu_memory=24", "--image=r.example.com/effdet_tf2:1"]
    out, err = run_main(monkeypatch, capsys, [*job, "--", "--lr=1e-4", "--seed=3"])
    assert "56 images per step at 0.0001: 56 at 1e-4 did not reach 0.34" in err
    assert err.count("\n") == 1
    assert flags_of(yaml.safe_load(out))["seed"] == "3"
    for words in ([*job], [*job, "--gpus=8", "--", "--lr=1e-4"], [*job, "--model=ssd300-resnet34", "--", "--lr=1e-4"]):
        assert run_main(monkeypatch, capsys, words).err == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    rows(r"""
--gpus=0 --gpu_memory=40 | --gpus=0: expected at least 1
--gpus=8 --gpu_memory=41 | --gpu_memory=41: expected one of 24, 32, 40, 80, 141
--gpu=8 --gpu_memory=40 | --gpus
JOB '--queue=Team A' | --queue=Team A: expected lowercase letters
JOB --image= | --image=: expected a name such as
JOB --epochs=0 | --epochs=0: expected at least 1
JOB --name=123 | --name=123: expected lowercase letters, digits and hyphens, a letter first
JOB --model=yolo | --model=yolo: expected a train.py --model_name among efficientdet-.., retina
JOB -- lr=3 | lr=3: expected a flag of train.py
JOB --engine=mpi | --engine
JOB --engine=jax --gpus=12 | --gpus=12: expected a multiple of --gpus_per_host=8
JOB --engine=jax --gpus_per_host=0 | --gpus_per_host=0: expected at least 1
JOB --gpus_per_host=8 | --gpus_per_host=8: expected --engine=jax
"""),
)
def test_mistakes(monkeypatch, capsys, flags, message):
    words = shlex.split(flags.replace("JOB", "--gpus=8 --gpu_memory=40"))
    with pytest.raises(SystemExit) as exit_code:
        run_main(monkeypatch, capsys, words)
    out, err = capsys.readouterr()
    assert (exit_code.value.code, out) == (2, "")
    assert message in err.splitlines()[-1]
