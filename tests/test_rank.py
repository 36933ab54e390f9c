"""scripts/k8s/rank.py: separately started ranks find each other at Horovod's server."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_distributed import needs_horovod
from text_tables import rows

pytestmark = needs_horovod

RANK = Path(__file__).parents[1] / "scripts" / "k8s" / "rank.py"
SHOW = (
    "import os; "
    "print(*(os.environ[f'HOROVOD_{key}'] for key in ('RANK', 'SIZE', 'LOCAL_RANK', 'GLOO_RENDEZVOUS_PORT')))"
)


@pytest.fixture
def port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(rank, size, port, program, *flags):
    return subprocess.Popen(
        [
            sys.executable,
            str(RANK),
            f"--size={size}",
            f"--meet_at=localhost:{port}",
            *flags,
            "--",
            sys.executable,
            "-c",
            program,
        ],
        env={
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "JOB_COMPLETION_INDEX": str(rank),
        },
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ends(process):
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def test_all_ranks_start_when_the_last_one_is_there(port):
    others = [start(rank, 3, port, SHOW) for rank in (2, 1)]  # before the one at which they meet
    time.sleep(1)
    assert [process.poll() for process in others] == [None, None]
    first = start(0, 3, port, SHOW)
    assert [ends(process)[:2] for process in (first, *others[::-1])] == [
        (0, f"{rank} 3 0 {port}\n") for rank in range(3)
    ]


def test_exit_codes_and_signals(port):
    waits = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
        "print('ready', flush=True); time.sleep(60)"
    )
    pair = [start(0, 2, port, waits), start(1, 2, port, "import sys; sys.exit(7)")]
    assert pair[0].stdout.readline() == "ready\n"
    assert ends(pair[1])[0] == 7
    pair[0].send_signal(signal.SIGTERM)
    assert ends(pair[0])[0] == 143
    assert ends(start(0, 1, port, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))[0] == 137


def test_one_that_does_not_come_is_told(port):
    code, _, errors = ends(start(0, 3, port, SHOW, "--wait=1"))
    assert (code, errors) == (
        2,
        f"rank.py: error: 127.0.0.1:{port}: waiting for ranks 1, 2: timed out (--wait)\n",
    )
    code, _, errors = ends(start(1, 2, port, SHOW, "--wait=1"))
    assert (code, errors) == (
        2,
        f"rank.py: error: http://localhost:{port}/arrived/1: no answer: timed out (--wait)\n",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    rows(r"""
['--size=2', '--meet_at=host', '--rank=0', '--', 'x'] | --meet_at=host: expected HOST:PORT
['--size=2', '--meet_at=host:70000', '--rank=0', '--', 'x'] | --meet_at=host:70000: expected HOST:PORT
['--size=2', '--meet_at=host:1', '--', 'x'] | --rank=None --size=2: expected a rank from 0 to size - 1
['--size=2', '--meet_at=host:1', '--rank=2', '--', 'x'] | --rank=2 --size=2: expected a rank
['--size=2', '--meet_at=host:1', '--rank=0'] | no program given
['--size=1', '--meet_at=host:1', '--rank=0', '--', '/nowhere/x'] | No such file
['--size=many', '--meet_at=host:1'] | --size
"""),
)
def test_mistakes(words, message):
    env = {key: value for key, value in os.environ.items() if key != "JOB_COMPLETION_INDEX"}
    done = subprocess.run([sys.executable, str(RANK), *words], capture_output=True, text=True, env=env)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_two_ranks_agree_on_a_sum(port):
    program = (
        "import horovod.tensorflow as hvd, tensorflow as tf; hvd.init(); "
        "print(hvd.rank(), float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum)))"
    )
    pair = [start(rank, 2, port, program) for rank in range(2)]
    assert [ends(process)[:2] for process in pair] == [(0, "0 3.0\n"), (0, "1 3.0\n")]
