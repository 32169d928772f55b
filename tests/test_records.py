"""Records behave as the dataclasses that they stand for."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import pickle
from collections.abc import Mapping

import pytest

from infercast.predict.estimate import Estimate
from infercast.records import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A place."""

    name: str
    height: float = 1.5
    tags: list[str] = dataclasses.field(default_factory=list)
    marks: Mapping[str, int] = dataclasses.field(hash=False, default_factory=dict)

    @property
    def twice(self) -> float:
        return 2 * self.height


@dataclass(frozen=True, slots=True)
class Single:
    value: int


def test_a_constructor_takes_positions_names_and_defaults():
    place = Place("here", tags=["x"])
    assert (place.name, place.height, place.tags, place.marks, place.twice) == ("here", 1.5, ["x"], {}, 3.0)
    assert Place("a").tags is not Place("b").tags


@pytest.mark.parametrize(("given", "named"), [((), {}), (("a", 1, [], {}, 5), {}), (("a",), {"other": 1})])
def test_wrong_arguments_are_refused_by_name(given, named):
    with pytest.raises(TypeError, match=r"Place.__init__\(\)"):
        Place(*given, **named)


def test_nothing_can_be_set_or_deleted():
    place = Place("here")
    for change in (
        lambda: setattr(place, "name", "there"),
        lambda: delattr(place, "name"),
        lambda: setattr(place, "a", 1),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field"):
            change()
    assert not hasattr(place, "__dict__")


def test_values_are_compared_and_hashed_as_by_the_standard_decorator():
    assert Single(3) == Single(3) != Single(4)
    assert Single(3) != 3
    assert hash(Single(3)) == hash((3,))
    assert repr(Place("here")) == "Place(name='here', height=1.5, tags=[], marks={})"

    @dataclass(frozen=True, slots=True)
    class Marked:
        name: str
        marks: dict[str, int] = dataclasses.field(hash=False)

    assert hash(Marked("a", {})) == hash(("a",))


def test_the_standard_functions_know_the_fields():
    place = Place("here", 2.0, ["x"], {"a": 1})
    assert [field.name for field in dataclasses.fields(Place)] == ["name", "height", "tags", "marks"]
    assert dataclasses.is_dataclass(place)
    assert dataclasses.replace(place, name="there") == Place("there", 2.0, ["x"], {"a": 1})
    assert dataclasses.asdict(place) == {"name": "here", "height": 2.0, "tags": ["x"], "marks": {"a": 1}}
    assert str(inspect.signature(Place)).startswith("(name: 'str', height: 'float' = 1.5, tags:")


def test_copies_and_pickles_are_equal():
    place = Place("here", tags=["x"])
    for other in (copy.copy(place), copy.deepcopy(place)):
        assert other == place
    estimate = Estimate(1.0, 0.5, 2.0, "measured", "dram")
    assert pickle.loads(pickle.dumps(estimate)) == estimate


def test_patterns_match_by_position():
    match Place("here", 2.0):
        case Place(name, height):
            assert (name, height) == ("here", 2.0)


def test_values_that_may_change():
    @dataclass(slots=True)
    class Open:
        value: int = 0
        more: list[int] = dataclasses.field(default_factory=list)

    @dataclass(slots=True, eq=False)
    class Named:
        value: int = 0

    @dataclass
    class Plain:
        value: int
        more: list[int] = dataclasses.field(default_factory=list)

    record = Open()
    record.value = 2
    assert record == Open(2) != Open(3)
    assert not hasattr(record, "__dict__")
    with pytest.raises(TypeError, match="unhashable"):
        hash(record)
    assert Plain(1) == Plain(1, []) != Plain(2)
    assert Named() != Named()
    assert len({Named(), Named()}) == 2


def test_frozen_values_that_remember_what_was_worked_out():
    @dataclass(frozen=True)
    class Square:
        side: int
        parts: list[int] = dataclasses.field(default_factory=list, hash=False)

        @functools.cached_property
        def area(self) -> int:
            return self.side**2

    square = Square(3)
    assert (square.area, square.parts) == (9, [])
    assert square == Square(3)
    assert hash(square) == hash((3,))
    assert dataclasses.replace(square, side=2).area == 4
    assert copy.deepcopy(square) == square
    with pytest.raises(dataclasses.FrozenInstanceError):
        square.side = 4
