"""Print the coverage of the last `pytest --cov` by package, from .coverage: `python scripts/coverage_by_package.py`."""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path


def main() -> None:
    """Print statements, covered statements and their share of each package, two levels deep."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "coverage.json")
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", "-o", report], check=True)
        files = json.loads(report.read_text())["files"]
    packages: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path, file_coverage in files.items():
        parents = Path(path).parent.parts[:2]
        for package in {"total", "/".join(parents) or "programs"}:
            packages[package][0] += file_coverage["summary"]["num_statements"]
            packages[package][1] += file_coverage["summary"]["covered_lines"]
    print(f"{'package':<36} statements covered   share")
    for package in [*sorted(packages.keys() - {"total"}), "total"]:
        statements, covered = packages[package]
        print(f"{package:<36} {statements:10} {covered:7} {100 * covered / max(1, statements):6.1f}%")


if __name__ == "__main__":
    main()
