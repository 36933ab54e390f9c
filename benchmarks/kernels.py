"""Print the kernels of a trace by kind, with their times: `python benchmarks/kernels.py FOLDER`, of a JAX profiler."""

import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path

KINDS = ("conv", "depthwise", "pad", "reduce", "scatter", "gemm|dot", "transpose|copy", "memcpy", "fusion", "")


def main() -> None:
    """Print a table: kernels and ms of each kind, of all events on the device's streams."""
    numbers, times = Counter[str](), Counter[str]()
    for path in Path(sys.argv[1]).rglob("*.trace.json.gz"):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        devices = {event["pid"] for event in events if "/device:" in str(event.get("args", {}).get("name", ""))}
        for event in events:
            if event.get("ph") == "X" and event["pid"] in devices and "hlo_op" in event.get("args", {}):
                kind = next(kind for kind in KINDS if re.search(kind, event["name"].lower()))
                numbers[kind] += 1
                times[kind] += event["dur"] / 1000
    print("| kernels | number | ms |\n|---|---|---|")
    for kind, spent in [*times.most_common(), ("all", times.total())]:
        print(f"| {kind or 'other'} | {numbers[kind] or numbers.total()} | {spent:.2f} |")


if __name__ == "__main__":
    main()
