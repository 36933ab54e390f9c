"""The jobs for Kubernetes, against the schemas of those who will read them."""

import copy
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_schemas import schema_of

K8S = Path(__file__).parents[1] / "scripts" / "k8s"
sys.path.insert(0, str(K8S))  # scripts are no package
from recipes import recipe_of  # noqa: E402
from render import render  # noqa: E402

BATCH_SIZES = recipe_of("efficientdet-d0").batch_sizes


@pytest.fixture(scope="module")
def check_job(request):
    definition = request.getfixturevalue("data_folder") / "kubernetes" / "kubeflow.org_mpijobs.yaml"
    schema = schema_of(definition, "v2beta1")
    return lambda job: jsonschema.validate(job, schema)


def job(**options):
    return yaml.safe_load(render(**{"gpus": 8, "gpu_memory": 40, **options}))


def pods(document):
    """Each pod template as a pod."""
    for kind, replica in document["spec"]["mpiReplicaSpecs"].items():
        template = copy.deepcopy(replica["template"])
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": kind.lower(), **template.get("metadata", {})},
            "spec": template["spec"],
        }


def check_pod(pod):
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("gpus", [1, 4, 8, 256])
@pytest.mark.parametrize("gpu_memory", BATCH_SIZES)
def test_jobs_are_what_the_operator_takes(check_job, gpus, gpu_memory):
    document = job(gpus=gpus, gpu_memory=gpu_memory, queue="team-a")
    check_job(document)
    for pod in pods(document):
        check_pod(pod)


@pytest.mark.parametrize(
    ("key", "value"), [("slotsPerWorker", "one"), ("slotPerWorker", 1), ("runPolicy", {"backoff": 1})]
)
def test_a_wrong_job_is_told(check_job, key, value):
    document = job()
    document["spec"][key] = value
    with pytest.raises(jsonschema.ValidationError):
        check_job(document)


def test_a_wrong_pod_is_told():
    pod = next(pods(job()))
    pod["spec"]["containers"][0]["imagePullSecret"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        check_pod(pod)


def test_the_data_preparation_pod():
    check_pod(yaml.safe_load((K8S / "data_preparation.yaml").read_text()))


def test_what_a_worker_asks_for():
    worker = job()["spec"]["mpiReplicaSpecs"]["Worker"]
    [container] = worker["template"]["spec"]["containers"]
    volumes = {volume["name"]: volume for volume in worker["template"]["spec"]["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert mounts["/pvc"]["persistentVolumeClaim"]["claimName"] == "efficientdet"


RESTRICTED = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_pods_keep_to_the_restricted_standard():
    """https://kubernetes.io/docs/concepts/security/pod-security-standards: what a cluster that enforces it asks for."""
    data = yaml.safe_load((K8S / "data_preparation.yaml").read_text())
    for pod in [*pods(job()), data]:
        context = pod["spec"]["securityContext"]
        assert {key: context.get(key) for key in RESTRICTED} == RESTRICTED
        assert context["runAsUser"] == context["fsGroup"] == 1000  # the image's user may write to the volume
        for container in pod["spec"]["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("name", ["null", "true", "on", "e3", "n", "yes"])
def test_names_that_yaml_would_read_as_something_else(name):
    document = job(name=name, queue=name, namespace=name, claim=name)
    assert (document["metadata"]["name"], document["metadata"]["namespace"]) == (name, name)
    assert document["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": name}
    assert document["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"] == {
        "claimName": name
    }


def test_numbers_for_names_stay_text():
    assert job(queue="123", namespace="1e3", claim="0x1f")["metadata"] == {
        "name": "efficientdet-d0-8gpu40gb",
        "namespace": "1e3",
        "labels": {"kueue.x-k8s.io/queue-name": "123"},
    }


def test_the_longest_name_leaves_room_for_the_names_of_hosts():
    for gpus in (8, 100, 4096):
        longest = 63 - len(max(["-launcher", f"-worker-{gpus - 1}"], key=len))
        assert job(gpus=gpus, name="a" * longest)["metadata"]["name"] == "a" * longest
        with pytest.raises(ValueError, match=f"at most {longest}"):
            job(gpus=gpus, name="a" * (longest + 1))


def launcher_arguments(**options):
    [container] = job(**options)["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    return container["args"]


@pytest.mark.parametrize(
    ("gpus", "gpu_memory", "batch_size"), [(8, 40, 80), (8, 80, 200), (4, 24, 40), (256, 80, 8), (4096, 80, 1)]
)
def test_batch_and_rate(gpus, gpu_memory, batch_size):
    arguments = launcher_arguments(gpus=gpus, gpu_memory=gpu_memory)
    assert f"--batch_size={batch_size}" in arguments
    assert "--lr_per_64=0.088" in arguments
    assert arguments[arguments.index("-n") + 1] == str(gpus)
    assert arguments[arguments.index("odls_base_sigkill_timeout") + 1] == "60"


def test_flags_of_the_training_exist():
    root = K8S.parents[1]
    train = "".join(
        (root / "efficientdet" / file).read_text()
        for file in ("operations/train_model.py", "configuration/flag_definitions.py")
    )
    arguments = launcher_arguments()
    given = arguments[arguments.index("train.py") + 1 :]
    assert len(given) > 10
    for flag in given:
        assert f'"{flag.removeprefix("--").split("=")[0]}"' in train, flag


@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_a_job_needs_the_quota_of_its_gpus(gpus):
    """8 CPU and 80 GiB each; the launcher runs in the first of the pods."""
    document = job(gpus=gpus)
    assert document["spec"]["runLauncherAsWorker"]
    count = 0
    for replica in document["spec"]["mpiReplicaSpecs"].values():
        [container] = replica["template"]["spec"]["containers"]
        wanted = {"cpu": "8", "memory": "80Gi", "nvidia.com/gpu": "1"}
        assert container["resources"] == {"requests": wanted, "limits": wanted}
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/pvc", "/dev/shm"}
        count += replica["replicas"]
    assert count == gpus


def test_the_queue_is_a_commented_block():
    """A user of a queue uncomments it, as in the published jobs."""
    text = (K8S.parent / "retinanet" / "job_4GPU40GB.yaml").read_text()
    block = text[text.index("  labels: {}\n") : text.index("spec:")].splitlines()
    uncommented = "\n".join(line.replace("# ", "", 1) for line in block[2:])
    assert yaml.safe_load(text.replace("\n".join(block), uncommented))["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": "default"
    }


def test_the_data_pod_keeps_a_shell():
    """It waits after its work, ends at SIGTERM, and fails as its work fails."""
    [container] = yaml.safe_load((K8S / "data_preparation.yaml").read_text())["spec"]["containers"]
    assert container["command"][4:] == ["bash", "dataset/get_coco.sh", "/pvc/coco"]
    command = [*container["command"][:4], "echo", "done"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "done\n"
        assert "kubectl exec -it efficientdet-data -- bash" in process.stdout.readline()
        time.sleep(0.2)  # until it waits
        assert process.poll() is None
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert subprocess.run([*container["command"][:4], "bash", "-c", "exit 3"]).returncode == 3


def test_kueue():
    assert job(queue="team-a")["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"}
    assert job()["metadata"]["labels"] == {}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gpus=0", "--gpu_memory=40"], "--gpus=0: expected at least 1"),
        (["--gpus=8", "--gpu_memory=41"], "--gpu_memory=41: expected one of 24, 32, 40, 80, 141"),
        (["--gpus=8", "--gpu_memory=40", "--queue=Team A"], "--queue=Team A: expected lowercase letters"),
        (["--gpus=8", "--gpu_memory=40", "--image=a b"], "--image=a b: expected the name of an image"),
        (["--gpu=8", "--gpu_memory=40"], "--gpus"),
        (["--gpus=8", "--gpu_memory=40", "--epochs=-1"], "--epochs=-1: expected at least 1"),
        (["--gpus=8", "--gpu_memory=40", "--epochs=0"], "--epochs=0: expected at least 1"),
        (
            ["--gpus=8", "--gpu_memory=40", "--name=123"],
            "--name=123: expected lowercase letters, digits and hyphens, a letter first",
        ),
        (["--gpus=8", "--gpu_memory=40", "--name="], "--name=: expected lowercase letters"),
        (["--gpus=8", "--gpu_memory=40", "--queue="], "--queue=: expected lowercase letters"),
        (["--gpus=8", "--gpu_memory=40", "--image=-v"], "--image=-v: expected the name of an image"),
        (["--gpus=8", "--gpu_memory=40", "--image="], "--image=: expected the name of an image"),
    ],
)
def test_mistakes(flags, message):
    done = subprocess.run([sys.executable, str(K8S / "render.py"), *flags], capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_command_of_the_readme():
    done = subprocess.run(
        [sys.executable, str(K8S / "render.py"), "--gpus=8", "--gpu_memory=40", "--queue=NAME".lower()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert yaml.safe_load(done.stdout)["metadata"]["name"] == "efficientdet-d0-8gpu40gb"
