"""Draw docs/images/packages.svg from the layers, packages and comments of tests/test_architecture.py.

python scripts/docs/architecture_figures.py [FOLDER]
"""

import ast
import io
import re
import sys
import tokenize
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "tests/test_architecture.py"
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


def packages() -> str:
    """Return the figure of packages: a layer may import those below it, a package of a layer those before it."""
    layers, packages_of, comments_of = rules()
    parts, y = [], 30
    parts.append(
        text(10, 18, "A layer may import the layers below it; a package of a layer, those listed before it.", "small")
    )
    for layer in reversed(layers):
        names = packages_of.get(layer, ())
        height = 46 + (len(names) + 1) // 2 * (ROW + 16)
        parts.append(f'<rect class="layer" x="10" y="{y}" width="{WIDTH - 20}" height="{height}" rx="6"/>')
        parts.append(text(24, y + 22, f"{layer}/", "name"))
        parts.append(
            text(190, y + 22, f"may import {', '.join(sorted(layers[layer] - {layer})) or 'none of these'}", "small")
        )
        for number, name in enumerate(names):
            x, top = 24 + (number % 2) * 480, y + 36 + number // 2 * (ROW + 16)
            comment = re.sub(r"\s+", " ", comments_of[f"{layer}.{name}"]).replace("`", "")
            shown = comment if len(comment) <= 58 else comment[:58].rsplit(" ", 1)[0] + " ..."
            parts.append(f'<rect class="package" x="{x}" y="{top}" width="468" height="{ROW + 10}" rx="4"/>')
            parts.append(text(x + 10, top + 20, name, "name"))
            parts.append(text(x + 122, top + 20, shown, "small"))
        y += height + 12
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img">'
    return "\n".join([start, STYLE, *parts, "</svg>\n"])


def text(x: int, y: int, words: str, kind: str) -> str:
    """Return an SVG text element."""
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(words)}</text>'


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images"
    (folder / "packages.svg").write_text(packages(), encoding="utf-8")
