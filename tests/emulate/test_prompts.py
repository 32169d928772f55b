"""Tokens by the stated rule, and what prompts share."""

import pytest

from infercast.emulate.answers import answer_words
from infercast.emulate.prompts import Contents, encode, encode_chat, pieces, text_of_call, token_id
from infercast.errors import InputError
from infercast.serve.workload.request import Segment


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
    contents.remember(ids, whole, words, answered)
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
    assert len(encode_chat(asked, [{"name": "f", "description": "a tool " * 20}])) > len(encode_chat(asked)) + 40
    called = {"function": {"name": "f", "arguments": '{"x": 1}'}}
    told = [*asked, {"role": "assistant", "content": None, "tool_calls": [called]}]
    text = text_of_call("f", '{"x": 1}')
    assert [*map(token_id, pieces(text))] == encode_chat(told)[len(encode_chat(asked)) : -2]


def test_half_an_emoji_is_a_token_like_another() -> None:
    assert len(encode("\ud800 x")) == len(encode("\ufffd x"))
    assert encode_chat([{"role": "\udfff", "content": [{"type": "text", "text": "a\ud83d"}]}])
