"""Dataclasses that are compiled late behave like those of the standard library."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError
from functools import cached_property
from typing import Any

import pytest

from infercast.lazy_classes import KW_ONLY, asdict, dataclass, field, fields, replace

MAKERS = {"ours": dataclass, "standard": dataclasses.dataclass}


def family(make: Any) -> dict[str, Any]:
    """The same classes by one or the other."""

    @make(frozen=True, slots=True)
    class Base:
        """One."""

        a: int
        b: list[int] = field(default_factory=list)
        c: float = field(default=1.0, repr=False, compare=False)

    @make(frozen=True, slots=True)
    class Child(Base):
        """Two."""

        d: str = "d"
        _: KW_ONLY
        e: int = 5

        def __post_init__(self) -> None:
            if self.e < 0:
                raise ValueError("e")

    @make
    class Loose:
        """Three."""

        a: int
        made: int = field(init=False, default=7)

    @make(frozen=True, eq=False)
    class Alone:
        """Four."""

        a: int = 1

        @cached_property
        def twice(self) -> int:
            return 2 * self.a

    return {"Base": Base, "Child": Child, "Loose": Loose, "Alone": Alone}


@pytest.fixture(params=MAKERS)
def kinds(request: pytest.FixtureRequest) -> dict[str, Any]:
    return family(MAKERS[request.param])


def test_like_the_standard_library(kinds: dict[str, Any]) -> None:
    child = kinds["Child"]
    one, two = child(1, [2], e=3), child(a=1, b=[2], c=9.0, e=3)
    assert one == two
    assert one != child(1, [2])
    assert one != kinds["Base"](1, [2])
    assert hash(child(1, ())) == hash(child(1, (), 4.0))
    assert repr(one).endswith("Child(a=1, b=[2], d='d', e=3)")
    assert child(1).b is not child(1).b
    assert [each.name for each in fields(child)] == ["a", "b", "c", "d", "e"]
    assert replace(one, a=4).a == 4
    assert asdict(one) == {"a": 1, "b": [2], "c": 1.0, "d": "d", "e": 3}
    assert not hasattr(one, "__dict__")
    assert copy.copy(one) == one
    with pytest.raises(ValueError, match="e"):
        child(1, e=-1)
    with pytest.raises(TypeError, match=r"Child.__init__\(\) missing 1 required positional argument: 'a'"):
        child()


def test_frozen_or_not(kinds: dict[str, Any]) -> None:
    one = kinds["Child"](1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        one.a = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
        del one.a
    loose = kinds["Loose"](1)
    loose.a = 2
    assert (loose.a, loose.made) == (2, 7)
    assert loose == kinds["Loose"](2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(loose)
    alone = kinds["Alone"]()
    assert alone != kinds["Alone"]()
    assert (alone.twice, alone == alone, hash(alone) == hash(alone)) == (2, True, True)


def test_inspected_before_the_first_object(kinds: dict[str, Any]) -> None:
    shown = inspect.signature(kinds["Child"])
    assert list(shown.parameters) == ["a", "b", "c", "d", "e"]
    assert shown.parameters["e"].kind is inspect.Parameter.KEYWORD_ONLY
    assert shown.parameters["d"].default == "d"
    kinds["Child"](1)
    assert list(inspect.signature(kinds["Child"]).parameters) == ["a", "b", "c", "d", "e"]


def test_a_standard_subclass() -> None:
    """Extensions may use the standard library's decorator."""
    base = family(dataclass)["Base"]

    @dataclasses.dataclass(frozen=True, slots=True)
    class Own(base):  # type: ignore[misc,valid-type]
        own: int = 3

    assert (Own(1).a, Own(1).own) == (1, 3)
    assert Own(1) == Own(1)


@dataclass(frozen=True, slots=True)
class Sent:
    """Goes to another process."""

    a: int
    b: tuple[int, ...] = ()


def test_pickled() -> None:
    assert pickle.loads(pickle.dumps(Sent(1, (2,)))) == Sent(1, (2,))
