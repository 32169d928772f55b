"""Put this folder on PYTHONPATH and set STEP_LOG to a folder: every vLLM engine core then logs its steps there."""

import importlib.abc
import importlib.machinery
import os
import sys

TARGET = "vllm.v1.engine.core"


class _AfterLoading(importlib.abc.Loader):
    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        import step_logger  # noqa: PLC0415 - it lies beside this file, and only an engine core needs it

        step_logger.watch(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != TARGET:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _AfterLoading(spec.loader)
        return spec


if os.environ.get("STEP_LOG"):
    sys.meta_path.insert(0, _Finder())
