import pytest

from dataset.files.untrusted_values import (
    LARGEST_ID,
    error_context,
    finite_number,
    listed,
    shown,
    storable_text,
    whole_number,
)
from program_support.errors import InputError


def test_shown_is_short_and_printable():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    wide = "x" * 100
    for _ in range(9):
        wide = (wide,) * 9
    for value in (
        "x" * 10**6,
        list(range(10**6)),
        deep,
        wide,
        10**4000,
        1 << 10**6,
        [1 << 10**6],
        {"a" * 999: "b" * 999},
        "\ud800\n\0",
    ):
        assert 0 < len(shown(value)) < 500
        assert shown(value).isprintable()
    assert shown("dög") == "'dög'"
    while deep:
        deep = deep[0]  # or its end would recurse


def test_listed_is_short():
    assert listed([1, 2]) == "1, 2"
    assert len(listed(["x" * 500] * 500)) < 620


@pytest.mark.parametrize("value", [True, None, "1", [1], float("nan"), float("inf"), 10**400, -(10**400)])
def test_what_is_no_finite_number(value):
    with pytest.raises(InputError, match=r"^has area .*, expected a (finite )?number$"):
        finite_number(value, "area")


def test_whole_numbers():
    assert [whole_number(value, "id") for value in (0, -0.0, 3.0, LARGEST_ID)] == [0, 0, 3, LARGEST_ID]
    for value in (0.5, -1, LARGEST_ID + 1, 1e300, True, "1", 10**4000):
        with pytest.raises(InputError, match=r"^here has id"), error_context("here"):
            whole_number(value, "id")


def test_text_that_can_be_stored():
    assert storable_text("猫 \n", "name") == "猫 \n"
    for value in ("\ud800", "a\udcff.jpg", "a\0", None, 3):
        with pytest.raises(InputError, match=r"^has name .*, expected text"):
            storable_text(value, "name")
