"""Fields that clients send: each acts, or is refused as vLLM refuses it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from infercast.emulate.answers import Wanted, answer_words, generate_text
from infercast.emulate.server import emulator
from infercast.errors import InputError

ASKED = [{"role": "user", "content": "hello"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}, "unit": {"enum": ["c", "f"]},
        "places": {"type": "array", "items": {"$ref": "#/$defs/place"}}, "is_far": {"type": ["boolean", "null"]},
    },
    "$defs": {"place": {"type": "object", "properties": {"at": {"type": "number", "maximum": 3}}}},
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with emulator("qwen3-0.6b", "h200-sxm", speed=20, answer_lengths="20") as url, httpx.Client(base_url=url) as found:
        yield found


def chat(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    reply = client.post("/v1/chat/completions", json={"messages": ASKED, **fields})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def events(client: httpx.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    lines = client.post(path, json={"stream": True, **fields}).text.splitlines()
    texts = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(each) for each in texts if each != "[DONE]"]


def fits(value: Any) -> None:
    assert isinstance(value["city"], str)
    assert value["days"] >= 1
    assert value["unit"] in ("c", "f")
    assert value["places"][0]["at"] <= 3


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_tool_is_called_by_its_schema(client: httpx.Client, choice: Any) -> None:
    (found,) = chat(client, tools=TOOLS, tool_choice=choice)["choices"]
    assert found["finish_reason"] == "tool_calls"
    called = found["message"]["tool_calls"][0]["function"]
    assert called["name"] == "weather"
    fits(json.loads(called["arguments"]))
    parts = events(client, "/v1/chat/completions", messages=ASKED, tools=TOOLS, tool_choice=choice)
    deltas = [call for each in parts for call in each["choices"][0]["delta"].get("tool_calls", [])]
    fits(json.loads("".join(each["function"]["arguments"] for each in deltas)))
    assert parts[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_json_by_a_schema_is_as_long_as_answers_are(client: httpx.Client) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": PARAMETERS}}
    found = chat(client, response_format=form)
    fits(json.loads(found["choices"][0]["message"]["content"]))
    short = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"properties": {"a": {"type": "string"}}}}}
    assert chat(client, response_format=short)["usage"]["completion_tokens"] == 20
    chosen = chat(client, structured_outputs={"choice": ["yes", "no"]})["choices"][0]["message"]["content"]
    assert chosen in ("yes", "no")


def test_values_keep_to_every_bound_of_a_schema() -> None:
    number = {"type": "integer", "multipleOf": 7, "minimum": 50, "maximum": 60}
    schema = {
        "type": "object", "additionalProperties": number, "minProperties": 9, "required": ["more"],
        "properties": {
            "part": {"type": "number", "exclusiveMinimum": -5, "maximum": -4.5},
            "day": {"type": "string", "format": "date"},
            "plate": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}(a|b)[^x-z]?$"},
            "seats": {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3, "uniqueItems": True},
            "node": {"$ref": "#/$defs/node"},
            "both": {"allOf": [{"properties": {"x": {"const": 1}}}, {"required": ["y"]}]},
        },
        "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}, "v": number}, "required": ["v"]}},
    }  # fmt: skip
    found = json.loads("".join(generate_text(Wanted(schema=schema), 3, 5, 10_000).tokens))
    assert (found["more"], found["node"]["v"], len(found)) == (56, 56, 9)
    assert -5 < found["part"] <= -4.5
    assert re.fullmatch(r"[A-Z]{2}-\d{3}(a|b)[^x-z]?", found["plate"])
    assert len({*found["seats"]}) == 3
    assert found["both"]["x"] == 1
    assert "y" in found["both"]
    with pytest.raises(InputError, match="cannot be answered"):
        generate_text(Wanted(pattern="(?=b)a"), 3, 5, 10)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": "a"}, {"type": "array", "minItems": 10**9}, {"minLength": 10**9},
        {"enum": {"a": 1}},
        {"type": "string", "minLength": None}, {"allOf": [5]}, {"type": "object", "properties": 5},
        {"type": "array", "minItems": 900, "items": {"type": "array", "minItems": 900}},
        {"multipleOf": "x", "type": "integer"},
    ],
    ids=str,
)  # fmt: skip
def test_schemas_that_make_no_sense_are_refused_in_a_sentence(schema: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="the schema cannot be answered"):
        generate_text(Wanted(schema=schema), 3, 5, 10)


def test_words_numbers_and_names_of_tokens(client: httpx.Client) -> None:
    ids = [client.post("/tokenize", json={"prompt": f" {each}"}).json()["tokens"][0] for each in ("the", "river")]
    assert client.post("/detokenize", json={"tokens": ids[:1]}).json()["prompt"] == " the"
    found = chat(client, allowed_token_ids=ids[:1], max_tokens=3, ignore_eos=True, return_token_ids=True)
    assert found["choices"][0]["message"]["content"] == " the the the"
    assert found["choices"][0]["token_ids"] == ids[:1] * 3
    assert len(found["prompt_token_ids"]) == found["usage"]["prompt_tokens"]
    without = chat(client, bad_words=["the"], max_tokens=99, ignore_eos=True)["choices"][0]["message"]["content"]
    assert "the" not in without.split()
    asked = {
        "prompt": "one two",
        "max_tokens": 2,
        "echo": True,
        "logprobs": 1,
        "prompt_logprobs": 0,
        "stream_interval": 5,
    }
    reply = client.post("/v1/completions", json=asked, headers={"x-request-id": "mine"}).json()
    assert reply["id"] == "cmpl-mine"
    assert reply["choices"][0]["logprobs"]["tokens"][:2] == ["one", " two"]
    assert next(iter(reply["choices"][0]["prompt_logprobs"][1].values()))["decoded_token"]
    told = [{"role": "assistant", "content": "So"}]
    assert chat(client, messages=told, echo=True)["choices"][0]["message"]["content"].startswith("So ")


def test_sglang_has_bounds_of_its_own() -> None:
    with emulator("qwen3-0.6b", "h200-sxm", engine="sglang", speed=20) as url, httpx.Client(base_url=url) as client:
        asked = {
            "temperature": 3,
            "stop": ["a"] * 9,
            "regex": "(red|blue) [0-9]{2}",
            "top_logprobs": 30,
            "logprobs": True,
        }
        assert re.fullmatch("(red|blue) [0-9]{2}", chat(client, **asked)["choices"][0]["message"]["content"])
        for wrong in (
            {"top_k": 0},
            {"repetition_penalty": 2.5},
            {"tool_choice": "required"},
            {"ebnf": "a"},
            {"messages": []},
        ):
            assert client.post("/v1/chat/completions", json={"messages": ASKED, **wrong}).status_code == 400, wrong
        two = client.post("/generate", json={"text": ["a", "b c"], "return_logprob": True, "rid": "r"}).json()
        assert [each["meta_info"]["prompt_tokens"] for each in two] == [1, 2]
        assert two[0]["meta_info"]["output_token_logprobs"]


def test_equal_seeds_and_no_chance_say_the_same(client: httpx.Client) -> None:
    def said(**fields: Any) -> Any:
        return [each["message"]["content"] for each in chat(client, **fields)["choices"]]

    assert said(seed=5, n=2) == said(seed=5, n=2)
    assert said(seed=5) != said(seed=6)
    assert said(temperature=0) == said(temperature=0)
    assert len({*said(seed=5, n=3)}) == 3


def test_a_stop_ends_the_text_before_it() -> None:
    words = answer_words(7, 50)
    found = generate_text(Wanted(stops=(words[9].strip(),), ignore_eos=True), 7, 50, 50)
    text = "".join(found.shown or ())
    assert words[9].strip() not in text
    assert "".join(words).startswith(text)
    assert (found.reason, found.stop_reason) == ("stop", words[9].strip())
    assert len(found.tokens) <= 10
    assert len(generate_text(Wanted(stops=(words[9],), min_tokens=30), 7, 50, 50).tokens) >= 30


def test_probabilities_and_echo(client: httpx.Client) -> None:
    found = chat(client, logprobs=True, top_logprobs=3, max_tokens=4, ignore_eos=True)["choices"][0]
    assert [len(each["top_logprobs"]) for each in found["logprobs"]["content"]] == [3, 3, 3, 3]
    assert "".join(each["token"] for each in found["logprobs"]["content"]) == found["message"]["content"]
    asked = {"prompt": "one two", "echo": True, "max_tokens": 0}
    assert client.post("/v1/completions", json=asked).json()["choices"][0]["text"] == "one two"


def test_usage_counts_a_prompt_once_and_comes_with_each_event(client: httpx.Client) -> None:
    whole = chat(client, n=3, max_tokens=2, ignore_eos=True)["usage"]
    assert (whole["prompt_tokens"], whole["completion_tokens"]) == (chat(client)["usage"]["prompt_tokens"], 6)
    wanted = {"include_usage": True, "continuous_usage_stats": True}
    parts = events(client, "/v1/chat/completions", messages=ASKED, max_tokens=3, stream_options=wanted)
    assert all("usage" in each for each in parts)


def test_other_apis_tell_the_same_story(client: httpx.Client) -> None:
    asked = {"input": "hi", "instructions": "be brief", "max_output_tokens": 5}
    whole = client.post("/v1/responses", json=asked).json()
    parts = events(client, "/v1/responses", **asked)
    assert [each["sequence_number"] for each in parts] == [*range(len(parts))]
    assert (parts[0]["type"], parts[-1]["response"]["status"]) == ("response.created", whole["status"])
    text = parts[-1]["response"]["output"][0]["content"][0]["text"]
    assert "".join(each["delta"] for each in parts if each["type"] == "response.output_text.delta") == text

    tool = {"name": "weather", "input_schema": PARAMETERS}
    message = {"messages": ASKED, "max_tokens": 500, "tools": [tool], "tool_choice": {"type": "any"}}
    (block,) = client.post("/v1/messages", json=message).json()["content"]
    fits(block["input"])
    found = events(client, "/v1/messages", **message)
    fits(json.loads("".join(each["delta"].get("partial_json", "") for each in found if "delta" in each)))
    assert found[-2]["delta"]["stop_reason"] == "tool_use"
    counted = client.post("/v1/messages/count_tokens", json={"messages": ASKED}).json()["input_tokens"]
    assert counted == chat(client)["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1}, {"top_p": 5}, {"n": 0}, {"n": 2, "temperature": 0}, {"stop": ["a"] * 5}, {"tools": []},
        {"tool_choice": "auto"}, {"top_logprobs": 3}, {"logit_bias": {"a": 1}}, {"max_tokens": 5, "min_tokens": 6},
        {"stream_options": {"include_usage": True}}, {"response_format": {"type": "json"}},
        {"tools": TOOLS, "tool_choice": "wild"},
        {"min_tokens": 10**7}, {"messages": [{"content": "x"}]}, {"messages": [{"role": "user", "content": None}]},
        {"structured_outputs": {}}, {"structured_outputs": {"regex": "(a"}}, {"structured_outputs": {"grammar": "a"}},
        {"logit_bias": {"999999": 1}}, {"stop_token_ids": [-1]}, {"logprobs": True, "top_logprobs": 21},
        {"chat_template": "x"}, {"seed": 2**63}, {"cache_salt": "a/b"},
    ],
    ids=str,
)  # fmt: skip
def test_what_vllm_refuses_is_refused(client: httpx.Client, wrong: dict[str, Any]) -> None:
    reply = client.post("/v1/chat/completions", json={"messages": ASKED, **wrong})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].count("\n") == 0


def test_operators_paths_and_headers(client: httpx.Client) -> None:
    assert client.post("/detokenize", json={"tokens": [1, 2]}).json()["prompt"].count(" ") == 2
    assert client.get("/load", headers={"x-request-id": "abc"}).headers["x-request-id"] == "abc"
    assert client.get("/version").json()["version"] == "0.33.0"
    assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 400
    assert client.post("/reset_prefix_cache").status_code == 200
    client.post("/sleep")
    assert client.get("/is_sleeping").json()["is_sleeping"]
    assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 503
    client.post("/wake_up")
    assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
