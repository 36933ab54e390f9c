import os

import keras
import pytest
import tensorflow as tf

from efficientdet.devices import runtime
from efficientdet.devices.runtime import Runtime, start_runtime
from efficientdet.devices.runtime_environment import prepare_environment


@pytest.fixture
def hidden(monkeypatch):
    """What TensorFlow was told to see."""
    calls = []
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda devices, kind: calls.append((devices, kind)))
    return calls


def test_jax_has_the_gpus_for_itself(hidden, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(
        runtime, "accelerator_count", lambda: len(hidden)
    )  # counted after they were taken from TensorFlow
    assert start_runtime() == Runtime(precision="mixed_float16", use_xla=True)
    assert hidden == [([], "GPU")]


def test_tensorflow_keeps_its_own(hidden):
    start_runtime()
    assert hidden == []


def test_jax_runs_where_tensorflow_is_absent(hidden, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(runtime.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(runtime, "accelerator_count", lambda: 0)
    assert start_runtime() == Runtime(precision="float32", use_xla=False)
    assert hidden == []


@pytest.mark.parametrize(
    ("precision", "accelerators", "warned"),
    [("mixed_bfloat16", 0, True), ("mixed_bfloat16", 1, False), ("float32", 0, False), (None, 0, False)],
)
def test_bfloat16_on_a_cpu_is_warned_of_in_one_line(monkeypatch, capsys, precision, accelerators, warned):
    monkeypatch.setattr(runtime, "accelerator_count", lambda: accelerators)
    monkeypatch.setattr(runtime, "check_gpus", lambda gpus, newest_kernels: None)
    start_runtime(precision=precision, owns_process=False)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == warned
    assert all("--precision=float32" in line for line in lines)


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0")])
def test_onednn_is_used_unless_the_user_disables_it(monkeypatch, given, expected):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    if given:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", given)
    prepare_environment(owns_process=False)
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == expected
