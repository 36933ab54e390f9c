"""Run programs in processes that are forked from one with TensorFlow, or JAX, and Keras already imported.

A start of its own costs a program 5 to 10 seconds of imports. The server (fork_server.py), one for each backend of
Keras, imports the packages and runs no operation, so that none of their threads exists when it forks. One test of each
program starts it as a user does (test_main_path.py).
"""

import atexit
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import fork_client


class ForkedProgram:
    """A running program with the interface of `subprocess.Popen` that the tests use."""

    def __init__(self, command, *, env, cwd, stdout, stderr, executable=None):
        python, *words = map(str, command)
        assert python == sys.executable
        streams = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644) for path in (os.devnull, stdout, stderr)]
        try:
            self._program = fork_client.Program(
                _server(env.get("KERAS_BACKEND", "tensorflow"))[0],
                words,
                env=dict(env),
                cwd=str(cwd),
                streams=streams,
                executable=executable,
            )
        finally:
            for stream in streams:
                os.close(stream)
        self.pid = self._program.pid

    def poll(self):
        """Return the exit code, negative for a signal, or None while the program runs."""
        return self._program.code(seconds=0)

    def wait(self, timeout=None):
        """Return the exit code; raise subprocess.TimeoutExpired, as Popen does."""
        code = self._program.code(seconds=timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code

    def send_signal(self, number):
        """Send a signal to the program if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill_session(self):
        """Kill the program and all that it started, if any of it still runs."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def start(command, *, env, cwd="/", output):
    """Start `command`, [sys.executable, script, argument, ...], both of its streams written to the file `output`."""
    return ForkedProgram(command, env=env, cwd=cwd, stdout=output, stderr=output)


def run(command, *, env, cwd="/", timeout=240, executable=None):
    """Run a program to its end, as `subprocess.run(command, capture_output=True, text=True)` does.

    `executable` becomes the program's sys.executable: with `python()` the programs that it starts are forked too.
    """
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        program = ForkedProgram(command, env=env, cwd=cwd, stdout=stdout, stderr=stderr, executable=executable)
        try:
            code = program.wait(timeout)
        finally:
            program.kill_session()
            program.wait()
        return subprocess.CompletedProcess(command, code, stdout.read_text(), stderr.read_text())


def python():
    """Return the path of an interpreter that runs `python script.py ...` in a fork, for launchers and shell scripts."""
    return _server("tensorflow")[1]


@functools.cache
def _server(backend):
    """Start the server of this process; return its socket and the interpreter that asks it."""
    folder = tempfile.TemporaryDirectory(prefix="forks-")
    path, interpreter, tests = f"{folder.name}/socket", Path(folder.name, "python"), Path(__file__).parent
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{tests}/fork_client.py" "{path}" "$0" "$@"\n')
    interpreter.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, tests / "fork_server.py", str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            env={**os.environ, "KERAS_BACKEND": backend},
            start_new_session=True,
        )

    def end():
        server.communicate()  # it ends with its standard input
        folder.cleanup()

    atexit.register(end)
    return path, str(interpreter)
