"""A matrix that is filled cell by cell and can be resumed: each finished cell is written to a file."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from program_support.atomic_files import write_text
from throughput.cells import Cell
from throughput.figures import Figures
from throughput.launching import Outcome

PENDING = Outcome(None, "pending")


class Matrix:
    """Outcomes by cell; outcomes in the folder with the same settings are reused."""

    def __init__(self, folder: Path, cells: Sequence[Cell], *, settings: Mapping[str, Any], retry_failed: bool = False):
        self.cells, self.settings = tuple(cells), json.loads(json.dumps(settings))
        self._folder, self._retry_failed = folder / "cells", retry_failed
        self._outcomes = dict.fromkeys(self.cells, PENDING)
        self._folder.mkdir(parents=True, exist_ok=True)

    def __getitem__(self, cell: Cell) -> Outcome:
        """Return the outcome of a cell."""
        return self._outcomes[cell]

    def measure(
        self, run: Callable[[Cell], Outcome], *, skip_reason: Callable[[Cell], str], written: Callable[[], None]
    ) -> Iterator[str]:
        """Run the missing cells that can run; yield a line for each cell. `written` is called after each."""
        missing = []
        for cell in self.cells:
            if reason := skip_reason(cell):
                self._outcomes[cell] = Outcome(None, reason)
                yield f"{cell.name}: not run: {reason}"
            elif (stored := self._stored_outcome(cell)) is None:
                missing.append(cell)
            else:
                self._outcomes[cell] = stored
                yield f"{cell.name}: {_summary(stored)} (measured before)"
        yield from self._change_notes(missing)
        written()
        for cell in missing:
            self._outcomes[cell] = outcome = run(cell)
            self._store(cell, outcome)
            written()
            yield f"{cell.name}: {_summary(outcome)}"

    def _stored_outcome(self, cell: Cell) -> Outcome | None:
        entry = self._entry(cell)
        if entry is None or entry["settings"] != self.settings or (self._retry_failed and entry["reason"]):
            return None
        return Outcome(Figures(**entry["figures"]) if entry["figures"] else None, entry["reason"])

    def _change_notes(self, missing: Sequence[Cell]) -> Iterator[str]:
        """Yield a line for each cell that is measured again, with the setting that changed."""
        for cell in missing:
            entry = self._entry(cell)
            for name, value in self.settings.items() if entry else ():
                if entry["settings"].get(name) != value:
                    yield f"{cell.name}: again, as {name} was {entry['settings'].get(name)!r} and is {value!r}"

    def _entry(self, cell: Cell) -> dict[str, Any] | None:
        path = self._path(cell)
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def _store(self, cell: Cell, outcome: Outcome) -> None:
        figures = outcome.figures._asdict() if outcome.figures else None
        write_text(
            self._path(cell),
            json.dumps(
                {"cell": cell._asdict(), "settings": self.settings, "figures": figures, "reason": outcome.reason},
                indent=1,
            )
            + "\n",
        )

    def _path(self, cell: Cell) -> Path:
        return self._folder / f"{cell.name}.json"


def _summary(outcome: Outcome) -> str:
    return f"{outcome.figures.images_per_second:.4g} images/s" if outcome.figures else f"not run: {outcome.reason}"
