"""Programs with the miniature network: a PYTHONPATH for it, or one program after the other in this process.

python tests/miniature_programs.py '[["train", "--model_dir=...", ...], ["eval", ...]]'
"""

import importlib
import json
import os
import sys
from pathlib import Path

from absl import flags

from program_support.command_line import run

ROOT = Path(__file__).resolve().parent.parent
_HOOK = """
import importlib.util, sys

class MiniatureNetwork:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "efficientdet.families.efficientdet.build":
            return None
        sys.meta_path.remove(MiniatureNetwork)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_replace(module):
            execute(module)

            def build_detector(*arguments, **options):
                from miniature_training import build_miniature
                return build_miniature(*arguments, **options)

            module.build_detector = build_detector

        spec.loader.exec_module = execute_and_replace
        return spec

sys.meta_path.insert(0, MiniatureNetwork)
"""


def path_to_miniature(folder: Path) -> str:
    """Return a PYTHONPATH with which every program has the miniature network; writes a hook into the folder."""
    hook = folder / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(_HOOK)
    return os.pathsep.join(map(str, (hook, ROOT / "tests", ROOT)))


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
