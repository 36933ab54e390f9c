"""Ask the server of forked programs (fork_server.py) for a program; runs as an interpreter (`forked_programs.python`).

    python -SE tests/fork_client.py SOCKET INTERPRETER script.py [argument ...]

A signal is passed on to the program, and its exit code becomes the exit code of this process.
"""

import contextlib
import json
import os
import select
import signal
import site
import socket
import sys


class Program:
    """A program that the server runs; the server kills it when this connection ends."""

    def __init__(self, server, words, *, env, cwd, streams, executable=None):
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(server)
        request = json.dumps({"words": words, "env": env, "cwd": cwd, "executable": executable}).encode()
        socket.send_fds(self._connection, [len(request).to_bytes(8, "big")], streams)
        self._connection.sendall(request)
        self._replies = self._connection.makefile()
        self.pid, self._code = int(self._replies.readline()), None

    def code(self, *, seconds=None):
        """Return the exit code, negative for a signal, or None if the program still runs after so many seconds."""
        if self._code is None and select.select([self._connection], [], [], seconds)[0]:
            self._code = int(self._replies.readline() or -signal.SIGKILL)
            self._replies.close()
            self._connection.close()
        return self._code


def main():
    server, interpreter, *words = sys.argv[1:]
    if words[0] == "-c":  # in this process: what runs so in the tests imports nothing large
        site.main()
        sys.executable, sys.argv = interpreter, ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
        return
    # The programs that it starts are forked too
    program = Program(server, words, env=dict(os.environ), cwd=os.getcwd(), streams=[0, 1, 2], executable=interpreter)

    def pass_on(number, _):
        with contextlib.suppress(ProcessLookupError):  # the program has ended
            os.kill(program.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    code = program.code()
    if code < 0:
        if -code in (signal.SIGTERM, signal.SIGINT):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
