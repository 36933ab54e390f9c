"""infer.py --engine=ray on a cluster of three nodes of which a process or a node is killed, or a node is stopped.

    python tests/endurance_ray.py [--kills=3] [--seed=0] [--only=process,node,stopped,head]

The nodes are processes of this machine with one core each. At a random moment between the connection and the usual end
a worker process gets SIGKILL, or all processes of a node get SIGKILL or SIGSTOP. Detections and
annotated images must then be the files of one machine, byte for byte. Without its head the cluster is lost, and no
traceback is expected. Ends with 1 otherwise.
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import psutil
from drawn_records import draw_records
from endurance_run import ROOT, kill_all, path_to_miniature, wait_until
from ray.cluster_utils import Cluster
from stored_miniature import store_weights

IMAGES = 400
_NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}


class Inference:
    """infer.py in a folder."""

    def __init__(self, place: Path, name: str, engine: str):
        self.folder, self.log = place / name, place / f"{name}.log"
        flags = {"model": place / "ckpt", "image_path": place / "drawn/val", "batch_size": 1, "engine": engine}
        flags |= {"output_dir": self.folder, "min_score_thresh": 0.01}
        self.folder.mkdir()
        command = [sys.executable, str(ROOT / "infer.py"), *(f"--{flag}={value}" for flag, value in flags.items())]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=place, start_new_session=True)
        self.began = time.monotonic()

    def end(self) -> int:
        """Return the exit code."""
        try:
            return self.process.wait(timeout=600)
        finally:
            kill_all(self.process)

    def digests(self) -> dict[str, str]:
        """Return the hash of each file that it wrote, without the name of the folder."""
        return {
            str(path.relative_to(self.folder)): hashlib.sha256(
                path.read_bytes().replace(str(self.folder).encode(), b"")
            ).hexdigest()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }


def family(node) -> list[psutil.Process]:
    """Return the processes of a node, its raylet first."""
    raylets = [psutil.Process(each.process.pid) for each in node.all_processes["raylet"]]
    return [*raylets, *(child for raylet in raylets for child in raylet.children(recursive=True))]


def strike(cluster: Cluster, kind: str, chance: random.Random) -> None:
    """Kill or stop something, and put a node in its place."""
    if kind == "head":
        cluster.remove_node(cluster.head_node, allow_graceful=False)
        return
    node = chance.choice([*cluster.worker_nodes])
    if kind == "process":
        workers = [one for one in family(node) if "ray::" in "".join(one.cmdline())]
        for worker in chance.sample(workers, min(1, len(workers))):
            worker.kill()
    elif kind == "node":
        cluster.remove_node(node, allow_graceful=False)
    else:
        for process in family(node):
            process.suspend()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="process,node,stopped,head")
    options = parser.parse_args()
    chance, wrong = random.Random(options.seed), 0
    os.environ |= {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory(prefix="endurance-") as name:
        place = Path(name)
        drawn = draw_records(place / "drawn", images={"val": IMAGES})
        store_weights(str(place / "ckpt"), drawn.class_names)
        os.environ["PYTHONPATH"] = path_to_miniature(place)
        local = Inference(place, "local", "local")
        if code := local.end():
            print(f"the inference without Ray ended with {code}\n{local.log.read_text()}")
            return 1
        kinds = ["undisturbed", *(kind for kind in options.only.split(",") for _ in range(options.kills))]
        seconds = 0.0  # from the connection to the end
        for number, kind in enumerate(kinds):
            cluster = Cluster(initialize_head=True, head_node_args=_NODE)
            for _ in range(2):
                cluster.add_node(**_NODE)
            os.environ["RAY_ADDRESS"] = cluster.address
            inference = Inference(place, f"ray-{number}", "ray")
            wait_until(lambda run=inference: "ray: " in run.log.read_text(), inference.process)
            begin, moment = time.monotonic(), chance.uniform(0, seconds)
            if kind != "undisturbed":
                wait_until(lambda: False, inference.process, seconds=moment)
                strike(cluster, kind, chance)
            code = inference.end()
            taken, log = time.monotonic() - begin, inference.log.read_text()
            seconds = seconds or taken
            right = code == 0 and inference.digests() == local.digests()
            if kind == "head" and code:
                right = "Traceback" not in log
            wrong += not right
            last = (log.splitlines() if code else [line for line in log.splitlines() if line.startswith("ray: ")])[-1:]
            print(
                f"{'right' if right else 'WRONG'}  {kind}, after {moment:.0f} s: exit code {code} after {taken:.0f} s; "
                f"{''.join(last)}",
                flush=True,
            )
            if not right:
                print(log[-3000:], inference.digests(), local.digests(), sep="\n", flush=True)
            for process in [one for node in cluster.worker_nodes for one in family(node)]:
                process.send_signal(signal.SIGCONT)
            cluster.shutdown()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
