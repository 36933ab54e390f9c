"""Verify records before the first training step: complete, undamaged, and with objects.

`index_records` always reads the framing (lengths that add up to the end of the file). The verification reads every
byte: the checksum of each record, and the description of its image and objects. No image is decoded.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from dataset.files.untrusted_values import allowing_fraction
from dataset.records.record_index import RecordIndex, RecordReader, require_unchanged
from dataset.records.record_inspection import NO_BOX_KEYS, inspect_record
from program_support.errors import InputError

WHEN = ("auto", "always", "never")
# Six seconds on one core at 2.5 GHz, from memory: 600 MB of checksums per second, 14,000 inspected records per second.
AUTO_BYTES = 2**30
AUTO_RECORDS = 50_000
_SAMPLE = 256  # records inspected if all would take too long
_SAMPLE_BAD_FRACTION = 0.5  # a small sample detects a wrong data set, but cannot distinguish 1% from 2%
_NAMED = 3


def verify_records(
    index: RecordIndex,
    *,
    when: str,
    max_bad_fraction: float,
    log: Callable[[str], None],
    category_ids: Collection[int] | None = None,
) -> RecordIndex:
    """Return the index without unusable records; an image with an empty list of boxes is valid.

    `when`: "auto" verifies all records up to AUTO_BYTES and AUTO_RECORDS and inspects a sample of larger data sets,
    "always" verifies any amount, "never" nothing. `index` is complete, as `index_records` returns it.

    Raises:
        InputError: with file, offset and image, for a record with a checksum mismatch or a contradiction (lists of
            unequal lengths, boxes that are not numbers, ids not in `category_ids`); if more than `max_bad_fraction`
            of the records or of the boxes are unusable; and if there are no boxes.
    """
    if not 0 <= max_bad_fraction <= 1:
        raise InputError(f"--max_bad_fraction={max_bad_fraction}: expected 0 to 1")
    if _is_due(index, when):
        tally = _Tally(index)
        reader = RecordReader(index)
        for number in range(len(index)):
            tally.add(number, *reader.read([number]), category_ids=category_ids)
        require_unchanged(index)
        tally.check_fractions(max_bad_fraction=max_bad_fraction)
        tally.require_boxes()
        tally.warn(log, fate="skipped")
        useless = [number for numbers in tally.useless.values() for number in numbers]
        return index.only(~np.isin(np.arange(len(index)), useless)) if useless else index
    if when == "auto":
        _inspect_sample(index, max_bad_fraction=max_bad_fraction, log=log, category_ids=category_ids)
    return index


def _is_due(index: RecordIndex, when: str) -> bool:
    if when not in WHEN:
        raise InputError(f"--verify_records={when}: expected one of {', '.join(WHEN)}")
    small = int(index.lengths.sum()) <= AUTO_BYTES and len(index) <= AUTO_RECORDS
    return when == "always" or (when == "auto" and small)


def _inspect_sample(
    index: RecordIndex, *, max_bad_fraction: float, log: Callable[[str], None], category_ids: Collection[int] | None
) -> None:
    """Inspect a sample, to report a completely wrong data set (captions, boxes in pixels) at any size."""
    tally = _Tally(index)
    numbers = np.unique(np.linspace(0, len(index) - 1, _SAMPLE).astype(np.int64))
    for number, payload in zip(numbers.tolist(), RecordReader(index).read(numbers), strict=True):
        tally.add(number, payload, category_ids=category_ids)
    tally.check_fractions(max_bad_fraction=max(max_bad_fraction, _SAMPLE_BAD_FRACTION))
    tally.warn(log, fate="not skipped; use --verify_records=always to skip them")
    log(
        f"checked {len(numbers)} of {len(index)} records ({index.lengths.sum() / 1e9:.1f} GB); --verify_records=always "
        "verifies the checksums of all"
    )


@dataclass
class _Tally:
    """Counts over the inspected records; `useless` has the record numbers for each reason."""

    index: RecordIndex
    records: int = 0
    boxes: int = 0
    boxes_outside: list[int] = field(default_factory=list)  # the record of each
    useless: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    names: dict[int, str] = field(default_factory=dict)  # only those of records that messages may mention

    def add(self, number: int, payload: bytes, *, category_ids: Collection[int] | None) -> None:
        """Add a record.

        Raises:
            InputError: it is contradictory.
        """
        inspection = inspect_record(payload, category_ids=category_ids)
        if inspection.contradiction:
            raise InputError(
                f"{self.index.path(number)}: the record at byte {self.index.start(number)} ({inspection.name}) "
                f"holds {inspection.contradiction}; convert again"
            )
        self.records += 1
        self.boxes += inspection.boxes
        if inspection.useless:
            self.useless[inspection.useless].append(number)
            self.names[number] = inspection.name
        if inspection.boxes_outside:
            self.boxes_outside += [number] * inspection.boxes_outside
            self.names[number] = inspection.name

    def check_fractions(self, *, max_bad_fraction: float) -> None:
        """Raise InputError if too many records or boxes are unusable."""
        bad, outside = sum(map(len, self.useless.values())), len(self.boxes_outside)
        needed = max(allowing_fraction(bad, self.records), allowing_fraction(outside, self.boxes), key=float)
        if bad > max_bad_fraction * self.records or bad == self.records:
            raise InputError(
                f"{self._useless_records()}: {bad / self.records:.2%} of the records; expected at most "
                f"{max_bad_fraction:.2%}; {self._advice(bad, needed)}"
            )
        if outside > max_bad_fraction * self.boxes:
            raise InputError(
                f"{self._useless_boxes()}: {outside / self.boxes:.2%}; expected at most {max_bad_fraction:.2%}, "
                "in fractions of the image (not pixels, minimum before maximum); to accept this, set "
                f"--max_bad_fraction={needed}"
            )

    def require_boxes(self) -> None:
        """Raise InputError if there are no boxes."""
        if not self.boxes:
            raise InputError(
                f"{self.index.paths[0]}: no boxes in {self.records} records; expected records with object "
                "annotations (--verify_records=never trains without boxes)"
            )

    def warn(self, log: Callable[[str], None], *, fate: str) -> None:
        if self.useless:
            log(f"warning: {self._useless_records()}; {fate}")
        if self.boxes_outside:
            log(f"warning: {self._useless_boxes()}; training ignores them")

    def _advice(self, bad: int, needed: str) -> str:
        keep = (
            "if they are images without objects, --verify_records=never keeps them as such"
            if NO_BOX_KEYS in self.useless
            else "convert again"
        )
        if bad == self.records:
            return f"were they made without annotations? {keep}"
        return f"{keep}; --max_bad_fraction={needed} leaves them out"

    def _useless_records(self) -> str:
        return "; ".join(
            f"{len(numbers)} of {self.records} records hold {reason}: {self._places(numbers)}"
            for reason, numbers in self.useless.items()
        )

    def _useless_boxes(self) -> str:
        return (
            f"{len(self.boxes_outside)} of {self.boxes} boxes have no area inside their image: "
            f"{self._places(sorted(set(self.boxes_outside)))}"
        )

    def _places(self, numbers: list[int]) -> str:
        shown = [
            f"{self.names[number]} (byte {self.index.start(number)} of {self.index.path(number)})"
            for number in numbers[:_NAMED]
        ]
        return ", ".join(shown) + (f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else "")
