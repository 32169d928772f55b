"""What clients ask for: the fields that vLLM checks, within its bounds, and what of them changes the work."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from infercast.emulate.answers import Wanted
from infercast.emulate.prompts import Vocabulary
from infercast.errors import InputError

MOST_SEQUENCES, MOST_PROMPTS, MOST_STOPS, MOST_LOGPROBS = 16384, 1024, 4, 20
"""vLLM's own limits."""
LEAST_TEMPERATURE = 1e-5  # Below, the most probable token is taken
Long = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Text = Annotated[str, Field(min_length=1)]
Stops = Text | Annotated[list[Text], Field(max_length=MOST_STOPS)] | None
Object = dict[str, Any]
Kind = TypeVar("Kind", bound="Fields")


class Fields(BaseModel):
    """Fields of a document; others are ignored, as the engines ignore them."""

    model_config = ConfigDict(extra="ignore")


class StreamOptions(Fields):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchema(Fields):
    name: str
    schema_: Object | None = Field(None, alias="schema")


class ResponseFormat(Fields):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_a_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema must be given with the type json_schema")
        return self


class StructuredOutputs(Fields):
    """At most one of these."""

    json_: str | Object | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None

    @model_validator(mode="after")
    def _is_one(self) -> StructuredOutputs:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"must have one constraint, not {len(given)}")
        return self


class Function(Fields):
    name: str
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class Tool(Fields):
    type: Literal["function"] = "function"
    function: Function


class Sampling(Fields):
    """What completions and chats have in common."""

    is_lenient: ClassVar[bool] = False  # Bounds are those of an engine that takes more
    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MOST_SEQUENCES)] = 1
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    length_penalty: float = 1.0
    seed: Long | None = None
    stop: Stops = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0)] = 0
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[Text] = Field(default_factory=list)
    prompt_logprobs: Annotated[int, Field(ge=-1)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool = True
    use_beam_search: bool = False
    user: str | None = None
    priority: Long = 0
    request_id: str = ""
    cache_salt: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]*$")] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @model_validator(mode="before")
    @classmethod
    def _raw(cls, document: Any) -> Any:
        """What vLLM asks of the document as it came, where no number is read from a text."""
        if cls.is_lenient:
            return document
        for name in ("prompt_logprobs", "top_logprobs", "logprobs"):
            if isinstance(document.get(name), str) and (name, cls) != ("logprobs", Chat):
                raise ValueError(f"{name} must be an integer")
        if document.get("stream_options") and not document.get("stream"):
            raise ValueError("stream_options need stream")
        if document.get("stream") and (document.get("prompt_logprobs") or 0) not in (0, False):
            raise ValueError("prompt_logprobs are not to be had in a stream")
        return document

    @model_validator(mode="after")
    def _fits_together(self) -> Sampling:
        for key in self.logit_bias or ():
            int(key)
        if (most := self.most) is not None and not (most or self.is_echo_alone):
            raise ValueError("max_tokens must be at least 1")
        if most and self.min_tokens > most:
            raise ValueError(f"min_tokens must be at most max_tokens ({most}), not {self.min_tokens}")
        is_greedy = self.temperature is not None and self.temperature < LEAST_TEMPERATURE
        if (self.n or 1) > 1 and is_greedy and not self.is_lenient:
            raise ValueError(f"n must be 1 when temperature is 0, not {self.n}")
        return self

    def check(self, size: int, highest: Sequence[int]) -> None:
        """Refuse tokens that a vocabulary of ``size`` has not; ``highest``: the last of each prompt's."""
        ids = [*highest, *(self.stop_token_ids or ()), *(self.allowed_token_ids or ())]
        ids += map(int, self.logit_bias or ())
        if wrong := [each for each in ids if not 0 <= each < size]:
            raise InputError(f"token id {wrong[0]} is out of the vocabulary, which has {size}")
        if self.allowed_token_ids == []:
            raise InputError("allowed_token_ids must not be empty")
        if self.is_lenient:
            return
        for name in ("logprobs", "top_logprobs", "prompt_logprobs"):
            count = getattr(self, name, None)
            if type(count) is int and not 0 <= count <= MOST_LOGPROBS:
                raise InputError(f"{name} must be from 0 to {MOST_LOGPROBS}, the engine's --max-logprobs, not {count}")
        if getattr(self, "suffix", None) is not None:
            raise InputError("suffix is only for models that fill in the middle")
        if self.stream and self.use_beam_search and not isinstance(self, Chat):
            raise InputError("stream is not to be had with use_beam_search")

    @property
    def most(self) -> int | None:
        """How many tokens an answer may have."""
        return None

    @property
    def is_echo_alone(self) -> bool:
        return False

    def wanted(
        self, *, logprobs: int | None = None, tool: Tool | None = None, echoes: str = "", is_silent: bool = False
    ) -> Wanted:
        """What of it changes the answer."""
        form, given = self.response_format, self.structured_outputs
        schema: Object | None = None
        if tool is not None:
            schema = tool.function.parameters or {"type": "object"}
        elif form is not None and form.type != "text":
            schema = (form.json_schema.schema_ if form.json_schema else None) or {"type": "object"}
        elif given is not None and given.json_ is not None:
            schema = _object(given.json_)
        elif given is not None and given.json_object:
            schema = {"type": "object"}
        is_tagged = form is not None and form.type == "structural_tag"
        if is_tagged or getattr(self, "ebnf", None) or (given and (given.grammar or given.structural_tag)):
            raise InputError("structured_outputs are emulated with json, json_object, choice and regex, no grammars")
        is_greedy = self.temperature is not None and self.temperature < LEAST_TEMPERATURE
        return Wanted(
            pattern=(given and given.regex) or getattr(self, "regex", None), cache_salt=self.cache_salt or "",
            returns_ids=bool(self.return_token_ids), prompt_logprobs=self.prompt_logprobs,
            seed=None if self.seed == -1 else self.seed, is_greedy=is_greedy, min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos, stops=tuple([self.stop] if isinstance(self.stop, str) else self.stop or ()),
            stop_ids=frozenset(self.stop_token_ids or ()), keeps_stop=self.include_stop_str_in_output,
            logprobs=logprobs, schema=schema, choices=tuple((given and given.choice) or ()),
            tool=None if tool is None else tool.function.name, echoes=echoes, is_silent=is_silent,
        )  # fmt: skip


def _object(given: str | Object) -> Object:
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        raise InputError("the schema in structured_outputs.json must be valid JSON") from None
    return found if isinstance(found, dict) else {}


Ids = list[Annotated[int, Field(ge=0)]]


class Completion(Sampling):
    prompt: Ids | list[Ids] | str | list[str] | None = None
    max_tokens: int | None = None
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=-1)] | None = None
    suffix: str | None = None

    @model_validator(mode="after")
    def _has_prompts(self) -> Completion:
        if not self.prompt and self.prompt != []:
            raise ValueError("prompt must not be empty")
        if self._is_list and len(self.prompt or ()) > MOST_PROMPTS:
            raise ValueError(f"prompt may be a list of {MOST_PROMPTS} at most, not of {len(self.prompt or ())}")
        return self

    @property
    def _is_list(self) -> bool:
        """Whether there are several prompts."""
        return isinstance(self.prompt, list) and not isinstance(next(iter(self.prompt), 0), int)

    @property
    def most(self) -> int:
        completion_tokens = 16  # What a completion without max_tokens has, as in vLLM
        return completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def is_echo_alone(self) -> bool:
        return bool(self.echo) and self.max_tokens == 0

    def prompts(self, vocabulary: Vocabulary) -> list[tuple[list[int], str]]:
        """Tokens and text of each prompt."""
        several: Any = self.prompt if self._is_list else [self.prompt]
        texts = [each if isinstance(each, str) else vocabulary.decode(each) if self.echo else "" for each in several]
        ids = [vocabulary.encode(each) if isinstance(each, str) else each for each in several]
        return [*zip(ids, texts, strict=True)]


class Message(Fields):
    role: str
    content: str | list[Any] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and "content" in self.model_fields_set and self.role != "assistant":
            raise ValueError(f"the content of a message of {self.role!r} must be a text or a list of parts")
        return self


class Named(Fields):
    name: Text


class ToolChoice(Fields):
    type: Literal["function"] = "function"
    function: Named


class Chat(Sampling):
    messages: list[Message]
    n: Annotated[int, Field(ge=1, le=MOST_SEQUENCES)] | None = 1  # type: ignore[assignment]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=-1)] | None = 0
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: Object | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_it_came(cls, document: Any) -> Any:
        if cls.is_lenient:
            if not document.get("messages"):
                raise ValueError("messages must not be empty")
            if not document.get("tools") and document.get("tool_choice") not in (None, "none", "auto"):
                raise ValueError(f"tools must not be empty when tool_choice is {document['tool_choice']!r}")
            return document
        if document.get("continue_final_message") and document.get("add_generation_prompt"):
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        if (document.get("top_logprobs") or 0) not in (0, False) and not document.get("logprobs"):
            raise ValueError("top_logprobs need logprobs")
        choice, tools = document.get("tool_choice"), document.get("tools")
        if tools == []:
            raise ValueError("tools must not be empty; leave it out")
        if choice not in (None, "none") and tools is None:
            raise ValueError("tool_choice needs tools")
        return document

    @model_validator(mode="after")
    def _names_a_tool(self) -> Chat:
        if isinstance(self.tool_choice, ToolChoice) and self._named(self.tool_choice.function.name) is None:
            raise ValueError(f"tool_choice names {self.tool_choice.function.name!r}, which is none of tools")
        return self

    def _named(self, name: str) -> Tool | None:
        return next((each for each in self.tools or () if each.function.name == name), None)

    @property
    def most(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def ids(self, vocabulary: Vocabulary) -> list[int]:
        if self.chat_template or "chat_template" in (self.chat_template_kwargs or ()):
            raise InputError("chat_template must be the engine's, which runs without --trust-request-chat-template")
        tools = () if self.tool_choice == "none" else self.tools or ()
        return vocabulary.encode_chat(
            [each.model_dump(exclude_none=True) for each in self.messages],
            [each.model_dump(exclude_none=True) for each in tools],
            **{"add_generation_prompt": self.add_generation_prompt, **(self.chat_template_kwargs or {})},
        )

    @property
    def echoed(self) -> str:
        """What its answer continues, where that is told again."""
        last = self.messages[-1] if self.messages else None
        return str(last.content or "") if self.echo and last is not None and last.role == "assistant" else ""

    def tool(self, number: int) -> Tool | None:
        """The tool that an answer calls: a named or required one, else for every other question that a user asks."""
        if not self.tools or self.tool_choice == "none":
            return None
        if isinstance(self.tool_choice, ToolChoice):
            return self._named(self.tool_choice.function.name)
        chosen = self.tools[number // 2 % len(self.tools)]
        asks = bool(self.messages) and self.messages[-1].role == "user" and number % 2 == 0
        return chosen if self.tool_choice == "required" or asks else None


def kinds_of(*, is_lenient: bool) -> dict[str, Any]:
    """Completions and chats as an engine checks them."""
    if not is_lenient:
        return {"Completion": Completion, "Chat": Chat}
    fields: dict[str, Any] = {
        "temperature": (Annotated[float, Field(ge=0, allow_inf_nan=False)] | None, None),
        "top_k": (Literal[-1] | Annotated[int, Field(ge=1)] | None, None),
        "repetition_penalty": (Annotated[float, Field(gt=0, le=2)] | None, None),
        "stop": (str | list[str] | None, None), "regex": (str | None, None), "ebnf": (str | None, None),
        "priority": (int | None, None),
    }  # fmt: skip
    found = {kind.__name__: create_model(kind.__name__, __base__=kind, **fields) for kind in (Completion, Chat)}
    for kind in found.values():
        kind.is_lenient = True
    return found


class Sampled(Fields):
    """Fields of SGLang's own API."""

    max_new_tokens: Annotated[int, Field(ge=0)] | None = 128
    min_new_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop: Stops = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1)] = 1
    json_schema: str | None = None
    regex: str | None = None
    sampling_seed: Long | None = None


class Generate(Fields):
    text: str | list[str] | None = None
    input_ids: Ids | list[Ids] | None = None
    return_logprob: bool | None = False
    top_logprobs_num: Annotated[int, Field(ge=0)] = 0
    rid: str | None = None
    sampling_params: Sampled | None = None
    stream: bool | None = False

    @model_validator(mode="after")
    def _is_one_prompt(self) -> Generate:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("text or input_ids must be given, and not both")
        return self

    def prompts(self, vocabulary: Vocabulary) -> list[list[int]]:
        given: Any = self.text if self.text is not None else self.input_ids
        several = given if self.is_batch else [given]
        return [vocabulary.encode(each) if isinstance(each, str) else each for each in several]

    @property
    def is_batch(self) -> bool:
        given: Any = self.text if self.text is not None else self.input_ids
        return isinstance(given, list) and isinstance(next(iter(given), None), str | list)

    def wanted(self) -> Wanted:
        asked = self.sampling_params or Sampled()
        return Wanted(
            pattern=asked.regex, seed=asked.sampling_seed,
            logprobs=self.top_logprobs_num if self.return_logprob else None,
            is_greedy=asked.temperature == 0, min_tokens=asked.min_new_tokens, ignore_eos=asked.ignore_eos,
            stops=tuple([asked.stop] if isinstance(asked.stop, str) else asked.stop or ()),
            stop_ids=frozenset(asked.stop_token_ids or ()),
            schema=None if asked.json_schema is None else _object(asked.json_schema),
        )  # fmt: skip


class ResponseTool(Fields):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: Object | None = None


class Responses(Fields):
    """OpenAI's newer API, as a chat."""

    model: str | None = None
    input: str | list[Any]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stream: bool | None = False
    tools: list[ResponseTool] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | Object = "auto"
    text: Object | None = None
    priority: Long = 0
    background: bool | None = False
    previous_response_id: str | None = None

    def chat(self) -> Chat:
        if self.background or self.previous_response_id:
            raise InputError("background and previous_response_id are not emulated: no answer is kept")
        given = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        messages = [{"role": "system", "content": self.instructions}] if self.instructions else []
        tools = [_tool(each.name, each.description, each.parameters) for each in self.tools if each.type == "function"]
        form = (self.text or {}).get("format") or {}
        named = self.tool_choice.get("name") if isinstance(self.tool_choice, dict) else None
        document: Object = {
            "messages": [*messages, *map(_item_as_message, given)], "max_tokens": self.max_output_tokens,
            "temperature": self.temperature, "top_p": self.top_p, "priority": self.priority,
        }  # fmt: skip
        if form.get("type") == "json_schema":
            schema = {"name": form.get("name", "answer"), "schema": form.get("schema")}
            document["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif form.get("type") == "json_object":
            document["response_format"] = {"type": "json_object"}
        if tools:
            choice = {"type": "function", "function": {"name": named}} if named else self.tool_choice
            document |= {"tools": tools, "tool_choice": choice}
        return read(Chat, document)


def _tool(name: str | None, description: str | None, parameters: Object | None) -> Object:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _item_as_message(item: Any) -> Object:
    if not isinstance(item, Mapping):
        raise InputError("every item of input must be an object")
    if item.get("type") == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
    if item.get("type") == "function_call_output":
        return {"role": "tool", "content": str(item.get("output", ""))}
    return {"role": item.get("role", "user"), "content": item.get("content")}


class MessageTool(Fields):
    name: str
    description: str | None = None
    input_schema: Object | None = None


class Messages(Fields):
    """Anthropic's API, as a chat."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)]
    system: str | list[Any] | None = None
    stop_sequences: Annotated[list[Text], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = False
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    tools: list[MessageTool] | None = None
    tool_choice: Object | None = None

    def chat(self) -> Chat:
        system = [{"role": "system", "content": self.system}] if self.system else []
        document: Object = {
            "messages": [*system, *(each.model_dump(exclude_none=True) for each in self.messages)],
            "max_tokens": self.max_tokens, "stop": self.stop_sequences, "temperature": self.temperature,
            "top_p": self.top_p, "top_k": self.top_k,
        }  # fmt: skip
        if self.tools:
            kind, name = (self.tool_choice or {}).get("type", "auto"), (self.tool_choice or {}).get("name")
            choice = {"type": "function", "function": {"name": name}} if kind == "tool" else kind
            document["tools"] = [_tool(each.name, each.description, each.input_schema) for each in self.tools]
            document["tool_choice"] = "required" if choice == "any" else choice
        return read(Chat, document)


def read(kind: type[Kind], document: Mapping[str, Any]) -> Kind:
    """The fields of a document, or what is wrong with the first that is."""
    try:
        return kind.model_validate(document)
    except ValidationError as problem:
        wrong = problem.errors(include_url=False)[0]
        inner = ("list[", "constrained", "function-")  # What pydantic calls the forms that a field may have
        where = ".".join(str(each) for each in wrong["loc"] if not str(each).startswith(inner))
        told = wrong["msg"].removeprefix("Value error, ").removeprefix("Input should be ").rstrip(".")
        given = "" if wrong["type"] == "value_error" else f", not {str(wrong['input'])[:60]!r}"
        raise InputError(f"{where} must be {told}{given}" if given else told) from None
