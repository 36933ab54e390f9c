"""Measure detection on a Ray cluster of this machine against detection by one process of this machine.

`python benchmarks/ray_detection.py --images=DIR --model=CHECKPOINT` annotates few and many copies of the images with
both engines, in turns, and prints medians of the complete commands. The slope of the two numbers of images is the cost
of an image, the rest that of starting.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ray_conversion import ROOT, ROUNDS, node, print_ratios

COUNTS = (300, 1500)
ENGINES = ("local", "ray")


def copies(images: Path, count: int, folder: Path) -> None:
    """Link images, each as often as the number requires."""
    folder.mkdir()
    there = sorted(images.glob("*.jpg"))
    for number in range(count):
        (folder / f"{number:06}.jpg").symlink_to(there[number % len(there)].resolve())


def seconds(images: Path, engine: str, model: Path) -> float:
    """Return the time of a command that annotates images, and remove what it wrote."""
    output = images.with_name("annotated")
    command = [sys.executable, "infer.py", f"--image_path={images}", f"--model={model.resolve()}"]
    command += [f"--engine={engine}", f"--output_dir={output}", "--batch_size=8"]
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    taken = time.perf_counter() - start
    shutil.rmtree(output)
    return taken


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="Folder of JPEG files.")
    parser.add_argument("--model", type=Path, required=True, help="Checkpoint.")
    parser.add_argument("--cores", type=int, default=2, help="Cores of the node; the machine's.")
    arguments = parser.parse_args()
    times: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as place, node(arguments.cores):
        for count in COUNTS:
            copies(arguments.images, count, Path(place, str(count)))
        for _ in range(ROUNDS):
            for count in COUNTS:
                for engine in ENGINES:
                    taken = seconds(Path(place, str(count)), engine, arguments.model)
                    times.setdefault((engine, count), []).append(taken)
    print_ratios("images", times)
    few, many = COUNTS
    for engine in ENGINES:
        pairs = zip(times[engine, few], times[engine, many], strict=True)
        of_image = statistics.median((two - one) / (many - few) for one, two in pairs)
        start = statistics.median(times[engine, few]) - few * of_image
        print(f"{engine}: {1000 * of_image:.1f} ms per image, {start:.1f} s for the rest")


if __name__ == "__main__":
    main()
