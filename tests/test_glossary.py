"""The glossary: every term is one plain sentence, and every spelling names one term."""

from collections import Counter

from infercast.glossary import glossary, meaning


def test_every_term_is_one_sentence_without_odd_words():
    for term in glossary():
        assert term.meaning.endswith("."), term
        assert ". " not in term.meaning, term
        assert term.meaning[0].isupper(), term
        assert 20 < len(term.meaning) < 200, term


def test_no_spelling_names_two_terms():
    spelled = Counter(text.lower() for term in glossary() for text in {term.term.lower(), *map(str.lower, term.also)})
    assert [text for text, count in spelled.items() if count > 1] == []


def test_groups_stay_together():
    groups = [term.group for term in glossary()]
    starts = [group for before, group in zip(["", *groups], groups, strict=False) if before != group]
    assert len(starts) == len(set(starts))


def test_a_term_is_found_by_its_spellings():
    assert meaning("TTFT") == meaning("time to first token") == meaning("ttft")
    assert meaning("weather") is None
