"""SGLang's Python files, as its wheel has them, with stand-ins for whatever is not installed.

Its scheduler runs on a CPU; what it imports on the way (kernels, tokenizers, web servers) is not needed to decide what
is computed next. `pip install torch numpy pydantic msgspec orjson pyzmq psutil` and a few small packages are enough;
an import that fails inside SGLang gives an empty stand-in.
"""

import importlib.abc
import importlib.machinery
import logging
import os
import subprocess
import sys
import tempfile
import types
import warnings
import zipfile
from pathlib import Path
from typing import Any

VERSION = "0.5.16"
"""The release that is compared by default."""
PLATFORM = ("--python-version", "3.12", "--platform", "manylinux_2_34_x86_64", "--only-binary=:all:")
ALWAYS = {"transformers", "torchvision", "triton", "xgrammar", "openai", "compressed_tensors", "huggingface_hub"}
"""Packages that are stand-ins even where they are installed: they are slow to import, or refuse without a GPU."""
NEVER = {"torchada", "mlx", "vllm", "aiter", "petit_kernel", "kt_kernel", "deep_ep", "nixl_ep"}
"""Packages whose absence means something to SGLang."""


def find(given: Path | None, version: str = VERSION) -> Path:
    """A folder with the package ``sglang``: the one given, or the wheel's, fetched once and kept."""
    if given is not None:
        return given
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "infercast" / f"sglang-{version}"
    if not cache.exists():
        fetch(cache, version)
    return cache


def fetch(folder: Path, version: str) -> None:
    """Download the wheel from the package registry and keep its Python files."""
    with tempfile.TemporaryDirectory() as below:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *PLATFORM, "-d", below]
        subprocess.run([*command, f"sglang=={version}"], check=True)
        (wheel,) = Path(below).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            files = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(folder, files)


def use(folder: Path, version: str = VERSION) -> None:
    """Let ``import sglang`` find this one, without its public interface, which patches other packages; it is silent."""
    import torch._dynamo  # noqa: PLC0415 - all of it, before its own imports meet stand-ins

    logging.disable(logging.ERROR)
    warnings.filterwarnings("ignore", module="sglang")
    torch.set_num_threads(1)
    os.environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = "python"  # the same tree as its Rust one
    for sources in ("jit_kernel", "kernels/jit"):  # it only looks whether they exist
        for below in ("include", "csrc"):
            (folder / "sglang" / sources / below).mkdir(parents=True, exist_ok=True)
    package = types.ModuleType("sglang")
    package.__path__ = [str(folder / "sglang")]
    package.__version__ = version
    sys.modules["sglang"] = package
    sys.meta_path.insert(0, StandIns(ALWAYS, None))
    sys.meta_path.append(StandIns(None, folder / "sglang"))


class AnyClass(type):
    """The class of a class that has every attribute, can be called, subclassed, subscribed and iterated."""

    def __new__(cls, name: str, bases: tuple[type, ...], values: dict[str, Any], **_: Any) -> "AnyClass":
        return super().__new__(cls, name, bases, values)

    def __init__(cls, name: str, bases: tuple[type, ...], values: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, values)

    def __getattr__(cls, name: str) -> Any:
        return attribute(name)

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __setitem__(cls, key: Any, value: Any) -> None:
        pass

    def __contains__(cls, key: Any) -> bool:
        return False

    def __len__(cls) -> int:
        return 0

    def __iter__(cls) -> Any:
        return iter(())

    def __call__(cls, *given: Any, **named: Any) -> Any:
        return decorated(given, named) or super().__call__()


class Anything(metaclass=AnyClass):
    """An object of which the same holds."""

    def __init_subclass__(cls, **_: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return attribute(name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return decorated(given, named) or self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 - only where it is asked for

        return core_schema.any_schema()


def attribute(name: str) -> Any:
    """A class of that name; names that Python itself asks for are not there."""
    if name.startswith("__"):
        raise AttributeError(name)
    return AnyClass(name, (Anything,), {})


def decorated(given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What a decorator got, unchanged; None if this is no decorator's call."""
    alone = len(given) == 1 and not named and isinstance(given[0], types.FunctionType | type)
    return given[0] if alone else None


class StandIn(types.ModuleType):
    """A module that has everything."""

    def __getattr__(self, name: str) -> Any:
        value = "99.0" if name == "__version__" else attribute(name)
        setattr(self, name, value)
        return value


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for some packages, or for all that files below a folder ask for and nobody else has found."""

    def __init__(self, names: set[str] | None, asking: Path | None) -> None:
        self.names, self.asking = names, asking

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The stand-in, if this is a case for one."""
        top = name.split(".", maxsplit=1)[0]
        if self.names is not None:
            wanted = top in self.names
        else:
            below = "." in name and not isinstance(sys.modules.get(top), StandIn)
            wanted = top not in NEVER and top != "sglang" and not below and self._asks()
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty one."""
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is executed."""
        module.__path__ = []

    def _asks(self) -> bool:
        """Whether the import stands in one of the files."""
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and ("importlib" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename.startswith(str(self.asking))
