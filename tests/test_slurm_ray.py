"""scripts/slurm/ray.sub: with stand-ins of Slurm and Ray, and with two real Ray nodes on this machine."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import SCRIPTS, executable

SRUN = r"""
tasks=1
while [[ "$1" == --* ]]; do
    printf '%s\n' "$1" >>"$RECORD"
    [[ "$1" != --ntasks=* ]] || tasks="${1#*=}"
    shift
done
children=()
for ((task = 0; task < tasks; task++)); do
    SLURM_NODEID=$task SLURM_CPUS_ON_NODE=1 "$@" &
    children+=($!)
done
trap 'kill -TERM "${children[@]}"' TERM
for child in "${children[@]}"; do
    while kill -0 "$child" 2>/dev/null; do wait "$child"; done
done
"""
# Ray as ray.sub sees it: an address in the head's folder, a process that runs until a signal
RAY = r"""
for word; do
    case "$word" in
    --temp-dir=*) folder="${word#*=}" ;;
    --head) head=yes ;;
    esac
done
printf '%s\n' "$@" >>"$RECORD"
[[ -z "${RAY_FAILS:-}" ]] || { printf "%s\\n" started "raylet [exit code=-9]" "The rest will be killed."; exit 1; }
echo "$folder" >>"$RECORD.joined"
[[ -z "${head:-}" ]] || echo 192.0.2.1:4321 >"$folder/ray_current_cluster"
trap 'exit 1' TERM
while :; do sleep 0.1; done
"""
PYTHON = r"""
[[ "$1" != -c || "$2" == *ray.nodes* ]] || { echo 23456; exit; }
[[ "$1" == -c ]] || exec "$REAL_PYTHON" "$@"
wc -l <"$RECORD.joined"
"""


@pytest.fixture
def job(tmp_path):
    """Return a starter of ray.sub in a job of three nodes; the checkout's environment has the stand-in of Ray."""
    root, tools = tmp_path / "checkout", tmp_path / "tools"
    shutil.copytree(SCRIPTS / "slurm", root / "scripts" / "slurm")
    shutil.copy(SCRIPTS / "usage.sh", root / "scripts")
    (root / ".venv" / "bin").mkdir(parents=True)
    tools.mkdir()
    executable(root / ".venv" / "bin" / "ray", RAY)
    executable(root / ".venv" / "bin" / "python", PYTHON)
    executable(tools / "scontrol", 'printf "%s\\n" n1 n2 n3')
    executable(tools / "srun", SRUN)
    number = f"test{os.getpid()}"
    environment = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "RECORD": str(tmp_path / "record"),
        "REAL_PYTHON": sys.executable,
        "SLURM_JOB_ID": number,
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_SUBMIT_DIR": str(root),
    }

    def start(*words, **variables):
        return subprocess.Popen(
            ["bash", str(root / "scripts" / "slurm" / "ray.sub"), *words],
            env=environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    yield start
    assert list(Path("/tmp").glob(f"ray-{number}-*")) == []


def finish(process, timeout=60):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def test_the_command_runs_once_all_nodes_are_there_and_its_exit_code_is_the_jobs(job, tmp_path):
    words = ("bash", "-c", 'printf "%s\\n" "$RAY_ADDRESS" "$RAY_AUTH_MODE" "${#RAY_AUTH_TOKEN}" "$@"; exit 7', "x")
    code, out, err = finish(job(*words, "a b", f"$(touch {tmp_path}/touched)", RAY_ADDRESS="other:1"))
    assert (code, err) == (7, "")
    first, *shown = out.splitlines()
    assert first.startswith("ray.sub: 3 nodes of Ray at 192.0.2.1:4321 after ")
    assert shown == ["192.0.2.1:4321", "token", "48", "a b", f"$(touch {tmp_path}/touched)"]
    assert not (tmp_path / "touched").exists()
    record = (tmp_path / "record").read_text().splitlines()
    assert {"--nodelist=n1", "--ntasks=1", "--exclude=n1", "--ntasks=2"} <= set(record)
    assert record.count("--head") == 1
    assert record.count("--address=192.0.2.1:4321") == 2
    assert record.count("--num-cpus=1") == 3


def test_a_stop_request_reaches_the_command_which_may_save(job, tmp_path):
    process = job("bash", "-c", f"trap 'echo saved; exit 3' TERM; touch {tmp_path}/up; while :; do sleep 0.1; done")
    while not (tmp_path / "up").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert (code, out.splitlines()[-1], err) == (3, "saved", "")


def test_nodes_that_do_not_come_are_one_line(job, tmp_path):
    executable(tmp_path / "tools" / "srun", SRUN.replace("((task = 0", "((task = tasks - 1"))  # one worker of two
    code, _, err = finish(job("true", RAY_START_SECONDS="3"))
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("ray.sub: error: 2 of 3 nodes of Ray after ")


def test_a_head_that_fails_is_reported_with_its_reason(job):
    code, _, err = finish(job("true", RAY_FAILS="yes"))
    reason, message = err.splitlines()
    assert code == 2
    assert reason.endswith("Ray ended with exit code 1: raylet [exit code=-9]")
    assert message.startswith("ray.sub: error: Ray did not start on n1 within ")


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        ((), {}, "no command; expected for example: python dataset/create_tfrecord.py --engine=ray"),
        (("true",), {"SLURM_JOB_ID": ""}, "not in a Slurm job; run it with sbatch"),
        (("true",), {"RAY_START_SECONDS": "1+x[$(id)]"}, "RAY_START_SECONDS=1+x[$(id)]; expected a number of seconds"),
        (("true",), {"PATH": "/usr/bin:/bin"}, "srun is not installed (no srun in PATH)"),
    ],
)
def test_mistakes(job, words, variables, message):
    code, out, err = finish(job(*words, **variables))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_two_real_nodes_share_the_work(job, tmp_path):
    """Each on ports and in a folder of its own, though all are on this machine."""
    executable(tmp_path / "tools" / "scontrol", 'printf "%s\\n" n1 n2')
    for name in ("ray", "python"):
        path = tmp_path / "checkout" / ".venv" / "bin" / name
        path.unlink()
        executable(path, f'exec "{Path(sys.executable).parent}/{name}" "$@"')
    program = tmp_path / "program.py"
    program.write_text(
        "import time\nimport ray\nray.init(log_to_driver=False)\n"
        "@ray.remote\ndef node():\n    time.sleep(1)\n    return ray.get_runtime_context().get_node_id()\n"
        "print('nodes', len(set(ray.get([node.remote() for _ in range(9)]))))\nraise SystemExit(7)\n"
    )
    code, out, _ = finish(job("python", str(program)), timeout=300)
    assert (code, out.splitlines()[-1]) == (7, "nodes 2")
