"""OpenVINO's signal stack outlives OpenVINO's network in no thread."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import ctypes, faulthandler, gc, signal
faulthandler.enable()
import numpy as np
from efficientdet.inference.checkpoint_model import exported_network
from efficientdet.devices.runtime_environment import _SignalStack
from miniature import miniature_detector

def stack():
    found = _SignalStack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found))
    return found.address

before = stack()
network = exported_network(miniature_detector(), runtime="openvino")
for count in (1, 2):
    network(np.zeros((count, 64, 64, 3), np.uint8), np.int32([[64, 64]] * count), lambda outputs, size: outputs)
    assert stack() == before
del network
gc.collect()
signal.signal(signal.SIGINT, lambda *_: print("heard", flush=True))
signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signal stacks are POSIX's")
@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed")
def test_a_signal_after_openvino_is_heard():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    )
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr[-2000:]
