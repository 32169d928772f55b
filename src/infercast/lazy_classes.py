"""Dataclasses that are quick to define: nothing is compiled before the first object of one is made.

A command defines a hundred of them and makes objects of half; the standard library compiles six functions for each.
Here it keeps the fields alone, and `fields`, `replace` and `asdict` work as always.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
    from inspect import Signature
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, kw_only=False, repr=True, eq=True):
        """As that of the standard library."""
        if cls is None:
            return partial(dataclass, frozen=frozen, slots=slots, kw_only=kw_only, repr=repr, eq=eq)
        # It would compile what makes objects frozen, so that it hears of that afterwards.
        known = [params for each in cls.__mro__ if (params := vars(each).get("__dataclass_params__")) is not None]
        before = [each.frozen for each in known]
        for each in known:
            each.frozen = False
        if cls.__doc__ is None:
            cls.__doc__ = cls.__name__  # else it would be the signature, which takes milliseconds
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
        for each, is_frozen in zip((*known, made.__dataclass_params__), (*before, frozen), strict=True):
            each.frozen = is_frozen
        methods = {"__init__": _first_init(made, frozen), "__signature__": _Signature()}
        if repr:
            methods["__repr__"] = _show
        if eq:
            methods |= {"__eq__": _equality(made), "__hash__": _hashing(made) if frozen else None}
        if frozen:
            methods |= dict.fromkeys(("__setattr__", "__delattr__"), _refusal(made))
        if frozen and slots:
            methods |= {"__getstate__": _state, "__setstate__": _restore}
        for name, method in methods.items():
            if vars(made).get(name) is None:
                setattr(made, name, method)
        return made


__all__ = ["KW_ONLY", "MISSING", "asdict", "dataclass", "field", "fields", "is_dataclass", "replace"]


class _Signature:
    """What `inspect` shows of a class: the signature of its compiled function."""

    def __get__(self, _: object, cls: Any) -> Signature:
        from inspect import signature  # noqa: PLC0415 - asked for in notebooks

        shown = signature(getattr(cls.__init__, "compiled", lambda: cls.__init__)())
        return shown.replace(parameters=list(shown.parameters.values())[1:])


def _first_init(cls: Any, frozen: bool) -> Callable[..., None]:
    def init(self: Any, *values: Any, **named: Any) -> None:
        cls.__init__ = _compiled(cls, frozen)
        cls.__init__(self, *values, **named)

    init.compiled = partial(_compiled, cls, frozen)  # type: ignore[attr-defined]
    return init


def _compiled(cls: Any, frozen: bool) -> Any:
    """The function that sets the fields of a new object."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    given, lines = ["self"], list[str]()
    for each in sorted(fields(cls), key=lambda one: one.kw_only is True):
        name, has_factory = each.name, each.default_factory is not MISSING
        known |= {f"_default_{name}": each.default, f"_make_{name}": each.default_factory}
        value = f"_make_{name}()" if has_factory else f"_default_{name}"
        is_optional = has_factory or each.default is not MISSING
        if each.init:
            given += ["*"] if each.kw_only and "*" not in given else []
            given.append(f"{name}=_default_{name}" if is_optional else name)
            value = f"{value} if {name} is _missing else {name}" if has_factory else name
        if each.init or is_optional:
            lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    lines.append("self.__post_init__()" if hasattr(cls, "__post_init__") else "pass")
    exec(f"def __init__({', '.join(given)}):\n " + "\n ".join(lines), known)
    init = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {each.name: each.type for each in fields(cls) if each.init} | {"return": None}
    return init


def _show(self: Any) -> str:
    told = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({told})"


def _equality(cls: Any) -> Callable[[Any, object], Any]:
    compared = _values(cls, lambda each: each.compare)
    return lambda one, other: compared(one) == compared(other) if other.__class__ is one.__class__ else NotImplemented


def _hashing(cls: Any) -> Callable[[Any], int]:
    hashed = _values(cls, lambda each: each.compare if each.hash is None else each.hash)
    return lambda one: hash(hashed(one))


def _values(cls: Any, is_chosen: Callable[[Any], bool]) -> Callable[[Any], Any]:
    names = [each.name for each in fields(cls) if is_chosen(each)]
    return attrgetter(*names) if len(names) > 1 else lambda one: tuple(getattr(one, name) for name in names)


def _refusal(cls: Any) -> Callable[..., None]:
    def refuse(self: Any, name: str, *value: Any) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
        (object.__setattr__ if value else object.__delattr__)(self, name, *value)

    return refuse


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _restore(self: Any, values: list[Any]) -> None:
    for each, value in zip(fields(self), values, strict=True):
        object.__setattr__(self, each.name, value)
