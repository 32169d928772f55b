"""Hold what the endpoint refuses against vLLM's own validators, on drawn request bodies.

VLLM_TREE=path/to/unpacked/wheel python validators.py --count 500 --seed 1

Needs an environment in which the Python files of a vLLM wheel import (`benchmarks/scheduler` says which packages).
"""

import argparse
import copy
import os
import random
import sys
from types import SimpleNamespace

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, os.environ["VLLM_TREE"])

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest

from infercast.emulate.requests import Chat, Completion, read
from infercast.errors import InputError

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"name": "a", "schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}
NUMBERS = [0, 1, 2, -1, 0.5, 1.5, 2.5, -2, 1e9, "1", "x", True, None, [], {}]
WHOLE = [0, 1, 2, 5, -1, -2, 1.0, 1.5, "3", "x", True, False, None, [1], 2**31, 2**63, 17000]
TRUTHS = [True, False, None, "true", "yes", "maybe", 0, 1, 2, "off", [], 1.0]
TEXTS = ["a", "", None, 5, ["a"], {}, "\ud800", "a/b", "x" * 200]
BOTH = {
    "temperature": NUMBERS, "top_p": NUMBERS, "min_p": NUMBERS, "presence_penalty": NUMBERS,
    "frequency_penalty": NUMBERS, "repetition_penalty": NUMBERS, "length_penalty": NUMBERS, "top_k": WHOLE, "n": WHOLE,
    "max_tokens": WHOLE, "min_tokens": WHOLE, "seed": WHOLE, "priority": WHOLE, "stream_interval": WHOLE,
    "prompt_logprobs": WHOLE, "truncate_prompt_tokens": WHOLE, "stream": TRUTHS, "ignore_eos": TRUTHS, "echo": TRUTHS,
    "include_stop_str_in_output": TRUTHS, "skip_special_tokens": TRUTHS, "use_beam_search": [False, None, "no"],
    "user": TEXTS, "cache_salt": TEXTS, "request_id": TEXTS,
    "stop": ["a", "", None, ["a"], ["a", ""], ["a"] * 4, ["a"] * 5, [1], 5, {}],
    "stop_token_ids": [[], [1, 2], ["3"], ["x"], None, 5, [1.5], [151935], [151936], [-1]],
    "stream_options": [None, {}, {"include_usage": True}, {"include_usage": "x"}, {"continuous_usage_stats": 1},
                       [], "x"],
    "logit_bias": [None, {}, {"5": 1}, {"a": 1}, {"5": "x"}, {"5": "1"}, {"5": 200}, [1], {"151936": 1}, {"-1": 1}],
    "bad_words": [[], ["a"], [""], "a", [1], None], "allowed_token_ids": [None, [], [1], ["x"], 5, [151936]],
    "response_format": [
        None, {"type": "text"}, {"type": "json_object"}, {"type": "json"}, {"type": "json_schema"}, {},
        {"type": "json_schema", "json_schema": SCHEMA}, {"type": "json_schema", "json_schema": {}},
        {"type": "json_schema", "json_schema": {"name": 5}}, "json", [],
    ],
    "structured_outputs": [
        None, {}, {"json": {}}, {"json": "{}"}, {"choice": ["a", "b"]}, {"choice": []}, {"choice": "a"},
        {"json": {}, "choice": ["a"]}, {"json_object": True}, {"json_object": False}, 5,
    ],
    "unknown_field": [1, None, {"a": 1}], "best_of": [1, 3], "service_tier": ["auto", 5],
}  # fmt: skip
CHAT = {
    "messages": [
        [{"role": "wizard", "content": "hi"}], [{"role": "user"}], [{"content": "x"}], [], "hi", ["hi"], None, [{}],
        [{"role": "user", "content": 5}], [{"role": "user", "content": None}], [{"role": 5, "content": "a"}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}], [{"role": "user", "content": ["a"]}],
        [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], [{"role": "user", "content": [5]}],
        [{"role": "assistant", "content": None}], [{"role": "tool", "content": "a", "tool_call_id": "x"}],
        [{"role": "user", "content": [{"type": "wurst"}]}], [{"role": "user", "content": {}}],
        [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function",
                                               "function": {"name": "f", "arguments": "{}"}}]}],
    ],
    "logprobs": [*TRUTHS, 5], "top_logprobs": WHOLE, "max_completion_tokens": WHOLE,
    "tools": [None, [], [TOOL], [TOOL, TOOL], [{}], [{"type": "function"}], [{"function": {"name": "f"}}], "x", [5],
              [{"type": "x", "function": {"name": "f"}}], [{"function": {"name": 5}}]],
    "tool_choice": [None, "none", "auto", "required", "wild", {"function": {"name": "f"}}, {"function": {"name": "g"}},
                    {"function": {}}, {}, {"type": "function", "function": {"name": "f"}}, 5],
    "parallel_tool_calls": TRUTHS, "reasoning_effort": ["low", "high", "max", "huge", None, 5],
    "add_generation_prompt": TRUTHS, "continue_final_message": TRUTHS, "chat_template_kwargs": [None, {}, {"a": 1}, 5],
}  # fmt: skip
TEXT = {
    "prompt": ["", None, "a", [], [1, 2], [-1], ["a"], ["a", 1], [[1], [2]], [[]], [1.5], [True], 5, {"a": 1}, [""],
               ["a"] * 1025, [[1], "a"], [["a"]], ["1", 2]],
    "logprobs": [*WHOLE, 20, 21],
}  # fmt: skip

ROOM = 1000  # Tokens for an answer without a limit
MODEL = SimpleNamespace(max_logprobs=20, get_vocab_size=lambda: 151936)


def draw(chance: random.Random) -> tuple[str, dict]:
    kind = chance.choice(["chat", "text"])
    fields = {**BOTH, **(CHAT if kind == "chat" else TEXT)}
    body = {"messages": [{"role": "user", "content": "hi"}]} if kind == "chat" else {"prompt": "hello"}
    for name in chance.sample(sorted(fields), chance.choice([1, 1, 1, 2, 3, 5])):
        body[name] = chance.choice(fields[name])
    if chance.random() < 0.2:
        body.setdefault("stream", True)
    return kind, copy.deepcopy(body)


def theirs(kind: str, body: dict) -> str | None:
    try:
        if kind == "chat":
            asked = ChatCompletionRequest.model_validate(body)
            most = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        else:
            asked = CompletionRequest.model_validate(body)
            most = asked.max_tokens
        found = asked.to_sampling_params(ROOM if most is None else most, {})
        for check in ("logprobs", "logit_bias", "stop_token_ids", "allowed_token_ids"):
            getattr(found, f"_validate_{check}")(MODEL)
    except Exception as problem:
        return f"{type(problem).__name__}: {str(problem)[:160]}"
    return None


def ours(kind: str, body: dict) -> str | None:
    try:
        asked = read(Chat if kind == "chat" else Completion, body)
        asked.check(MODEL.get_vocab_size(), [])
        if asked.wanted().min_tokens > (ROOM if asked.most is None else asked.most):
            return "min_tokens"
    except InputError as problem:
        return str(problem)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold what is refused against vLLM's own validators.")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance, agreed, refused = random.Random(given.seed), 0, 0
    for _ in range(given.count):
        kind, body = draw(chance)
        told, said = theirs(kind, copy.deepcopy(body)), ours(kind, copy.deepcopy(body))
        refused += told is not None
        agreed += (told is None) == (said is None)
        if (told is None) != (said is None):
            print(f"{kind} {str(body)[:200]}\n  vLLM: {told or 'accepts'}\n  here: {said or 'accepts'}")
    print(f"{agreed} of {given.count} agree; vLLM refuses {refused}")


if __name__ == "__main__":
    main()
