"""Plain command lines are read without typer, and mean the same to it."""

import random

import pytest
import typer

from infercast.cli.app import COMMANDS, make_app
from infercast.cli.options import LISTS, OF_FORM, plain_call
from infercast.units import whole_number

TABLED = [name for name, about in COMMANDS.items() if hasattr(about.load(), "options")]
VALUES = {int: ("7", "1_000"), float: ("0.5", "3", "nan"), bool: (), whole_number: ("32k", "2K", "auto", "12")}


class Typer:
    """A command as typer calls it."""

    def __init__(self, name, monkeypatch):
        self.name, self.calls = name, []
        listed = COMMANDS[name].load().options

        def record(**given):
            self.calls.append(given)

        record.options = listed
        with monkeypatch.context() as patched:
            patched.setattr(type(COMMANDS[name]), "load", lambda _: record)
            self.group = typer.main.get_command(make_app(name))

    def __call__(self, words):
        """What it is called with."""
        with pytest.raises(SystemExit):
            self.group([self.name, *words])
        return self.calls.pop()


def new_options(name):
    """Options of a command that none before it has just so, and those of its form if it is the first."""
    known = [option for other in TABLED[: TABLED.index(name)] for option in COMMANDS[other].load().options()]
    own = [option for option in COMMANDS[name].load().options() if option not in known]
    return own if known else [*own, *OF_FORM]


def lines_of(name, chance):
    """Command lines with every new option in turn, and with some of all."""
    options = COMMANDS[name].load().options()
    needed = []
    for option in options:
        if option.default is ...:
            needed += ["word"] if option.argument else [option.spelled, "word"]
    yield needed
    for option in new_options(name):
        on, _, off = option.spelled.partition("/")
        if option.argument:
            continue
        if option.type is bool:
            for flag in filter(None, (on, off, option.short)):
                yield [*needed, flag]
            continue
        for value in VALUES.get(option.type, ("word", "a=b", "json", "")):
            yield [*needed, on, value]
            yield [f"{on}={value}", *needed]
        if option.short:
            yield [*needed, option.short, "5"]
        yield [*needed, on, "1", on, "2"]
        yield [*needed, on]
    flags = [option for option in options if not option.argument and option.default is not ...]
    for _ in range(20):
        words = []
        for option in chance.sample(flags, min(len(flags), 5)):
            on = option.spelled.partition("/")[0]
            words += [on] if option.type is bool else [on, chance.choice(VALUES.get(option.type, ("word",)))]
        yield [*needed, *words]


def same(one, other):
    return one == other or (one != one and other != other)


@pytest.mark.parametrize("name", TABLED)
def test_plain_words_mean_what_they_mean_to_typer(name, monkeypatch):
    options, by_typer, plain = COMMANDS[name].load().options(), Typer(name, monkeypatch), 0
    for words in lines_of(name, random.Random(name)):
        mine = plain_call(options, words)
        if mine is None:
            continue
        plain += 1
        theirs = by_typer(words)
        mine_ctx, ctx = mine.pop("ctx"), theirs.pop("ctx")
        assert mine.keys() == theirs.keys(), words
        for key, value in mine.items():
            assert type(value) is type(theirs[key]), (words, key, value, theirs[key])
            assert same(value, theirs[key]), (words, key)
        for option in options:
            key = option.name
            assert same(mine_ctx.params[key], ctx.params[key]), (words, key, mine_ctx.params[key], ctx.params[key])
            given = [each.get_parameter_source(key) for each in (mine_ctx, ctx)]
            said = [each is not None and each.name == "COMMANDLINE" for each in given]
            assert said[0] == said[1], (words, key)
    # Several words without flags are for typer, and those that a command cannot do without.
    assert plain or any(option.argument and option.type in LISTS for option in options)


@pytest.mark.parametrize(
    "words",
    [["-h"], ["--help"], ["--rat", "5"], ["--rate"], ["--rate", "-5"], ["--json=1"], ["a", "b"], ["--rate=x"], ["--"]],
)
def test_everything_else_is_for_typer(words):
    assert plain_call(COMMANDS["simulate"].load().options(), ["llama-3.1-8b", "--gpu", "l4", *words]) is None
