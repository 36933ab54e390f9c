"""The language of the project: standard terms, American spelling, short lines in pages.

Every rule of words is a pattern over the names, strings, docstrings and comments of Python files, and over the lines of
pages, scripts and settings. Code in Markdown is skipped. Ruff checks the form of docstrings. Rules and exceptions are
in language_rules.py. `python tests/test_language.py` prints all findings.
"""

import ast
import functools
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from language_rules import EXCEPTIONS, RULES

ROOT = Path(__file__).resolve().parent.parent

FOLDERS = (
    ".ci",
    ".github",
    "benchmarks",
    "dataset",
    "docs",
    "efficientdet",
    "model",
    "object_detection",
    "program_support",
    "scripts",
    "testdata",
)
LINES = {
    ".css",
    ".conf",
    ".html",
    ".ipynb",
    ".js",
    ".md",
    ".sh",
    ".sub",
    ".toml",
    ".yaml",
    ".yml",
    ".cff",
    "Dockerfile",
    "run",
}
WIDEST_LINE = 120  # characters of Markdown
MOST_EXCEPTIONS = 20

_OPENING = re.compile(r"(?:Of|What|How|Why|Whether|Those|That|Same|The same)\b[ ,]", re.IGNORECASE)
# Ruff's form of docstrings and imperative mood; D208 also finds a docstring that is a summary and a command
_DOCSTRINGS = (
    "--select=D2,D3,D4,D401",
    "--ignore=D208",
    "--config=lint.pydocstyle.convention='google'",
    "--per-file-ignores=efficientdet/operations/interface.py:D417",  # **flags are signatures in __init__.pyi
)


_PATTERNS = {rule: re.compile(pattern, re.IGNORECASE) for rule, (pattern, *_) in RULES.items()}
_ANY = re.compile("|".join(f"(?:{pattern})" for pattern, *_ in RULES.values()), re.IGNORECASE)


class Violation(NamedTuple):
    """A place that breaks a rule."""

    rule: str
    path: str
    line: int
    text: str


def _files(root: Path, suffixes: set[str]) -> Iterator[Path]:
    candidates = [*root.iterdir(), *(path for folder in FOLDERS for path in (root / folder).rglob("*"))]
    for path in sorted(candidates):
        is_output = "recipe_cells" in path.parts  # of compare_recipes.py
        if path.is_file() and not is_output and (path.suffix in suffixes or path.name in suffixes):
            yield path


def findings(root: Path) -> Iterator[Violation]:
    """Yield every place that breaks a rule in the files below a root, tests excluded."""
    yield from _docstrings(root)
    for path in _files(root, LINES | {".py"}):
        name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        found = _in_python(text) if path.suffix == ".py" else _in_lines(text, is_markdown=path.suffix == ".md")
        for rule, line, shown in found:
            finding = Violation(rule, name, line, " ".join(shown.split())[:160])
            if not any((finding.path, rule) == (kept.path, kept.rule) and kept.text in shown for kept in EXCEPTIONS):
                yield finding


def _docstrings(root: Path) -> Iterator[Violation]:
    options = ["--isolated", "--no-cache", "--exit-zero", "--output-format=json", *_DOCSTRINGS]
    files = list(map(str, _files(root, {".py"})))
    if not files:  # ruff would check the working directory
        return
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *options, *files], capture_output=True, text=True, check=True
    )
    for found in json.loads(done.stdout):
        path = Path(found["filename"]).resolve().relative_to(root.resolve()).as_posix()
        yield Violation(found["code"], path, found["location"]["row"], found["message"])


@functools.cache  # most names occur often
def _words(text: str) -> tuple[tuple[str, str], ...]:
    if not _ANY.search(text):
        return ()
    return tuple(
        (rule, text[max(match.start() - 60, 0) : match.end() + 60])
        for rule, pattern in _PATTERNS.items()
        for match in pattern.finditer(text)
    )


def _in_python(text: str) -> Iterator[tuple[str, int, str]]:
    pieces: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            pieces.append((node.lineno, node.value))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            pieces.append((node.lineno, _as_words(node.name)))
        elif isinstance(node, ast.arg):
            pieces.append((node.lineno, _as_words(node.arg)))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            pieces.append((node.lineno, _as_words(node.id)))
        for opening in _openings(node):
            if _OPENING.match(opening.value):
                yield "opening", opening.lineno, opening.value[:80]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    pieces += [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    for line, piece in pieces:
        for rule, shown in _words(" ".join(piece.split())):
            yield rule, line, shown


def _as_words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").strip()


def _openings(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield a docstring, or the help of a flag of absl or argparse."""
    candidates: list[ast.expr] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and isinstance(node.body[0], ast.Expr):
        candidates = [node.body[0].value]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr.startswith("DEFINE_"):
            candidates = [*node.args[2:]]
        elif node.func.attr == "add_argument":
            candidates = [keyword.value for keyword in node.keywords if keyword.arg == "help"]
    for candidate in candidates:
        if isinstance(candidate, ast.Constant) and isinstance(candidate.value, str):
            yield candidate


def _in_lines(text: str, is_markdown: bool) -> Iterator[tuple[str, int, str]]:
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if is_markdown and line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
            continue
        if fenced:
            continue
        if is_markdown and len(line) > WIDEST_LINE and not _is_table_or_link(line):
            yield "width", number, f"{len(line)} characters: {line}"
        for rule, shown in _words(re.sub(r"`[^`]*`|\]\([^)]*\)", "``", line) if is_markdown else line):
            yield rule, number, shown


def _is_table_or_link(line: str) -> bool:
    link = r"!?\[.*\]\(\S+\)[.,]?|\[[^]]*\]: \S+|<?https?://\S+|<[^>]*>"
    return re.fullmatch(rf"\s*(?:\|.*|(?:[-*] |\d+\. )?(?:{link}))\s*", line) is not None


def test_no_rule_is_broken():
    shown = [
        f"{finding.path}:{finding.line}: {finding.rule}: {finding.text}"
        + (f" (write: {RULES[finding.rule][1]})" if finding.rule in RULES else "")
        for finding in findings(ROOT)
    ]
    assert not shown, "\n".join(shown)


def test_planted_violations_are_found(tmp_path):
    """Each rule in a string, in comments, and in the lines of pages and scripts."""
    texts = {"model/a{}.py": 'x = f"{{1}} {} {{2}}"', "model/b{}.py": "x = 1  # {}"}
    texts |= dict.fromkeys(("docs/a{}.md", "docs/a{}.html", "scripts/a{}.sh"), "# {}")
    planted = set()
    for number, (rule, (_, _, violation)) in enumerate(RULES.items()):
        for name, text in texts.items():
            _write(tmp_path / name.format(number), text.format(violation) + "\n")
            planted.add((rule, name.format(number), 1))
    found = {(finding.rule, finding.path, finding.line) for finding in findings(tmp_path)}
    assert planted <= found
    assert {place[1:] for place in found} == {place[1:] for place in planted}


def test_exceptions_are_few_used_and_have_a_reason():
    assert len(EXCEPTIONS) <= MOST_EXCEPTIONS
    for exception in EXCEPTIONS:
        assert exception.reason
        assert exception.text in " ".join((ROOT / exception.path).read_text(encoding="utf-8").split()), exception


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    for one in findings(ROOT):
        print(f"{one.path}:{one.line}: {one.rule}: {one.text}")
