"""Starts of a training by two processes with two CPU devices each, and whether each ends, and with the same bits.

    python tests/endurance_jax.py [--starts=40]

Every start is two forks of this process, which has imported the program and initialized nothing: each pair joins and
trains the network of tests/miniature.py with evaluations, calibration and checkpoints; nothing disturbs them. The
numbers are compared bit for bit with those of the first start. Compiled programs are cached after the first. Ends with
1 if a start fails or differs.
"""

import argparse
import atexit
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import numpy as np
from jax_process import environment_of_processes

SECONDS = 900


def start(training: dict, folder: Path) -> list[tuple[int, str]]:
    """(exit code, output) of each of two processes; 137 for one that was killed after 15 minutes."""
    environment, processes, ends = environment_of_processes(2, folder), [], time.monotonic() + SECONDS
    for number in (0, 1):
        process = os.fork()
        if not process:
            become(number, training, environment, folder)
        processes.append(process)
    codes = {}
    while len(codes) < 2 and time.monotonic() < ends:
        for process in processes:
            if process not in codes and (ended := os.waitpid(process, os.WNOHANG))[0]:
                codes[process] = os.waitstatus_to_exitcode(ended[1])
        time.sleep(0.1)
    for process in processes:
        if process not in codes:
            os.kill(process, 9)
            codes[process] = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return [(codes[process], (folder / f"output-{number}").read_text()) for number, process in enumerate(processes)]


def become(number: int, training: dict, environment: dict, folder: Path) -> None:
    """Train in this fork, and end it."""
    output = os.open(folder / f"output-{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment, JAX_PROCESS_ID=str(number))
    sys.argv = ["jax_trainings.py", json.dumps([training]), "[]"]
    code = 1
    try:
        import jax_trainings

        jax_trainings.main()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        atexit._run_exitfuncs()  # JAX's, which waits for the other process
        os._exit(code)


def digest(model_dir: Path) -> str:
    """Return a hash of all numbers of the last checkpoint and of what each process held."""
    from efficientdet.checkpoints.checkpoint import read_arrays

    arrays = read_arrays(str(model_dir / "ckpt-final"))
    held = [(model_dir / f"digest-{rank}.txt").read_text() for rank in (0, 1)]
    assert held[0] == held[1]
    content = b"".join(np.asarray(arrays[key]).tobytes() for key in sorted(arrays))
    return hashlib.sha256(content + (model_dir / "metrics-final.json").read_bytes()).hexdigest()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=40)
    count, outcomes = parser.parse_args().starts, []
    folder = Path(tempfile.mkdtemp(prefix="starts-"))  # removed by this process, and by none of its forks
    os.environ |= environment_of_processes(2, folder)  # the backend is chosen by the first import
    import jax_trainings  # noqa: F401
    from drawn_records import draw_records

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
    }
    for number in range(count):
        began, model_dir = time.monotonic(), folder / f"model-{number}"
        ended = start({**settings, "model_dir": str(model_dir)}, folder)
        codes = [code for code, _ in ended]
        outcomes.append(digest(model_dir) if codes == [0, 0] else "")
        load = os.getloadavg()[0]
        print(
            f"start {number + 1}: {codes}, {time.monotonic() - began:.0f} s, load {load:.0f}, {outcomes[-1][:8]}",
            flush=True,
        )
        if codes != [0, 0]:
            for code, output in ended:
                print(f"--- {code}\n{output[-3000:]}", flush=True)
    shutil.rmtree(folder)
    failed, different = outcomes.count(""), len({*outcomes} - {""}) - 1
    print(f"{count} starts, {failed} failed, {max(different, 0)} other results")
    return 1 if failed or different else 0


if __name__ == "__main__":
    sys.exit(main())
