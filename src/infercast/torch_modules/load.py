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


def load_module(text: str) -> torch.nn.Module:
    """``package.module:name``, ``file.py:name`` (a class, a function or a module), or ``hf:CONFIG``, of transformers.

    It is built on the meta device, where weights take no memory, or, if its code does not allow that, on the CPU.
    """
    kind, _, rest = text.partition(":")
    if kind == "hf" and rest:
        return _made(lambda: _from_config(Path(rest)), text)
    source, _, name = text.rpartition(":")
    if not source or not name:
        raise InputError(f"MODULE must be package.module:name, file.py:name or hf:config.json, not {text!r}")
    found: Any = _imported(source)
    for each in name.split("."):
        if not hasattr(found, each):
            names = [known for known in vars(found) if not known.startswith("_")] if hasattr(found, "__dict__") else []
            raise UnknownNameError(f"name in {source}", each, names)
        found = getattr(found, each)
    return found if isinstance(found, torch.nn.Module) else _made(found, text)


def _imported(source: str) -> Any:
    try:
        if not source.endswith(".py"):
            sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(source)
        path = Path(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.resolve().parent))
        sys.modules[path.stem] = made
        spec.loader.exec_module(made)
        return made
    except Exception as problem:
        raise InputError(f"{source} cannot be imported: {type(problem).__name__}: {problem}") from None


def _made(make: Any, text: str) -> torch.nn.Module:
    try:
        try:
            with torch.device("meta"):
                made = make()
        except (NotImplementedError, RuntimeError):  # its code looks at values
            made = make()
    except InputError:
        raise
    except Exception as problem:
        raise InputError(f"{text} cannot be built: {type(problem).__name__}: {problem}") from None
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"{text} must make a torch.nn.Module, not {type(made).__name__}")
    return made


def _from_config(path: Path) -> Any:
    """The model of a config of transformers, by its architecture; no weights are read."""
    if not path.exists():
        raise InputError(f"{path} does not exist: hf: takes a folder with a config.json, or such a file")
    try:
        import transformers  # noqa: PLC0415 - few need it
    except ImportError:
        raise InputError("hf: needs transformers, which is not installed: pip install transformers") from None
    config = transformers.AutoConfig.from_pretrained(path)
    config.use_cache = False
    names = getattr(config, "architectures", None) or []
    known = next((getattr(transformers, name) for name in names if hasattr(transformers, name)), None)
    return known(config) if known is not None else transformers.AutoModel.from_config(config)


def read_inputs(module: torch.nn.Module, texts: list[str]) -> Any:
    """``8x3x224x224``, ``int64:8x128`` or ``input_ids:int64:8x128``: shapes in order, or keyword arguments by name."""
    read = [_read_input(text) for text in texts]
    named = {name: tensor for name, tensor in read if name}
    if named and len(named) != len(read):
        raise InputError("--input: either all inputs have a name, or none has")
    if not named:
        return tuple(tensor for _, tensor in read)
    parameters = inspect.signature(module.forward).parameters
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        for name in named:
            if name not in parameters:
                raise UnknownNameError("input", name, parameters)
    return named


def _read_input(text: str) -> tuple[str, torch.Tensor]:
    *before, shape = text.split(":")
    dtype = before.pop() if before and before[-1] in TYPES else ""
    try:
        sizes = [int(size) for size in shape.split("x")] if shape else []
    except ValueError:
        sizes = [-1]
    if len(before) > 1 or min(sizes, default=1) < 0 or not text:
        known = ", ".join(TYPES)
        raise InputError(f"--input must be like 8x3x224x224, int64:8x128 or name:int64:8x128 ({known}), not {text!r}")
    kind = getattr(torch, dtype or "float32")
    if kind.is_floating_point:
        return (before or [""])[0], torch.empty(sizes, dtype=kind, device="meta")
    most = 2 if kind is torch.bool else LARGEST_TOKEN
    return (before or [""])[0], torch.randint(1, most, sizes, dtype=kind, generator=torch.Generator().manual_seed(0))
