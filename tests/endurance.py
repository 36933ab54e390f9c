"""Trainings that are killed, interrupted or starved of disk, and what becomes of them.

    python tests/endurance.py [--kills=20] [--seed=0] [--only=kills,signals,stops,disks,record]

Every run is a whole `train.py` (see endurance_run.py); wherever one is gone on with, all its numbers are compared bit
for bit with those of one that nothing happened to. Ends with 1 where anything is not as it should be. About twenty
minutes on two cores; without root the rows of the disks say so. Two ranks: endurance_horovod.py, endurance_jax.py.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import tensorflow as tf
from drawn_records import Drawn, draw_records
from endurance_run import PHASES, Course, Ended, differences, one_line

from efficientdet.checkpoints.checkpoint import read_arrays
from program_support.errors import InputError


class Row(NamedTuple):
    """One thing that was done."""

    what: str
    outcome: str
    is_right: bool


class Place(NamedTuple):
    """Where everything lies, and what an undisturbed run left."""

    folder: Path
    drawn: Drawn
    undisturbed: Path
    forked: bool  # whether trainings are forks of a process with TensorFlow imported

    def course(self, name: str, **settings) -> Course:
        """A new training."""
        return Course(self.drawn, self.folder / name, forked=self.forked, **settings)


def prepared(folder: Path, *, forked: bool) -> Place:
    """Records and the undisturbed run."""
    (folder / "data").mkdir(parents=True)
    place = Place(folder, draw_records(folder / "data", images={"train": 16, "val": 4}), folder / "undisturbed", forked)
    ended = place.course("undisturbed").run()
    if ended.code:
        raise SystemExit(f"the undisturbed run failed:\n{ended.output}")
    print(f"an undisturbed run takes {ended.seconds:.0f} s", flush=True)
    return place


def compared(course: Course, place: Place, what: str, ended: Ended | None = None) -> Row:
    """Go on to the end, unless it has `ended`, and compare."""
    what, ended = (what, ended) if ended else (f"{what}, then left alone", course.run())
    different = differences(course.folder, place.undisturbed) if ended.code == 0 else [f"exit code {ended.code}"]
    return Row(what, "; ".join(different) or "every number as of the undisturbed run", not different)


def kills(place: Place, *, number: int, chance: random.Random) -> Iterator[Row]:
    """SIGKILL at random moments of every phase, one after the other in one training."""
    course, phases = place.course("killed"), list(PHASES)
    early = [phase for phase in phases if phase not in ("export", "report")]
    order = [early[i % len(early)] for i in range(number - number // 4)]
    chance.shuffle(order)
    order += [("export", "report", "export", "start-up")[i % 4] for i in range(number // 4)]
    for phase in order:
        ended = course.end_in(phase, signal.SIGKILL, chance)
        yield Row(
            f"SIGKILL, {phase}",
            _stand(course) if ended.in_time else "it was over before",
            "Traceback" not in ended.output,
        )
    yield compared(course, place, f"{number} x SIGKILL")


def signals(place: Place, *, chance: random.Random) -> Iterator[Row]:
    """SIGTERM and Ctrl-C in every phase."""
    for name, number, code in (("SIGTERM", signal.SIGTERM, 143), ("Ctrl-C", signal.SIGINT, 130)):
        course = place.course(f"asked-{code}")
        for phase in PHASES:
            ended = course.end_in(phase, number, chance)
            # Before Python runs our first line only the signal itself can end it; a shell says the same code.
            right = (not ended.in_time or ended.code in (code, 0, -number)) and "Traceback" not in ended.output
            over = "" if ended.in_time and ended.code else " (it was just over)"
            yield Row(
                f"{name}, {phase}", f"exit code {ended.code}{over} after {ended.seconds:.1f} s; {_stand(course)}", right
            )
        yield compared(course, place, f"6 x {name}")


def stops(place: Place, *, chance: random.Random) -> Iterator[Row]:
    """SIGSTOP in every phase, and SIGCONT."""
    for phase in PHASES:
        course = place.course(f"stopped-{phase}")
        ended = course.end_in(phase, signal.SIGSTOP, chance)
        yield compared(course, place, f"SIGSTOP, {phase}{'' if ended.in_time else ' (it was over before)'}", ended)


def disks(place: Place) -> Iterator[Row]:
    """A disk that fills up, and one that is read-only."""
    disk = place.folder / "disk"
    disk.mkdir()
    wanted = sum(len(content) for content in _contents(place.undisturbed).values())
    if os.geteuid() or _mount("-t", "tmpfs", "-o", f"size={wanted // 2}", "tmpfs", disk):
        yield Row("a full disk, a read-only disk", "not done: a file system can be mounted by root alone", True)
        return
    try:
        course = place.course("disk/model")
        course.log = place.folder / "disk.log"
        ended = course.run()
        yield Row(
            "a disk that fills up",
            f"exit code {ended.code}: {one_line(ended.output)}",
            ended.code == 2 and "no space left" in one_line(ended.output),
        )
        yield Row("its checkpoints", _stand(course), _are_whole(course.folder))
        before = _contents(course.folder)
        _mount("-o", "remount,ro", disk)
        ended = course.run()
        yield Row(
            "the same disk, read-only",
            f"exit code {ended.code}: {one_line(ended.output)}",
            ended.code == 2 and "Read-only" in one_line(ended.output) and _contents(course.folder) == before,
        )
        _mount("-o", "remount,rw,size=64m", disk)
        yield compared(course, place, "room made on it")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _mount(*arguments) -> int:
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True).returncode


def record(place: Place) -> Iterator[Row]:
    """A JPEG that is cut short in a record whose checksum is right."""
    path = place.drawn.records("train")[0]
    whole = Path(path).read_bytes()
    payloads = [payload.numpy() for payload in tf.data.TFRecordDataset(path)]
    message = tf.train.Example.FromString(payloads[2])
    encoded = message.features.feature["image/encoded"].bytes_list
    encoded.value[0] = encoded.value[0][: len(encoded.value[0]) * 2 // 3]
    file_name = message.features.feature["image/filename"].bytes_list.value[0].decode()
    course = place.course("record")
    with tf.io.TFRecordWriter(path) as writer:
        for payload in [*payloads[:2], message.SerializeToString(), *payloads[3:]]:
            writer.write(payload)
    try:
        ended = course.run()
    finally:
        Path(path).write_bytes(whole)
    line = one_line(ended.output).replace(str(place.folder), "...")
    yield Row(
        "a truncated JPEG in the middle of an epoch",
        f"exit code {ended.code}: {line}; {_stand(course)}",
        ended.code == 2 and file_name in line and Path(path).name in line,
    )
    yield compared(course, place, "the record made whole")


def _stand(course: Course) -> str:
    steps = [
        int(match[1])
        for file in course.folder.glob("ckpt-*.index")
        if (match := re.fullmatch(r"ckpt-(\d+)", file.stem))
    ]
    return f"checkpoints after steps {', '.join(map(str, sorted(steps)))}" if steps else "no checkpoint yet"


def _are_whole(folder: Path) -> bool:
    try:
        return [bool(read_arrays(str(file.with_suffix("")))) for file in folder.glob("ckpt-*.index")] != []
    except InputError:
        return False


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def endure(folder: Path, *, number: int, seed: int, only: tuple[str, ...], forked: bool = False) -> list[Row]:
    """Do the sections, telling each row as it comes."""
    place, chance, rows = prepared(folder, forked=forked), random.Random(seed), []
    sections = {
        "kills": lambda: kills(place, number=number, chance=chance),
        "signals": lambda: signals(place, chance=chance),
        "stops": lambda: stops(place, chance=chance),
        "disks": lambda: disks(place),
        "record": lambda: record(place),
    }
    for name in only or sections:
        for row in sections[name]():
            rows.append(row)
            print(f"{'right' if row.is_right else 'WRONG'}  {row.what}: {row.outcome}", flush=True)
    return rows


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="names of sections, separated by commas")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="endurance-") as folder:
        rows = endure(
            Path(folder),
            number=arguments.kills,
            seed=arguments.seed,
            only=tuple(filter(None, arguments.only.split(","))),
        )
    wrong = sum(not row.is_right for row in rows)
    print(f"{len(rows)} rows, {wrong} wrong, {(time.monotonic() - began) / 60:.0f} minutes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
