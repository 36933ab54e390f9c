"""A smaller portion of tests/endurance.py, with --endurance; test_interruption and test_train_loop prove the same."""

import pytest
from endurance import endure


@pytest.mark.slow
def test_two_kills_and_a_damaged_record(tmp_path, request):
    if not request.config.getoption("--endurance"):
        pytest.skip("needs --endurance")
    rows = endure(tmp_path / "place", number=2, seed=1, only=("kills", "record"), forked=True)
    assert len(rows) == 5
    assert [row for row in rows if not row.is_right] == []
