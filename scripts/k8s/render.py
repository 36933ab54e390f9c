"""Print a training job as YAML for kubectl, for a given number of GPUs and memory per GPU.

    python scripts/k8s/render.py --gpus=8 --gpu_memory=40 --queue=NAME > job_8GPU40GB.yaml
    python scripts/k8s/render.py --engine=jax --gpus=32 --gpu_memory=80 --queue=NAME > job_32GPU80GB.yaml

Arguments after -- are flags of train.py and override those of the recipe: ... -- --lr=6e-5 --seed=3
The volume, the pod that prepares the data, and a job on a Ray cluster are files beside this one, to be edited.
"""

import argparse
import re
import string
import sys
from pathlib import Path
from typing import Any

import yaml

GPUS_PER_HOST = 8
DEFAULT_IMAGE = "effdet_tf2:latest"
MAX_LETTERS = 63  # characters of a DNS label, and so of a host name
# Suffixes that the operator of each engine's job appends to its name
_SUFFIXES = {"horovod": ("-worker-{last_pod}", "-launcher"), "jax": ("-node-0-{last_pod}",)}
_COMMENTS = {
    "MPIJob": "One training as a Kubeflow MPIJob (mpi-operator, kubeflow.org/v2beta1)",
    "TrainingRuntime": "The runtime of the TrainJob below (Kubeflow Trainer)",
    "TrainJob": "One training as a TrainJob (trainer.kubeflow.org/v1alpha1)",
}
_QUEUE = """\
  # With Kueue, these lines instead of the one above, and the name of your queue:
  # labels:
  #   kueue.x-k8s.io/queue-name: default
"""
_NAME = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_HERE = Path(__file__).parent
_TEMPLATES = yaml.safe_load((_HERE / "templates.yaml").read_text(encoding="utf-8"))
_RECIPES = yaml.safe_load((_HERE / "recipes.yaml").read_text(encoding="utf-8"))
_RECIPES.pop("coco")
# Dell's four L40S; t9k's four GPUs with 24 GB used 1e-4 for 56 images and missed the target
_SMALL_RETINANET, _SMALL_RATE = 64, 6e-5


def parsed(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, with their defaults, and the words after --."""
    own, extra = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    engines = "Engine of the training: horovod (TensorFlow, one pod per GPU) or jax (one pod per host)."
    add("--engine", default="horovod", choices=_SUFFIXES, help=f"{engines} Default: horovod.")
    add("--gpus", type=int, required=True, help="Number of GPUs.")
    add("--gpus_per_host", type=int, help=f"Number of GPUs per pod with --engine=jax. Default: {GPUS_PER_HOST}.")
    add("--gpu_memory", type=int, required=True, help="Memory per GPU in GB.")
    add("--model", default="efficientdet-d0", help="--model_name of train.py. Default: %(default)s.")
    add("--queue", help="Local queue of Kueue.")
    add("--priority", help="PriorityClass of the pods.")
    add("--name", help="Name of the job. Default: from model, GPUs and memory.")
    add("--namespace", default="default", help="Namespace. Default: default.")
    add("--image", default=DEFAULT_IMAGE, help="Image, such as registry.example.com/team/effdet_tf2:1.")
    add("--claim", default="efficientdet", help="PersistentVolumeClaim with the data and space for /runs.")
    add("--epochs", type=int, help="Number of epochs. Default: the published recipe's.")
    return parser.parse_args(own), extra


def render(words: list[str]) -> str:
    """Return the documents as YAML.

    Raises:
        ValueError: for values that no cluster would accept.
    """
    options, extra = parsed(words)
    recipe, model, engine = recipe_of(options.model), options.model, options.engine
    _check(options, recipe)
    gpus, memory, gpus_per_pod = options.gpus, options.gpu_memory, _gpus_per_pod(options)
    epochs = recipe["epochs"] if options.epochs is None else options.epochs
    pods = gpus // gpus_per_pod
    longest = MAX_LETTERS - max(len(suffix.format(last_pod=pods - 1)) for suffix in _SUFFIXES[engine])
    name = options.name or f"{model}-{gpus}gpu{memory}gb"
    if not re.fullmatch(f"(?=[a-z]){_NAME}", name) or len(name) > longest:  # the operators make a Service of it
        raise ValueError(
            f"--name={name}: expected lowercase letters, digits and hyphens, a letter first, at most {longest}"
        )
    values = {
        "namespace": options.namespace,
        "image": options.image,
        "claim": options.claim,
        "labels": {} if options.queue is None else {"kueue.x-k8s.io/queue-name": options.queue},
        "priority": options.priority,
        "name": name,
        "gpus": str(gpus),
        "pods": pods,
        "workers": gpus - 1,
        "cpu": str(8 * gpus_per_pod),
        "memory": f"{80 * gpus_per_pod}Gi",
        "gpus_per_pod": str(gpus_per_pod),
        "command": training_command(model, name, gpus=gpus, gpu_memory=memory, epochs=epochs) + extra,
    }
    hosts = f"--engine=jax --gpus_per_host={gpus_per_pod} " if engine == "jax" else ""
    flags = f"{hosts}--model={model} --gpus={gpus} --gpu_memory={memory} --epochs={epochs}"
    return _documents(engine, f"{flags} --image=REGISTRY/{DEFAULT_IMAGE} --queue=NAME", values)


def _check(options: argparse.Namespace, recipe: dict[str, Any]) -> None:
    """Raise ValueError for values that no cluster would accept."""
    for flag in ("gpus", "epochs", "gpus_per_host"):
        if getattr(options, flag) is not None and getattr(options, flag) < 1:
            raise ValueError(f"--{flag}={getattr(options, flag)}: expected at least 1")
    if options.gpu_memory not in recipe["batch_sizes"]:
        expected = ", ".join(map(str, recipe["batch_sizes"]))
        raise ValueError(f"--gpu_memory={options.gpu_memory}: expected one of {expected}")
    for flag in ("namespace", "claim", "queue", "priority"):
        value = getattr(options, flag)
        if value is not None and (not re.fullmatch(_NAME, value) or len(value) > MAX_LETTERS):
            raise ValueError(f"--{flag}={value}: expected lowercase letters, digits and hyphens, at most {MAX_LETTERS}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", options.image):
        raise ValueError(f"--image={options.image}: expected a name such as registry.example.com/team/effdet_tf2:1")


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
    """Return a template with its values for `$key`; None removes the key or item."""
    if isinstance(template, dict):
        filled = {key: _filled(inner, values) for key, inner in template.items()}
        return {key: inner for key, inner in filled.items() if inner is not None}
    if isinstance(template, list):
        filled_items = []
        for inner in template:
            item = _filled(inner, values)
            filled_items += item if isinstance(item, list) else [item]
        return filled_items
    is_value = isinstance(template, str) and template.startswith("$")
    return values.get(template[1:]) if is_value else template


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
    if template == "horovod" and not values["workers"]:
        del objects[0]["spec"]["mpiReplicaSpecs"]["Worker"]
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
        if unknown := [word for word in extra if not re.fullmatch(r"--[a-z_0-9]+(=.*)?", word)]:
            raise ValueError(f"{unknown[0]}: expected a flag of train.py such as --seed=3 after --")
        text = render(sys.argv[1:])
        if message := advice(options, extra):
            print(f"render.py: warning: {message}", file=sys.stderr)
        if "/" not in options.image:
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
