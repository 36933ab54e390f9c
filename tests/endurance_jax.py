"""Starts of a training by two processes with two CPU devices each, and whether each ends, and with the same bits.

    python tests/endurance_jax.py [--starts=40]

Every start joins the processes anew and trains the network of tests/miniature.py with evaluations, calibration and
checkpoints; nothing disturbs it. Its numbers are compared bit for bit with those of the first start. Compiled programs
are cached after the first. Ends with 1 if a start fails or differs.
"""

import argparse
import hashlib
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import numpy as np
from drawn_records import draw_records
from jax_process import run_processes

from efficientdet.checkpoints.checkpoint import read_arrays


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=40)
    count, outcomes = parser.parse_args().starts, []
    with tempfile.TemporaryDirectory(prefix="starts-") as name:
        folder = Path(name)
        drawn = draw_records(folder, images={"train": 15, "val": 5})
        settings = {
            "records": list(drawn.records("train")),
            "val_records": list(drawn.records("val")),
            "categories": list(zip(drawn.class_names.category_ids, drawn.class_names.names, strict=True)),
            "training_mode": "traineval",
            "batch_size": 2,
            "deterministic": True,
            "stop_epoch": 3,
            "calibration_images": 8,
            "checkpoint_steps": 1,
            "suggest": False,
        }
        for number in range(count):
            began, model_dir = time.monotonic(), folder / f"model-{number}"
            ended = run_processes(2, [{**settings, "model_dir": str(model_dir)}], folder)
            codes = [code for code, _ in ended]
            outcomes.append(digest(model_dir) if codes == [0, 0] else "")
            print(f"start {number + 1}: {codes}, {time.monotonic() - began:.0f} s, {outcomes[-1][:8]}", flush=True)
            if codes != [0, 0]:
                for code, output in ended:
                    print(f"--- {code}\n{output[-3000:]}", flush=True)
    failed, different = outcomes.count(""), len({*outcomes} - {""}) - 1
    print(f"{count} starts, {failed} failed, {max(different, 0)} other results")
    return 1 if failed or different else 0


def digest(model_dir: Path) -> str:
    """Of all numbers of the last checkpoint and of what each process held."""
    arrays = read_arrays(str(model_dir / "ckpt-final"))
    held = [(model_dir / f"digest-{rank}.txt").read_text() for rank in (0, 1)]
    assert held[0] == held[1]
    content = b"".join(np.asarray(arrays[key]).tobytes() for key in sorted(arrays))
    return hashlib.sha256(content + (model_dir / "metrics-final.json").read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
