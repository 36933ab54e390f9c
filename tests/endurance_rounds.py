"""SIGKILL at random moments of quick starts that continue, and of a server that trains in the background; full disks.

    python tests/endurance_rounds.py [--kills=10] [--seed=0] [--only=continue,disk,server,training]

`continue`: after each image that is added, the same call of quickstart.py is repeated and killed until it ends.
`disk`: the same on a disk that is full, and has half as much room again after each failure; needs root.
`server`: serve.py is Label Studio's backend beside a stand-in; a webhook starts a training, and the server is killed
and started again until it serves the new model. `training`: a program of the training is killed instead.
After each kill the present model must detect, and images and labels must be as they were; at the end nothing
unfinished is left. Ends with 1 otherwise.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import psutil
from serving import ROOT, running, wait_until
from test_label_studio import region
from test_label_studio_backend import CONFIGURATION, PERSONAL_TOKEN, StandIn, posted

from dataset.synthetic import draw_data_set
from efficientdet import load_detector

IMAGES, MINUTES = 16, 0.3
SETTINGS = "image_size=96,box_class_repeats=1,fpn_cell_repeats=1"


class Attack:
    """Drawn images, those of which a folder has labels for, and a finished quick start on the first ones."""

    def __init__(self, folder: Path, *, kills: int, chance: random.Random):
        self.folder, self.kills, self.chance = folder, kills, chance
        draw_data_set(folder / "drawn", images={"train": IMAGES + 2 * kills}, image_size=(96, 96), seed=2)
        self.content = json.loads((folder / "drawn/annotations/instances_train.json").read_text())
        self.count, self.faults = IMAGES, []
        (folder / "photos").mkdir()
        self.write_labels()
        began = time.monotonic()
        assert self.quick_start().wait() == 0, self.log.read_text()
        self.seconds = time.monotonic() - began
        print(f"the first quick start took {self.seconds:.0f} s", flush=True)

    @property
    def log(self) -> Path:
        """Output of the programs."""
        return self.folder / "output.txt"

    def write_labels(self) -> None:
        """Write the first `count` images, and their labels in COCO's format."""
        images = self.content["images"][: self.count]
        ids = {image["id"] for image in images}
        labels = {
            **self.content,
            "images": images,
            "annotations": [one for one in self.content["annotations"] if one["image_id"] in ids],
        }
        for image in images:
            shutil.copy(self.folder / "drawn/train" / image["file_name"], self.folder / "photos")
        (self.folder / "photos/labels.json").write_text(json.dumps(labels))

    def quick_start(self) -> subprocess.Popen:
        """Start the quick start, or its next round."""
        flags = {"images": self.folder / "photos", "output_dir": self.folder / "run", "minutes": MINUTES}
        flags |= {"hparams": SETTINGS, "weights": "none"}
        command = [sys.executable, str(ROOT / "quickstart.py"), *(f"--{name}={value}" for name, value in flags.items())]
        with self.log.open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, cwd=self.folder)

    def digest(self) -> str:
        """Hash of images and labels."""
        files = sorted(path for path in (self.folder / "photos").iterdir())
        return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()

    def detect(self, folder: str = "run") -> None:
        """Detect with the present model of a folder."""
        path = self.folder / folder / "exported/detector.onnx"
        load_detector(path).predict(str(next((self.folder / "photos").glob("*.jpg"))))

    def check(self, what: str, is_right: bool) -> None:
        """Print what was done, and remember a fault."""
        print(f"{'right' if is_right else 'WRONG'}: {what}", flush=True)
        self.faults += [] if is_right else [what]

    def check_end(self, rounds: int) -> None:
        """Check that all rounds are there, with all images, and that nothing is unfinished."""
        history = json.loads((self.folder / "run/history.json").read_text())["rounds"]
        numbers = [entry["round"] for entry in history]
        self.check(f"rounds {numbers}, expected {rounds}", numbers == list(range(1, rounds + 1)))
        run = self.folder / "run"
        names = {path.name for path in run.rglob("*") if "unfinished" in path.name}
        self.check(f"unfinished files: {sorted(names) or 'none'}", not names)
        last = run / "rounds" / str(rounds) / "records"  # of a round whose model was not taken
        files = (last if last.exists() else run / "records").glob("*.instances.json")
        images = sum(len(json.loads(file.read_text())["images"]) for file in files)
        self.check(f"{images} of {self.count} images in the records of the last round", images == self.count)


def kill_continued(attack: Attack) -> None:
    """Kill calls of the quick start that continue."""
    kills, rounds = 0, 1
    while kills < attack.kills:
        attack.count += 1
        attack.write_labels()
        inputs, is_over = attack.digest(), False
        while not is_over:
            moment = attack.chance.uniform(0.5, attack.seconds) if kills < attack.kills else 1e9
            began, process = time.monotonic(), attack.quick_start()
            try:
                code, is_over = process.wait(moment), True
                attack.check(f"image {attack.count}: ended with {code}", code == 0)
                if code:
                    print(attack.log.read_text()[-2000:])
                    return
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
                [program] = attack.log.read_text().rsplit("\n$ ", 1)[-1].split()[1:2]
                attack.detect()
                what = f"kill {kills} after {time.monotonic() - began:.0f} s in {Path(program).name}"
                attack.check(f"{what}: images and labels are as they were", attack.digest() == inputs)
        rounds += 1
    attack.detect()
    attack.check_end(rounds)


def fill_disks(attack: Attack) -> None:
    """Continue the quick start on a disk without enough room."""
    disk, failures = attack.folder / "run", 0
    copy = disk.rename(attack.folder / "before")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=True)
    shutil.copytree(copy, disk, dirs_exist_ok=True)
    history = disk / "history.json"
    rounds = len(json.loads(history.read_text())["rounds"]) if history.exists() else 1
    while failures < attack.kills:
        attack.count += 1
        attack.write_labels()
        inputs, code = attack.digest(), None
        room = 10 ** attack.chance.uniform(4, 8)  # bytes
        while code != 0:
            subprocess.run(["mount", "-o", f"remount,size={used_bytes(disk) + int(room)}", disk], check=True)
            begin = attack.log.stat().st_size
            code = attack.quick_start().wait()
            if code:
                failures += 1
                output = attack.log.read_bytes()[begin:].decode()
                errors = [line for line in output.splitlines() if "error: " in line]
                attack.detect()
                attack.check(
                    f"full disk {failures}, {room / 1e6:.1f} MB: exit code {code}: {' | '.join(errors)}",
                    code == 2 and len(errors) == 1 and "Traceback" not in output and attack.digest() == inputs,
                )
                room *= 1.5
        rounds += 1
    attack.detect()
    attack.check_end(rounds)


def used_bytes(disk: Path) -> int:
    """Return the used bytes of a file system."""
    state = os.statvfs(disk)
    return (state.f_blocks - state.f_bfree) * state.f_frsize


def label(attack: Attack, studio: StandIn, count: int) -> None:
    """Annotate the first images in the stand-in."""
    names = {one["id"]: one["name"] for one in attack.content["categories"]}
    for number, image in enumerate(attack.content["images"][len(studio.tasks) : count], len(studio.tasks) + 1):
        reference = f"/data/upload/7/0a1b2c3d-{image['file_name']}"
        studio.images[reference] = (attack.folder / "drawn/train" / image["file_name"]).read_bytes()
        found = [one for one in attack.content["annotations"] if one["image_id"] == image["id"] and not one["iscrowd"]]
        result = [region(one, image, names) for one in found]
        task = {"id": number, "project": 7, "data": {"image": reference}}
        studio.tasks.append({**task, "annotations": [{"id": number, "result": result, "was_cancelled": False}]})


def kill_servers(attack: Attack, *, programs: bool) -> None:
    """Kill servers while they train in the background, or a program of the training and not the server."""
    folder, kills = attack.folder / f"trained-{programs}", 0
    state = folder / "label_studio.json"

    def is_due() -> bool:
        return state.exists() and json.loads(state.read_text())["due"]

    with StandIn() as studio:
        threading.Thread(target=studio.serve_forever, daemon=True).start()
        label(attack, studio, IMAGES)
        count, served = IMAGES, ""
        while not served:
            arguments = [f"--model={attack.folder / 'run/exported/detector.onnx'}", "--port=0", "--train_after=1000"]
            arguments += [f"--train_minutes={MINUTES}", f"--train_dir={folder}", f"--label_studio={studio.address}"]
            place = attack.folder / f"server-{programs}-{kills}"
            with running(place, "serve.py", *arguments, LABEL_STUDIO_API_KEY=PERSONAL_TOKEN) as server:
                posted(server, "/setup", project="7.1", schema=CONFIGURATION, hostname=studio.address)
                while not served:
                    if not is_due():
                        count += 1
                        label(attack, studio, count)
                        posted(server, "/webhook", action="START_TRAINING", project={"id": 7})
                    if kills >= attack.kills:
                        wait_until(lambda: not is_due(), seconds=900)
                        served = server.get("/health").content["model_class"]
                        continue
                    time.sleep(attack.chance.uniform(0.5, min(attack.seconds, 60)))  # a training takes that long
                    process, what = psutil.Process(server.process.pid), "server"
                    if programs:
                        if not (trainings := process.children(recursive=True)):
                            continue
                        process = attack.chance.choice(trainings)
                        what = " ".join(process.cmdline()[1:2])
                    due = is_due()
                    process.kill()
                    kills += 1
                    if (folder / "exported/detector.onnx").exists():  # not in the first training
                        attack.detect(folder.name)
                    print(f"kill {kills}, {what}, which {'had to' if due else 'did not'} train", flush=True)
                    if not programs:
                        server.process.wait()
                        break
                    wait_until(lambda: not is_due(), seconds=900)
                    attack.check("the server answers", server.get("/health").status == 200)
        print(f"serves {served}; {folder}/label_studio/training.log")
        labels = json.loads((folder / "label_studio/annotations.json").read_text())
        attack.check(f"{len(labels)} of {count} annotated tasks were trained on", len(labels) == count)
        log = (folder / "label_studio/training.log").read_text()
        attack.check("no training was refused", "error:" not in log)
        attack.check("serves the trained model", "detector.onnx" in served)
        attack.detect(folder.name)
        names = [path.name for path in folder.rglob("*") if "unfinished" in path.name]
        attack.check(f"unfinished files: {names or 'none'}", not names)
        studio.shutdown()


def main() -> int:
    """Attack, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="continue,disk,server,training")
    parser.add_argument("--folder", help="Folder that is kept. Default: a temporary one.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        attack = Attack(
            Path(arguments.folder or temporary), kills=arguments.kills, chance=random.Random(arguments.seed)
        )
        kinds = {
            "continue": kill_continued,
            "disk": fill_disks,
            "server": partial(kill_servers, programs=False),
            "training": partial(kill_servers, programs=True),
        }
        for name in arguments.only.split(","):
            try:
                kinds[name](attack)
            finally:
                if name == "disk":
                    subprocess.run(["umount", "--lazy", attack.folder / "run"], check=True)
    print(f"{len(attack.faults)} faults")
    return bool(attack.faults)


if __name__ == "__main__":
    sys.exit(main())
