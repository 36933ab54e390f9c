"""Make the module names of an installed wheel importable in a checkout, such as `efficientdet.model` for `model`.

A wheel holds dataset, model, object_detection and program_support below `efficientdet`, and the programs in
`efficientdet.programs` (scripts/wheel_layout.py); it does not hold this file. Third-party code that uses those
names runs with both.
"""

import importlib
import importlib.util
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dataset", "model", "object_detection", "program_support")
_HERE, _PROGRAMS = "efficientdet.", "efficientdet.programs."


class AliasFinder(Loader):
    """Finder and loader for `sys.meta_path`: each alias is the module itself, loaded once.

    An editable install leaves the top-level names to whoever is first on `sys.path`. The first import of a part of
    `efficientdet` raises ImportError if one of them is another project's; `efficientdet.commands` can always be
    imported.
    """

    def __init__(self) -> None:
        self._names_are_checked = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of an alias, or None for any other module."""
        if not name.startswith(_HERE) or name == f"{_HERE}commands":
            return None
        if not self._names_are_checked:
            for package in PACKAGES:
                _own_spec(package)
            self._names_are_checked = True
        short = _short_name(name)
        if short == name or (spec := _own_spec(short)) is None:
            return None
        return ModuleSpec(name, self, origin=spec.origin, is_package=spec.submodule_search_locations is not None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module under its own name; the import system then gives it the alias's spec."""
        module = importlib.import_module(_short_name(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec; it is loaded already."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, name: str) -> CodeType:
        """Return the code that `python -m` runs."""
        spec = _own_spec(_short_name(name))
        assert spec is not None
        loader: Any = spec.loader  # `get_code` is an optional method of loaders
        return loader.get_code(spec.name)


def install() -> None:
    """Make the aliases importable in this process."""
    sys.meta_path.insert(0, AliasFinder())


def _short_name(name: str) -> str:
    """Return `model.heads` for `efficientdet.model.heads`, `train` for `efficientdet.programs.train`, else the name."""
    if name.startswith(_PROGRAMS):
        return name.removeprefix(_PROGRAMS)
    rest = name.removeprefix(_HERE)
    return rest if rest.split(".")[0] in PACKAGES else name


def _own_spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module of this checkout.

    Raises:
        ImportError: where another project's module has its name.
    """
    spec = importlib.util.find_spec(name)
    if spec is None:
        if "." in name:
            return None
        raise ImportError(f"the module {name} of this project is missing; install it again")
    place = spec.origin or next(iter(spec.submodule_search_locations or ()))
    if ROOT not in Path(place).resolve().parents:
        raise ImportError(
            f"the module {name} is {place}, not this project's; rename it, unset PYTHONPATH, or install this "
            "project as a wheel: pip install . without -e"
        )
    return spec
