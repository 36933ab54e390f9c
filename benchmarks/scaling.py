"""Simulate weak scaling of a training step of D0 over Horovod and under JAX, on hosts of eight devices.

`python benchmarks/scaling.py [--batch_size=200 --image_ms=2.52 --link_gb=25 --devices 8 32 128 256]`.

The time of one device is given (default: NVIDIA's measurement on an A100, 397 images/s); communication is calculated.
A reduction takes 2 (n - 1) / n of its bytes over the slowest link, and the latency of a tree: 2 us per level in a host,
5 us between hosts, up and down. Gradients over Horovod are one message in a ring after the backward pass. Under JAX
each batch norm layer waits for two reductions in each direction, and the gradients are one message after the backward
pass or, with overlap, one per layer beside it. Devices of unequal speed are not simulated.
"""

import argparse
import math

PARAMETERS = 3_880_067  # of D0 with 90 classes
BATCH_NORMS, CHANNELS = 108, 23_568
HOST_DEVICES = 8
IN_HOST, BETWEEN_HOSTS = 2e-6, 5e-6  # seconds of latency
FORWARD = 1 / 3  # share of a step's computation
CORE_IMAGES = 321  # images per second and core: 642 on two cores, docs/measurements/performance.md


def latency(devices: int) -> float:
    """Return the seconds of an all-reduce of a few bytes in a tree."""
    hosts = math.ceil(devices / HOST_DEVICES)
    return 2 * (IN_HOST * math.log2(min(devices, HOST_DEVICES)) + BETWEEN_HOSTS * math.log2(hosts))


def horovod_step(compute: float, devices: int, link: float) -> float:
    """Return the seconds of a step: all computation, one ring, and two messages of a few bytes."""
    ring = 2 * (devices - 1) * BETWEEN_HOSTS
    return compute + _transfer(4 * PARAMETERS, devices, link) + ring + 2 * latency(devices)


def jax_step(compute: float, devices: int, link: float, *, global_batch_norm: bool, overlap: bool) -> float:
    """Return the seconds of a step, layer by layer; the network carries one message at a time."""
    waits = 2 if global_batch_norm else 0
    reduction = latency(devices) + _transfer(4 * CHANNELS / BATCH_NORMS, devices, link)
    gradient = latency(devices) + _transfer(4 * PARAMETERS / BATCH_NORMS, devices, link)
    now = compute * FORWARD + BATCH_NORMS * waits * reduction
    network_free = now
    for _ in range(BATCH_NORMS):
        now += compute * (1 - FORWARD) / BATCH_NORMS
        for _ in range(waits):
            now = network_free = max(now, network_free) + reduction
        if overlap:
            network_free = max(now, network_free) + gradient
    if not overlap:
        network_free = now + latency(devices) + _transfer(4 * PARAMETERS, devices, link)
    return max(now, network_free) + latency(devices)  # the last: the losses


def _transfer(size: float, devices: int, link: float) -> float:
    return size * 2 * (devices - 1) / devices / link


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch_size", type=int, default=200, help="Per device.")
    parser.add_argument("--image_ms", type=float, default=504 / 200, help="Milliseconds per image on one device.")
    parser.add_argument("--link_gb", type=float, default=25.0, help="GB/s of the slowest link.")
    parser.add_argument("--devices", type=int, nargs="*", default=[8, 32, 128, 256])
    arguments = parser.parse_args()
    compute, link = arguments.batch_size * arguments.image_ms / 1e3, arguments.link_gb * 1e9
    print(
        "| devices | Horovod | JAX | JAX, overlap | JAX, batch norm per device | images/s | per host | cores per host |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for devices in arguments.devices:
        steps = [
            horovod_step(compute, devices, link),
            jax_step(compute, devices, link, global_batch_norm=True, overlap=False),
            jax_step(compute, devices, link, global_batch_norm=True, overlap=True),
            jax_step(compute, devices, link, global_batch_norm=False, overlap=False),
        ]
        rate = devices * arguments.batch_size / steps[1]
        per_host = rate / math.ceil(devices / HOST_DEVICES)
        cores = math.ceil(per_host / CORE_IMAGES)
        cells = [f"{1e3 * step:.1f} ms, {compute / step:.1%}" for step in steps]
        print(f"| {devices} | {' | '.join(cells)} | {rate:,.0f} | {per_host:,.0f} | {cores} |")


if __name__ == "__main__":
    main()
