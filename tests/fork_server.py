"""Import Keras with the backend of KERAS_BACKEND, and fork a process for each program asked for (fork_client.py).

    python tests/fork_server.py NUMBER_OF_THE_LISTENING_SOCKET

Ends with its standard input.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import site
import socket
import sys
import threading
from importlib.machinery import SourceFileLoader
from pathlib import Path


def serve(listener):
    """Fork for each request; in the child return what was asked for, in the server return None at the end."""
    selector, connections = selectors.DefaultSelector(), {}
    ended, wakeup = socket.socketpair()
    for end in (ended, wakeup):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup.fileno())
    for source in (listener, ended, sys.stdin):
        selector.register(source, selectors.EVENT_READ)
    while True:
        for source in [key.fileobj for key, _ in selector.select()]:
            if source is sys.stdin:
                return None
            if source is listener:
                connection, _ = listener.accept()
                length, streams, *_ = socket.recv_fds(connection, 8, 3)
                with connection.makefile("rb") as requests:
                    request = json.loads(requests.read(int.from_bytes(length, "big")))
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    for own in (selector, ended, wakeup, listener, connection, *connections.values()):
                        own.close()
                    return request, streams
                for stream in streams:
                    os.close(stream)
                connection.sendall(f"{pid}\n".encode())
                connections[pid] = connection
                selector.register(connection, selectors.EVENT_READ, pid)
            elif source is ended:
                ended.recv(4096)
                _report_ends(connections, selector)
            elif source.fileno() >= 0:  # its client has ended
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(selector.get_key(source).data, signal.SIGKILL)
                selector.unregister(source)


def _report_ends(connections, selector):
    while connections:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        connection = connections.pop(pid)
        with contextlib.suppress(KeyError):
            selector.unregister(connection)
        with contextlib.suppress(OSError):
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        connection.close()


def become(words, env, cwd, executable, streams):
    """Become the program: a session, streams, environment, folder, sys.path and sys.argv of its own, then its code.

    A `sitecustomize` in PYTHONPATH is run, as at the start of an interpreter.
    """
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # New objects, because Python keeps for each whether its file can be sought; a line at a time where asked for no
    # buffer.
    sys.stdout = os.fdopen(1, "w", 1 if env.get("PYTHONUNBUFFERED") else -1, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(env)
    if "jax" in sys.modules:
        configure_jax(env)
    os.chdir(cwd)
    script = os.path.abspath(words[0])
    own = {str(Path(__file__).parent), ""}
    sys.path[:] = [
        str(Path(script).parent),
        *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)),
        *(path for path in sys.path if path not in own),
    ]
    sys.argv[:] = words
    sys.executable = executable or sys.executable
    sys.modules.pop("sitecustomize", None)
    site.execsitecustomize()
    runpy.run_path(script, run_name="__main__")


def configure_jax(env):
    """Give JAX the settings that it reads from the environment when it is imported."""
    import jax

    for name, of_text in (
        ("jax_platforms", str),
        ("jax_compilation_cache_dir", str),
        ("jax_persistent_cache_min_compile_time_secs", float),
    ):
        if name.upper() in env:
            jax.config.update(name, of_text(env[name.upper()]))


def keep_code():
    """Compile the modules of the project once: without bytecode files each program compiles 240 of them."""
    root = Path(__file__).parent.parent
    folders = ("dataset", "efficientdet", "model", "object_detection", "program_support")
    files = [*root.glob("*.py"), *(file for folder in folders for file in (root / folder).rglob("*.py"))]
    codes = {str(file): compile(file.read_bytes(), file, "exec", dont_inherit=True) for file in files}
    load = SourceFileLoader.get_code
    SourceFileLoader.get_code = lambda loader, name: codes.get(loader.path) or load(loader, name)


def main():
    import keras  # noqa: F401 - for the programs
    import tensorboard.summary.writer.record_writer  # noqa: F401 - and with it boto3
    import tensorflow as tf  # noqa: F401

    keep_code()
    gc.freeze()  # a collection in a program leaves the pages of the packages shared
    gc.set_threshold(100_000, 50, 100)  # tracing makes many objects and little garbage
    listener = socket.socket(fileno=int(sys.argv[1]))
    asked = serve(listener)
    if asked:
        request, streams = asked
        os._exit(_exit_code(lambda: become(**request, streams=streams)))


def _exit_code(program):
    """Run the program as the interpreter does, without the cleanup of every module at the end, which takes seconds."""
    code = 0
    try:
        program()
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code & 0xFF


if __name__ == "__main__":
    main()
