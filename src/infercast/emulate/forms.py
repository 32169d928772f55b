"""How answers are written: OpenAI's completions, chats and responses, Anthropic's messages, SGLang's own API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from infercast.emulate.answers import logprob, others
from infercast.emulate.emulator import Call, Stream
from infercast.units import json_text


def usage(call: Call) -> dict[str, Any]:
    written = sum(each.num_sent for each in call.streams.values())
    return {"prompt_tokens": call.num_prompt, "total_tokens": call.num_prompt + written, "completion_tokens": written}


def error(message: str, kind: str, status: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _called(stream: Stream, arguments: str) -> dict[str, Any]:
    """A call of a tool."""
    function = {"name": stream.wanted.tool, "arguments": arguments}
    return {"id": f"call_{stream.seed:08x}{stream.choice:04x}", "type": "function", "function": function}


def _chosen(stream: Stream, begin: int) -> Iterator[tuple[str, float, list[tuple[str, float]]]]:
    """Tokens since ``begin`` with their logarithms of probabilities, and those of the most probable."""
    count = stream.wanted.logprobs or 0
    for number, token in enumerate(stream.text.tokens[begin : stream.num_taken], start=begin):
        near = [(other, logprob(token, number, place)) for place, other in enumerate(others(token, count))]
        yield token, logprob(token, number), near[:count]


def _of_prompt(stream: Stream) -> dict[str, Any]:
    """What an answer tells of its prompt's tokens."""
    wanted, found = stream.wanted, dict[str, Any]()
    if wanted.prompt_logprobs is not None:
        texts = [stream.vocabulary.decode([each]) for each in wanted.prompt]
        found["prompt_logprobs"] = [None] + [
            {str(each): {"logprob": logprob(text, number), "rank": 1, "decoded_token": text}}
            for number, (each, text) in enumerate(zip(wanted.prompt[1:], texts[1:], strict=True))
        ]
    if wanted.returns_ids:
        found["prompt_token_ids"] = [*wanted.prompt]
    return found


def _ids(stream: Stream, begin: int) -> dict[str, Any]:
    """The numbers of the tokens since ``begin``, where they are asked for."""
    tokens = stream.text.tokens[begin : stream.num_taken]
    return {"token_ids": [*map(stream.vocabulary.id_of, tokens)]} if stream.wanted.returns_ids else {}


class Completions:
    """OpenAI's completions and chats."""

    def __init__(
        self, name: str, model: str, *, is_chat: bool, with_usage: bool = False, always_usage: bool = False
    ) -> None:
        self._is_chat, self._with_usage, self._always_usage = is_chat, with_usage, always_usage
        name = f"{'chatcmpl' if is_chat else 'cmpl'}-{name}"
        self._common = {"id": name, "created": int(time.time()), "model": model}
        chunks = "chat.completion.chunk" if is_chat else "text_completion"
        self._head = f'data: {json_text({**self._common, "object": chunks})[:-1]}, "choices":['

    def begin(self, call: Call) -> str:
        return ""

    def chunk(self, stream: Stream) -> str:
        """The next event of an answer; a chat begins with the role."""
        begin, text = stream.num_taken, stream.take()
        reason, stop = stream.finish_reason, stream.text.stop_reason
        told = json_text(self._logprobs(stream, begin)) if stream.wanted.logprobs is not None else "null"
        ended = f'"{reason}","stop_reason":{json_text(stop)}' if reason else "null"
        counted = f',"usage":{json_text(usage(stream.call))}' if self._always_usage else ""
        opened = f'{self._head}{{"index":{stream.choice},'
        if stream.wanted.returns_ids:
            ended += f",{json_text(_ids(stream, begin) | ({} if begin else _of_prompt(stream)))[1:-1]}"
        end = f'"logprobs":{told},"finish_reason":{ended}}}]{counted}}}\n\n'
        if not self._is_chat:
            return f'{opened}"text":{json_text(text)},{end}'
        written = ""
        if not begin:
            written = f'{opened}"delta":{{"role":"assistant","content":""}},"finish_reason":null}}]{counted}}}\n\n'
        if stream.wanted.tool is None:
            return f'{written}{opened}"delta":{{"content":{json_text(text)}}},{end}'
        if not begin:
            first = {"index": 0, **_called(stream, "")}
            written += f'{opened}"delta":{{"tool_calls":[{json_text(first)}]}},"finish_reason":null}}]{counted}}}\n\n'
        if not text and not reason:
            return written
        more = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]} if text else {}
        return f'{written}{opened}"delta":{json_text(more)},{end}'

    def last(self, call: Call) -> str:
        counted = f'{self._head}],"usage":{json_text(usage(call))}}}\n\n' if self._with_usage else ""
        return f"{counted}data: [DONE]\n\n"

    def whole(self, call: Call) -> dict[str, Any]:
        """All answers in one document."""
        choices = []
        for stream in call.streams.values():
            text, said = stream.take(), dict[str, Any]()
            if not self._is_chat:
                said = {"text": text}
            elif stream.wanted.tool is None:
                said = {"message": {"role": "assistant", "content": text}}
            else:
                calls = [_called(stream, text)]
                said = {"message": {"role": "assistant", "content": None, "tool_calls": calls}}
            told = None if stream.wanted.logprobs is None else self._logprobs(stream, 0)
            ends = {"finish_reason": stream.finish_reason, "stop_reason": stream.text.stop_reason}
            of_prompt = _of_prompt(stream)
            mine = _ids(stream, 0) if self._is_chat else {**_ids(stream, 0), **of_prompt}
            choices.append({"index": stream.choice, **said, "logprobs": told, **ends, **mine})
        name = "chat.completion" if self._is_chat else "text_completion"
        found = {**self._common, "object": name, "choices": choices, "usage": usage(call)}
        return {**found, **of_prompt} if self._is_chat else found

    def failed(self, message: str) -> str:
        return f"data: {json_text(error(message, 'InternalServerError', 500))}\n\ndata: [DONE]\n\n"

    def _logprobs(self, stream: Stream, begin: int) -> dict[str, Any]:
        found = [*_chosen(stream, begin)]
        if not begin and stream.wanted.echoes and not self._is_chat:
            texts = stream.vocabulary.pieces(stream.wanted.echoes)
            known = [(text, logprob(text, place), [(text, logprob(text, place))]) for place, text in enumerate(texts)]
            found = [*known, *([] if stream.wanted.is_silent else found)]
        if self._is_chat:
            rows = [
                {**_token(token, value), "top_logprobs": [_token(*each) for each in near]}
                for token, value, near in found
            ]
            return {"content": rows}
        at = sum(map(len, stream.text.tokens[:begin]))
        offsets = [at := at + len(token) for token, _, _ in found]
        return {
            "text_offset": [end - len(token) for end, (token, _, _) in zip(offsets, found, strict=True)],
            "token_logprobs": [value for _, value, _ in found],
            "tokens": [token for token, _, _ in found],
            "top_logprobs": [dict(near) for _, _, near in found],
        }


def _token(token: str, value: float) -> dict[str, Any]:
    return {"token": token, "logprob": value, "bytes": [*token.encode(errors="replace")]}


class Generated:
    """SGLang's own API: every event has the whole text so far."""

    def __init__(self, name: str, *, is_batch: bool = False) -> None:
        self._name, self._is_batch = name, is_batch

    def begin(self, call: Call) -> str:
        return ""

    def chunk(self, stream: Stream) -> str:
        stream.take()
        return f"data: {json_text(self._so_far(stream))}\n\n"

    def last(self, call: Call) -> str:
        return "data: [DONE]\n\n"

    def whole(self, call: Call) -> Any:
        for stream in call.streams.values():
            stream.take()
        found = [*map(self._so_far, call.streams.values())]
        return found if len(found) > 1 or self._is_batch else found[0]

    def failed(self, message: str) -> str:
        return f"data: {json_text({'error': {'message': message}})}\n\ndata: [DONE]\n\n"

    def _so_far(self, stream: Stream) -> dict[str, Any]:
        reason, shown = stream.finish_reason, stream.text.shown or stream.text.tokens
        told = {
            "id": self._name, "prompt_tokens": stream.request.num_input, "completion_tokens": stream.num_taken,
            "cached_tokens": stream.num_cached, "finish_reason": reason and {"type": reason},
        }  # fmt: skip
        if stream.wanted.logprobs is not None:
            told["output_token_logprobs"] = [
                [value, stream.vocabulary.id_of(token), None] for token, value, _ in _chosen(stream, 0)
            ]
        several = {"index": stream.choice} if self._is_batch else {}
        return {"text": "".join(shown[: stream.num_taken]), "meta_info": told, **several}


def _event(kind: str, document: Mapping[str, Any]) -> str:
    return f"event: {kind}\ndata: {json_text({'type': kind, **document})}\n\n"


class Responded:
    """OpenAI's responses: one item, a message or a call, in numbered events."""

    def __init__(self, name: str, model: str) -> None:
        self._common = {
            "id": f"resp_{name}", "object": "response", "created_at": int(time.time()), "model": model,
        }  # fmt: skip
        self._item, self._number = f"item_{name}", 0

    def _told(self, kind: str, **document: Any) -> str:
        found = _event(f"response.{kind}", {"sequence_number": self._number, **document})
        self._number += 1
        return found

    def _document(self, call: Call, status: str) -> dict[str, Any]:
        streams = [*call.streams.values()]
        is_cut = status == "completed" and streams[0].text.reason == "length"
        counted = usage(call)
        names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens", "total_tokens": "total_tokens"}
        cached = {"cached_tokens": streams[0].num_cached}
        return {
            **self._common, "status": "incomplete" if is_cut else status, "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [self._output(streams[0], "completed")] if status == "completed" else [],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "usage": {new: counted[old] for new, old in names.items()}
            | {"input_tokens_details": cached, "output_tokens_details": {"reasoning_tokens": 0}},
        }  # fmt: skip

    def _output(self, stream: Stream, status: str) -> dict[str, Any]:
        text = "".join((stream.text.shown or stream.text.tokens)[: stream.num_taken])
        common = {"id": self._item, "status": status}
        if stream.wanted.tool is not None:
            called = {"call_id": _called(stream, "")["id"], "name": stream.wanted.tool, "arguments": text}
            return {**common, "type": "function_call", **called}
        content = [self._part(text)] if stream.num_taken else []
        return {**common, "type": "message", "role": "assistant", "content": content}

    @staticmethod
    def _part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": []}

    def begin(self, call: Call) -> str:
        document = self._document(call, "in_progress")
        return self._told("created", response=document) + self._told("in_progress", response=document)

    def chunk(self, stream: Stream) -> str:
        at: dict[str, Any] = {"output_index": 0}
        of = {"item_id": self._item, **at}
        is_call, found = stream.wanted.tool is not None, ""
        if not stream.num_taken:
            found = self._told("output_item.added", **at, item=self._output(stream, "in_progress"))
            if not is_call:
                found += self._told("content_part.added", **of, content_index=0, part=self._part(""))
        text = stream.take()
        if is_call:
            found += self._told("function_call_arguments.delta", **of, delta=text) if text else ""
        else:
            found += self._told("output_text.delta", **of, content_index=0, delta=text, logprobs=[])
        if stream.finish_reason is None:
            return found
        item = self._output(stream, "completed")
        if is_call:
            found += self._told("function_call_arguments.done", **of, name=item["name"], arguments=item["arguments"])
        else:
            whole = item["content"][0]
            found += self._told("output_text.done", **of, content_index=0, text=whole["text"], logprobs=[])
            found += self._told("content_part.done", **of, content_index=0, part=whole)
        return found + self._told("output_item.done", **at, item=item)

    def last(self, call: Call) -> str:
        document = self._document(call, "completed")
        return self._told("incomplete" if document["incomplete_details"] else "completed", response=document)

    def whole(self, call: Call) -> dict[str, Any]:
        for stream in call.streams.values():
            stream.take()
        return self._document(call, "completed")

    def failed(self, message: str) -> str:
        return _event(
            "error", {"sequence_number": self._number, "code": "server_error", "message": message, "param": None}
        )


class Messaged:
    """Anthropic's messages: one block, a text or the use of a tool."""

    REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}  # noqa: RUF012 - a table

    def __init__(self, name: str, model: str) -> None:
        self._common = {"id": f"msg_{name}", "type": "message", "role": "assistant", "model": model}

    def _ended(self, stream: Stream) -> dict[str, Any]:
        stop, reason = stream.text.stop_reason, stream.text.reason
        usual = "end_turn" if stop is None else "stop_sequence"
        return {"stop_reason": self.REASONS.get(reason, usual), "stop_sequence": stop}

    @staticmethod
    def _block(stream: Stream, text: str, arguments: Any) -> dict[str, Any]:
        if stream.wanted.tool is None:
            return {"type": "text", "text": text}
        return {"type": "tool_use", "id": f"toolu_{stream.seed:08x}", "name": stream.wanted.tool, "input": arguments}

    def begin(self, call: Call) -> str:
        opened: dict[str, Any] = {
            **self._common, "content": [], "stop_reason": None, "stop_sequence": None,
            "usage": {"input_tokens": call.num_prompt, "output_tokens": 0},
        }  # fmt: skip
        return _event("message_start", {"message": opened})

    def chunk(self, stream: Stream) -> str:
        found = ""
        if not stream.num_taken:
            found = _event("content_block_start", {"index": 0, "content_block": self._block(stream, "", {})})
        text = stream.take()
        kind = ("text_delta", "text") if stream.wanted.tool is None else ("input_json_delta", "partial_json")
        if text:
            found += _event("content_block_delta", {"index": 0, "delta": {"type": kind[0], kind[1]: text}})
        if stream.finish_reason is None:
            return found
        counted = {"output_tokens": stream.num_sent}
        found += _event("content_block_stop", {"index": 0})
        return found + _event("message_delta", {"delta": self._ended(stream), "usage": counted})

    def last(self, call: Call) -> str:
        return _event("message_stop", {})

    def whole(self, call: Call) -> dict[str, Any]:
        stream = next(iter(call.streams.values()))
        text = stream.take()
        counted = {"input_tokens": call.num_prompt, "output_tokens": stream.num_sent}
        block = self._block(stream, text, _parsed(text) if stream.wanted.tool is not None else None)
        return {**self._common, "content": [block], **self._ended(stream), "usage": counted}

    def failed(self, message: str) -> str:
        return _event("error", {"error": {"type": "api_error", "message": message}})


Form = Completions | Generated | Responded | Messaged
"""The events of a stream, the document of a whole answer, and what ends a stream that cannot go on."""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # cut by max_tokens
        return {}
