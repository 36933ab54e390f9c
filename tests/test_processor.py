import os

import pytest

from program_support.processor import available_cores


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [
        ("max 100000", None),
        ("nonsense", None),
        (None, None),
        ("100000 100000", 1),
        ("20000 100000", 1),
        ("100000000 100000", None),
    ],
)
def test_a_containers_limit_counts_where_it_is_below_the_cores(tmp_path, limit, wanted):
    if limit is not None:
        (tmp_path / "cpu.max").write_text(limit)
    assert available_cores(tmp_path / "cpu.max") == (wanted or len(os.sched_getaffinity(0)))


def test_a_part_of_a_core_counts_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert available_cores(tmp_path / "cpu.max") == 3
