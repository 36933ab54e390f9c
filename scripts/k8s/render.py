"""An MPIJob for so many GPUs of so much memory, on stdout:

    python scripts/k8s/render.py --gpus=8 --gpu_memory=40 --queue=NAME > job_8GPU40GB.yaml
"""

import argparse
import re
import sys
from pathlib import Path
from string import Template

TEMPLATE = Path(__file__).with_name("mpijob.yaml")
# Images of 512 x 512 that D0 trains on one GPU under mixed_float16, by its memory in GB. 32 GB: 64 and 80 GB: 200 are the
# reference's; the others follow the line through these two, rounded down.
BATCH_SIZES = {24: 40, 32: 64, 40: 80, 80: 200, 141: 200}
RATE_PER_64 = 0.088  # of the reference's recipes up to a global batch of 1,600
LARGEST_PUBLISHED_BATCH = 2048
MOST_LETTERS = 63  # of a label, hence of a host
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # the operator makes a Service of the job's name
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def render(*, gpus: int, gpu_memory: int, queue: str | None = None, name: str | None = None, namespace: str = "default",
           image: str = "effdet_tf2:latest", claim: str = "efficientdet", epochs: int = 300,
           model: str = "efficientdet-d0") -> str:
    """The job as YAML. Raises ValueError for what no cluster would take."""
    for flag, number in (("gpus", gpus), ("epochs", epochs)):
        if number < 1:
            raise ValueError(f"--{flag}={number}: wanted at least 1")
    if gpu_memory not in BATCH_SIZES:
        raise ValueError(f"--gpu_memory={gpu_memory}: wanted one of {', '.join(map(str, BATCH_SIZES))}")
    name = name if name is not None else f"{model}-{gpus}gpu{gpu_memory}gb"
    if not _DNS_LABEL.fullmatch(model):
        raise ValueError(f"--model={model}: wanted a name of train.py --model_name")
    longest = MOST_LETTERS - max(len("-launcher"), len(f"-worker-{gpus - 1}"))  # what the operator appends for pods and hosts
    if not _SERVICE_NAME.fullmatch(name) or len(name) > longest:
        raise ValueError(f"--name={name}: wanted small letters, digits and hyphens, a letter first, at most {longest}")
    for flag, value in (("namespace", namespace), ("claim", claim), ("queue", queue)):
        if value is not None and (not _DNS_LABEL.fullmatch(value) or len(value) > MOST_LETTERS):
            raise ValueError(f"--{flag}={value}: wanted small letters, digits and hyphens, at most {MOST_LETTERS}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", image):
        raise ValueError(f"--image={image}: is no name of an image")
    large = gpus * BATCH_SIZES[gpu_memory] > 512  # the reference's recipes change their averages there
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        name=name, model=model, namespace=namespace, image=image, claim=claim, gpus=gpus, epochs=epochs,
        labels=f'{{kueue.x-k8s.io/queue-name: "{queue}"}}' if queue is not None else "{}",
        batch_size=_batch_size(gpus, gpu_memory), rate_per_64=RATE_PER_64, warmup_epochs=25 if large else 5,
        average_decay=0.999 if large else 0.9999, momentum=0.93 if large else 0.9)


def _batch_size(gpus: int, gpu_memory: int) -> int:
    """What fits, and no more than makes the largest global batch with a published recipe."""
    return max(1, min(BATCH_SIZES[gpu_memory], LARGEST_PUBLISHED_BATCH // gpus))


def main() -> None:
    """Flags to YAML."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--gpu_memory", type=int, required=True, help=f"GB; one of {', '.join(map(str, BATCH_SIZES))}")
    parser.add_argument("--queue", help="Kueue's local queue")
    parser.add_argument("--name")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--image", default="effdet_tf2:latest")
    parser.add_argument("--claim", default="efficientdet", help="PersistentVolumeClaim with /coco, and room for /runs")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--model", default="efficientdet-d0", help="train.py's --model_name; batches and rates are D0's")
    try:
        sys.stdout.write(render(**vars(parser.parse_args())))
    except ValueError as error:
        print(f"render.py: error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
