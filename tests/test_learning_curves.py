"""The table of learning curves: means over seeds, and differences to random of the same seeds."""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import learning_curves


def test_table_of_curves(tmp_path):
    arguments = argparse.Namespace(output_dir=str(tmp_path), first=20, more=20, most=60)
    assert learning_curves.counts(arguments) == [20, 40, 60]
    found = {
        ("cells", 0, "random"): [0.1, 0.2, 0.3],
        ("cells", 1, "random"): [0.2, 0.3, 0.4],
        ("cells", 2, "random"): [0.1, 0.3, 0.2],
        ("cells", 0, "expected_gain"): [0.1, 0.3, 0.5],
        ("cells", 1, "expected_gain"): [0.2, 0.3, 0.4],
    }
    learning_curves.write_table(found, arguments)
    header, _, of_random, of_gain = (tmp_path / "curves.md").read_text().splitlines()
    assert header == "| data set | strategy | 20 | 40 | 60 | area | difference to random |"
    means = [0.2, 0.3, 0.2]  # area of random by seed
    error = statistics.stdev(means) / 3**0.5
    assert of_random.endswith(f"| {statistics.mean(means):.3f} ± {error:.3f} |  |")
    assert (
        of_gain
        == "| cells | expected_gain | 0.150 ± 0.050 | 0.300 ± 0.000 | 0.450 ± 0.050 | 0.300 ± 0.000 | 0.050 ± 0.050 |"
    )
