"""render.py --engine=jax: a pod per host with all its GPUs, checked by the schemas of JobSet and Kubeflow's Trainer."""

import copy
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_schemas import schema_of

K8S = Path(__file__).parents[1] / "scripts" / "k8s"
sys.path.insert(0, str(K8S))  # scripts are no package
from render import main, render  # noqa: E402

DEFINITIONS = {
    "JobSet": ("jobset.x-k8s.io_jobsets.yaml", "v1alpha2"),
    "TrainJob": ("trainer.kubeflow.org_trainjobs.yaml", "v1alpha1"),
    "TrainingRuntime": ("trainer.kubeflow.org_trainingruntimes.yaml", "v1alpha1"),
}
VARIABLES = {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"}


@pytest.fixture(scope="module")
def check(request):
    folder = request.getfixturevalue("data_folder") / "kubernetes"
    schemas = {kind: schema_of(folder / name, version) for kind, (name, version) in DEFINITIONS.items()}
    return lambda thing: jsonschema.Draft202012Validator(schemas[thing["kind"]]).validate(thing)


def things(**options):
    return list(yaml.safe_load_all(render(**{"engine": "jax", "gpus": 32, "gpu_memory": 80, **options})))


def job_and_container(kind, **options):
    """Return the spec of the one job of a JobSet, or of a TrainJob's runtime, and of its one container."""
    spec = things(kind=kind, **options)[0]["spec"]
    [job] = (spec if kind == "jobset" else spec["template"]["spec"])["replicatedJobs"]
    [container] = job["template"]["spec"]["template"]["spec"]["containers"]
    return job["template"], container


def environment_of(container):
    return {one["name"]: one.get("value") for one in container["env"]}


@pytest.mark.parametrize("engine", ["jax", "horovod"])
@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_the_schemas_of_the_operators_take_all_objects(check, engine, kind):
    for thing in things(engine=engine, kind=kind, queue="team-a", priority="high"):
        check(thing)
        wrong = copy.deepcopy(thing)
        wrong["spec"]["numHosts"] = 4
        with pytest.raises(jsonschema.ValidationError):
            check(wrong)


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
@pytest.mark.parametrize(("gpus", "given", "hosts", "of_each"), [(32, None, 4, 8), (4, None, 1, 4), (32, 4, 8, 4)])
def test_a_pod_is_a_host_with_all_its_gpus(kind, gpus, given, hosts, of_each):
    template, container = job_and_container(kind, gpus=gpus, gpus_per_host=given)
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": template["spec"]}
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    limits = {"cpu": str(8 * of_each), "memory": f"{80 * of_each}Gi", "nvidia.com/gpu": str(of_each)}
    assert container["resources"] == {"requests": limits, "limits": limits}
    assert environment_of(container)["KERAS_BACKEND"] == "jax"
    if kind == "jobset":
        assert template["spec"]["parallelism"] == template["spec"]["completions"] == hosts
        command = container["command"]
    else:
        runtime, job = things(kind=kind, gpus=gpus, gpus_per_host=given)
        assert runtime["spec"]["mlPolicy"] == {"numNodes": hosts, "jax": {}}
        assert job["spec"]["trainer"]["numNodes"] == hosts
        command = job["spec"]["trainer"]["command"]
    flags = dict(word.removeprefix("--").split("=", 1) for word in command[2:])
    assert command[:2] == [".venv/bin/python", "train.py"]
    batch_size = int(flags["batch_size"])
    assert batch_size * gpus == min(200 * gpus, 2048)  # per GPU, as over Horovod
    assert int(flags["eval_batch_size"]) == batch_size


def test_the_pods_of_a_jobset_meet_at_the_first():
    template, container = job_and_container("jobset", name="mine")
    assert (template["spec"]["completionMode"], template["spec"]["backoffLimit"]) == ("Indexed", 0)
    values = environment_of(container)
    assert values["JAX_COORDINATOR_ADDRESS"].rpartition(":")[0] == "mine-node-0-0.mine"  # JobSet's name of pod 0
    assert values["JAX_NUM_PROCESSES"] == "4"
    [index] = [one["valueFrom"] for one in container["env"] if one["name"] == "JAX_PROCESS_ID"]
    assert index == {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}


def test_the_trainer_tells_its_pods_where_to_meet():
    """It does so in the containers `node` of the jobs with its label; two values of a variable are a conflict."""
    template, container = job_and_container("trainjob")
    assert container["name"] == "node"
    assert template["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert not VARIABLES & environment_of(container).keys()
    runtime, job = things()  # the default kind
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert runtime["spec"]["template"]["spec"]["failurePolicy"]["maxRestarts"] > 0


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_the_longest_name_leaves_room_for_the_names_of_hosts(kind):
    longest = 63 - len("-node-0-3")
    things(kind=kind, name="a" * longest)
    with pytest.raises(ValueError, match=f"at most {longest}"):
        things(kind=kind, name="a" * (longest + 1))


def test_the_comment_has_the_command_that_writes_the_file(monkeypatch, capsys):
    written = render(engine="jax", gpus=32, gpu_memory=80, gpus_per_host=4, image="r.example.com/effdet_tf2:latest")
    line = next(line for line in written.splitlines() if "For your cluster: " in line)
    words = line.partition("render.py ")[2].replace("REGISTRY", "r.example.com").replace(" --queue=NAME", "").split()
    monkeypatch.setattr(sys, "argv", ["render.py", *words])
    main()
    assert capsys.readouterr() == (written, "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--engine=mpi", "--gpus=8"], "--engine"),
        (["--engine=jax", "--gpus=12"], "--gpus=12: expected a multiple of --gpus_per_host=8"),
        (["--engine=jax", "--gpus=8", "--gpus_per_host=0"], "--gpus_per_host=0: expected at least 1"),
        (["--gpus=8", "--gpus_per_host=8"], "--gpus_per_host=8: expected --engine=jax"),
        (
            ["--engine=jax", "--gpus=8", "--kind=mpijob"],
            "--kind=mpijob: expected one of trainjob, jobset, data, volume with --engine=jax",
        ),
    ],
)
def test_mistakes(flags, message):
    command = [sys.executable, str(K8S / "render.py"), "--gpu_memory=40", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]
