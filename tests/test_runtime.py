import ctypes
import os
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from efficientdet.devices import runtime
from efficientdet.devices.runtime import Runtime, _cudnn_version, start_runtime
from efficientdet.devices.runtime_environment import prepare_environment
from program_support.errors import InputError


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


V100, A100, H100 = (
    ("Tesla V100-SXM2-32GB", (7, 0)),
    ("NVIDIA A100-SXM4-80GB", (8, 0)),
    ("NVIDIA H100 80GB HBM3", (9, 0)),
)
T4, L40S, B200 = ("Tesla T4", (7, 5)), ("NVIDIA L40S", (8, 9)), ("NVIDIA B200", (10, 0))


@pytest.fixture
def machine(monkeypatch):
    """Call it with a cuDNN version and GPUs to stand on a machine that has them."""

    def have(cudnn, *gpus):
        devices = [
            SimpleNamespace(name=f"GPU:{i}", details={"device_name": name, "compute_capability": capability})
            for i, (name, capability) in enumerate(gpus)
        ]
        major, minor, patch = map(int, cudnn.split("."))
        library = SimpleNamespace(cudnnGetVersion=lambda: major * 10_000 + minor * 100 + patch)
        monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
        monkeypatch.setattr(runtime, "accelerator_count", lambda: len(devices))
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: devices)
        monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: device.details)
        monkeypatch.setattr(
            tf.sysconfig,
            "get_build_info",
            lambda: {  # of tensorflow 2.21.0 from PyPI
                "cuda_version": "12.5.1",
                "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
            },
        )

    return have


@pytest.mark.parametrize("gpus", [(V100,), (A100, V100)])
def test_volta_is_refused_with_a_cudnn_that_dropped_it(machine, gpus):
    machine("9.28.0", *gpus)
    with pytest.raises(
        InputError, match=r"^Tesla V100-SXM2-32GB: cuDNN 9\.28\.0 .* 7\.0; .*'nvidia-cudnn-cu12<9\.11'$"
    ):
        start_runtime()


@pytest.mark.parametrize(
    ("cudnn", "gpus"),
    [("9.10.2", (V100,)), ("9.10.2", (T4, A100, L40S, H100)), ("9.11.0", (T4,)), ("9.28.0", (A100, H100))],
)
def test_supported_gpus_start_without_a_word(machine, capfd, cudnn, gpus):
    machine(cudnn, *gpus)
    assert start_runtime().use_xla
    assert capfd.readouterr().err == ""


def test_blackwell_is_warned_of_once(machine, capfd):
    machine("9.10.2", B200, B200)
    assert start_runtime().use_xla
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("warning: NVIDIA B200: TensorFlow ")
    assert "kernels up to compute capability 9.0, this GPU has 10.0" in line
    assert "KERAS_BACKEND=jax" in line


def test_jax_too_refuses_volta_and_takes_blackwell(machine, capfd, monkeypatch):
    import jax

    machine("9.28.0")
    devices = [SimpleNamespace(platform="gpu", device_kind="NVIDIA B200", compute_capability="10.0")]
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(runtime, "accelerator_count", lambda: 1)
    monkeypatch.setattr(runtime, "hide_gpus_from_tensorflow", lambda: None)
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert start_runtime().use_xla
    assert capfd.readouterr().err == ""
    devices[:] = [SimpleNamespace(platform="gpu", device_kind="Tesla V100", compute_capability="7.0")]
    with pytest.raises(InputError, match="Tesla V100"):
        start_runtime()


def test_cudnn_is_known_by_its_package_where_it_is_not_loaded(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(runtime.metadata, "version", lambda name: {"nvidia-cudnn-cu12": "9.28.0.42"}[name])
    assert _cudnn_version() == (9, 28, 0)


def test_the_locked_cudnn_is_one_that_volta_and_tensorflow_take():
    """V100s are in the published recipes; TensorFlow 2.21 asks for 9.3 or newer, jax[cuda12] 0.10 for 9.8."""
    lock = runtime.__file__.rpartition("/efficientdet/")[0] + "/requirements.lock"
    with open(lock, encoding="utf-8") as lines:
        [line] = [line for line in lines if line.startswith("nvidia-cudnn-cu12==")]
    assert (9, 8) <= tuple(map(int, line.strip().partition("==")[2].split(".")[:2])) < (9, 11)
