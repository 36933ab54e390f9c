"""Draw docs/images/packages.svg and docs/images/data_path.svg from the code.

    python scripts/docs/architecture_figures.py [FOLDER]

The packages, their order and what each may import come from tests/test_architecture.py; imports, and the docstrings of
the data path, from the modules. A renamed package or function fails here instead of leaving a wrong figure behind.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "tests/test_architecture.py"
DATA_PATH = (  # stage, place in the code, output
    ("TFRecord files", "dataset.records.schema:parse_record", "encoded image, boxes, category ids, masks"),
    ("Order of images", "dataset.input.pipeline:StreamOrder", "record numbers, a function of (seed, position)"),
    ("Augmentation", "dataset.input.examples:training_example", "one row of a Batch"),
    ("Batches", "dataset.input.pipeline:training_dataset", "Batch: images [B, H, W, 3] uint8, sizes, objects, scales"),
    ("Network", "model.detection_model:DetectionModel", "outputs of the family"),
    (
        "Assignment",
        "object_detection.assignment.anchor_assignment:assign_anchors",
        "Targets: class and box of each anchor",
    ),
    ("Training step", "efficientdet.optimization.step:TrainStep", "updated weights, losses"),
    (
        "Post-processing",
        "model.detection_model:detections_in_original",
        "Detections: boxes in pixels of the original image",
    ),
    ("Evaluation", "object_detection.coco.evaluation:CocoEvaluator", "12 COCO numbers, AP per class"),
)
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1f2430 } .name { font-weight: 600 }
.small { font-size: 11px; fill: #4a5163 }
.layer { fill: #eef1f8; stroke: #8892ab } .package { fill: #ffffff; stroke: #8892ab }
.link { stroke: #4a5163; fill: none }
@media (prefers-color-scheme: dark) { text { fill: #e6e9f0 } .small { fill: #aab2c5 } .layer { fill: #232838 }
  .package { fill: #2c3346 } .layer, .package { stroke: #5c667f } .link { stroke: #aab2c5 } }
</style>"""
WIDTH, ROW = 1000, 20


def rules() -> tuple[dict, dict, dict[str, str]]:
    """Return the layers, the packages of each, and the comment beside each package."""
    source = RULES.read_text(encoding="utf-8")
    values = {
        node.targets[0].id: node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    comments_of = {
        f"{layer.value}.{package.value}": comments.get(package.lineno, "")
        for layer, names in zip(values["ROOMS"].keys, values["ROOMS"].values, strict=True)
        for package in names.elts
    }
    return ast.literal_eval(values["FLOORS"]), ast.literal_eval(values["ROOMS"]), comments_of


def imports_between(layers: dict) -> Counter:
    """Count the modules of one layer that import another layer: (layer, other) -> modules."""
    counts: Counter = Counter()
    for layer in layers:
        for path in (ROOT / layer).rglob("*.py"):
            names = {
                name.split(".")[0]
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                for name in (
                    [node.module or ""]
                    if isinstance(node, ast.ImportFrom)
                    else [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else []
                )
            }
            counts.update((layer, other) for other in names & (layers.keys() - {layer}))
    return counts


def packages() -> str:
    """Return the figure of packages: a layer may import those below it, a package of a layer those before it."""
    layers, packages_of, comments_of = rules()
    between, parts, y = imports_between(layers), [], 30
    parts.append(
        text(10, 18, "A layer may import the layers below it; a package of a layer, those listed before it.", "small")
    )
    for layer in reversed(layers):
        names = packages_of.get(layer, ())
        rows = -(-len(names) // 2)
        height = 46 + rows * (ROW + 16)
        parts.append(f'<rect class="layer" x="10" y="{y}" width="{WIDTH - 20}" height="{height}" rx="6"/>')
        parts.append(text(24, y + 22, f"{layer}/", "name"))
        uses = ", ".join(
            f"{other} ({count} modules)" for (one, other), count in sorted(between.items()) if one == layer
        )
        parts.append(text(190, y + 22, f"imports {uses}" if uses else "imports none of the others", "small"))
        for number, name in enumerate(names):
            x, top = 24 + (number % 2) * 480, y + 36 + number // 2 * (ROW + 16)
            parts.append(f'<rect class="package" x="{x}" y="{top}" width="468" height="{ROW + 10}" rx="4"/>')
            parts.append(text(x + 10, top + 20, name, "name"))
            parts.append(text(x + 122, top + 20, shortened(comments_of[f"{layer}.{name}"]), "small"))
        y += height + 12
    return svg(parts, y)


def data_path() -> str:
    """Return the figure of the data path; raises LookupError for a function that is not in the code."""
    parts = []
    for number, (stage, place, passed) in enumerate(DATA_PATH):
        y = 10 + number * 78
        parts += [
            f'<rect class="layer" x="10" y="{y}" width="{WIDTH - 20}" height="54" rx="6"/>',
            text(24, y + 22, stage, "name"),
            text(180, y + 22, place.replace(":", "."), "small"),
            text(180, y + 42, shortened(summary(place), 125), "small"),
        ]
        if number + 1 < len(DATA_PATH):
            parts += [
                f'<path class="link" d="M90 {y + 54} v22 m-5 -6 l5 6 l5 -6"/>',
                text(180, y + 70, passed, "small"),
            ]
    return svg(parts, 10 + len(DATA_PATH) * 78)


def summary(place: str) -> str:
    """Return the first line of the docstring of MODULE:NAME."""
    module, name = place.split(":")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return (ast.get_docstring(node) or "").split("\n")[0]
    raise LookupError(f"{module} has no {name}: correct DATA_PATH of {Path(__file__).name}")


def shortened(words: str, most: int = 58) -> str:
    """Return at most `length` characters, cut between words."""
    words = re.sub(r"\s+", " ", words).replace("`", "")
    return words if len(words) <= most else words[:most].rsplit(" ", 1)[0] + " ..."


def text(x: int, y: int, words: str, kind: str) -> str:
    """Return an SVG text element."""
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(words)}</text>'


def svg(parts: list[str], height: int) -> str:
    """Return a document of these parts."""
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    return "\n".join([start, STYLE, *parts, "</svg>\n"])


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images"
    (folder / "packages.svg").write_text(packages(), encoding="utf-8")
    (folder / "data_path.svg").write_text(data_path(), encoding="utf-8")
