"""Families of detectors as another package would bring them: installed beside the program, found by entry points."""

import os
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs/tutorials/new_family.md"
STANDINS = {  # model name -> module in tests/, or of the page's first family
    "plain-dense": "plain_family",
    "standin-anchor-free": "standin_anchor_free",
}


def page_families() -> list[str]:
    """The code of the families on the page."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def environment(folder: Path) -> dict[str, str]:
    """This process's environment, with those families as if a package in `folder` had been installed."""
    install(folder, "efficientdet.families", [f"{name} = {module}:FAMILY" for name, module in STANDINS.items()])
    (folder / "plain_family.py").write_text(page_families()[0])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, TESTS, TESTS.parent)))}


def install(folder: Path, group: str, lines: list[str]) -> None:
    """Write into a folder what pip writes there for a package with these entry points."""
    metadata = folder / "standins-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: standins\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
