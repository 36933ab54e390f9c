import os
import subprocess
import sys
import time

import pytest

from efficientdet.devices import runtime_environment
from efficientdet.devices.runtime_environment import announced_compilation, launch_convolutions_in_graphs

FLAGS = (
    "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE,DYNAMIC_SLICE_FUSION,"
    "CONVOLUTION --xla_gpu_graph_min_graph_size=1"
)


def flags_of(monkeypatch, *, given=None, plugin="jax_cuda12_plugin", version="0.10.2"):
    """Return XLA_FLAGS after the call, on a machine that seems to have this plugin and jaxlib."""
    monkeypatch.setattr(runtime_environment, "find_spec", lambda name: name == plugin)
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if given is not None:
        monkeypatch.setenv("XLA_FLAGS", given)
    launch_convolutions_in_graphs()
    return os.environ.get("XLA_FLAGS")


def test_flags_are_set_where_jax_has_cuda(monkeypatch):
    assert flags_of(monkeypatch) == FLAGS
    assert flags_of(monkeypatch, plugin="jax_cuda13_plugin", version="0.11.2+cuda13.dev1") == FLAGS
    assert flags_of(monkeypatch, plugin=None) is None
    assert flags_of(monkeypatch, version="0.10.0") is None  # its XLA ends the process at CONVOLUTION


def test_a_users_flags_are_kept(monkeypatch):
    own = "--xla_gpu_enable_command_buffer= --xla_dump_to=/tmp/hlo"
    assert flags_of(monkeypatch, given=own) == f"{own} --xla_gpu_graph_min_graph_size=1"


STORES = """
import jax
from efficientdet.devices.runtime_environment import store_compiled_programs
store_compiled_programs()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
print(jax.jit(lambda x: x * 2 + 1)(jax.numpy.ones(3)).sum())
"""


def run(cache, **environment):
    return subprocess.run(
        [sys.executable, "-c", STORES],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.usefixtures("with_jax")
def test_programs_are_stored_for_this_user_alone(tmp_path):
    """A real JAX whose XLA accepts the flags; the second start finds the program of the first."""
    assert run(tmp_path, XLA_FLAGS=FLAGS).stdout == "9.0\n"
    folder = tmp_path / "efficientdet" / "xla"
    assert folder.stat().st_mode & 0o777 == 0o700
    stored = {path for path in folder.rglob("*") if path.name.endswith("-cache")}
    assert stored
    run(tmp_path, XLA_FLAGS=FLAGS)
    assert {path for path in folder.rglob("*") if path.name.endswith("-cache")} == stored
    folder.chmod(0o777)
    assert run(tmp_path).stderr.splitlines()[-1] == (
        f"warning: {folder}: compiled programs are not stored, others may write to it"
    )


@pytest.mark.usefixtures("with_jax")
def test_jax_own_variable_moves_the_folder(tmp_path):
    run(tmp_path / "ours", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "users"))
    assert list((tmp_path / "users").iterdir())
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("damage", [None, "", "[]", '{"facts": null}'])
def test_the_seconds_of_a_compilation_are_told_at_the_next(monkeypatch, tmp_path, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(runtime_environment, "_LINE_PERIOD_SECONDS", 0.2)
    lines = []
    with announced_compilation("a step", "facts", log=lines.append):
        time.sleep(0.7)
    assert lines[0] == "compiling a step; on an accelerator this may take minutes"
    assert lines[1:3] == ["compiling a step: 0 s so far"] * 2
    if damage is not None:
        (tmp_path / "cache" / "efficientdet" / "compilation_seconds.json").write_text(damage)
    lines.clear()
    with pytest.raises(KeyError), announced_compilation("a step", "facts", log=lines.append):
        raise KeyError  # of the step
    assert lines == [
        "compiling a step" + (", 1 s last time" if damage is None else "; on an accelerator this may take minutes")
    ]
