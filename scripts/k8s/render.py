"""Print a training job as YAML for kubectl, for a given number of GPUs and memory per GPU.

    python scripts/k8s/render.py --gpus=8 --gpu_memory=40 --queue=NAME > job_8GPU40GB.yaml
    python scripts/k8s/render.py --engine=jax --gpus=32 --gpu_memory=80 --queue=NAME > job_32GPU80GB.yaml
    python scripts/k8s/render.py --model=retinanet-resnext50 --kind=jobset --gpus=4 --gpu_memory=24 > job_4GPU24GB.yaml
    python scripts/k8s/render.py --model=retinanet-resnext50 --kind=volume > volume.yaml
    python scripts/k8s/render.py --model=retinanet-resnext50 --kind=data > data_preparation.yaml

Arguments after -- are flags of train.py and override those of the recipe: ... -- --lr=6e-5 --seed=3
"""

import argparse
import re
import sys

import jax_jobs
import jobs
from pods import Training
from recipes import Recipe, advice, models, recipe_of, retinanet_rate
from yaml_text import document

KINDS = {  # the first kind of an engine is its default
    "horovod": {"mpijob": jobs.mpijob, "jobset": jobs.jobset, "trainjob": jobs.trainjob},
    "jax": {"trainjob": jax_jobs.trainjob, "jobset": jax_jobs.jobset},
}
GPUS_PER_HOST = 8
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
# Suffixes that the operators append to a job's name for pods and hosts, with the index of the last pod.
_ENDINGS = {
    ("horovod", "mpijob"): ("-worker-{}", "-launcher"),
    ("horovod", "jobset"): ("-ranks-0-{}",),
    ("horovod", "trainjob"): ("-node-0-{}", "-launcher-0-0"),
    ("jax", "trainjob"): (f"-{jax_jobs.NAME}-0-{{}}",),
    ("jax", "jobset"): (f"-{jax_jobs.NAME}-0-{{}}",),
}
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # the operators make a Service of the job's name
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUEUE = """\
  # With Kueue, these lines instead of the one above, and the name of your queue:
  # labels:
  #   kueue.x-k8s.io/queue-name: default
"""
_PROXY = re.compile(r"https?://[A-Za-z0-9._~:@%\[\]-]+/?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


def render(
    *,
    engine: str = "horovod",
    gpus: int = 1,
    gpus_per_host: int | None = None,
    gpu_memory: int = 40,
    kind: str | None = None,
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
    kind = next(iter(KINDS[engine])) if kind is None else kind
    gpus_per_pod = _gpus_per_pod(engine, gpus, gpus_per_host)
    for flag, number in (("gpus", gpus), ("epochs", epochs)):
        if number < 1:
            raise ValueError(f"--{flag}={number}: expected at least 1")
    if gpu_memory not in recipe.batch_sizes:
        raise ValueError(f"--gpu_memory={gpu_memory}: expected one of {', '.join(map(str, recipe.batch_sizes))}")
    _check_names(namespace=namespace, claim=claim, queue=queue, priority=priority, storage_class=storage_class)
    _check_places(image, proxy)
    flags = f"--model={model} --kind={kind}"
    if kind == "volume":
        objects = jobs.volume(model, namespace=namespace, claim=claim, storage_class=storage_class)
        return _documents(objects, f"{flags} --storage_class=NAME")
    if kind == "data":
        objects = jobs.data_preparation(model, namespace=namespace, image=image, claim=claim, proxy=proxy)
        return _documents(objects, f"{flags} --image=REGISTRY/{DEFAULT_IMAGE} --proxy=URL")
    if kind not in KINDS[engine]:
        raise ValueError(
            f"--kind={kind}: expected one of {', '.join((*KINDS[engine], *OTHER_KINDS))} with --engine={engine}"
        )
    name = name if name is not None else f"{model}-{gpus}gpu{gpu_memory}gb"
    training = Training(
        name=_name(name, [ending.format(gpus // gpus_per_pod - 1) for ending in _ENDINGS[engine, kind]]),
        namespace=namespace,
        model=model,
        gpus=gpus,
        gpus_per_pod=gpus_per_pod,
        batch_size=recipe.batch_size(gpus, gpu_memory),
        epochs=epochs,
        image=image,
        claim=claim,
        queue=queue,
        priority=priority,
        extra=extra,
    )
    if engine == "jax":
        flags = f"--engine=jax {flags} --gpus_per_host={gpus_per_pod}"
    return _documents(
        KINDS[engine][kind](training),
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


def _gpus_per_pod(engine: str, gpus: int, gpus_per_host: int | None) -> int:
    """Return the GPUs of a process: one over Horovod, all of a host under JAX."""
    if engine == "horovod":
        if gpus_per_host is not None:
            raise ValueError(f"--gpus_per_host={gpus_per_host}: expected --engine=jax; Horovod has one pod per GPU")
        return 1
    if gpus_per_host is None:
        gpus_per_host = max(1, min(gpus, GPUS_PER_HOST))
    if gpus_per_host < 1:
        raise ValueError(f"--gpus_per_host={gpus_per_host}: expected at least 1")
    if gpus % gpus_per_host:
        raise ValueError(f"--gpus={gpus}: expected a multiple of --gpus_per_host={gpus_per_host}")
    return gpus_per_host


def _check_names(**names: str | None) -> None:
    for flag, value in names.items():
        if value is not None and (not _DNS_LABEL.fullmatch(value) or len(value) > MAX_LETTERS):
            raise ValueError(f"--{flag}={value}: expected lowercase letters, digits and hyphens, at most {MAX_LETTERS}")


def _check_places(image: str, proxy: str | None) -> None:
    if not _IMAGE.fullmatch(image):
        raise ValueError(
            f"--image={image}: expected the name of an image such as registry.example.com/team/effdet_tf2:1"
        )
    if proxy is not None and not _PROXY.fullmatch(proxy):
        raise ValueError(f"--proxy={proxy}: expected a URL such as http://proxy.example.com:3128")


def _name(name: str, endings: list[str]) -> str:
    longest = MAX_LETTERS - max(map(len, endings))
    if not _SERVICE_NAME.fullmatch(name) or len(name) > longest:
        raise ValueError(
            f"--name={name}: expected lowercase letters, digits and hyphens, a letter first, at most {longest}"
        )
    return name


def _documents(objects: list[dict], flags: str) -> str:
    """Return the YAML; its comment has the command that writes the file for another cluster."""
    for_others = f"\n# For your cluster: python scripts/k8s/render.py {flags}"
    documents = [document(item, comment=COMMENTS[item["kind"]] + for_others) for item in objects]
    return "---\n".join(documents).replace("  labels: {}\n", f"  labels: {{}}\n{_QUEUE}")


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
    parser.add_argument(
        "--engine",
        default="horovod",
        choices=KINDS,
        help="Engine of the training: horovod (TensorFlow, one pod per GPU) or jax (one pod per host). "
        "Default: horovod.",
    )
    parser.add_argument("--gpus", type=int, required=is_job, default=1, help="Number of GPUs.")
    parser.add_argument(
        "--gpus_per_host", type=int, help=f"Number of GPUs per pod with --engine=jax. Default: {GPUS_PER_HOST}."
    )
    parser.add_argument("--gpu_memory", type=int, required=is_job, default=40, help="Memory per GPU in GB.")
    parser.add_argument(
        "--kind",
        choices=["mpijob", "jobset", "trainjob", *OTHER_KINDS],
        help="Kind of object. data: the pod that prepares the data; volume: the PersistentVolumeClaim. "
        "Default: mpijob; with --engine=jax trainjob.",
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
