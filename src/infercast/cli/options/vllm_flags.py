"""Flags of ``vllm serve`` that a pasted command may hold and that are not options here.

Some change nothing that is forecast (ports, names, parsers): they are left out, and named on standard error. Others
would change the answer and are not modelled: they are refused by name.
"""

from __future__ import annotations

from collections import deque

from infercast.errors import InputError

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
LIST = "cudagraph-capture-sizes"
"""The one flag of ours that vLLM takes with several values behind it."""
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
"""Flags that change a forecast and are not modelled, with what they are about."""
OTHER_NAMES = {
    "request-rate": "rate",
    "max-concurrency": "concurrency",
    "num-prompts": "num-requests",
    "random-input-len": "input-len",
    "random-output-len": "output-len",
    "offline": "no-api-server",
}
"""Options of ours that go by another name in ``vllm bench serve``, or in the words of many."""
COMMANDS = ("simulate", "kernels", "diagnose", "memory", "layouts", "disaggregate", "tune")
"""Commands that take the flags of an engine."""


def without_vllm_flags(arguments: list[str]) -> tuple[list[str], list[str]]:
    """A command's words with vLLM's spelling made ours, and the flags that were left out.

    As in vLLM ``--max_num_seqs`` is ``--max-num-seqs``, and ``--cudagraph-capture-sizes`` takes one number or more.
    """
    kept: list[str] = []
    left_out: list[str] = []
    words = deque(arguments)
    while words:
        word = words.popleft()
        if not word.startswith("--") or word == "--":
            kept.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("_", "-")
        name = OTHER_NAMES.get(name, name)
        if name in NOT_MODELLED:
            raise InputError(f"--{name} is not modelled: {NOT_MODELLED[name]}; leave it out to forecast without")
        if name.removeprefix("no-") in SWITCHES or name in VALUES:
            left_out.append(f"--{name}")
            if name in VALUES and not equals and words:
                words.popleft()
            continue
        kept.append(f"--{name}{equals}{value}")
        if name == LIST and not equals:
            numbers = []
            while words and words[0].replace(",", "").isdigit():
                numbers.append(words.popleft())
            kept.append(",".join(numbers))
    return kept, left_out
