"""A training of two ranks over Horovod of which one is killed or stopped at many moments, and what becomes of it.

    python tests/endurance_horovod.py [--moments=10] [--seed=0]

At each moment one of the two ranks gets SIGKILL or SIGSTOP, in turns; the same command resumes the training until the
next moment, and at last to its end. Its numbers are compared bit for bit with those of a training that nothing happened
to. Ends with 1 where a launcher does not end, a checkpoint is damaged, or a number differs.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import forked_programs
import psutil
from drawn_records import draw_records
from endurance_run import LAUNCHER, PHASES, Course, differences, kill_all, wait_until

from efficientdet.checkpoints.checkpoint import read_arrays
from program_support.errors import InputError

DEADLINE = 10  # seconds; HOROVOD_STALL_SHUTDOWN_TIME_SECONDS
_MOMENTS = (
    "start-up",
    "steps",
    "checkpoint",
    "evaluation",
    "steps",
    "checkpoint",
    "evaluation",
    "steps",
    "export",
    "start-up",  # not the report, during which one rank has ended
)
_MOST_SECONDS = 240.0  # until the launcher has ended


class Ranks(Course):
    """A training of two ranks, which are forks of a server with TensorFlow imported."""

    def command(self) -> list[str]:
        """The whole command line."""
        words = super().command()[len(LAUNCHER) :]
        return [*LAUNCHER, *(forked_programs.python() if word == sys.executable else word for word in words)]

    def pids(self) -> list[int]:
        """The processes of the ranks."""
        children = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
        [server] = [each for each in children if any("fork_server" in word for word in each.cmdline())]
        return [each.pid for each in server.children() if each.status() != psutil.STATUS_ZOMBIE]

    def checkpoints(self) -> tuple[list[int], list[str]]:
        """The steps of the checkpoints, and what cannot be read."""
        steps, damaged = [], []
        for file in self.folder.glob("ckpt-*.index"):
            try:
                steps.append(int(read_arrays(str(file.with_suffix("")))["global_step"]))
            except InputError as error:
                damaged.append(str(error))
        return sorted(steps), damaged


def disturbed(course: Ranks, phase: str, number: int, *, chance: random.Random) -> tuple[bool, str]:
    """Start the training and send a signal to a rank at a random moment of a phase; whether all is right."""
    steps, _ = course.checkpoints()
    process = course.start()
    try:
        reached = wait_until(lambda: course.is_in(phase) and len(course.pids()) == 2, process, seconds=1800)
        if not reached:
            return process.poll() == 0, f"over before, exit code {process.poll()}"
        time.sleep(chance.uniform(0.0, PHASES[phase]))
        both = course.pids()
        if len(both) < 2:
            return True, "over before"
        victim, other = chance.sample(both, 2)
        os.kill(victim, number)
        began = time.monotonic()
        wait_until(lambda: other not in course.pids(), process, seconds=_MOST_SECONDS)
        alone = time.monotonic() - began
        wait_until(lambda: False, process, seconds=_MOST_SECONDS)
        seconds, code, remaining = time.monotonic() - began, process.poll(), course.pids()
        found, damaged = course.checkpoints()
        lost = [step for step in steps[-1:] if step > max(found, default=0)]
        right = code not in (None, 0) and not remaining and not damaged and not lost
        return right, (
            f"the other rank ended after {alone:.0f} s, the launcher with {code} after {seconds:.0f} s, "
            f"{len(remaining)} processes remain; checkpoints after steps {found}{'; '.join(damaged)}"
        )
    finally:
        for each in course.pids():
            os.kill(each, signal.SIGKILL)
        kill_all(process)


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

        def course(model_dir: str) -> Ranks:
            return Ranks(
                drawn,
                folder / model_dir,
                launcher=LAUNCHER,
                batch_size=2,
                num_epochs=4,
                env={"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(DEADLINE)},
            )

        undisturbed, training = course("undisturbed"), course("disturbed")
        ended = undisturbed.run()
        print(f"undisturbed: exit code {ended.code}, {ended.seconds:.0f} s", flush=True)
        if ended.code:
            print(ended.output)
            return 1
        for moment in range(options.moments):
            phase, number = _MOMENTS[moment % len(_MOMENTS)], (signal.SIGKILL, signal.SIGSTOP)[moment % 2]
            right, outcome = disturbed(training, phase, number, chance=chance)
            wrong += not right
            print(f"{'right' if right else 'WRONG'}  {number.name}, {phase}: {outcome}", flush=True)
            if not right:
                print(training.log.read_text()[-3000:])
        ended = training.run()
        different = differences(training.folder, undisturbed.folder) if not ended.code else [f"exit code {ended.code}"]
        print(f"{'WRONG' if different else 'right'}  left alone: {'; '.join(different) or 'every number is equal'}")
    return 1 if wrong or different else 0


if __name__ == "__main__":
    sys.exit(main())
