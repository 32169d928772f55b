"""Commands are loaded when they are asked for."""

import subprocess
import sys

import pytest
import typer

from infercast.cli.app import COMMANDS, load_command, make_app
from infercast.cli.main import run

DEPLOYED = ("llama-3.1-8b", "--gpu", "h200-sxm")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_says_what_the_command_says(name):
    first, _, _ = (load_command(name).__doc__ or "").partition("\n\n")
    assert COMMANDS[name].help == first.strip()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained_and_json_is_one_of_them(name):
    options = typer.main.get_command(make_app(name)).commands[name].params
    assert all(option.help for option in options)
    assert "--json" in {word for option in options for word in option.opts}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_has_an_example(name):
    assert f"infercast {name} " in (load_command(name).__doc__ or "")


def test_a_command_may_stand_behind_two_dashes(infercast):
    assert infercast("--", "gpus", "--json").json == infercast("gpus", "--json").json


@pytest.mark.parametrize(
    ("words", "spared"),
    [
        (["--version"], {"typer", "numpy", "rich", "difflib", "dataclasses"}),
        (["--help"], {"numpy", "infercast.cli.commands.simulate"}),
        (["gpus", "--json"], {"rich", "numpy", "infercast.engines", "infercast.models", "infercast.forecast"}),
        (["hosts", "--json"], {"rich", "numpy", "infercast.engines", "infercast.models", "infercast.forecast"}),
        (["models", "--json"], {"rich", "numpy.random", "infercast.forecast.result"}),
        (["memory", *DEPLOYED, "--json"], {"rich", "numpy.random", "infercast.forecast.result"}),
        (
            ["simulate", *DEPLOYED, "--rate=9", "--num-requests=9"],
            {
                "typer",
                "tomllib",
                "importlib.resources",
                "rich._emoji_codes",
                "rich.progress",
                "infercast.forecast.memory",
            },
        ),
    ],
)
def test_a_command_loads_only_what_it_needs(words, spared):
    script = (
        f"import sys; sys.argv = ['infercast', *{words!r}]\n"
        "from infercast.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr.split()
    assert "infercast.cli.main" in loaded
    assert not spared & set(loaded)


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("infercast.cli.main._answer", stopped)
    monkeypatch.setattr("sys.argv", ["infercast", "models"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130


@pytest.mark.parametrize("code", [0, 2])
def test_the_end_cleans_up_and_takes_nothing_apart(code: int) -> None:
    script = (
        "import atexit, sys\n"
        "from infercast.cli import main\n"
        "class Left:\n"
        "    def __del__(self): print('taken apart')\n"
        "left = Left()\n"
        "def run():\n"
        "    atexit.register(print, 'cleaned up')\n"
        f"    sys.exit({code})\n"
        "main.run = run\n"
        "main.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.split("\n"), done.returncode) == (["cleaned up", ""], code)
