"""What render.py writes beside MPIJobs, of every model: JobSets, TrainJobs, pods; and the files that are kept of it.

The schemas of JobSet and of Kubeflow's Trainer are 550 and 750 KB of mostly Kubernetes' own pods: here stand their own
fields (kubernetes-sigs/jobset v1alpha2 and kubeflow/trainer v1alpha1 as of 2026), the jobs inside are checked by
Kubernetes' schema.
"""

import copy
import random
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from command_lines import outcomes

from dataset.class_names import ClassNames
from efficientdet.families.registry import model_names

ROOT = Path(__file__).parents[1]
K8S, RETINANET = ROOT / "scripts" / "k8s", ROOT / "scripts" / "retinanet"
sys.path.insert(0, str(K8S))  # scripts are no package
from recipes import backbone_of, recipe_of  # noqa: E402
from render import main, render, warning  # noqa: E402
from yaml_text import document  # noqa: E402

MODELS = ("efficientdet-d0", "retinanet-resnext50", "retinanet-resnet18", "ssd300-resnet34", "mask-rcnn-resnet50")


def fields(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def items(schema, most=None):
    return {"type": "array", "items": schema, **({"maxItems": most} if most else {})}


TEXT, NUMBER, TRUTH, ANY = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {}
METADATA = fields(name=TEXT, namespace=TEXT, labels={"type": "object"}, annotations={"type": "object"})
JOB = fields(
    ["template", "name"],
    name=TEXT,
    groupName=TEXT,
    replicas=NUMBER,
    template=fields(metadata=METADATA, spec=ANY),
    dependsOn=items(fields(["name", "status"], name=TEXT, status={"enum": ["Ready", "Complete"]}), most=1),
)
JOBSET = fields(
    coordinator=ANY,
    managedBy=TEXT,
    suspend=TRUTH,
    ttlSecondsAfterFinished=NUMBER,
    startupPolicy=ANY,
    replicatedJobs=items(JOB),
    network=fields(enableDNSHostnames=TRUTH, publishNotReadyAddresses=TRUTH, subdomain=TEXT),
    failurePolicy=fields(maxRestarts=NUMBER, restartStrategy={"enum": ["Recreate", "BlockingRecreate"]}, rules=ANY),
    successPolicy=fields(["operator"], operator={"enum": ["All", "Any"]}, targetReplicatedJobs=items(TEXT)),
)
RUNTIME = fields(
    podGroupPolicy=ANY,
    template=fields(metadata=METADATA, spec=JOBSET),
    mlPolicy=fields(
        numNodes=NUMBER,
        torch=ANY,
        flux=ANY,
        jax=ANY,
        mpi=fields(
            numProcPerNode=NUMBER,
            mpiImplementation={"enum": ["OpenMPI", ""]},
            sshAuthMountPath=TEXT,
            runLauncherAsNode=TRUTH,
        ),
    ),
)
WORDS = items({"type": "string", "maxLength": 65536}, most=128)
TRAINJOB = fields(
    ["runtimeRef"],
    initializer=ANY,
    runtimePatches=ANY,
    suspend=TRUTH,
    activeDeadlineSeconds=NUMBER,
    managedBy=TEXT,
    runtimeRef=fields(["name"], name=TEXT, apiGroup=TEXT, kind={"enum": ["TrainingRuntime", "ClusterTrainingRuntime"]}),
    trainer=fields(
        image={"type": "string", "maxLength": 500},
        command=WORDS,
        args=WORDS,
        env=ANY,
        numNodes=NUMBER,
        resourcesPerNode=ANY,
        numProcPerNode=NUMBER,
    ),
)
KINDS = {
    "JobSet": ("jobset.x-k8s.io/v1alpha2", JOBSET),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1", TRAINJOB),
    "TrainingRuntime": ("trainer.kubeflow.org/v1alpha1", RUNTIME),
}


def check(thing):
    version, spec = KINDS[thing["kind"]]
    jsonschema.validate(
        thing, fields(["metadata", "spec"], apiVersion={"const": version}, kind=TEXT, metadata=METADATA, spec=spec)
    )


def check_job(template):
    kubernetes_validate.validate(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": template["spec"]},
        kubernetes_validate.latest_version(),
        strict=True,
    )


def things(**options):
    return list(yaml.safe_load_all(render(**{"gpus": 8, "gpu_memory": 40, **options})))


def replicated(kind, **options):
    """The jobs of a JobSet, or of a TrainJob's runtime, by name."""
    spec = things(kind=kind, **options)[0]["spec"]
    return {job["name"]: job for job in (spec if kind == "jobset" else spec["template"]["spec"])["replicatedJobs"]}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
@pytest.mark.parametrize("gpus", [1, 8])
def test_objects_have_the_documented_fields(kind, model, gpus):
    for thing in things(kind=kind, model=model, gpus=gpus, queue="team-a", priority="high"):
        check(thing)
        if thing["kind"] != "TrainingRuntime":
            assert thing["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"}
    for job in replicated(kind, model=model, gpus=gpus, priority="high").values():
        check_job(job["template"])
        pod = job["template"]["spec"]["template"]["spec"]
        assert pod["priorityClassName"] == "high"
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        ("jobset", "network", {"enableDnsHostnames": True}),
        ("jobset", "replicas", 1),
        ("jobset", "failurePolicy", {"maxRestarts": "20"}),
        ("trainjob", "mlPolicy", {"mpi": {"mpiImplementation": "MPICH"}}),
    ],
)
def test_a_wrong_object_is_told(kind, place, value):
    thing = copy.deepcopy(things(kind=kind)[0])
    thing["spec"][place] = value
    with pytest.raises(jsonschema.ValidationError):
        check(thing)


def test_a_jobset_is_one_indexed_job_whose_pods_meet_at_the_first():
    [job] = replicated("jobset", name="mine").values()
    spec = job["template"]["spec"]
    assert (spec["completionMode"], spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (
        "Indexed",
        8,
        8,
        0,
    )
    [container] = spec["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "1"
    words = container["command"]
    own, program = words[: words.index("--")], words[words.index("--") + 1 :]
    assert own == [".venv/bin/python", "scripts/k8s/rank.py", "--size=8", "--meet_at=mine-ranks-0-0.mine:29500"]
    assert program[:2] == [".venv/bin/python", "train.py"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # all begin again, or none


def test_a_trainjob_gives_its_command_to_the_launcher_alone():
    """The Trainer sets command and image of labeled jobs, keys to containers `node`, and hosts to the launcher."""
    runtime, job = things(kind="trainjob")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert runtime["spec"]["mlPolicy"]["numNodes"] == job["spec"]["trainer"]["numNodes"] == 8
    jobs = replicated("trainjob")
    assert "metadata" not in jobs["node"]["template"]
    assert jobs["launcher"]["template"]["metadata"]["labels"] == {
        "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"
    }
    assert jobs["launcher"]["dependsOn"] == [{"name": "node", "status": "Ready"}]
    for one in jobs.values():
        assert [container["name"] for container in one["template"]["spec"]["template"]["spec"]["containers"]] == [
            "node"
        ]
    args = job["spec"]["trainer"]["args"]
    assert args[args.index("-n") + 1] == "8"


def program(thing):
    text = yaml.safe_dump(thing)
    assert "train.py" in text

    def found(value):
        if isinstance(value, list) and "train.py" in value:
            return value[value.index("train.py") + 1 :]
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return next(filter(None, map(found, inner)), None)

    return dict(flag.removeprefix("--").split("=", 1) for flag in found(thing))


@pytest.mark.parametrize("model", MODELS)
def test_all_kinds_run_the_same_program(model):
    flags = [program(things(kind=kind, model=model)[-1]) for kind in ("mpijob", "jobset", "trainjob")]
    assert flags[0] == flags[1] == flags[2]


def test_train_py_takes_the_flags_of_each_model(tmp_path):
    """All its checks before TensorFlow done, with records that are never opened."""
    for split in ("train", "val"):
        (tmp_path / f"{split}-00000-of-00001.tfrecord").touch()
        ClassNames((1, 7), ("cat", "dog")).write(tmp_path / f"{split}.classes.json")
    here = {"training_file_pattern": "train-*", "val_file_pattern": "val-*", "model_dir": "out", "val_json_file": ""}
    models = [model for model in MODELS if model in model_names()]
    cases = [
        ["train", *(f"--{flag}={value}" for flag, value in {**program(things(model=model)[0]), **here}.items())]
        for model in models
    ]
    for model, outcome in zip(models, outcomes(cases, cwd=tmp_path), strict=True):
        assert outcome["wanted"] is not None, (model, outcome["stderr"])


# Published pairs (mlperf-detectors.md, 1.3): GPUs, GB -> images of a GPU, rate, epochs at most.
T9K = {
    (4, 24): (14, 6e-5, 20),
    (4, 40): (36, 1e-4, 10),
    (4, 80): (72, 1e-4, 10),
    (8, 24): (14, 1e-4, 10),
    (8, 40): (36, 1e-4, 10),
    (8, 80): (72, 1e-4, 10),
}


@pytest.mark.parametrize(("gpus", "gpu_memory"), T9K)
def test_the_six_jobs_of_retinanet(gpus, gpu_memory):
    path = RETINANET / f"job_{gpus}GPU{gpu_memory}GB.yaml"
    batch, rate, epochs = T9K[gpus, gpu_memory]
    assert path.read_text() == render(model="retinanet-resnext50", gpus=gpus, gpu_memory=gpu_memory, epochs=epochs)
    flags = program(yaml.safe_load(path.read_text()))
    assert (int(flags["batch_size"]), float(flags["lr"]), int(flags["num_epochs"])) == (batch, rate, epochs)
    assert (flags["target_ap"], flags["eval_period"], flags["warmup_epochs"]) == ("0.34", "1", "0")
    assert flags["training_file_pattern"] == "/pvc/openimages/train-*"
    assert flags["mlperf_log"].split(",") == [
        f"{flags['model_dir']}/mlperf.log",
        "-",
    ]  # the pod's log has eval_accuracy


def test_data_preparation_as_it_is_kept():
    for path, model in (
        (K8S / "data_preparation.yaml", "efficientdet-d0"),
        (RETINANET / "data_preparation.yaml", "retinanet-resnext50"),
    ):
        assert path.read_text() == render(kind="data", model=model)
        pod = yaml.safe_load(path.read_text())
        validate(pod)
        for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]:
            assert container["command"][0] == "bash"
    assert pod["spec"]["containers"][0]["command"][6:8] == ["/pvc/openimages", "--classes=mlperf"]
    assert pod["spec"]["initContainers"][0]["command"][2:] == ["resnext50_32x4d", "/pvc/weights"]


def validate(thing):
    kubernetes_validate.validate(thing, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("folder", "model", "storage"), [(K8S, "efficientdet-d0", "200Gi"), (RETINANET, "retinanet-resnext50", "1Ti")]
)
def test_volumes_are_shared_by_nodes_and_hold_the_data(folder, model, storage):
    path = folder / "volume.yaml"
    assert path.read_text() == render(kind="volume", model=model)
    claim = yaml.safe_load(path.read_text())
    validate(claim)
    assert claim["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": storage}}}
    pod = things(kind="data", model=model)[0]
    assert pod["spec"]["volumes"] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    ]
    [claim] = things(kind="volume", claim="mine", namespace="team-a", storage_class="nfs")
    validate(claim)
    assert claim["metadata"] == {"name": "mine", "namespace": "team-a"}
    assert claim["spec"]["storageClassName"] == "nfs"


def test_the_data_pod_goes_through_a_proxy_in_its_namespace():
    [pod] = things(kind="data", model="mask-rcnn-resnet50", proxy="http://proxy.example.com:3128", namespace="team-a")
    validate(pod)
    assert pod["metadata"] == {"name": "mask-rcnn-data", "namespace": "team-a"}
    for container in [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]:
        environment = {one["name"]: one["value"] for one in container["env"]}
        assert (
            environment["http_proxy"] == environment["https_proxy"] == "http://proxy.example.com:3128"
        )  # curl, urllib
        assert ".svc" in environment["no_proxy"].split(",")
        assert environment["COCO_MASKS"] == "1"


def containers(thing):
    inner = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list) else ()
    return [
        *([thing] if isinstance(thing, dict) and "securityContext" in thing and "image" in thing else []),
        *(one for value in inner for one in containers(value)),
    ]


@pytest.mark.parametrize("kind", ["mpijob", "jobset", "trainjob", "data"])
def test_images_come_from_the_registry_that_is_named(kind):
    image = "registry.example.com:5000/team/effdet_tf2:1"
    found = [container for thing in things(kind=kind, image=image) for container in containers(thing)]
    assert found
    for container in found:  # one that was loaded into the nodes is not pulled, whatever its tag
        assert (container["image"], container["imagePullPolicy"]) == (image, "IfNotPresent")


def test_the_kept_files_name_the_command_that_writes_them_for_another_cluster(monkeypatch, capsys):
    for path in (*RETINANET.glob("*.yaml"), *K8S.glob("*.yaml")):
        [line] = [line for line in path.read_text().splitlines() if "For your cluster: " in line]
        words = (
            line.partition("scripts/k8s/render.py ")[2]
            .replace("REGISTRY", "registry.example.com")
            .replace("=NAME", "=team-a")
            .replace("=URL", "=http://proxy.example.com:3128")
            .split()
        )
        monkeypatch.setattr(sys, "argv", ["render.py", *words])
        main()
        out, err = capsys.readouterr()
        assert err == "", path
        kept, written = yaml.safe_load(path.read_text()), yaml.safe_load(out)
        assert {**written, "metadata": kept["metadata"], "spec": None} == {**kept, "spec": None}
        if "--queue=team-a" in words:
            assert written["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"}


def test_an_image_without_registry_is_warned_of(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["render.py", "--kind=data"])
    main()
    assert "effdet_tf2:latest names no registry" in capsys.readouterr().err


def test_batch_and_rate_of_mask_rcnn():
    """MLPerf's reference rate, 0.02 for 16 images; NVIDIA's eight A100 train 96 at 0.12."""
    flags = program(things(model="mask-rcnn-resnet50", gpus=8, gpu_memory=80))
    assert (flags["batch_size"], flags["lr"], flags["target_ap"]) == ("12", "0.12", "0.377")
    assert flags["training_file_pattern"] == "/pvc/coco_masks/train-*"
    assert backbone_of("mask-rcnn-resnext50-dle") == "resnext50_32x4d"


def test_the_pair_that_does_not_converge_is_told():
    asked = {"model": "retinanet-resnext50", "gpus": 4, "gpu_memory": 24}
    assert warning(**asked, extra=()) == ""
    assert "56 images per step at 0.0001: 56 at 1e-4 did not reach 0.34" in warning(**asked, extra=("--lr=1e-4",))
    assert warning(**{**asked, "gpus": 8}, extra=("--lr=1e-4",)) == ""
    assert warning(**{**asked, "model": "ssd300-resnet34"}, extra=("--lr=1e-4",)) == ""
    done = subprocess.run(
        [
            sys.executable,
            str(K8S / "render.py"),
            "--model=retinanet-resnext50",
            "--gpus=4",
            "--gpu_memory=24",
            "--image=registry.example.com/effdet_tf2:1",
            "--",
            "--lr=1e-4",
            "--seed=3",
        ],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert program(yaml.safe_load(done.stdout))["seed"] == "3"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gpus=8", "--gpu_memory=40", "--kind=pod"], "--kind"),
        (["--gpus=8", "--gpu_memory=40", "--priority=High"], "--priority=High: expected lowercase letters"),
        (
            ["--gpus=8", "--gpu_memory=32", "--model=retinanet-resnext50"],
            "--gpu_memory=32: expected one of 24, 40, 48, 80, 141",
        ),
        (
            ["--gpus=8", "--gpu_memory=40", "--model=yolo"],
            "--model=yolo: expected a train.py --model_name among efficientdet-.., retinanet-.., ssd300-.., "
            "mask-rcnn-..",
        ),
        (["--kind=data", "--proxy=proxy 3128"], "--proxy=proxy 3128: expected a URL"),
        (["--kind=volume", "--storage_class=A b"], "--storage_class=A b: expected lowercase letters"),
        (["--gpus=8", "--gpu_memory=40", "--", "lr=3"], "lr=3: expected a flag of train.py"),
        (["--kind=data", "--claim=A"], "--claim=A: expected lowercase letters"),
    ],
)
def test_mistakes(flags, message):
    done = subprocess.run([sys.executable, str(K8S / "render.py"), *flags], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("kind", "ending"), [("jobset", "-ranks-0-7"), ("trainjob", "-launcher-0-0")])
def test_the_longest_name_leaves_room_for_the_names_of_hosts(kind, ending):
    longest = 63 - len(ending)
    things(kind=kind, name="a" * longest)
    with pytest.raises(ValueError, match=f"at most {longest}"):
        things(kind=kind, name="a" * (longest + 1))


def test_backbones():
    assert [backbone_of(model) for model in MODELS] == ["", "resnext50_32x4d", "resnet18", "resnet34-2017", "resnet50"]
    assert recipe_of("yolo") is None


def anything(draw, depth):
    kind = draw.randrange(8 if depth else 5)
    if kind < 4:
        return draw.choice(
            [
                "null",
                "y",
                "1e3",
                "0x1f",
                "a: b",
                "#x",
                "- x",
                "*a",
                "&b",
                "é\n",
                "",
                "--flag=a,b",
                "{a}",
                "~",
                "-n",
                ".5",
                ".inf",
                "a b",
                "@",
                "Ready",
                "/x",
                "No",
                "%",
                "!",
                "'",
                '"',
                "-",
                "--",
                "a:",
                "x" * 70,
            ]
        )
    if kind == 4:
        return draw.choice([0, -3, 10**9, True, False, 0.5])
    if kind == 5:
        return [anything(draw, depth - 1) for _ in range(draw.randrange(4))]
    return {str(anything(draw, 0)): anything(draw, depth - 1) for _ in range(draw.randrange(1, 5))}


def test_words_that_some_reader_takes_for_truth_are_quoted():
    assert (
        document({"a": ["y", "N", "Off", "null", "Ready"]}, comment="x") == '# x\na: ["y", "N", "Off", "null", Ready]\n'
    )


def test_what_is_written_is_read_again():
    draw = random.Random(5)
    for _ in range(400):
        value = {"kind": anything(draw, 4), "null": anything(draw, 3)}
        assert yaml.safe_load(document(value, comment="x")) == value
