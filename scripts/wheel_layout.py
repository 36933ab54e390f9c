"""Build commands that put everything in the wheel below the one name `efficientdet`; pyproject.toml names them.

A checkout has dataset/, model/, object_detection/, program_support/ and the programs at its top. A wheel with those
names at the top of site-packages would collide with a user's own folders, so `model.heads` becomes
`efficientdet.model.heads` in it and train.py becomes `efficientdet.programs.train`. In a checkout
efficientdet/checkout.py offers the same names.
"""

import ast
import re
import shutil
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

NAME = "efficientdet"
PACKAGES = ("dataset", "model", "object_detection", "program_support")
COMMANDS = {  # name of a program in messages and --help of a checkout -> the command that pip installs
    "train.py": "efficientdet-train",
    "eval.py": "efficientdet-eval",
    "compare.py": "efficientdet-compare",
    "infer.py": "efficientdet-infer",
    "inspector.py": "efficientdet-inspect",
    "export.py": "efficientdet-export",
    "quickstart.py": "efficientdet-quickstart",
    "serve.py": "efficientdet-serve",
    "doctor.py": "efficientdet-doctor",
    "next_images.py": "efficientdet-next-images",
    "monitor.py": "efficientdet-monitor",
    "dataset/create_tfrecord.py": "efficientdet-convert",
    "dataset/create_coco_tfrecord.py": "efficientdet-convert-coco",
    "dataset/create_pascal_tfrecord.py": "efficientdet-convert-pascal",
    "dataset/create_open_images_tfrecord.py": "efficientdet-convert-open-images",
    "scripts/get_weights.sh": "efficientdet-get-weights",
    "get_weights.sh": "efficientdet-get-weights",
}
_COMMAND = re.compile(rf"(?<![\w/.-])(?:(?:python|bash) )?({'|'.join(map(re.escape, COMMANDS))})\b")


class BuildBelowOneName(build_py):
    """`build_py` for a wheel; an editable install keeps the checkout's names."""

    def run(self) -> None:
        """Copy the files of the project, then move them below one name and rewrite them."""
        if self.editable_mode:
            super().run()
            return
        root = Path(self.build_lib)
        shutil.rmtree(root, ignore_errors=True)  # files of an earlier build
        super().run()
        for package in PACKAGES:
            (root / package).rename(root / NAME / package)
        for program in root.glob("*.py"):
            program.rename(root / NAME / "programs" / program.name)
        (root / NAME / "checkout.py").unlink()
        for file in [*root.rglob("*.py"), *root.rglob("*.pyi")]:
            file.write_text(rewritten(file.read_text(encoding="utf-8"), str(file)), encoding="utf-8")


class EggInfo(egg_info):
    """`egg_info` that declares the one top-level name."""

    def write_file(self, what: str, filename: str, data: str) -> None:
        """Write a metadata file."""
        super().write_file(what, filename, f"{NAME}\n" if filename.endswith("top_level.txt") else data)


def rewritten(source: str, path: str) -> str:
    """Return a module's source with the names of the wheel in its imports and in the commands that its texts name.

    Raises:
        ValueError: for an import that has no other form with a longer name (`import model.heads`).
    """
    lines = source.splitlines(keepends=True)
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in sorted(statements, key=lambda node: (node.lineno, -node.col_offset)):  # of a line the last first
        if isinstance(node, ast.ImportFrom):
            if not node.level and node.module.split(".")[0] in PACKAGES:
                line = lines[node.lineno - 1].encode()  # offsets count bytes
                indent, statement = line[: node.col_offset].decode(), line[node.col_offset :].decode()
                lines[node.lineno - 1] = indent + statement.replace("from ", f"from {NAME}.", 1)
        elif any(alias.name.split(".")[0] in PACKAGES for alias in node.names):
            raise ValueError(
                f"{path}:{node.lineno}: found 'import {node.names[0].name}'; expected 'from package import name'"
            )
    text = _COMMAND.sub(lambda match: COMMANDS[match[1]], "".join(lines))
    text = re.sub(rf"python -m ({'|'.join(PACKAGES)})\.", rf"python -m {NAME}.\1.", text)
    return text.replace("pip install -e '.[", "pip install 'efficientdet-tf2[")
