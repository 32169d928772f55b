"""A module by its name and inputs by their shapes, as written on a command line. The user's own Python code runs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import torch

from infercast.errors import InputError, UnknownNameError

TYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
LARGEST_TOKEN = 100  # Values of integer inputs are small, so that every table has them


def load_module(text: str) -> Any:
    """``package.module:name``, ``file.py:name`` (a class, a function or a module), or ``hf:CONFIG``, of transformers.

    It is built on the meta device, where weights take no memory, or, if its code does not allow that, on the CPU.
    """
    source, _, name = text.partition(":") if text.startswith("hf:") else text.rpartition(":")
    if not source or not name:
        raise InputError(f"MODULE must be package.module:name, file.py:name or hf:config.json, not {text!r}")
    try:
        make = (lambda: _from_config(Path(name))) if source == "hf" else _named(source, name)
        if isinstance(make, torch.nn.Module):
            return make
        try:
            with torch.device("meta"):
                made = make()
        except (NotImplementedError, RuntimeError):  # its code looks at values
            made = make()
    except InputError:
        raise
    except Exception as problem:
        raise InputError(f"{text} cannot be made: {type(problem).__name__}: {problem}") from None
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"{text} must make a torch.nn.Module, not {type(made).__name__}")
    return made


def _named(source: str, name: str) -> Any:
    path = Path(source)
    sys.path.insert(0, str(path.resolve().parent if path.suffix == ".py" else Path.cwd()))
    if path.suffix == ".py":  # whatever else has its name
        spec: Any = importlib.util.spec_from_file_location(f"traced_{path.stem}", path)
        found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    else:
        found = importlib.import_module(source)
    for each in name.split("."):
        if not hasattr(found, each):
            known = [known for known in getattr(found, "__dict__", ()) if not known.startswith("_")]
            raise UnknownNameError(f"name in {source}", each, known)
        found = getattr(found, each)
    return found


def _from_config(path: Path) -> Any:
    """The model of a config of transformers, by its architecture; no weights are read."""
    if importlib.util.find_spec("transformers") is None:
        raise InputError("hf: needs transformers, which is not installed: pip install transformers")
    import transformers  # noqa: PLC0415 - few need it

    if not path.exists():
        raise InputError(f"{path} does not exist: hf: takes a folder with a config.json, or such a file")
    config = transformers.AutoConfig.from_pretrained(path)
    config.use_cache = False
    names = getattr(config, "architectures", None) or []
    known = next((getattr(transformers, name) for name in names if hasattr(transformers, name)), None)
    return known(config) if known is not None else transformers.AutoModel.from_config(config)


def read_inputs(module: Any, texts: list[str]) -> Any:
    """``8x3x224x224``, ``int64:8x128`` or ``input_ids:int64:8x128``: shapes in order, or keyword arguments by name."""
    read = [_read_input(text) for text in texts]
    named = {name: tensor for name, tensor in read if name}
    if not named:
        return tuple(tensor for _, tensor in read)
    if len(named) != len(read):
        raise InputError("--input: either every input has a name of its own, or none has one")
    known = inspect.signature(module.forward).parameters
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
        for name in named:
            if name not in known:
                raise UnknownNameError("input", name, known)
    return named


def _read_input(text: str) -> tuple[str, Any]:
    *before, shape = text.split(":")
    kind = getattr(torch, before.pop() if before and before[-1] in TYPES else "float32")
    sizes = shape.split("x")
    if len(before) > 1 or not all(size.isdecimal() for size in sizes):
        types = ", ".join(TYPES)
        raise InputError(f"--input must be like 8x3x224x224, int64:8x128 or name:int64:8x128 ({types}), not {text!r}")
    lengths, name = [int(size) for size in sizes], before[0] if before else ""
    if kind.is_floating_point:
        return name, torch.empty(lengths, dtype=kind, device="meta")
    most = 2 if kind is torch.bool else LARGEST_TOKEN
    return name, torch.randint(1, most, lengths, dtype=kind, generator=torch.Generator().manual_seed(0))
