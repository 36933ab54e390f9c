"""Where the oracle data lies, and what its absence means."""

import gc
import importlib.util
import itertools
import os
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest
from jax_process import QUICK_XLA

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as the programs, whose results are compared with the tests' own
gc.set_threshold(100_000, 50, 100)  # tracing makes many objects and little garbage
os.environ.setdefault("XLA_FLAGS", QUICK_XLA)  # tests compile much and run each program a few times


def pytest_addoption(parser):
    parser.addoption("--endurance", action="store_true", help="more kills, and those of the complete train.py")
    parser.addoption("--label_studio", help="the program label-studio, for the labeling loop in a real one")


def pytest_collection_modifyitems(items):
    """Files with slow tests come first: the last one to start decides when parallel workers end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_terminal_summary(terminalreporter, config):
    """Print the ten slowest files where durations are asked for, as scripts/test.sh does."""
    if not config.getoption("durations"):
        return
    seconds = Counter()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if hasattr(report, "duration"):
            seconds[report.location[0]] += report.duration
    terminalreporter.section("slowest files")
    for file, spent in seconds.most_common(10):
        terminalreporter.write_line(f"{spent:7.1f} s  {file}")


def _folder(variable: str) -> Path:
    value = os.environ.get(variable)
    if value and Path(value).is_dir():
        return Path(value)
    _lacks(f"{variable} names no folder (found {value!r})")


def _lacks(reason: str) -> NoReturn:
    """What a user's machine may lack, CI's may not."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def with_jax() -> None:
    """For tests that start another process under JAX."""
    if importlib.util.find_spec("jax") is None:
        _lacks("jax is not installed; pip install -e .[jax]")


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    """Outputs of the public reference, see testdata/README.md."""
    return _folder("EFFICIENTDET_GOLDEN")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real images, annotations, malformed files."""
    return _folder("EFFICIENTDET_DATA")
