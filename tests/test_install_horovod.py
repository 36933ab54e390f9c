"""scripts/install_horovod.sh with a Python, a compiler and libraries that are shell scripts.

Nothing is downloaded or built; scripts/test.sh calls the script itself, and that builds, installs and checks Horovod.
"""

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = (
    "awk",
    "bash",
    "cat",
    "dirname",
    "env",
    "flock",
    "grep",
    "gzip",
    "ln",
    "mkdir",
    "mv",
    "nproc",
    "rm",
    "setsid",
    "sha256sum",
    "sleep",
    "tail",
    "tar",
    "timeout",
    "touch",
    "tr",
)

# The Python in .venv. It writes down what it is asked for. $TENSORFLOW is the version it has; $TOOLS, $BUILD, $INSTALL
# and $CHECK are run while pip fetches the build tools, builds the wheel and installs it, and while horovodrun runs.
PYTHON = """#!/bin/bash
packages="${0%/bin/python}/lib/python3.12/site-packages" asked="$*"
record() { echo "$1" >>"$HOME/calls"; }
case "$asked" in
*"sys.exit(not (3, 11)"* | "-m pip --version" | *" --editable ."*) exit 0 ;;
*importlib.metadata*) echo "cpython-312-x86_64-linux-gnu $TENSORFLOW 2.36 $packages" ;;
*" --target "*) record tools; eval "$TOOLS" ;;
"-m pip download "*)
    folder="${asked#*--dest }"
    mkdir -p "${folder% *}" && cd "${folder% *}" && mkdir -p horovod-0.28.1/horovod/{common/gloo,runner,tensorflow}
    echo "  ${CONTROLLER:-global_ranks_.reserve(size_)};" >horovod-0.28.1/horovod/common/gloo/gloo_controller.cc
    echo "GpuStreamHandle AsGpuStreamValue(Stream* stream);" >horovod-0.28.1/horovod/tensorflow/mpi_ops.cc
    echo "from distutils.spawn import find_executable" >horovod-0.28.1/horovod/runner/js_run.py
    tar -czf horovod-0.28.1.tar.gz horovod-0.28.1
    ;;
"-m pip wheel "*)
    record build
    export | grep -E ' (HOROVOD|CPLUS|LDFLAGS|MAKEFLAGS|PYTHONPATH)' >"$HOME/settings"
    cat "${@: -1}"/horovod/{common/gloo/gloo_controller.cc,runner/js_run.py} >"$HOME/source"
    folder="${asked#*--wheel-dir }"
    touch "${folder% *}/horovod-0.28.1-cp312-cp312-linux_x86_64.whl"
    eval "$BUILD"
    ;;
*" --force-reinstall "*)
    record install
    mkdir -p "$packages/horovod/tensorflow" "$packages/horovod-0.28.1.dist-info"
    touch "$packages/horovod/tensorflow/mpi_lib.cpython-312.so"
    eval "$INSTALL"
    ;;
*" --no-index "*) exit 0 ;;
"-m horovod.runner.launch -np 2 --gloo "*) record check; eval "$CHECK" ;;
*) echo "Python was asked for $asked" >&2; exit 9 ;;
esac
"""


class Machine:
    """A home, the programs in its PATH, and checkouts whose folders have a space in their names."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        (folder / "bin").mkdir()
        for tool in TOOLS:
            (folder / "bin" / tool).symlink_to(shutil.which(tool))
        for tool in ("c++", "make"):
            self.add(tool, "exit 0")

    def add(self, program, body):
        path = self.folder / "bin" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def add_cuda(self):
        self.add("cuda/bin/nvcc", "echo release 12.9")
        include = self.folder / "bin" / "cuda" / "include"
        include.mkdir()
        (include / "cuda_runtime.h").touch()
        return str(include.parent)

    def remove(self, program):
        (self.folder / "bin" / program).unlink()

    def checkout(self, name="a b"):
        root = self.folder / name
        (root / "scripts").mkdir(parents=True)
        for script in ("environment.sh", "install_horovod.sh", "usage.sh"):
            shutil.copy(ROOT / "scripts" / script, root / "scripts")
        (root / "pyproject.toml").write_text("one\n")
        python = root / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(PYTHON)
        python.chmod(0o755)
        return root

    def start(self, root, **settings):
        environment = {
            "PATH": str(self.folder / "bin"),
            "HOME": str(self.home),
            "TENSORFLOW": "2.21.0",
            "HOROVOD_CUDA_HOME": str(self.folder / "no CUDA"),
            **settings,
        }
        return subprocess.Popen(
            ["bash", str(root / "scripts" / "install_horovod.sh")],
            cwd="/",
            text=True,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def call(self, root, **settings):
        process = self.start(root, **settings)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def last_line(self, root, **settings):
        code, out, err = self.call(root, **settings)
        assert (code, err) == (0, "")
        return out.splitlines()[-1]

    def failure(self, root, **settings):
        code, _, err = self.call(root, **settings)
        assert code == 2, err
        assert err.startswith("install_horovod.sh: error: ")
        assert err.count("\n") == 1
        return err

    def calls(self):
        path = self.home / "calls"
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return text.split()

    def cached(self, suffix=""):
        """Folders of the cache whose name ends so; without a suffix those that count as whole."""
        folders = [path for path in (self.home / ".cache" / "efficientdet" / "horovod").glob("*") if path.is_dir()]
        return [path for path in folders if path.suffix == suffix or (not suffix and path.suffix != ".building")]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_builds_once_for_all_checkouts_and_installs_once_in_each(machine):
    first, second = machine.checkout(), machine.checkout("c d")
    assert re.fullmatch(r"horovod 0\.28\.1 \(gloo\): two processes agree; built in \d+ s", machine.last_line(first))
    assert machine.calls() == ["tools", "build", "install", "check"]
    assert "two processes agree; from cache in" in machine.last_line(second)
    assert machine.calls() == ["install", "check"]
    assert "two processes agree; was installed; checked in" in machine.last_line(first)
    assert machine.calls() == ["check"]
    assert [path.name for path in machine.cached()[0].iterdir()] == ["horovod-0.28.1-cp312-cp312-linux_x86_64.whl"]
    assert machine.cached(".building") == []


def test_nccl_of_pip_comes_before_the_one_of_cuda(machine):
    """TensorFlow loads pip's, and a process has one libnccl.so.2: header and library are of that version."""
    root = machine.checkout()
    cuda = machine.add_cuda()
    (machine.folder / "bin" / "cuda" / "include" / "nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n")
    ours = root / ".venv" / "lib" / "python3.12" / "site-packages" / "nvidia" / "nccl"
    (ours / "include").mkdir(parents=True)
    (ours / "lib").mkdir()
    (ours / "include" / "nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 32\n")
    (ours / "lib" / "libnccl.so.2").touch()
    look = (
        'home=$HOROVOD_NCCL_HOME; grep MINOR "$home/include/nccl.h" >"$HOME/header"; '
        'readlink -f "$home/lib/libnccl.so" >"$HOME/lib"'
    )
    (machine.folder / "bin" / "readlink").symlink_to(shutil.which("readlink"))
    assert machine.last_line(root, HOROVOD_CUDA_HOME=cuda, BUILD=look).startswith(
        "horovod 0.28.1 (gloo, nccl): two processes"
    )
    assert (machine.home / "header").read_text() == "#define NCCL_MINOR 32\n"
    assert (machine.home / "lib").read_text().strip() == str((ours / "lib" / "libnccl.so.2").resolve())
    settings = (machine.home / "settings").read_text()
    assert 'HOROVOD_NCCL_LINK="SHARED"' in settings
    assert "HOROVOD_NCCL_INCLUDE" not in settings
    assert "nvidia/nccl/lib" in settings  # the loader's path


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        ("c++", "no C++17 compiler found; install one, for example: apt install g++ make"),
        ("make", "make not found; install it, for example: apt install make"),
    ],
)
def test_what_to_install(machine, absent, message):
    machine.remove(absent)
    assert message in machine.failure(machine.checkout())
    assert machine.calls() == []
    assert machine.cached() == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {
                "BUILD": "echo '  /x/a.cc:3:1: fatal error: b.h: No such file'; "
                "echo 'ERROR: Failed building wheel for horovod'; exit 1"
            },
            "cannot build Horovod: /x/a.cc:3:1: fatal error: b.h: No such file (log: ",
        ),
        (
            {"BUILD": "echo '  CMake Error at f.cmake:3 (x):'; echo '    Could NOT find MPI'; exit 1"},
            "cannot build Horovod: CMake Error at f.cmake:3 (x): Could NOT find MPI",
        ),
        ({"BUILD": "echo 'c++: fatal error: Killed signal terminated program cc1plus'; exit 1"}, "for lack of memory?"),
    ],
)
def test_failed_build_is_one_line_leaves_nothing_and_is_tried_again(machine, settings, message):
    root = machine.checkout()
    assert message in machine.failure(root, **settings)
    assert machine.cached() == machine.cached(".building") == []
    assert "built in" in machine.last_line(root)


def test_cache_that_cmake_cannot_work_in_is_refused(machine):
    assert "set XDG_CACHE_HOME to a folder without spaces" in machine.failure(machine.checkout(), XDG_CACHE_HOME="/x y")
    assert "set XDG_CACHE_HOME to a folder" in machine.failure(machine.checkout("c"), XDG_CACHE_HOME="/proc/none")


def test_calls_at_once_build_once(machine):
    first, second = machine.checkout(), machine.checkout("c d")
    processes = [machine.start(root, BUILD="sleep 1") for root in (first, second, first)]
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(machine.calls()) == ["build"] + ["check"] * 3 + ["install"] * 2 + ["tools"]
    assert sum("waiting for another installation" in out for out, _ in results) == 2


def start_and_await_build(machine, root, **settings):
    process = machine.start(root, BUILD='sleep "${SECONDS_TO_BUILD:-60}" & echo $! >"$HOME/build"; wait', **settings)
    for _ in range(1000):
        if (machine.home / "build").exists() and (machine.home / "build").read_text():
            return process, int((machine.home / "build").read_text())
        time.sleep(0.02)
    raise TimeoutError("the build does not start")


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_signal_ends_the_build_too_and_leaves_nothing(machine):
    root = machine.checkout()
    process, build = start_and_await_build(machine, root)  # a child of the build, as compilers are
    process.terminate()
    process.communicate(timeout=10)
    assert process.returncode == 143
    for _ in range(100):
        if not is_running(build):
            break
        time.sleep(0.05)
    assert not is_running(build)
    assert machine.cached() == machine.cached(".building") == []
    assert "built in" in machine.last_line(root)
