"""Print a training job as YAML for kubectl, for a given number of GPUs and memory per GPU.

    python scripts/k8s/render.py --gpus=8 --gpu_memory=40 --queue=NAME > job_8GPU40GB.yaml
    python scripts/k8s/render.py --engine=jax --gpus=32 --gpu_memory=80 --queue=NAME > job_32GPU80GB.yaml
    python scripts/k8s/render.py --model=retinanet-resnext50 --kind=jobset --gpus=4 --gpu_memory=24 > job_4GPU24GB.yaml
    python scripts/k8s/render.py --model=retinanet-resnext50 --kind=volume > volume.yaml
    python scripts/k8s/render.py --model=retinanet-resnext50 --kind=data > data_preparation.yaml
    python scripts/k8s/render.py --kind=rayjob --workers=8 -- python dataset/create_tfrecord.py --engine=ray ...

Arguments after -- are flags of train.py and override those of the recipe: ... -- --lr=6e-5 --seed=3
With --kind=rayjob they are the command that runs on the Ray cluster.
"""

import argparse
import re
import string
import sys
from pathlib import Path
from typing import Any

import yaml
from ray_cluster import LONGEST_NAME, ray_values
from recipes import NAME, advice, backbone_of, checked_name, recipe_of, training_command

GPUS_PER_HOST = 8
DEFAULT_IMAGE = "effdet_tf2:latest"
MAX_LETTERS = 63  # characters of a DNS label, and so of a host name
KINDS = {  # engine -> kind -> suffixes that the operators append to a job's name; the first kind is the default
    "horovod": {
        "mpijob": ("-worker-{last_pod}", "-launcher"),
        "jobset": ("-ranks-0-{last_pod}",),
        "trainjob": ("-node-0-{last_pod}", "-launcher-0-0"),
    },
    "jax": {"trainjob": ("-node-0-{last_pod}",), "jobset": ("-node-0-{last_pod}",)},
}
OTHER_KINDS = ("data", "volume", "rayjob")
_COMMENTS = {
    "MPIJob": "One training as a Kubeflow MPIJob (mpi-operator, kubeflow.org/v2beta1)",
    "JobSet": "One training as a JobSet (jobset.x-k8s.io/v1alpha2)",
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
_TEMPLATES = yaml.safe_load(Path(__file__).with_name("templates.yaml").read_text(encoding="utf-8"))


def render(
    *,
    engine: str = "horovod",
    gpus: int | None = None,
    gpus_per_host: int | None = None,
    gpu_memory: int = 40,
    workers: int | None = None,
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
    secret: str | None = None,
    extra: tuple[str, ...] = (),
) -> str:
    """Return the documents as YAML.

    Raises:
        ValueError: for values that no cluster would accept.
    """
    recipe = recipe_of(model)
    epochs = recipe["epochs"] if epochs is None else epochs
    kind = next(iter(KINDS[engine])) if kind is None else kind
    least_gpus = 0 if kind == "rayjob" else 1
    gpus = least_gpus if gpus is None else gpus
    gpus_per_pod = _gpus_per_pod(engine, gpus, gpus_per_host)
    for flag, number, least in (("gpus", gpus, least_gpus), ("epochs", epochs, 1)):
        if number < least:
            raise ValueError(f"--{flag}={number}: expected at least {least}")
    for flag, value in {"workers": workers, "secret": secret}.items():
        if value is not None and kind != "rayjob":
            raise ValueError(f"--{flag}={value}: expected --kind=rayjob")
    if gpu_memory not in recipe["batch_sizes"]:
        raise ValueError(f"--gpu_memory={gpu_memory}: expected one of {', '.join(map(str, recipe['batch_sizes']))}")
    names = {"namespace": namespace, "claim": claim, "queue": queue, "priority": priority, "secret": secret}
    for flag, value in {**names, "storage_class": storage_class}.items():
        if value is not None and (not re.fullmatch(NAME, value) or len(value) > MAX_LETTERS):
            raise ValueError(f"--{flag}={value}: expected lowercase letters, digits and hyphens, at most {MAX_LETTERS}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", image):
        expected = "expected the name of an image such as registry.example.com/team/effdet_tf2:1"
        raise ValueError(f"--image={image}: {expected}")
    if proxy is not None and not re.fullmatch(r"https?://[A-Za-z0-9._~:@%\[\]-]+/?", proxy):
        raise ValueError(f"--proxy={proxy}: expected a URL such as http://proxy.example.com:3128")
    flags = f"--model={model} --kind={kind}"
    values = {"namespace": namespace, "image": image, "claim": claim}
    if kind == "volume":
        values |= {"storage_class": storage_class, "storage": recipe["storage"]}
        return _documents(kind, f"{flags} --storage_class=NAME", values)
    if kind == "data":
        values |= _preparation(model, proxy)
        return _documents(kind, f"{flags} --image=REGISTRY/{DEFAULT_IMAGE} --proxy=URL", values)
    values |= {
        "labels": {"kueue.x-k8s.io/queue-name": queue} if queue is not None else {},
        "priority": priority,
    }
    if kind == "rayjob":
        values |= ray_values(workers, gpus, extra, secret=secret)
        values["name"] = checked_name(f"ray-{workers}-workers" if name is None else name, LONGEST_NAME)
        flags = f"--kind=rayjob --workers={workers} --gpus={gpus} --image=REGISTRY/{DEFAULT_IMAGE} --queue=NAME"
        return _documents(kind, f"{flags} -- {values['command']}", values)
    if kind not in KINDS[engine]:
        kinds = ", ".join((*KINDS[engine], *OTHER_KINDS))
        raise ValueError(f"--kind={kind}: expected one of {kinds} with --engine={engine}")
    pods = gpus // gpus_per_pod
    name = f"{model}-{gpus}gpu{gpu_memory}gb" if name is None else name
    longest = MAX_LETTERS - max(len(suffix.format(last_pod=pods - 1)) for suffix in KINDS[engine][kind])
    values |= {
        "name": checked_name(name, longest),
        "gpus": str(gpus),
        "pods": pods,
        "pods_text": str(pods),
        "workers": gpus - 1,
        "cpu": str(8 * gpus_per_pod),
        "memory": f"{80 * gpus_per_pod}Gi",
        "gpus_per_pod": str(gpus_per_pod),
        "command": training_command(model, name, gpus=gpus, gpu_memory=gpu_memory, epochs=epochs) + list(extra),
    }
    if engine == "jax":
        flags = f"--engine=jax {flags} --gpus_per_host={gpus_per_pod}"
    flags += f" --gpus={gpus} --gpu_memory={gpu_memory} --epochs={epochs} --image=REGISTRY/{DEFAULT_IMAGE} --queue=NAME"
    return _documents(f"{engine}-{kind}", flags, values)


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
        "backbone": backbone_of(model),
        "env": [{"name": key, "value": value} for key, value in environment.items()] or None,
        "waiting": f"trap 'kill $! 2>/dev/null; exit 0' TERM; \"$@\" || exit; {end}; sleep infinity & wait",
        "preparation": [script, f"/pvc/{recipe['data']}", *words],
    }


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
    if template == "horovod-mpijob" and not values["workers"]:
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
    arguments = sys.argv[1:]
    own_arguments, extra = arguments, ()
    if "--" in arguments:
        own_arguments, extra = arguments[: arguments.index("--")], tuple(arguments[arguments.index("--") + 1 :])
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    is_job = not any(f"--kind={kind}" in own_arguments for kind in OTHER_KINDS)
    parser.add_argument(
        "--engine",
        default="horovod",
        choices=KINDS,
        help="Engine of the training: horovod (TensorFlow, one pod per GPU) or jax (one pod per host). "
        "Default: horovod.",
    )
    parser.add_argument(
        "--gpus", type=int, required=is_job, help="Number of GPUs. With --kind=rayjob of all workers. Default there: 0."
    )
    parser.add_argument("--workers", type=int, help="Number of worker pods with --kind=rayjob.")
    parser.add_argument(
        "--gpus_per_host", type=int, help=f"Number of GPUs per pod with --engine=jax. Default: {GPUS_PER_HOST}."
    )
    parser.add_argument("--gpu_memory", type=int, required=is_job, default=40, help="Memory per GPU in GB.")
    parser.add_argument(
        "--kind",
        choices=["mpijob", "jobset", "trainjob", *OTHER_KINDS],
        help="Kind of object. data: the pod that prepares the data; volume: the PersistentVolumeClaim; "
        "rayjob: the command after -- on a Ray cluster (KubeRay). "
        "Default: mpijob; with --engine=jax trainjob.",
    )
    parser.add_argument("--model", default="efficientdet-d0", help="--model_name of train.py. Default: %(default)s.")
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
    parser.add_argument("--secret", help="Secret with variables such as AWS_ACCESS_KEY_ID, for --kind=rayjob.")
    parser.add_argument("--epochs", type=int, help="Number of epochs. Default: the published recipe's.")
    options = {**vars(parser.parse_args(own_arguments)), "extra": extra}
    try:
        unknown = [word for word in extra if not re.fullmatch(r"--[a-z_0-9]+(=.*)?", word)]
        if unknown and options["kind"] != "rayjob":
            raise ValueError(f"{unknown[0]}: expected a flag of train.py such as --seed=3 after --")
        text = render(**options)
        job = {key: options[key] for key in ("model", "gpus", "gpu_memory", "extra")}
        if is_job and (message := advice(**job)):
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
