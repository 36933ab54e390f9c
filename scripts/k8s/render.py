"""Print a training job as YAML for kubectl, for a given number of GPUs and memory per GPU.

    python scripts/k8s/render.py --gpus=8 --gpu_memory=40 --queue=NAME > job_8GPU40GB.yaml
    python scripts/k8s/render.py --engine=jax --gpus=32 --gpu_memory=80 --queue=NAME > job_32GPU80GB.yaml
    python scripts/k8s/render.py --model=retinanet-resnext50 --kind=volume > volume.yaml
    python scripts/k8s/render.py --model=retinanet-resnext50 --kind=data > data_preparation.yaml
    python scripts/k8s/render.py --kind=rayjob --workers=8 -- python dataset/create_tfrecord.py --engine=ray ...

Arguments after -- are flags of train.py and override those of the recipe: ... -- --lr=6e-5 --seed=3
With --kind=rayjob they are the command that runs on the Ray cluster.
"""

import argparse
import re
import shlex
import string
import sys
from pathlib import Path
from typing import Any

import yaml

GPUS_PER_HOST = 8
DEFAULT_IMAGE = "effdet_tf2:latest"
MAX_LETTERS = 63  # characters of a DNS label, and so of a host name
# Kind of a training job by engine, and the suffixes that its operator appends to a job's name
TRAINING_KINDS = {"horovod": "mpijob", "jax": "trainjob"}
_SUFFIXES = {"mpijob": ("-worker-{last_pod}", "-launcher"), "trainjob": ("-node-0-{last_pod}",)}
OTHER_KINDS = ("data", "volume", "rayjob")
_RAY_NAME = 47  # characters; KubeRay's limit: it appends up to 16, such as -abcde-serve-svc
_COMMENTS = {
    "MPIJob": "One training as a Kubeflow MPIJob (mpi-operator, kubeflow.org/v2beta1)",
    "TrainingRuntime": "The runtime of the TrainJob below (Kubeflow Trainer)",
    "TrainJob": "One training as a TrainJob (trainer.kubeflow.org/v1alpha1)",
    "RayJob": "One command on a Ray cluster of its own (KubeRay, ray.io/v1)",
    "Pod": "Downloads a data set into the volume, checks it and converts it (kubectl apply -f ...)",
    "PersistentVolumeClaim": "The volume of data, weights and runs, for pods on several nodes",
}
_QUEUE = """\
  # With Kueue, these lines instead of the one above, and the name of your queue:
  # labels:
  #   kueue.x-k8s.io/queue-name: default
"""
_NAME = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_HERE = Path(__file__).parent
_LOCK = _HERE.parents[1] / "requirements.lock"
_TEMPLATES = yaml.safe_load((_HERE / "templates.yaml").read_text(encoding="utf-8"))
_RECIPES = yaml.safe_load((_HERE / "recipes.yaml").read_text(encoding="utf-8"))
_RECIPES.pop("coco")
_BACKBONES = {"retinanet-resnext50": "resnext50_32x4d", "ssd300-resnet34": "resnet34-2017"}
# Dell's four L40S; t9k's four GPUs with 24 GB used 1e-4 for 56 images and missed the target
_SMALL_RETINANET, _SMALL_RATE = 64, 6e-5


def parsed(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, with their defaults, and the words after --."""
    own, extra = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    add, is_job = parser.add_argument, not any(f"--kind={kind}" in own for kind in OTHER_KINDS)
    engines = "Engine of the training: horovod (TensorFlow, one pod per GPU) or jax (one pod per host)."
    add("--engine", default="horovod", choices=TRAINING_KINDS, help=f"{engines} Default: horovod.")
    gpus = "Number of GPUs. With --kind=rayjob of all workers. Default there: 0."
    add("--gpus", type=int, default=None if is_job else 0, required=is_job, help=gpus)
    add("--workers", type=int, help="Number of worker pods with --kind=rayjob.")
    add("--gpus_per_host", type=int, help=f"Number of GPUs per pod with --engine=jax. Default: {GPUS_PER_HOST}.")
    add("--gpu_memory", type=int, required=is_job, default=40, help="Memory per GPU in GB.")
    kinds = (
        "Kind of object. data: the pod that prepares the data; volume: the PersistentVolumeClaim; rayjob: the command "
        "after -- on a Ray cluster (KubeRay). Default: mpijob; with --engine=jax trainjob."
    )
    add("--kind", choices=[*TRAINING_KINDS.values(), *OTHER_KINDS], help=kinds)
    add("--model", default="efficientdet-d0", help="--model_name of train.py. Default: %(default)s.")
    add("--queue", help="Local queue of Kueue.")
    add("--priority", help="PriorityClass of the pods.")
    add("--name", help="Name of the job. Default: from model, GPUs and memory.")
    add("--namespace", default="default", help="Namespace. Default: default.")
    add("--image", default=DEFAULT_IMAGE, help="Image, such as registry.example.com/team/effdet_tf2:1.")
    add("--storage_class", help="StorageClass of --kind=volume, with ReadWriteMany. Default: the cluster's.")
    add("--proxy", help="HTTP proxy for the downloads of --kind=data, such as http://proxy.example.com:3128.")
    add("--claim", default="efficientdet", help="PersistentVolumeClaim with the data and space for /runs.")
    add("--secret", help="Secret with variables such as AWS_ACCESS_KEY_ID, for --kind=rayjob.")
    add("--epochs", type=int, help="Number of epochs. Default: the published recipe's.")
    return parser.parse_args(own), extra


def render(words: list[str]) -> str:
    """Return the documents as YAML.

    Raises:
        ValueError: for values that no cluster would accept.
    """
    options, extra = parsed(words)
    recipe, model = recipe_of(options.model), options.model
    kind = options.kind or TRAINING_KINDS[options.engine]
    _check(options, recipe, kind=kind)
    flags = f"--model={model} --kind={kind}"
    image = f"--image=REGISTRY/{DEFAULT_IMAGE}"
    values: dict[str, Any] = {"namespace": options.namespace, "image": options.image, "claim": options.claim}
    if kind == "volume":
        values |= {"storage_class": options.storage_class, "storage": recipe["storage"]}
        return _documents(kind, f"{flags} --storage_class=NAME", values)
    if kind == "data":
        values |= _preparation(model, options.proxy)
        return _documents(kind, f"{flags} {image} --proxy=URL", values)
    queue = {} if options.queue is None else {"kueue.x-k8s.io/queue-name": options.queue}
    values |= {"labels": queue, "priority": options.priority}
    if kind == "rayjob":
        values |= _ray_values(options, extra)
        flags = f"--kind=rayjob --workers={options.workers} --gpus={options.gpus} {image} --queue=NAME"
        return _documents(kind, f"{flags} -- {values['command']}", values)
    if kind != TRAINING_KINDS[options.engine]:
        raise ValueError(f"--kind={kind}: expected {TRAINING_KINDS[options.engine]} with --engine={options.engine}")
    gpus, memory, gpus_per_pod = options.gpus, options.gpu_memory, _gpus_per_pod(options)
    epochs = recipe["epochs"] if options.epochs is None else options.epochs
    pods = gpus // gpus_per_pod
    longest = MAX_LETTERS - max(len(suffix.format(last_pod=pods - 1)) for suffix in _SUFFIXES[kind])
    name = _checked_name(options.name or f"{model}-{gpus}gpu{memory}gb", longest)
    values |= {
        "name": name,
        "gpus": str(gpus),
        "pods": pods,
        "workers": gpus - 1,
        "cpu": str(8 * gpus_per_pod),
        "memory": f"{80 * gpus_per_pod}Gi",
        "gpus_per_pod": str(gpus_per_pod),
        "command": training_command(model, name, gpus=gpus, gpu_memory=memory, epochs=epochs) + extra,
    }
    if options.engine == "jax":
        flags = f"--engine=jax {flags} --gpus_per_host={gpus_per_pod}"
    return _documents(
        kind, f"{flags} --gpus={gpus} --gpu_memory={memory} --epochs={epochs} {image} --queue=NAME", values
    )


def _check(options: argparse.Namespace, recipe: dict[str, Any], *, kind: str) -> None:
    """Raise ValueError for values that no cluster would accept."""
    least = {"gpus": 0 if kind in OTHER_KINDS else 1, "epochs": 1, "gpus_per_host": 1}
    for flag, number in least.items():
        if getattr(options, flag) is not None and getattr(options, flag) < number:
            raise ValueError(f"--{flag}={getattr(options, flag)}: expected at least {number}")
    for flag in ("workers", "secret"):
        if getattr(options, flag) is not None and kind != "rayjob":
            raise ValueError(f"--{flag}={getattr(options, flag)}: expected --kind=rayjob")
    if options.gpu_memory not in recipe["batch_sizes"]:
        expected = ", ".join(map(str, recipe["batch_sizes"]))
        raise ValueError(f"--gpu_memory={options.gpu_memory}: expected one of {expected}")
    for flag in ("namespace", "claim", "queue", "priority", "secret", "storage_class"):
        value = getattr(options, flag)
        if value is not None and (not re.fullmatch(_NAME, value) or len(value) > MAX_LETTERS):
            raise ValueError(f"--{flag}={value}: expected lowercase letters, digits and hyphens, at most {MAX_LETTERS}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", options.image):
        raise ValueError(f"--image={options.image}: expected a name such as registry.example.com/team/effdet_tf2:1")
    if options.proxy is not None and not re.fullmatch(r"https?://[A-Za-z0-9._~:@%\[\]-]+/?", options.proxy):
        raise ValueError(f"--proxy={options.proxy}: expected a URL such as http://proxy.example.com:3128")


def _checked_name(name: str, longest: int) -> str:
    """Return the name of a job, of which the operators make a Service."""
    if not re.fullmatch(f"(?=[a-z]){_NAME}", name) or len(name) > longest:
        raise ValueError(
            f"--name={name}: expected lowercase letters, digits and hyphens, a letter first, at most {longest}"
        )
    return name


def recipe_of(model: str) -> dict[str, Any]:
    """Return the recipe of a model.

    Raises:
        ValueError: if there is none.
    """
    for prefix, recipe in _RECIPES.items():
        if model.startswith(prefix) and re.fullmatch(_NAME, model):
            return recipe
    models = ", ".join(f"{prefix}.." for prefix in _RECIPES)
    raise ValueError(f"--model={model}: expected a train.py --model_name among {models}")


def _backbone_of(model: str) -> str | None:
    """Return the name of the pretrained backbone for scripts/get_weights.sh; None if Keras downloads it."""
    if model.startswith("efficientdet-"):
        return None
    model = model.removesuffix("-dle").replace("mask-rcnn-", "retinanet-")  # both start from torchvision's backbones
    return _BACKBONES.get(model, model.partition("-")[2])


def _batch_size(recipe: dict[str, Any], gpus: int, gpu_memory: int) -> int:
    """Return the images per GPU: as many as fit, within the largest global batch with a published recipe."""
    return max(1, min(recipe["batch_sizes"][gpu_memory], recipe["largest_batch"] // gpus))


def advice(options: argparse.Namespace, extra: list[str]) -> str:
    """Return advice on the batch size and learning rate of a job; empty if there is none."""
    images = options.gpus * _batch_size(recipe_of(options.model), options.gpus, options.gpu_memory)
    rates = [flag.partition("=")[2] for flag in extra if flag.startswith("--lr=")]
    try:
        rate = float(rates[-1]) if rates else 0.0
    except ValueError:
        return ""  # train.py reports what is wrong with such a learning rate
    if not options.model.startswith("retinanet-") or images > _SMALL_RETINANET or rate <= _SMALL_RATE:
        return ""
    pairs = "56 at 1e-4 did not reach 0.34, 64 at 6e-5 did"
    return f"{images} images per step at {rate:g}: {pairs}; --lr=6e-5 is advised"


def training_command(model: str, name: str, *, gpus: int, gpu_memory: int, epochs: int) -> list[str]:
    """Return the command of one process.

    EfficientDet's reference changes warm-up and weight average above 512 images. RetinaNet's learning rate is not
    proportional to the batch size: 1e-4 in t9k's jobs and in NVIDIA's with 256 to 1,280 images. Mask R-CNN's is 0.02
    for 16 images in NVIDIA's reference.
    """
    recipe = recipe_of(model)
    data, batch_size = f"/pvc/{recipe['data']}", _batch_size(recipe, gpus, gpu_memory)
    images = gpus * batch_size
    is_large = images > 512
    rates = {
        "warmup_epochs": 25 if is_large else 5,
        "averages": f"moving_average_decay={'0.999,momentum=0.93' if is_large else '0.9999,momentum=0.9'}",
        "retinanet_rate": f"{_SMALL_RATE if images <= _SMALL_RETINANET else 1e-4:g}",
        "mask_rcnn_rate": f"{0.00125 * images:g}",
    }
    return [
        ".venv/bin/python",
        "train.py",
        "--training_mode=traineval",
        f"--training_file_pattern={data}/train-*",
        f"--val_file_pattern={data}/{recipe['validation']}",
        *([f"--val_json_file={data}/{recipe['annotations']}"] if recipe["annotations"] else []),
        f"--model_name={model}",
        f"--model_dir=/pvc/runs/{name}",
        "--backbone_init=imagenet",
        f"--batch_size={batch_size}",
        f"--eval_batch_size={batch_size}",
        f"--num_epochs={epochs}",
        *(string.Template(flag).substitute(rates) for flag in recipe["flags"]),
        *([f"--mlperf_log=/pvc/runs/{name}/mlperf.log,-"] if recipe["is_mlperf"] else []),  # - is the pod's log
    ]


def _ray_values(options: argparse.Namespace, command: list[str]) -> dict[str, Any]:
    """Return the values of the RayJob: worker pods, among which the GPUs are divided, and the command.

    Raises:
        ValueError: for numbers or a command that no cluster could run.
    """
    workers, gpus = options.workers, options.gpus
    if workers is None or workers < 1:
        found = "--kind=rayjob" if workers is None else f"--workers={workers}"
        raise ValueError(f"{found}: expected --workers=N, the number of worker pods, at least 1")
    if gpus % workers:
        raise ValueError(f"--gpus={gpus}: expected 0 or a multiple of --workers={workers}")
    if not command:
        raise ValueError("--kind=rayjob: expected a command after --, such as -- python infer.py --engine=ray ...")
    if wrong := next((word for word in command if not word.isprintable()), None):
        raise ValueError(f"{wrong!r}: expected a word of the command without control characters")
    gpus_per_pod = gpus // workers
    version = re.search(r"^ray==(\S+)", _LOCK.read_text(encoding="utf-8"), re.MULTILINE) if _LOCK.exists() else None
    return {
        "name": _checked_name(options.name or f"ray-{workers}-workers", _RAY_NAME),
        "ray_version": version and version[1],
        "pods": workers,
        "cpu": str(8 * max(1, gpus_per_pod)),
        "memory": f"{80 * gpus_per_pod or 32}Gi",
        "gpus_per_pod": str(gpus_per_pod) if gpus_per_pod else None,
        "env_from": options.secret and [{"secretRef": {"name": options.secret}}],  # its keys become variables
        # KubeRay runs `ray job submit -- ENTRYPOINT` in a shell; Ray quotes the words again for the shell on the head
        "command": shlex.join(command),
    }


def _preparation(model: str, proxy: str | None) -> dict[str, Any]:
    """Return the values of the pod that downloads a model's data and pretrained weights."""
    name = f"{model.removesuffix('-dle').rpartition('-')[0]}-data"
    end = f'echo "complete; a shell: kubectl exec -it {name} -- bash; the end: kubectl delete pod {name}"'
    recipe = recipe_of(model)
    no_proxy = "localhost,127.0.0.1,.svc,.cluster.local"
    environment = {} if proxy is None else {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": no_proxy}
    environment |= recipe["environment"]
    script, *words = recipe["preparation"]
    return {
        "name": name,
        "backbone": _backbone_of(model),
        "env": [{"name": key, "value": value} for key, value in environment.items()] or None,
        "waiting": f"trap 'kill $! 2>/dev/null; exit 0' TERM; \"$@\" || exit; {end}; sleep infinity & wait",
        "preparation": [script, f"/pvc/{recipe['data']}", *words],
    }


def _gpus_per_pod(options: argparse.Namespace) -> int:
    """Return the GPUs of a process: one over Horovod, all of a host under JAX."""
    given = options.gpus_per_host
    if options.engine == "horovod":
        if given is not None:
            raise ValueError(f"--gpus_per_host={given}: expected --engine=jax; Horovod has one pod per GPU")
        return 1
    gpus_per_host = min(options.gpus, GPUS_PER_HOST) if given is None else given
    if options.gpus % gpus_per_host:
        raise ValueError(f"--gpus={options.gpus}: expected a multiple of --gpus_per_host={gpus_per_host}")
    return gpus_per_host


def _filled(template: Any, values: dict[str, Any]) -> Any:
    """Return a template with its values: `$key` alone keeps the value's type, and None removes the key or item."""
    if isinstance(template, dict):
        filled = {key: _filled(inner, values) for key, inner in template.items()}
        return {key: inner for key, inner in filled.items() if inner is not None}
    if isinstance(template, list):
        filled_items = []
        for inner in template:
            item = _filled(inner, values)
            filled_items += item if isinstance(item, list) else [item]
        return filled_items
    if not isinstance(template, str):
        return template
    if template.removeprefix("$").isidentifier() and template[0] == "$":
        return values.get(template[1:])
    return string.Template(template).substitute(values)


class _Dumper(yaml.SafeDumper):
    """Writes text that some reader of YAML 1.1 or 1.2 takes for a number or truth value in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: equal parts are repeated."""
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if re.fullmatch(r"[A-Za-z/-][A-Za-z/_-][\w./=-]*", text) else '"'
    ),
)


def _documents(template: str, flags: str, values: dict[str, Any]) -> str:
    """Return the YAML; its comment has the command that writes the file for another cluster."""
    objects = _filled(_TEMPLATES[template], values)
    if template == "mpijob" and not values["workers"]:
        del objects[0]["spec"]["mpiReplicaSpecs"]["Worker"]
    if template == "data" and not values["backbone"]:
        del objects[0]["spec"]["initContainers"]
    documents = [
        f"# {_COMMENTS[item['kind']]}, by scripts/k8s/render.py.\n"
        f"# For your cluster: python scripts/k8s/render.py {flags}\n"
        + yaml.dump(item, Dumper=_Dumper, sort_keys=False, width=10**6, allow_unicode=True)
        for item in objects
    ]
    return "---\n".join(documents).replace("  labels: {}\n", f"  labels: {{}}\n{_QUEUE}")


def main() -> None:
    """Parse the flags and print the YAML."""
    options, extra = parsed(sys.argv[1:])
    try:
        unknown = [word for word in extra if not re.fullmatch(r"--[a-z_0-9]+(=.*)?", word)]
        if unknown and options.kind != "rayjob":
            raise ValueError(f"{unknown[0]}: expected a flag of train.py such as --seed=3 after --")
        text = render(sys.argv[1:])
        if options.kind not in OTHER_KINDS and (message := advice(options, extra)):
            print(f"render.py: warning: {message}", file=sys.stderr)
        if "/" not in options.image and options.kind != "volume":
            print(
                f"render.py: warning: --image={options.image} names no registry: nodes without the image fail with "
                "ErrImagePull; push it and pass --image=REGISTRY/NAME:TAG",
                file=sys.stderr,
            )
        sys.stdout.write(text)
    except ValueError as error:
        print(f"render.py: error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
