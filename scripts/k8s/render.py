"""Print a training job as YAML for kubectl, for a given number of GPUs and memory per GPU.

    python scripts/k8s/render.py --gpus=8 --gpu_memory=40 --queue=NAME > job_8GPU40GB.yaml
    python scripts/k8s/render.py --model=retinanet-resnext50 --kind=jobset --gpus=4 --gpu_memory=24 > job_4GPU24GB.yaml
    python scripts/k8s/render.py --model=retinanet-resnext50 --kind=volume > volume.yaml
    python scripts/k8s/render.py --model=retinanet-resnext50 --kind=data > data_preparation.yaml

Arguments after -- are flags of train.py and override those of the recipe: ... -- --lr=6e-5 --seed=3
"""

import argparse
import re
import sys

from jobs import Training, data_preparation, jobset, mpijob, trainjob, volume
from recipes import Recipe, advice, models, recipe_of, retinanet_rate
from yaml_text import document

KINDS = {"mpijob": mpijob, "jobset": jobset, "trainjob": trainjob}
OTHER_KINDS = ("data", "volume")
COMMENTS = {
    "MPIJob": "One training as a Kubeflow MPIJob (mpi-operator, kubeflow.org/v2beta1), by scripts/k8s/render.py.",
    "JobSet": "One training as a JobSet (jobset.x-k8s.io/v1alpha2), by scripts/k8s/render.py.",
    "TrainingRuntime": "The runtime of the TrainJob below (Kubeflow Trainer), by scripts/k8s/render.py.",
    "TrainJob": "One training as a TrainJob (trainer.kubeflow.org/v1alpha1), by scripts/k8s/render.py.",
    "Pod": "Downloads a data set into the volume, checks it and converts it, by scripts/k8s/render.py: kubectl apply "
    "-f ...",
    "PersistentVolumeClaim": "The volume of data, weights and runs, for pods on several nodes, by "
    "scripts/k8s/render.py.",
}
DEFAULT_IMAGE = "effdet_tf2:latest"
MAX_LETTERS = 63  # characters of a DNS label, and so of a host name
# Suffixes that the operators append to a job's name for pods and hosts, with the index of the last GPU.
_ENDINGS = {"mpijob": "-worker-{}", "jobset": "-ranks-0-{}", "trainjob": "-node-0-{}"}
_LAUNCHERS = {"mpijob": "-launcher", "jobset": "", "trainjob": "-launcher-0-0"}
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # the operators make a Service of the job's name
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PROXY = re.compile(r"https?://[A-Za-z0-9._~:@%\[\]-]+/?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


def render(
    *,
    gpus: int = 1,
    gpu_memory: int = 40,
    kind: str = "mpijob",
    queue: str | None = None,
    priority: str | None = None,
    name: str | None = None,
    namespace: str = "default",
    image: str = DEFAULT_IMAGE,
    claim: str = "efficientdet",
    epochs: int | None = None,
    model: str = "efficientdet-d0",
    storage_class: str | None = None,
    proxy: str | None = None,
    extra: tuple[str, ...] = (),
) -> str:
    """Return the documents as YAML. Raises ValueError for values that no cluster would accept."""
    recipe = _recipe(model)
    epochs = recipe.epochs if epochs is None else epochs
    for flag, number in (("gpus", gpus), ("epochs", epochs)):
        if number < 1:
            raise ValueError(f"--{flag}={number}: expected at least 1")
    if gpu_memory not in recipe.batch_sizes:
        raise ValueError(f"--gpu_memory={gpu_memory}: expected one of {', '.join(map(str, recipe.batch_sizes))}")
    for flag, value in (
        ("namespace", namespace),
        ("claim", claim),
        ("queue", queue),
        ("priority", priority),
        ("storage_class", storage_class),
    ):
        if value is not None and (not _DNS_LABEL.fullmatch(value) or len(value) > MAX_LETTERS):
            raise ValueError(f"--{flag}={value}: expected lowercase letters, digits and hyphens, at most {MAX_LETTERS}")
    if not _IMAGE.fullmatch(image):
        raise ValueError(
            f"--image={image}: expected the name of an image such as registry.example.com/team/effdet_tf2:1"
        )
    if proxy is not None and not _PROXY.fullmatch(proxy):
        raise ValueError(f"--proxy={proxy}: expected a URL such as http://proxy.example.com:3128")
    flags = f"--model={model} --kind={kind}"
    if kind == "volume":
        objects = volume(model, namespace=namespace, claim=claim, storage_class=storage_class)
        return _documents(objects, f"{flags} --storage_class=NAME")
    if kind == "data":
        objects = data_preparation(model, namespace=namespace, image=image, claim=claim, proxy=proxy)
        return _documents(objects, f"{flags} --image=REGISTRY/{DEFAULT_IMAGE} --proxy=URL")
    if kind not in KINDS:
        raise ValueError(f"--kind={kind}: expected one of {', '.join((*KINDS, *OTHER_KINDS))}")
    training = Training(
        name=_name(name if name is not None else f"{model}-{gpus}gpu{gpu_memory}gb", kind, gpus),
        namespace=namespace,
        model=model,
        gpus=gpus,
        batch_size=recipe.batch_size(gpus, gpu_memory),
        epochs=epochs,
        image=image,
        claim=claim,
        queue=queue,
        priority=priority,
        extra=extra,
    )
    return _documents(
        KINDS[kind](training),
        f"{flags} --gpus={gpus} --gpu_memory={gpu_memory} --epochs={epochs} "
        f"--image=REGISTRY/{DEFAULT_IMAGE} --queue=NAME",
    )


def warning(*, model: str, gpus: int, gpu_memory: int, extra: tuple[str, ...]) -> str:
    """Return advice on the batch size and learning rate of a job; empty if there is none."""
    images = gpus * _recipe(model).batch_size(gpus, gpu_memory)
    rates = [flag.partition("=")[2] for flag in extra if flag.startswith("--lr=")]
    try:
        return advice(model, images, float(rates[-1]) if rates else retinanet_rate(images))
    except ValueError:
        return ""  # train.py reports what is wrong with such a learning rate


def _recipe(model: str) -> Recipe:
    recipe = recipe_of(model)
    if recipe is None or not _DNS_LABEL.fullmatch(model):
        raise ValueError(f"--model={model}: expected a train.py --model_name among {models()}")
    return recipe


def _name(name: str, kind: str, gpus: int) -> str:
    longest = MAX_LETTERS - max(len(_LAUNCHERS[kind]), len(_ENDINGS[kind].format(gpus - 1)))
    if not _SERVICE_NAME.fullmatch(name) or len(name) > longest:
        raise ValueError(
            f"--name={name}: expected lowercase letters, digits and hyphens, a letter first, at most {longest}"
        )
    return name


def _documents(objects: list[dict], flags: str) -> str:
    """Return the YAML; its comment has the command that writes the file for another cluster."""
    for_others = f"\n# For your cluster: python scripts/k8s/render.py {flags}"
    return "---\n".join(document(item, comment=COMMENTS[item["kind"]] + for_others) for item in objects)


def main() -> None:
    """Parse the flags and print the YAML."""
    arguments = sys.argv[1:]
    own, extra = arguments, ()
    if "--" in arguments:
        own, extra = arguments[: arguments.index("--")], tuple(arguments[arguments.index("--") + 1 :])
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    is_job = not any(f"--kind={kind}" in own for kind in OTHER_KINDS)
    parser.add_argument("--gpus", type=int, required=is_job, default=1, help="Number of GPUs.")
    parser.add_argument("--gpu_memory", type=int, required=is_job, default=40, help="Memory per GPU in GB.")
    parser.add_argument(
        "--kind",
        default="mpijob",
        choices=[*KINDS, *OTHER_KINDS],
        help="Kind of object. data: the pod that prepares the data; volume: the PersistentVolumeClaim. "
        "Default: mpijob.",
    )
    parser.add_argument(
        "--model", default="efficientdet-d0", help="--model_name of train.py. Default: efficientdet-d0."
    )
    parser.add_argument("--queue", help="Local queue of Kueue.")
    parser.add_argument("--priority", help="PriorityClass of the pods.")
    parser.add_argument("--name", help="Name of the job. Default: from model, GPUs and memory.")
    parser.add_argument("--namespace", default="default", help="Namespace. Default: default.")
    parser.add_argument("--image", default=DEFAULT_IMAGE, help="Image, such as registry.example.com/team/effdet_tf2:1.")
    parser.add_argument(
        "--storage_class", help="StorageClass of --kind=volume, with ReadWriteMany. Default: the cluster's."
    )
    parser.add_argument(
        "--proxy", help="HTTP proxy for the downloads of --kind=data, such as http://proxy.example.com:3128."
    )
    parser.add_argument(
        "--claim", default="efficientdet", help="PersistentVolumeClaim with the data and space for /runs."
    )
    parser.add_argument("--epochs", type=int, help="Number of epochs. Default: the published recipe's.")
    options = {**vars(parser.parse_args(own)), "extra": extra}
    try:
        if unknown := [word for word in extra if not re.fullmatch(r"--[a-z_0-9]+(=.*)?", word)]:
            raise ValueError(f"{unknown[0]}: expected a flag of train.py such as --seed=3 after --")
        text = render(**options)
        if message := warning(**{key: options[key] for key in ("model", "gpus", "gpu_memory", "extra")}):
            print(f"render.py: warning: {message}", file=sys.stderr)
        if "/" not in options["image"] and options["kind"] != "volume":
            print(
                f"render.py: warning: --image={options['image']} names no registry: nodes without the image fail with "
                "ErrImagePull; push it and pass --image=REGISTRY/NAME:TAG",
                file=sys.stderr,
            )
        sys.stdout.write(text)
    except ValueError as error:
        print(f"render.py: error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
