"""Fields that state which values they take: bounds at and beyond their ends, and what a message says."""

from dataclasses import dataclass, fields
from typing import Annotated

import pytest

from program_support.checked_fields import (
    BelowOne,
    Count,
    CountOrZero,
    InsideZeroToOne,
    NonNegative,
    Positive,
    PositiveShare,
    Share,
    between,
    checked,
    field_types,
    refusal,
)
from program_support.errors import InputError

NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("kind", "taken", "refused", "expected"),
    [
        (Count, (1, 2**31 - 1), (0, -1, "4", -INFINITE, NAN), "at least 1"),
        (Count, (), (2**31, 10**30), "at most 2147483647"),
        (CountOrZero, (0, 1), (-1,), "at least 0"),
        (Positive, (1e-30, 1e30), (0, -0.0, NAN, -INFINITE, INFINITE), "a finite number above 0"),
        (NonNegative, (0, 0.5), (-1e-9, NAN, INFINITE), "a finite number, at least 0"),
        (Share, (0, 0.5, 1), (-0.1, 1.1, NAN, INFINITE, None.__class__), "0 to 1"),
        (PositiveShare, (1e-9, 1), (0, 1.1, NAN), "above 0, at most 1"),
        (BelowOne, (0, 0.999), (1, -0.1, NAN), "at least 0 and below 1"),
        (InsideZeroToOne, (0.5,), (0, 1, NAN), "above 0 and below 1"),
        (Count | None, (None, 1), (0,), "at least 1"),
        (tuple[Count, ...], ((), (1, 2)), ((1, 0),), "at least 1"),
        (int | str, (-1, "x"), (), ""),
    ],
)
def test_what_a_type_takes(kind, taken, refused, expected):
    assert [refusal(kind, value) for value in taken] == [None] * len(taken)
    assert [refusal(kind, value) for value in refused] == [expected] * len(refused)


@checked
class Settings:
    """A configuration."""

    images: Count
    processes: Annotated[Count, "num_threads"] = 1
    share: Share | None = None
    name: str = "x"

    def __post_init__(self):
        if self.name == "bad":
            raise InputError("a bad name")


def test_first_refused_value_is_named_as_its_flag():
    assert Settings(images=2) == Settings(images=2, processes=1)
    for values, message in (
        ({"images": 0}, "--images=0: expected at least 1"),
        ({"images": 1, "processes": 0, "share": 2}, "--num_threads=0: expected at least 1"),
        ({"images": 1, "share": NAN}, "--share=nan: expected 0 to 1"),
        ({"images": 1, "name": "bad"}, "a bad name"),
    ):
        with pytest.raises(InputError) as caught:
            Settings(**values)
        assert str(caught.value) == message
    with pytest.raises(AttributeError):
        Settings(images=1).images = 2


def test_a_subclass_keeps_the_limits_of_a_field_that_it_declares_again():
    @dataclass(frozen=True, kw_only=True)
    class Parent:
        rate: Share = 0.5
        side: Count = 1

    @dataclass(frozen=True, kw_only=True)
    class Child(Parent):
        rate: float = 1.0
        side: Annotated[int, between(4, 8)] = 4

    assert field_types(Child) == {"rate": Share, "side": {item.name: item.type for item in fields(Child)}["side"]}
    assert refusal(field_types(Child)["side"], 3) == "4 to 8"
