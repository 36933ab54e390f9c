"""Programs with the miniature network, one after the other in this process, on the backend that KERAS_BACKEND names.

python tests/miniature_programs.py '[["train", "--model_dir=...", ...], ["eval", ...]]'
"""

import importlib
import json
import sys

from absl import flags

from program_support.command_line import run


def main(programs):
    """Call programs with their flags."""
    kept = set(flags.FLAGS)
    for script, *arguments in programs:
        for name in set(flags.FLAGS) - kept:
            delattr(flags.FLAGS, name)
        program = importlib.import_module(script)
        program.define_flags()
        run(program.main, [f"{script}.py", *arguments])


if __name__ == "__main__":
    # Not with the other imports: those programs import TensorFlow and Keras themselves, after their checks.
    from miniature import build_miniature

    from efficientdet.checkpoints import restore
    from efficientdet.training import state as training_state

    training_state.build_detector = restore.build_detector = build_miniature
    main(json.loads(sys.argv[1]))
