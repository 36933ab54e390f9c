"""Trainings of two ranks over Horovod of which one is killed or stopped, and what becomes of them.

    python tests/endurance_horovod.py [--moments=10] [--seed=0]

At each moment one of the two ranks gets SIGKILL, then, in another training, SIGSTOP; the same command resumes the
training until the next moment, and at last to its end. Its numbers are compared bit for bit with those of a training
that nothing happened to. Ends with 1 where a launcher does not end, or a number differs.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

from drawn_records import draw_records
from endurance import DEADLINE, _are_whole, _stand
from endurance_run import LAUNCHER, PHASES, Course, differences, kill_all, rank_process, wait_until

_MOMENTS = (
    "start-up",
    "steps",
    "steps",
    "checkpoint",
    "evaluation",
    "steps",
    "checkpoint",
    "evaluation",
    "export",
    "report",
)
_MOST_SECONDS = 180.0  # until the launcher has ended


def disturbed(course: Course, phase: str, number: int, *, rank: int, chance: random.Random) -> tuple[bool, str]:
    """Start the training, send a signal to a rank at a random moment of a phase; whether all ended, and how."""
    process = course.start()
    try:
        if not wait_until(lambda: course.is_in(phase), process):
            return process.poll() == 0, f"was over before, exit code {process.poll()}"
        time.sleep(chance.uniform(0.0, PHASES[phase]))
        victim, other = rank_process(course, rank), rank_process(course, 1 - rank)
        if victim is None:
            return True, "no rank had started, or all had ended"
        os.kill(victim, number)
        began = time.monotonic()
        wait_until(lambda: other is None or not is_alive(other), process, seconds=_MOST_SECONDS)
        alone = time.monotonic() - began
        with contextlib.suppress(Exception):
            process.wait(timeout=_MOST_SECONDS)
        code = process.poll()
        remaining = [each for each in (0, 1) if rank_process(course, each) is not None]
        whole = not list(course.folder.glob("ckpt-*.index")) or _are_whole(course.folder)
        seconds = time.monotonic() - began
        told = f"rank {1 - rank} ended after {alone:.0f} s, the launcher with {code} after {seconds:.0f} s"
        told += f", ranks {remaining} remain" if remaining else ""
        return code is not None and not remaining and whole, f"{told}; {_stand(course)}"
    finally:
        for each in (0, 1):
            if (pid := rank_process(course, each)) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        kill_all(process)


def is_alive(pid: int) -> bool:
    """Whether a process runs or is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, wrong = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory(prefix="endurance-") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        drawn = draw_records(folder / "data", images={"train": 16, "val": 4})

        def course(model_dir: str) -> Course:
            return Course(
                drawn,
                folder / model_dir,
                launcher=LAUNCHER,
                batch_size=2,
                env={"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(DEADLINE)},
            )

        undisturbed = course("undisturbed")
        ended = undisturbed.run()
        print(f"undisturbed: exit code {ended.code}, {ended.seconds:.0f} s", flush=True)
        if ended.code:
            print(ended.output)
            return 1
        for number in (signal.SIGKILL, signal.SIGSTOP):
            training = course(number.name)
            for moment in range(options.moments):
                phase, rank = _MOMENTS[moment % len(_MOMENTS)], chance.randrange(2)
                right, told = disturbed(training, phase, number, rank=rank, chance=chance)
                wrong += not right
                print(f"{'right' if right else 'WRONG'}  {number.name} to rank {rank}, {phase}: {told}", flush=True)
                if not right:
                    print(training.log.read_text()[-3000:])
            ended = training.run()
            different = differences(training.folder, undisturbed.folder) if not ended.code else [f"exit {ended.code}"]
            wrong += bool(different)
            print(f"{number.name}, then left alone: {'; '.join(different) or 'every number is equal'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
