"""scripts/horovodrun.py: how the processes of a job are ended."""

import importlib.util
import subprocess
import sys

import psutil
import pytest
from test_distributed import REPOSITORY, needs_horovod

pytestmark = needs_horovod

SAVES = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); print(1, flush=True); "
    "time.sleep(9)"
)
DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def horovodrun():
    specification = importlib.util.spec_from_file_location("horovodrun", REPOSITORY / "scripts" / "horovodrun.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def start(code, *, shell):
    command = f"A=1 {sys.executable} -c '{code}'" if shell else [sys.executable, "-c", code]
    process = subprocess.Popen(command, shell=shell, stdout=subprocess.PIPE, text=True)
    with process.stdout:
        return process, int(process.stdout.readline())


@pytest.mark.parametrize("shell", [True, False])
def test_who_waits_for_the_command_gets_its_exit_code(horovodrun, shell):
    """Horovod's own function takes it: seen as 0 here, and in two of sixty jobs that both wait for."""
    process, _ = start(SAVES, shell=shell)
    horovodrun.end_command(process.pid)
    assert process.wait(timeout=10) == 143
    horovodrun.end_command(process.pid)  # which is no more: nothing to do


def test_what_does_not_stop_is_killed_with_what_it_started(horovodrun, monkeypatch):
    monkeypatch.setattr(horovodrun, "GRACE_SECONDS", 0.3)
    process, grandchild = start(DEAF, shell=True)
    horovodrun.end_command(process.pid)
    assert process.wait(timeout=10) in (137, -9)
    psutil.wait_procs([psutil.Process(grandchild)] if psutil.pid_exists(grandchild) else [], timeout=10)
    assert not psutil.pid_exists(grandchild)


def test_a_command_that_is_stopped_is_killed_at_once(horovodrun, monkeypatch):
    """SIGSTOP: it would handle SIGTERM only when it continues."""
    monkeypatch.setattr(horovodrun, "GRACE_SECONDS", 1e9)
    process, _ = start(SAVES, shell=True)
    [command] = psutil.Process(process.pid).children() or [psutil.Process(process.pid)]
    command.suspend()
    horovodrun.end_command(process.pid)
    assert process.wait(timeout=10) in (137, -9)


def test_horovod_ends_processes_by_it(horovodrun):
    from horovod.runner.common.util import safe_shell_exec

    assert safe_shell_exec.terminate_executor_shell_and_children is horovodrun.end_command


@pytest.mark.parametrize(
    ("codes", "last"),
    [
        ([(1, 137), (0, 2)], "process 1 of 2, on node-b, ended: killed by SIGKILL, as the kernel does when"),
        ([(0, 2), (1, 137)], "process 1 of 2, on node-b, ended: killed, because it no longer answered (stopped by "),
        ([(0, 1), (1, 143)], "process 0 of 2, on node-a, ended: exit code 1: KeyError: 3"),
        ([(0, 2), (1, 1)], "process 1 of 2, on node-b, ended: exit code 1: KeyError: 3"),
        ([(1, 139), (0, 2)], "process 1 of 2, on node-b, ended: killed by SIGSEGV"),
        ([(1, 0), (0, 143)], "process 0 of 2, on node-a, ended: a stop request"),
    ],
)
def test_the_last_line_names_the_process_that_ended_first_and_why(horovodrun, monkeypatch, codes, last):
    """Processes that wait for another one end by themselves, with an error or by SIGTERM."""
    monkeypatch.setattr(horovodrun, "_ends", ends := [])
    for rank, code in codes:
        monkeypatch.setattr(horovodrun, "_execute", executed(code))
        command = f"env HOROVOD_HOSTNAME=node-{'ab'[rank]} HOROVOD_RANK={rank} HOROVOD_SIZE=2 python train.py"
        assert horovodrun.execute(command, index=rank) == code
    assert horovodrun.reason(ends).startswith(last)


def executed(code):
    """Return a stand-in for Horovod's function."""

    def execute(command, *, index, stderr):
        last = "error: process 0 of 2 has lost the connection to another process" if code == 2 else "KeyError: 3"
        for line in ("Traceback:", last, ""):
            stderr.write(f"[{index}]<stderr>:{line}\n")
        stderr.flush()
        return code

    return execute
