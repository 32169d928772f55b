"""Tokens by the stated rule or a tokenizer's file, and what prompts share."""

import json
from pathlib import Path

import httpx
import pytest

from infercast.emulate.answers import answer_words
from infercast.emulate.prompts import Contents, HuggingFace, Rule, text_of_call, token_id
from infercast.emulate.server import emulator
from infercast.errors import InputError
from infercast.serve.workload.request import Segment

encode, encode_chat, pieces = Rule().encode, Rule().encode_chat, Rule().pieces


def test_tokens_are_short_pieces() -> None:
    assert len(encode("Once upon a time, there was 1 little model of 12345 parameters.")) == 17
    assert encode("a b") == [*encode("a"), *encode(" b")]
    assert len(encode("日本語のテキスト")) > 1


def test_answers_that_come_back_are_the_same_tokens() -> None:
    words = answer_words(12345, 40)
    assert encode("".join(words)) == [encode(word)[0] for word in words]


def test_a_conversation_continues_its_prompt_and_answer() -> None:
    contents = Contents()
    turn = [{"role": "user", "content": "a long question " * 30}]
    ids, words = encode_chat(turn), answer_words(7, 25)
    segments, whole = contents.segments(ids)
    answered = (*segments, Segment(99, len(words)))
    contents.remember(ids, whole, map(token_id, words), answered)
    again = [*turn, {"role": "assistant", "content": "".join(words)}, {"role": "user", "content": "and then?"}]
    found, _ = contents.segments(encode_chat(again))
    assert found[: len(answered)] == answered
    assert sum(each.num_tokens for each in found) == len(encode_chat(again))


def test_equal_beginnings_have_equal_names_and_others_do_not() -> None:
    contents = Contents()
    first, second = (contents.segments([*range(64), *rest])[0] for rest in ([1] * 20, [2] * 20))
    assert first[:4] == second[:4]
    assert first[4] != second[4]


def test_only_text_is_emulated() -> None:
    with pytest.raises(InputError, match="images and audio"):
        encode_chat([{"role": "user", "content": [{"type": "image_url"}]}])


def test_tools_and_their_calls_are_tokens() -> None:
    asked = [{"role": "user", "content": "hi"}]
    assert (
        len(encode_chat(asked, [{"function": {"name": "f", "description": "a tool " * 20}}]))
        > len(encode_chat(asked)) + 40
    )
    called = {"function": {"name": "f", "arguments": '{"x": 1}'}}
    told = [*asked, {"role": "assistant", "content": None, "tool_calls": [called]}]
    text = text_of_call("f", '{"x": 1}')
    assert [*map(token_id, pieces(text))] == encode_chat(told)[len(encode_chat(asked)) : -2]


def test_half_an_emoji_is_a_token_like_another() -> None:
    assert len(encode("\ud800 x")) == len(encode("\ufffd x"))
    assert encode_chat([{"role": "\udfff", "content": [{"type": "text", "text": "a\ud83d"}]}])


TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for each in messages %}<s>{{ each.role }}{{ each.content }}{% endfor %}"
    "{% if messages[-1].role == 'wizard' %}{{ raise_exception('no wizards') }}{% endif %}"
    "{% if add_generation_prompt %}<s>assistant{% endif %}{{ bos_token }}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer of single bytes but for words of answers."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["".join(Rule.words)] * 5, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}, "model_max_length": 512}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_tokenizer_counts_text_tools_and_answers(folder: Path) -> None:
    real, asked = HuggingFace(folder), [{"role": "user", "content": "xyz"}]
    assert len(real.words) > 10
    assert len(real.encode("xyzxyz")) == 6
    assert real.decode(real.encode(" the wind")) == " the wind"
    text = '{"a": "ü the", "b": 5}'
    assert "".join(real.pieces(text)) == text
    assert real.encode_chat(asked) == real.encode("<s>userxyz<s>assistant<s>")
    tool = {"type": "function", "function": {"name": "f"}}
    assert real.encode_chat(asked, [tool], add_generation_prompt=False) == real.encode(
        f"{json.dumps([tool])}<s>userxyz<s>"
    )
    with pytest.raises(InputError, match="no wizards"):
        real.encode_chat([{"role": "wizard", "content": ""}])
    with emulator("qwen3-0.6b", "h200-sxm", speed=20, tokenizer=folder) as url, httpx.Client(base_url=url) as client:
        document = {"messages": asked, "max_tokens": 6, "ignore_eos": True}
        found = client.post("/v1/chat/completions", json=document).json()
        assert found["usage"]["prompt_tokens"] == len(real.encode_chat(asked, add_generation_prompt=True))
        assert len(real.encode(found["choices"][0]["message"]["content"])) == 6
        ids = client.post("/tokenize", json={"prompt": "xyz"}).json()["tokens"]
        assert client.post("/detokenize", json={"tokens": ids}).json()["prompt"] == "xyz"


def test_without_a_tokenizer_one_sentence_says_what_to_do(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"--tokenizer \S+empty must be a folder with a tokenizer.json"):
        HuggingFace(empty)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--tokenizer needs tokenizers and jinja2: .* pip install tokenizers jinja2"):
        HuggingFace(folder)
