"""What people paste becomes the words of the engine that it starts."""

import pytest

from infercast.engines.base import engine_named
from infercast.errors import FileFormatError, InputError
from infercast.forecast.command.pasted import find_commands, read_documents, text_of, the_command

COMMANDS = engine_named().commands
COMPOSE = """
services:
  server:
    image: vllm/vllm-openai:latest  # the engine
    command: >
      --model some/model
      --tensor-parallel-size 2
    environment:
      - VLLM_LOGGING_LEVEL=DEBUG
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: 2
              capabilities: [gpu]
  web:
    image: nginx
    command: ["nginx", "-g", "daemon off;"]
"""
MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  replicas: 3
  template:
    spec:
      containers:
      - name: server
        image: vllm/vllm-openai
        command: ["/bin/sh", "-c"]
        args:
        - |
          vllm serve $(MODEL) \\
            --max-num-seqs 64
        env:
        - name: MODEL
          value: some/model
        resources:
          limits:
            nvidia.com/gpu: "4"
---
kind: Service
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vllm serve some/model -tp 2", ["some/model", "-tp", "2"]),
        ("$ /opt/bin/vllm serve some/model", ["some/model"]),
        ("uv run vllm serve m --port 1 | tee log", ["m", "--port", "1"]),
        ("vllm serve m \\\n  --seed 8 \\\n  --x '{\"a\": 1}' > log 2>&1 &", ["m", "--seed", "8", "--x", '{"a": 1}']),
        ("# a note\nexport M=some/model\nvllm serve $M --seed ${SEED}", ["some/model", "--seed", "${SEED}"]),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", ["--model", "m"]),
        ("bash -lc 'cd /x && exec vllm serve m'", ["m"]),
        ("docker run --gpus all -v /a:/b -p80:80 --ipc=host -it vllm/vllm-openai:v1 --model m", ["--model", "m"]),
        ("podman run -d --entrypoint vllm registry/vllm serve m", ["m"]),
    ],
)  # fmt: skip
def test_command_lines(text: str, words: list[str]) -> None:
    assert list(the_command(text, COMMANDS).words) == words


def test_docker_says_environment_and_gpus() -> None:
    found = the_command("docker run --gpus '\"device=0,3\"' -e A=b --env C=d vllm/vllm-openai --model m", COMMANDS)
    assert found.gpus == 2
    assert found.environment == {"A": "b", "C": "d"}


def test_a_compose_file() -> None:
    found = the_command(COMPOSE, COMMANDS)
    assert found.words == ("--model", "some/model", "--tensor-parallel-size", "2")
    assert (found.where, found.gpus, found.environment) == ("service server", 2, {"VLLM_LOGGING_LEVEL": "DEBUG"})


def test_a_manifest_with_a_shell_and_a_variable() -> None:
    found = the_command(MANIFEST, COMMANDS)
    assert found.words == ("some/model", "--max-num-seqs", "64")
    assert (found.gpus, found.replicas) == (4, 3)


def test_one_of_several_must_be_named() -> None:
    both = "vllm:\n  command: [vllm, serve, a]\nother:\n  command: [vllm, serve, b]\n"
    assert len(find_commands(both, COMMANDS)) == 2
    with pytest.raises(InputError, match=r"2 different commands were found \(service vllm, service other\); say which"):
        the_command(both, COMMANDS)
    assert the_command(both, COMMANDS, "other").words == ("b",)
    with pytest.raises(InputError, match="--service 'third' is not in"):
        the_command(both, COMMANDS, "third")


@pytest.mark.parametrize("text", ["curl localhost", "services:\n  web:\n    command: nginx\n", "vllm bench serve"])
def test_nothing_that_starts_a_server(text: str) -> None:
    with pytest.raises(InputError, match="no command that starts a server"):
        the_command(text, COMMANDS)


def test_an_open_quote_is_one_sentence() -> None:
    with pytest.raises(InputError, match="cannot be split into words"):
        the_command("vllm serve 'some", COMMANDS)


def test_text_from_an_argument_a_file_or_standard_input(tmp_path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text("vllm serve m\n")
    assert text_of(str(file)) == "vllm serve m\n"
    assert text_of("-", "vllm serve n") == "vllm serve n"
    assert text_of("vllm serve o") == "vllm serve o"
    with pytest.raises(InputError, match=r"there is no file missing\.yaml"):
        text_of("missing.yaml")


def test_yaml_of_every_kind() -> None:
    text = """
a: [x, "y, z", {k: v}]   # flow
b:
- - 1
  - 2
- c: d
  e: 'it''s'
f: &base
  g: "two\\nlines"
h:
  <<: *base
  i: >-
    folded
    text

    more
j: |
  kept

    as it is
k: plain text
  goes on
m: [
  vllm serve,  # a bracket that is closed where its key begins
  "x"
]
l:
url: http://host:80/path#part
"""
    assert read_documents(text) == [
        {
            "a": ["x", "y, z", {"k": "v"}],
            "b": [["1", "2"], {"c": "d", "e": "it's"}],
            "f": {"g": "two\nlines"},
            "h": {"g": "two\nlines", "i": "folded text\nmore"},
            "j": "kept\n\n  as it is\n",
            "k": "plain text goes on",
            "m": ["vllm serve", "x"],
            "l": None,
            "url": "http://host:80/path#part",
        }
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: !!python/object/apply:os.system [x]", "line 1: has the tag"),
        ("a: [1, 2", "expected ',' or ']'"),
        ("a: 'open", "unexpected end of stream"),
        ("a:\n    b: 1\n  c: 2", "line 3: is not YAML"),
        ("a: *b", "undefined alias"),
        ("a: 1\na: 2", "line 2: gives 'a' a second time"),
        ("a:\n\t- b", "line 2: is not YAML: .*cannot start any token"),
        ("a: " + 200 * "[", "is not YAML"),
        ("a: " + 200 * "[" + 200 * "]", "nested deeper"),
        ("a: &b [*b]", "nested deeper"),
    ],
)
def test_yaml_that_is_refused(text: str, problem: str) -> None:
    with pytest.raises(FileFormatError, match=problem):
        read_documents(text)
