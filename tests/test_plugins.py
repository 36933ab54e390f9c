"""Plugins: found by group and name, bundled or installed, and unknown to the core."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest
from standins import install

from program_support import plugins
from program_support.plugins import BUNDLED, load_plugin, load_plugins, plugin_names

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "efficientdet" / "plugins"
PLUGINS = sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__")


def test_bundled_objects_come_first_and_only_what_is_asked_for_is_imported(tmp_path, monkeypatch):
    install(tmp_path, "numbers.group", ["tau = math:tau", "e = math:e"])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "BUNDLED", {"numbers.group": {"pi": "math:pi", "broken": "no_such_module:value"}})
    assert plugin_names("numbers.group") == ("pi", "broken", "e", "tau")
    assert round(next(load_plugins("numbers.group")), 2) == 3.14
    assert [round(load_plugin("numbers.group", name), 2) for name in ("pi", "tau")] == [3.14, 6.28]
    with pytest.raises(KeyError):
        load_plugin("numbers.group", "phi")
    with pytest.raises(ModuleNotFoundError):
        list(load_plugins("numbers.group"))


def test_an_unknown_group_is_empty():
    assert plugin_names("no.group") == ()
    assert list(load_plugins("no.group")) == []


@pytest.mark.parametrize("value", [value for rows in BUNDLED.values() for value in rows.values()])
def test_rows_name_what_exists(value):
    module, attribute = value.split(":")
    found = find_spec(module)
    assert found is not None
    assert attribute in Path(found.origin).read_text()


def other_plugins(path: Path) -> set[str]:
    """Return the plugins that a file imports, also inside functions and for types, without its own."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    own = path.relative_to(FOLDER).parts[0] if FOLDER in path.parents else None
    return {name.split(".")[2] for name in names if name.startswith("efficientdet.plugins.")} - {own}


def test_the_core_imports_no_plugin_and_a_plugin_no_other():
    folders = ("benchmarks", "dataset", "efficientdet", "model", "object_detection", "program_support")
    files = [*ROOT.glob("*.py"), *(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]
    assert {str(path): others for path in files if (others := other_plugins(path))} == {}


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_has_a_short_page(name):
    lines = (FOLDER / name / "README.md").read_text().splitlines()
    assert 5 <= len(lines) <= 30
