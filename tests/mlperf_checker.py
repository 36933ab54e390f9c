"""MLPerf's own checker of logs."""

import subprocess
import sys


def verdict(path, ruleset):
    """The exit code of `mlperf_logging.compliance_checker` as a program of its own: 0 for a log that passes."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "mlperf_logging.compliance_checker",
            "--usage",
            "training",
            "--ruleset",
            ruleset,
            "--werror",
            "--log_output",
            f"{path}.checked",
            str(path),
        ],
        capture_output=True,
    ).returncode
