"""Many command lines of the entry points in one process, in which tensorflow, keras and jax cannot be imported.

    python tests/command_lines.py < cases.json > outcomes.json

A case is [script, argument, ...]; its outcome has `code`, `stdout`, `stderr`, and `wanted`: which of the three packages
it came to import, beyond all checks of what the user gave (None: it ended before).
"""

import contextlib
import importlib
import importlib.abc
import io
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SLOW = ("tensorflow", "keras", "jax")


def outcomes(cases, *, cwd):
    """The outcome of each case, tried in the folder `cwd`."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps([list(map(str, case)) for case in cases]),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class _Wanted(BaseException):
    """Past every `except` of a program."""


class _Poison(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in SLOW:
            raise _Wanted(name)


def _outcome(script, arguments, *, kept):
    from absl import flags

    from program_support.command_line import run

    for name in set(flags.FLAGS) - kept:
        delattr(flags.FLAGS, name)
    module, code, wanted = importlib.import_module(script), 0, None
    sys.modules["__main__"].__doc__ = module.__doc__
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            module.define_flags()
            run(module.main, [f"{script}.py", *arguments])
        except SystemExit as end:
            code = end.code
        except _Wanted as package:
            wanted = str(package)
    return {"code": code, "stdout": stdout.getvalue(), "stderr": stderr.getvalue(), "wanted": wanted}


def _main():
    sys.path.insert(0, str(ROOT))
    sys.meta_path.insert(0, _Poison())
    from absl import flags

    kept = set(flags.FLAGS)
    found = [_outcome(case[0], case[1:], kept=kept) for case in json.load(sys.stdin)]
    assert not set(SLOW) & set(sys.modules)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main()
