"""Compare our detector with torchvision's on the same cores, in turns.

`python benchmarks/peers/beside_torchvision.py --peer_python=peer/bin/python [--model=mask-rcnn-resnet50 --size=512]`.

A turn is a training step of ours (assignment, losses, gradients, update), then one of theirs; with `--detect`,
inference on one image by Keras and by PyTorch. Both have random weights, the same stages frozen, the same number of
classes and boxes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
from training_step import random_batch

from efficientdet.devices.device import device_name, peak_host_memory, versions
from efficientdet.devices.runtime import skip_graph_rewriting
from efficientdet.devices.runtime_environment import keep_freed_memory
from efficientdet.families.registry import build_detector, hyperparameters_of
from efficientdet.inference.predict import build_predict
from efficientdet.training.build_step import build_train_step
from efficientdet.training.optimizer import build_optimizer, weights_rate_factors

PEERS = {"retinanet-resnet50": "retinanet_resnet50_fpn", "mask-rcnn-resnet50": "maskrcnn_resnet50_fpn"}
CLASSES, BOXES = 91, 8


def our_step(detector, hparams, *, size: int, batch_size: int):
    """Return a training step as the training loop runs it, reading its report."""
    optimizer = build_optimizer(hparams, precision="float32")
    optimizer.build(detector.network.trainable_variables, weights_rate_factors(hparams, detector.network))
    step = build_train_step(detector, optimizer, None, compiled=False)
    batch = random_batch(size, batch_size, boxes=BOXES, slots=BOXES, mask_size=hparams.mask_size)
    return lambda: float(step(batch, 1e-4)["loss"])


def our_detection(detector, *, size: int):
    """Return detection on one image."""
    predict = build_predict(detector, compiled=False)
    images = np.random.default_rng(0).integers(0, 256, (1, size, size, 3), np.uint8)
    return lambda: predict(images, np.int32([[size, size]]), np.ones((1, 2), np.float32))


def main() -> None:
    """Print medians, and the ratio of each turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=PEERS, default="retinanet-resnet50")
    parser.add_argument("--peer_python", required=True)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--detect", action="store_true")
    parser.add_argument("--channels_last", action="store_true", help="Use channels-last memory format in PyTorch.")
    arguments = parser.parse_args()
    keep_freed_memory()  # as every command does on a CPU
    skip_graph_rewriting()
    keras.utils.set_random_seed(0)
    hparams = hyperparameters_of(arguments.model, {"image_size": arguments.size})  # both are square then
    detector = build_detector(hparams, num_classes=CLASSES)
    ours = (
        our_detection(detector, size=arguments.size)
        if arguments.detect
        else our_step(detector, hparams, size=arguments.size, batch_size=arguments.batch_size)
    )
    command = [
        arguments.peer_python,
        str(Path(__file__).with_name("peer_torchvision.py")),
        PEERS[arguments.model],
        f"--size={arguments.size}",
        f"--batch_size={arguments.batch_size}",
        *(["--channels_last"] if arguments.channels_last else []),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None and peer.stdout is not None  # noqa: PT018
        header = peer.stdout.readline().strip()

        def theirs() -> float:
            peer.stdin.write("detect\n" if arguments.detect else "step\n")
            peer.stdin.flush()
            return float(peer.stdout.readline())

        seconds = []
        for turn in range(arguments.turns + 2):
            start = time.perf_counter()
            ours()
            seconds.append((time.perf_counter() - start, theirs()))
            print(f"turn {turn}: ours {seconds[-1][0]:.3f} s, theirs {seconds[-1][1]:.3f} s", file=sys.stderr)
        peer.stdin.close()
    timed = seconds[2:]  # the first ones compile
    for name, values in zip(("ours", "torchvision"), zip(*timed, strict=True), strict=True):
        print(f"{name:<12} median {statistics.median(values):.3f} s, {min(values):.3f} to {max(values):.3f}")
    ratios = [their / our for our, their in timed]
    print(f"torchvision's time by ours: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")
    print(
        f"{arguments.model}, {'detection' if arguments.detect else 'training step'}, {arguments.size} px, batch "
        f"{1 if arguments.detect else arguments.batch_size}; {header}; {device_name()}, peak memory "
        f"{peak_host_memory() / 2**20:.0f} MiB, "
        + ", ".join(f"{name} {version}" for name, version in versions().items())
    )


if __name__ == "__main__":
    main()
