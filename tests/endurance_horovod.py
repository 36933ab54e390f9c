"""A training of two ranks over Horovod of which a rank or the launcher is killed or stopped, and what becomes of it.

    python tests/endurance_horovod.py [--only=rank,first,stopped,launcher,paused,held] [--seed=0]

A kind has one training. At a random moment of each of its phases a process gets the signal; the same command resumes
the training until the next moment, and at last to its end. Its numbers are compared bit for bit with those of a
training that nothing happened to. Each rank is an interpreter with a hash seed of its own, and --hparams has five keys.
Ends with 1 where a process remains, a checkpoint is damaged, or a number differs.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import psutil
from drawn_records import draw_records
from endurance_run import LAUNCHER, PHASES, Course, differences, kill_all, wait_until

from efficientdet.checkpoints.checkpoint import read_arrays
from program_support.errors import InputError

DEADLINE = 10  # seconds; HOROVOD_STALL_SHUTDOWN_TIME_SECONDS
_MOST_SECONDS = 240.0  # until all processes have ended
_EARLY = ("start-up", "steps", "checkpoint", "evaluation")


class Kind(NamedTuple):
    """An interruption of a training."""

    victim: str  # any, first (rank 0) or launcher
    signal: signal.Signals
    phases: tuple[str, ...]  # not the report, during which one rank has ended
    pause: float = 0.0  # seconds until SIGCONT; 0: none


KINDS = {
    "rank": Kind("any", signal.SIGKILL, (*_EARLY, "export")),
    "first": Kind("first", signal.SIGKILL, (*_EARLY, "export")),
    "stopped": Kind("any", signal.SIGSTOP, _EARLY),
    "launcher": Kind("launcher", signal.SIGKILL, (*_EARLY, "export")),
    "paused": Kind("any", signal.SIGSTOP, _EARLY, pause=DEADLINE / 3),
    "held": Kind("any", signal.SIGSTOP, _EARLY, pause=DEADLINE * 4),
}


class Ranks(Course):
    """A training of two ranks."""

    def ranks(self) -> list[psutil.Process]:
        """Return the processes of the ranks that run, also without a launcher, in their order."""
        words = {"train.py", f"--model_dir={self.folder}"}
        running = {}
        for process in psutil.process_iter():
            try:
                if process.name().startswith("python") and words <= {
                    Path(process.cmdline()[1]).name,
                    *process.cmdline(),
                }:
                    running[int(process.environ()["HOROVOD_RANK"])] = process
            except (psutil.Error, IndexError, KeyError):  # it ended or begins
                continue
        return [running[rank] for rank in sorted(running)]

    def checkpoints(self) -> tuple[list[int], list[str]]:
        """The steps of the checkpoints, and what cannot be read."""
        steps, damaged = [], []
        for file in self.folder.glob("ckpt-*.index"):
            try:
                steps.append(int(read_arrays(str(file.with_suffix("")))["global_step"]))
            except InputError as error:
                damaged.append(str(error))
        return sorted(steps), damaged


def disturbed(course: Ranks, kind: Kind, phase: str, *, chance: random.Random) -> tuple[bool, int | None, str]:
    """Start the training and send a signal at a random moment of a phase.

    Returns whether all is right, the exit code, and a sentence.
    """
    steps, _ = course.checkpoints()
    process = course.start()
    try:
        reached = wait_until(lambda: course.is_in(phase) and len(course.ranks()) == 2, process, seconds=1800)
        time.sleep(chance.uniform(0.0, PHASES[phase]))
        ranks = course.ranks()
        if not reached or len(ranks) < 2:
            code = process.wait(timeout=_MOST_SECONDS)
            return code == 0, code, f"over before, exit code {code}"
        victim = ranks[0] if kind.victim == "first" else chance.choice(ranks)
        others = [rank for rank in ranks if rank != victim]
        if kind.victim == "launcher":
            victim, others = psutil.Process(process.pid), ranks
        victim.send_signal(kind.signal)
        began, ends = time.monotonic(), {}
        while len(ends) < 2 and time.monotonic() - began < _MOST_SECONDS:
            seconds = time.monotonic() - began
            if kind.pause and seconds > kind.pause and victim.is_running() and victim.status() == psutil.STATUS_STOPPED:
                victim.resume()
            if process.poll() is not None:
                ends.setdefault("launcher", seconds)
            if not any(rank in course.ranks() for rank in others):
                ends.setdefault("others", seconds)
            time.sleep(0.1)
        wait_until_ended = time.monotonic() + 5
        while course.ranks() and time.monotonic() < wait_until_ended:
            time.sleep(0.1)
        code, remaining = process.poll(), course.ranks()
        found, damaged = course.checkpoints()
        lost = [step for step in steps[-1:] if step > max(found, default=0)]
        right = code is not None and (code != 0 or bool(kind.pause)) and not (remaining or damaged or lost)
        times = ", ".join(f"{name} after {seconds:.0f} s" for name, seconds in ends.items())
        who = f"rank {ranks.index(victim)}" if victim in ranks else "launcher"
        return (
            right,
            code,
            (
                f"{who}; ended: {times}; exit code {code}, {len(remaining)} processes remain; checkpoints after steps "
                f"{found}{'; '.join(damaged)}"
            ),
        )
    finally:
        for rank in course.ranks():
            rank.kill()
        kill_all(process)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(KINDS), help="names of kinds, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ.pop("PYTHONHASHSEED", None)
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
                hparams={"label_smoothing": 0.1},  # the fifth key
                env={"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(DEADLINE)},
            )

        def report(right: bool, text: str, training: Ranks) -> None:
            nonlocal wrong
            wrong += not right
            print(f"{'right' if right else 'WRONG'}  {text}", flush=True)
            if not right:
                print(training.log.read_text()[-3000:], flush=True)

        undisturbed = course("undisturbed")
        ended = undisturbed.run()
        print(f"undisturbed: exit code {ended.code}, {ended.seconds:.0f} s", flush=True)
        if ended.code:
            print(ended.output)
            return 1
        for kind in options.only.split(","):
            moments = iter(KINDS[kind].phases)
            number, phase = 0, next(moments, None)
            while phase:
                number += 1
                training, code = course(f"{kind}-{number}"), None
                while phase and code != 0:
                    right, code, outcome = disturbed(training, KINDS[kind], phase, chance=chance)
                    report(right, f"{kind}, {phase}: {outcome}", training)
                    phase = next(moments, None)
                code = training.run().code if code else 0
                different = differences(training.folder, undisturbed.folder) if code == 0 else [f"exit code {code}"]
                report(
                    not different, f"{kind}, at its end: {'; '.join(different) or 'every number is equal'}", training
                )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
