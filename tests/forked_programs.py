"""Run the root scripts in processes that are forked from one with TensorFlow and Keras already imported.

A start of its own costs a program 5 to 10 seconds of imports. The server imports the packages and runs no operation, so
that none of TensorFlow's threads exists when it forks. One test of each program starts it as a user does (test_main_path.py).
"""

import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tensorflow", "keras"])


class ForkedProgram:
    """A running program with the interface of `subprocess.Popen` that the tests use."""

    def __init__(self, command, *, env, cwd, stdout, stderr):
        python, script, *arguments = map(str, command)
        assert python == sys.executable
        self._process = _context.Process(target=_run, args=(script, arguments, dict(env), str(cwd), str(stdout), str(stderr)))
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        """Return the exit code, negative for a signal, or None while the program runs."""
        return self._process.exitcode

    def wait(self, timeout=None):
        """Return the exit code; raise subprocess.TimeoutExpired, as Popen does."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self._process.exitcode

    def send_signal(self, number):
        """Send a signal to the program if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill_session(self):
        """Kill the program and all that it started, if any of it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def start(command, *, env, cwd="/", output):
    """Start `command`, [sys.executable, script, argument, ...], which writes both of its streams to the file `output`."""
    return ForkedProgram(command, env=env, cwd=cwd, stdout=output, stderr=output)


def run(command, *, env, cwd="/", timeout=240):
    """Run a program to its end, as `subprocess.run(command, capture_output=True, text=True)` does."""
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        program = ForkedProgram(command, env=env, cwd=cwd, stdout=stdout, stderr=stderr)
        try:
            code = program.wait(timeout)
        finally:
            program.kill_session()
        return subprocess.CompletedProcess(command, code, stdout.read_text(), stderr.read_text())


def _run(script, arguments, env, cwd, stdout, stderr):
    """Become the program: a session, streams, environment, folder, sys.path and sys.argv of its own, then its code."""
    os.setsid()
    for descriptor, path in ((1, stdout), (2, stderr)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    tests = str(Path(__file__).resolve().parent)
    sys.path[:] = [str(Path(script).parent), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)),
                   *(path for path in sys.path if path and path != tests)]
    sys.argv[:] = [script, *arguments]
    runpy.run_path(script, run_name="__main__")

