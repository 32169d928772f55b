"""Put this folder on PYTHONPATH and set STEP_LOG to a folder: engine cores and servers of vLLM and SGLang log there."""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys

WATCHED = {
    "vllm.v1.engine.core": ("step_logger", "watch"),
    "vllm.v1.worker.gpu.mm.encoder_runner": ("step_logger", "watch_encoder"),
    "vllm.v1.worker.gpu_model_runner": ("step_logger", "watch_encoder"),
    "vllm.v1.engine.async_llm": ("server_logger", "watch_engine_client"),
    "vllm.entrypoints.openai.completion.serving": ("server_logger", "watch_completions"),
    "vllm.entrypoints.openai.chat_completion.serving": ("server_logger", "watch_chats"),
    "uvicorn.protocols.http.httptools_impl": ("server_logger", "watch_protocol"),
    "sglang.srt.managers.scheduler": ("sglang_logger", "watch_scheduler"),
    "sglang.srt.managers.tokenizer_manager": ("sglang_logger", "watch_server"),
}


class _AfterLoading(importlib.abc.Loader):
    def __init__(self, loader, watcher):
        self._loader, self._watcher = loader, watcher

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        logger, function = self._watcher
        getattr(importlib.import_module(logger), function)(module)  # it lies beside this file


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in WATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _AfterLoading(spec.loader, WATCHED[name])
        return spec


if os.environ.get("STEP_LOG"):
    sys.meta_path.insert(0, _Finder())
