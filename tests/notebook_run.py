"""Run a notebook's code cells in this process, without Jupyter: `python tests/notebook_run.py NOTEBOOK [--store]`

Cells share one namespace and run in the current folder. As in Jupyter, the value of a cell's last expression is shown.
With
--store the outputs are written into the notebook.
"""

import ast
import base64
import contextlib
import io
import json
import re
import sys
import traceback
from pathlib import Path

_FORMATS = {"image/png": "_repr_png_", "text/html": "_repr_html_"}
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|[^\n]*\r(?!\n)")


def outputs_of(source, namespace, number):
    """Run a cell; return its outputs as a notebook stores them. The last one is of type "error" where it fails."""
    tree, streams = ast.parse(source), io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    found, value = [], None
    with contextlib.redirect_stdout(streams):
        try:
            exec(compile(tree, f"cell {number}", "exec"), namespace)
            value = last and eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
        except Exception as error:
            found.append(
                {
                    "output_type": "error",
                    "ename": type(error).__name__,
                    "evalue": str(error),
                    "traceback": traceback.format_exc().splitlines(),
                }
            )
    if text := _TERMINAL.sub("", streams.getvalue()):
        found.insert(0, {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        for kind, method in _FORMATS.items():
            if (shown := getattr(value, method, lambda: None)()) is not None:
                data[kind] = (
                    base64.b64encode(shown).decode() if isinstance(shown, bytes) else shown.splitlines(keepends=True)
                )
        found.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return found


def main():
    path, store = Path(sys.argv[1]), "--store" in sys.argv
    notebook, namespace = json.loads(path.read_text(encoding="utf-8")), {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        cell["execution_count"], cell["outputs"] = number, outputs_of("".join(cell["source"]), namespace, number)
        if cell["outputs"] and cell["outputs"][-1]["output_type"] == "error":
            sys.exit("\n".join(cell["outputs"][-1]["traceback"]))
    if store:
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    json.dump([cell["outputs"] for cell in cells], sys.stdout)


if __name__ == "__main__":
    main()
