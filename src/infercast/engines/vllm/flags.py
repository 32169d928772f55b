"""Flags of ``vllm serve``, by their own names: settings, what changes nothing, and what is not modelled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from infercast.engines.engine import Flags, Tell
from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import InputError, UnknownNameError

POLICIES = ("fcfs", "priority")
GRAPH_SETTINGS = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
"""What a forecast takes from ``--compilation-config``."""
READ = frozenset({"compilation_config", "scheduling_policy", "decode_context_parallel_size"})
"""Flags that are no settings themselves but say something of them."""
SWITCHES = frozenset({
    "allow-credentials", "disable-fastapi-docs", "disable-frontend-multiprocessing", "disable-log-requests",
    "disable-log-stats", "disable-uvicorn-access-log", "enable-auto-tool-choice", "enable-force-include-usage",
    "enable-log-deltas", "enable-log-outputs", "enable-log-requests", "enable-offline-docs",
    "enable-prompt-tokens-details", "enable-request-id-headers", "enable-server-load-tracking", "enable-sleep-mode",
    "enable-ssl-refresh", "enable-tokenizer-info-endpoint", "exclude-tools-when-tool-choice-none", "headless",
    "return-tokens-as-token-ids", "trust-remote-code", "trust-request-chat-template", "use-tqdm-on-load",
})  # fmt: skip
"""Flags without a value that change nothing; vLLM takes each with ``no-`` before it, too."""
VALUES = frozenset({
    "allowed-headers", "allowed-local-media-path", "allowed-media-domains", "allowed-methods", "allowed-origins",
    "api-key", "chat-template", "chat-template-content-format", "code-revision", "config-format",
    "data-parallel-address", "data-parallel-backend", "data-parallel-rpc-port", "default-chat-template-kwargs",
    "distributed-executor-backend", "download-dir", "generation-config", "hf-token", "ignore-patterns",
    "load-format", "log-config-file", "master-addr", "master-port", "max-log-len", "max-logprobs",
    "max-parallel-loading-workers", "middleware", "model-loader-extra-config", "otlp-traces-endpoint",
    "override-generation-config", "port", "reasoning-parser", "reasoning-parser-plugin", "response-role",
    "revision", "root-path", "safetensors-load-strategy", "served-model-name", "shutdown-timeout", "ssl-ca-certs",
    "ssl-cert-reqs", "ssl-certfile", "ssl-ciphers", "ssl-keyfile", "tokenizer", "tokenizer-mode",
    "tokenizer-revision", "tool-call-parser", "tool-parser-plugin", "tool-server", "uds", "uvicorn-log-level",
})  # fmt: skip
"""Flags with a value that change nothing."""
NOT_MODELLED = {
    "calculate-kv-scales": "KV-cache scales",
    "cpu-offload-gb": "weights in the CPU's memory",
    "enable-dbo": "dual batch overlap",
    "enable-eplb": "experts that move to where the load is",
    "enable-lora": "LoRA adapters",
    "kv-offloading-size": "a KV cache in the CPU's memory",
    "kv-transfer-config": "KV transfer (see `infercast disaggregate` for prefill and decode pools)",
    "lora-modules": "LoRA adapters",
    "prefill-context-parallel-size": "prefill context parallelism",
    "speculative-config": "speculative decoding",
}
"""Flags that change a forecast, with what they are about."""
OTHER_NAMES = {
    "request-rate": "rate",
    "max-concurrency": "concurrency",
    "num-prompts": "num-requests",
    "random-input-len": "input-len",
    "random-output-len": "output-len",
    "offline": "no-api-server",
}
"""Options of ours that go by another name in ``vllm bench serve``, or in the words of many."""

FLAGS = Flags(
    options=READ | {field.name for field in fields(EngineSettings)},
    other_names=OTHER_NAMES,
    lists=frozenset({"cudagraph-capture-sizes"}),
    switches=SWITCHES,
    values=VALUES,
    not_modelled=NOT_MODELLED,
)


def settings_of(given: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Fields of the settings from the values of flags; what is not modelled is refused, or told."""
    values = {name: value for name, value in given.items() if name not in READ}
    if (size := given.get("decode_context_parallel_size", 1)) != 1:
        raise InputError(f"--decode-context-parallel-size {size} is not modelled; leave it at 1")
    if (policy := given.get("scheduling_policy", POLICIES[0])) not in POLICIES:
        raise UnknownNameError("scheduling policy", policy, POLICIES)
    if policy == "priority":
        tell("--scheduling-policy priority serves as fcfs does: requests of a workload have no priorities")
    if isinstance(sizes := values.get("cudagraph_capture_sizes"), str):
        values["cudagraph_capture_sizes"] = _sizes(sizes)
    graphs = _graph_settings(text, tell) if (text := given.get("compilation_config")) else {}
    return graphs | values


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise InputError(f"--cudagraph-capture-sizes must be whole numbers with commas between them, not {text!r}")
    return tuple(int(part) for part in parts)


def _graph_settings(text: str, tell: Tell) -> dict[str, Any]:
    """What a compilation config says of CUDA graphs; a plain number is its mode of compiling."""
    try:
        values = json.loads(text)
    except ValueError:
        raise InputError(f"--compilation-config must be a JSON object, not {text[:80]!r}") from None
    values = {"mode": values} if isinstance(values, int) else values
    if not isinstance(values, dict):
        raise InputError(f"--compilation-config must be a JSON object, not {text[:80]!r}")
    if unread := [name for name in values if name not in GRAPH_SETTINGS]:
        tell(f"--compilation-config: {', '.join(unread)} ignored; read are {', '.join(GRAPH_SETTINGS)}")
    found = {name: values[name] for name in GRAPH_SETTINGS if values.get(name) is not None}
    if "cudagraph_mode" in found:
        found["cudagraph_mode"] = str(found["cudagraph_mode"]).lower()
    largest, sizes = found.get("max_cudagraph_capture_size"), found.get("cudagraph_capture_sizes")
    if largest is not None and type(largest) is not int:
        raise InputError(f"--compilation-config: max_cudagraph_capture_size must be a whole number, not {largest!r}")
    if sizes is not None:
        if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
            raise InputError(f"--compilation-config: cudagraph_capture_sizes must be whole numbers, not {sizes!r}")
        found["cudagraph_capture_sizes"] = tuple(sizes)
    return found
