"""Print the kernels of a trace by kind, with their times: `python benchmarks/kernels.py FOLDER`, of a JAX profiler."""

import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path

KINDS = "conv|depthwise|pad|reduce|scatter|gemm|transpose|copy|fusion"


def main() -> None:
    """Print a table: number and milliseconds of each kind of kernel."""
    numbers, times = Counter[str](), Counter[str]()
    for path in Path(sys.argv[1]).rglob("*.trace.json.gz"):
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
            if "hlo_op" in event.get("args", {}):
                [kind] = re.findall(KINDS, event["name"])[:1] or ["other"]
                numbers[kind] += 1
                times[kind] += event["dur"] / 1000
    print("| kernels | number | ms |\n|---|---|---|")
    for kind, spent in times.most_common():
        print(f"| {kind} | {numbers[kind]} | {spent:.2f} |")


if __name__ == "__main__":
    main()
