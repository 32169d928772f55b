"""Dataclasses that cost next to nothing until they are used.

The standard decorator compiles eight functions a class, which takes a millisecond each time Python starts, and there
are a hundred classes. This one compiles a constructor when a first instance is made and nothing else. To type checkers
and to `dataclasses.fields`, `replace` and `asdict` its classes are dataclasses like all others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(plain: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True) -> Any:
        """As `dataclasses.dataclass`, for classes without a base that is a dataclass and without ``__post_init__``."""
        make = partial(_record, frozen=frozen, slots=slots, eq=eq)
        return make if plain is None else make(plain)


def _record(plain: type, *, frozen: bool, slots: bool, eq: bool) -> type:
    """The class with what makes it a dataclass; with slots it is made anew."""
    names = tuple(plain.__annotations__)
    defaults = {name: plain.__dict__[name] for name in names if name in plain.__dict__}
    values = _getter(names)

    def construct(self: Any, *given: Any, **named: Any) -> None:
        made.__init__ = _constructor(made, names, defaults, frozen=frozen, slots=slots)
        made.__init__(self, *given, **named)

    late = {"__dataclass_fields__": _fields, "__signature__": _signature}
    methods: dict[str, Any] = {name: _Late(plain, defaults, ask) for name, ask in late.items()}
    methods |= {"__init__": construct, "__repr__": _show, "__match_args__": names}
    methods |= _comparing(values, names, defaults, frozen=frozen) if eq else {}
    methods |= {"__setattr__": _refuse, "__delattr__": _refuse} if frozen else {}
    if not slots:
        for name, value in methods.items():
            if name not in plain.__dict__:
                setattr(plain, name, value)
        for name, value in defaults.items():
            if isinstance(value, dataclasses.Field):
                delattr(plain, name)
        made: Any = plain
        return plain

    def state(self: Any) -> tuple[Any, ...]:
        return values(self)

    methods |= {"__getstate__": state, "__setstate__": _restore, "__slots__": names}
    kept = {name: value for name, value in plain.__dict__.items() if name not in {*names, "__dict__", "__weakref__"}}
    made = type(plain.__name__, plain.__bases__, {**methods, **kept})
    made.__qualname__ = plain.__qualname__
    return made  # type: ignore[no-any-return]


def _comparing(
    values: Callable[[Any], tuple[Any, ...]], names: tuple[str, ...], defaults: Mapping[str, Any], *, frozen: bool
) -> dict[str, Any]:
    """Equality by all fields, and a hash where nothing can change."""

    def is_equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    if not frozen:
        return {"__eq__": is_equal, "__hash__": None}
    fields = {name for name, value in defaults.items() if isinstance(value, dataclasses.Field) and value.hash is False}
    hashed = _getter([name for name in names if name not in fields])
    return {"__eq__": is_equal, "__hash__": lambda self: hash(hashed(self))}


def _getter(names: tuple[str, ...] | list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Of an instance, these fields as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _constructor(made: type, names: tuple[str, ...], defaults: Mapping[str, Any], *, frozen: bool, slots: bool) -> Any:
    """``__init__`` as a function that has the fields as its parameters."""
    known: dict[str, Any] = {}
    parameters, lines = ["self"], ["pass" if slots or not frozen else "_values = self.__dict__"]
    for name in names:
        default, value = defaults.get(name, dataclasses.MISSING), name
        if isinstance(default, dataclasses.Field):
            if default.default_factory is not dataclasses.MISSING:
                known[f"_new_{name}"] = default.default_factory
                value, default = f"_new_{name}() if {name} is _default_{name} else {name}", object()
            else:
                default = default.default
        known[f"_default_{name}"] = default
        parameters.append(name if default is dataclasses.MISSING else f"{name}=_default_{name}")
        if not frozen:
            lines.append(f"self.{name} = {value}")
        elif slots:
            known[f"_set_{name}"] = made.__dict__[name].__set__
            lines.append(f"_set_{name}(self, {value})")
        else:
            lines.append(f"_values[{name!r}] = {value}")
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines), known)
    known["__init__"].__qualname__ = f"{made.__qualname__}.__init__"
    return known["__init__"]


class _Late:
    """An attribute of a class that the standard decorator knows, worked out when somebody asks."""

    def __init__(self, plain: type, defaults: Mapping[str, Any], ask: Callable[[type], Any]) -> None:
        self._twin = plain.__name__, plain.__annotations__, plain.__module__, defaults
        self._ask = ask

    def __get__(self, instance: object, owner: type) -> Any:
        return self._answer

    @cached_property
    def _answer(self) -> Any:
        name, annotations, module, defaults = self._twin
        known = {"__annotations__": annotations, "__module__": module, "__doc__": "Without words it would write some."}
        return self._ask(type(name, (), {**known, **defaults}))


def _fields(twin: type) -> Any:
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(twin)
    return made.__dataclass_fields__


def _signature(twin: type) -> Any:
    import inspect  # noqa: PLC0415 - only those who ask for help need it

    return inspect.signature(dataclasses.dataclass(repr=False, eq=False)(twin))


def _show(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{self.__class__.__qualname__}({shown})"


def _refuse(self: Any, name: str, value: Any = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _restore(self: Any, state: tuple[Any, ...]) -> None:
    for name, value in zip(self.__slots__, state, strict=True):
        object.__setattr__(self, name, value)
