"""Dataclasses that are quick to define: nothing is compiled before the first object.

A command defines a hundred of them and makes objects of half; the standard library compiles six functions for each.
Here it keeps the fields alone, and `fields`, `replace` and `asdict` work as always.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, Field, FrozenInstanceError, asdict, field, is_dataclass, replace
from functools import partial
from operator import attrgetter
from sys import version_info
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass, fields
    from inspect import Signature
    from typing import NamedTuple, TypedDict
else:

    class _Named(type):
        """As that of `typing`, which compiles every annotation."""

        def __new__(cls, name, bases, own):
            if not bases:
                return type.__new__(cls, name, bases, own)
            kinds = own.get("__annotations__", {})
            defaults = [own[each] for each in kinds if each in own]
            made = collections.namedtuple(name, kinds, defaults=defaults, module=own["__module__"])
            made.__annotations__ = made.__new__.__annotations__ = kinds
            for each, value in own.items():
                if each not in made._fields and each not in (
                    "__dict__",
                    "__weakref__",
                    "__module__",
                    "__annotations__",
                ):
                    setattr(made, each, value)
            return made

    class NamedTuple(metaclass=_Named):
        pass

    class TypedDict:
        def __init_subclass__(cls, total=True):
            known = [getattr(base, "__annotations__", {}) for base in cls.__mro__[::-1]]
            cls.__annotations__ = {name: kind for each in known for name, kind in each.items()}

    def dataclass(cls=None, /, *, frozen=False, slots=False, kw_only=False, repr=True, eq=True):
        """As that of the standard library, less its checks."""
        if cls is None:
            return partial(dataclass, frozen=frozen, slots=slots, kw_only=kw_only, repr=repr, eq=eq)
        own, known = dict(vars(cls)), {}
        for base in cls.__mro__[:0:-1]:
            known |= vars(base).get("__dataclass_fields__", {})
        for name, kind in (cls.__annotations__ if version_info >= (3, 14) else own.get("__annotations__", {})).items():
            if kind is KW_ONLY or kind == "KW_ONLY":
                kw_only = True
            if kind is KW_ONLY or str(kind).startswith(("KW_ONLY", "ClassVar", "typing.ClassVar")):
                continue
            default = own.pop(name, MISSING)
            known[name] = each = default if isinstance(default, Field) else field(default=default)
            each.name, each.type, each._field_type = name, kind, dataclasses._FIELD
            each.kw_only = kw_only if each.kw_only is MISSING else each.kw_only
            if not slots and default is each:
                delattr(cls, name) if each.default is MISSING else setattr(cls, name, each.default)

        def init(self, *values, **named):
            made.__init__ = _compiled(made, frozen)
            made.__init__(self, *values, **named)

        def refuse(self, name, *value):
            if type(self) is made or name in known:
                raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
            (object.__setattr__ if value else object.__delattr__)(self, name, *value)

        init.compiled = lambda: _compiled(made, frozen)
        methods = {"__init__": init, "__signature__": _SIGNATURE, "__dataclass_params__": _PARAMS[frozen]}
        methods["__replace__"] = replace
        methods["__match_args__"] = tuple(name for name, each in known.items() if each.init and not each.kw_only)
        methods |= {"__repr__": _show} if repr else {}
        methods |= {"__eq__": _equality(known), "__hash__": _hashing(known) if frozen else None} if eq else {}
        methods |= {"__setattr__": refuse, "__delattr__": refuse} if frozen else {}
        methods |= {"__getstate__": _state, "__setstate__": _restore} if frozen and slots else {}
        methods |= {"__dataclass_fields__": known, "__doc__": cls.__doc__ or cls.__name__}
        methods = {name: method for name, method in methods.items() if own.get(name) is None}
        if not slots:
            made = cls
            for name, method in methods.items():
                setattr(cls, name, method)
            return cls
        taken = {name for base in cls.__mro__[1:-1] for name in vars(base).get("__slots__", ())}
        own |= methods | {"__slots__": tuple(name for name in known if name not in taken)}
        for name in ("__dict__", "__weakref__"):
            own.pop(name, None)
        made = type(cls)(cls.__name__, cls.__bases__, own | {"__qualname__": cls.__qualname__})
        return made

    def fields(of):
        """As that of the standard library, of classes that are defined here."""
        return tuple(of.__dataclass_fields__.values())


__all__ = ["KW_ONLY", "MISSING", "NamedTuple", "TypedDict", "asdict", "dataclass", "field", "fields", "is_dataclass"]
__all__ += ["replace"]


class _Signature:
    """What `inspect` shows of a class: the signature of its compiled function."""

    def __get__(self, _: object, cls: Any) -> Signature:
        from inspect import signature  # noqa: PLC0415 - asked for in notebooks

        shown = signature(getattr(cls.__init__, "compiled", lambda: cls.__init__)())
        return shown.replace(parameters=list(shown.parameters.values())[1:])


_SIGNATURE = _Signature()
_PARAMS = {frozen: SimpleNamespace(frozen=frozen) for frozen in (False, True)}


def _compiled(cls: Any, frozen: bool) -> Any:
    """The function that sets the fields of a new object."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    given, lines = ["self"], list[str]()
    for each in sorted(fields(cls), key=attrgetter("kw_only")):
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


def _equality(known: dict[str, Any]) -> Callable[[Any, object], Any]:
    compared = _values([name for name, each in known.items() if each.compare])
    return lambda one, other: compared(one) == compared(other) if other.__class__ is one.__class__ else NotImplemented


def _hashing(known: dict[str, Any]) -> Callable[[Any], int]:
    hashed = _values([name for name, each in known.items() if (each.compare if each.hash is None else each.hash)])
    return lambda one: hash(hashed(one))


def _values(names: list[str]) -> Callable[[Any], Any]:
    return attrgetter(*names) if len(names) > 1 else lambda one: tuple(getattr(one, name) for name in names)


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _restore(self: Any, values: list[Any]) -> None:
    for each, value in zip(fields(self), values, strict=True):
        object.__setattr__(self, each.name, value)
