"""Measure conversion on a Ray cluster of this machine against processes of this machine, and project it to a cluster.

`python benchmarks/ray_conversion.py --annotations=instances.json --images=DIR --copies=200` converts many copies of
the images with one and with two cores by both engines, in turns, three times, and prints medians. It also measures how
many tasks the driver sends per second, and calculates hours on 64 nodes from both.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dataset.conversion.formats.coco import read_coco
from program_support.ray_tasks import ray_cluster

ROOT = Path(__file__).parent.parent
ROUNDS, EMPTY_TASKS = 3, 2000
NODES, CORES = 64, 16
NETWORK = 1.25e9  # bytes per second of a node: 10 Gbit/s
COLLECTIONS = {"Open Images": 1_743_042, "100 million photos": 100_000_000}
IMAGES_OF_A_SHARD = 10_000
DOLLARS_OF_A_CORE_HOUR = 0.04


def many_copies(images: Path, annotations: Path, copies: int, folder: Path) -> tuple[int, int]:
    """Write copies of a COCO data set; return the number of images and their bytes."""
    content = json.loads(annotations.read_text())
    of_image = defaultdict(list)
    for one in content["annotations"]:
        of_image[one["image_id"]].append(one)
    there = [image for image in content["images"] if (images / image["file_name"]).exists()]
    (folder / "images").mkdir()
    written, objects, size = [], [], 0
    for copy, image in itertools.product(range(copies), there):
        file, number = images.resolve() / image["file_name"], len(written) + 1
        written.append({**image, "id": number, "file_name": f"{copy}_{file.name}"})
        (folder / "images" / f"{copy}_{file.name}").symlink_to(file)
        size += file.stat().st_size
        for one in of_image[image["id"]]:
            objects.append({**one, "id": len(objects) + 1, "image_id": number})
    (folder / "labels.json").write_text(json.dumps({**content, "images": written, "annotations": objects}))
    return len(written), size


def cost_of_labels(folder: Path, count: int) -> tuple[float, float]:
    """Return seconds and bytes of an image's labels in the process that divides the work."""
    start = time.perf_counter()
    read_coco(object_annotations_file=str(folder / "labels.json"))
    taken = time.perf_counter() - start
    tracemalloc.start()
    data = read_coco(object_annotations_file=str(folder / "labels.json"))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(data.images) == count
    return taken / count, size / count


def seconds(folder: Path, engine: str, cores: int) -> float:
    """Return the time of a conversion into four shards for each core, and remove the records."""
    command = [sys.executable, "dataset/create_tfrecord.py", f"--images={folder}/images", f"--engine={engine}"]
    command += [f"--annotations={folder}/labels.json", f"--output_dir={folder}/records", "--val_fraction=0"]
    command += [f"--num_threads={cores}", f"--num_shards={4 * cores}"]
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    taken = time.perf_counter() - start
    subprocess.run(["rm", "-r", f"{folder}/records"], check=True)
    return taken


def empty(number: int) -> int:
    """Return the number."""
    return number


def print_ratios(what: str, times: Mapping[tuple[str, int], Sequence[float]]) -> None:
    """Print the table of medians and ratios of the times in seconds, by engine and number of `what`."""
    print(f"| {what} | local, s | ray, s | ratio |\n| --- | --- | --- | --- |")
    for count in dict.fromkeys(count for _, count in times):
        local, ray = times["local", count], times["ray", count]
        ratios = [two / one for one, two in zip(local, ray, strict=True)]
        ends = f"{min(ratios):.2f} to {max(ratios):.2f}"
        medians = f"{statistics.median(local):.1f} | {statistics.median(ray):.1f}"
        print(f"| {count} | {medians} | {statistics.median(ratios):.3f} ({ends}) |")


@contextlib.contextmanager
def node(cores: int) -> Iterator[None]:
    """Start a cluster of one node with this number of cores for the block, and set RAY_ADDRESS."""
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores})
    os.environ["RAY_ADDRESS"] = cluster.address
    yield
    cluster.shutdown()


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--annotations", type=Path, required=True)
    parser.add_argument("--copies", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        count, size = many_copies(arguments.images, arguments.annotations, arguments.copies, folder)
        reading, memory = cost_of_labels(folder, count)
        print(f"{count:,} images, {size / count / 1000:.0f} kB each")
        print(f"labels in the driver: {1e6 * reading:.0f} us and {memory:.0f} bytes per image")
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(ROUNDS):
            for cores in (1, 2):
                with node(cores):
                    for engine in ("local", "ray"):
                        times.setdefault((engine, cores), []).append(seconds(folder, engine, cores))
    median = {case: statistics.median(values) for case, values in times.items()}
    print_ratios("cores", times)
    print(f"\nray, 2 cores against 1: {median['ray', 1] / median['ray', 2]:.2f} times as fast")
    with node(2), ray_cluster() as connection:
        list(connection.run(empty, range(10)))
        start = time.perf_counter()
        list(connection.run(empty, range(EMPTY_TASKS)))
        rate = EMPTY_TASKS / (time.perf_counter() - start)
    print(f"the driver sends {rate:.0f} empty tasks/s\n")
    of_a_core = median["ray", 1] / count
    print(f"calculated: {NODES} nodes of {CORES} cores, {NETWORK / 1e9:g} GB/s each, shards of {IMAGES_OF_A_SHARD:,}")
    print("| collection | transferred | h, cores | h, network | driver: h, labels | GB | s, tasks | dollars |")
    print("| --- " * 8 + "|")
    for name, images in COLLECTIONS.items():
        total = 2 * images * size / count
        hours, network = images * of_a_core / NODES / CORES / 3600, total / NODES / NETWORK / 3600
        sent = images / IMAGES_OF_A_SHARD / rate
        dollars = max(hours, network) * NODES * CORES * DOLLARS_OF_A_CORE_HOUR
        labels = f"{images * reading / 3600:.2f} | {images * memory / 1e9:.1f}"
        print(
            f"| {name} | {total / 1e12:.1f} TB | {hours:.2g} | {network:.2g} | {labels} | {sent:.1f} | {dollars:.0f} |"
        )


if __name__ == "__main__":
    main()
