"""One engine of vLLM, measured over HTTP and then in process, with a probe of the host before and after.

    python measure_model.py NAME --model FOLDER --out FOLDER --http 'warm:20:50,poisson:12:120' \
        --inside 'idle:128:4,static:8:1024:64' --probe 'infercast measure --host --out PATH' -- --max-model-len 16384

What follows `--` are options of `vllm serve`. Writes NAME.json.gz and NAME__http.json.gz for `infercast validate`, and
logs of engine core, server and image encoder to NAME_steps. PATH in the command of the probe is a file to write.
"""

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
URL = "http://127.0.0.1:8011"


def started(options: argparse.Namespace, logs: Path) -> subprocess.Popen:
    """The server, once it answers."""
    path = os.pathsep.join([str(HERE / "hook"), str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "STEP_LOG": str(logs), "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": path}
    words = [sys.executable, str(HERE / "serve_engine.py"), "--model", options.model, "--load-format", "dummy"]
    words += ["--host", "127.0.0.1", "--port", "8011", "--served-model-name", "m", *options.flags]
    with (logs / "server.txt").open("w") as said:
        server = subprocess.Popen(words, stdout=said, stderr=said, env=environment, start_new_session=True)
    end = time.time() + options.patience
    while time.time() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"{URL}/health", timeout=2)
        except OSError:
            time.sleep(1)
        else:
            return server
    stop(server)
    raise SystemExit(f"{options.name} did not start; {logs / 'server.txt'} says why")


def stop(server: subprocess.Popen) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def probed(command: str | None, path: Path) -> dict | None:
    if command is None:
        return None
    subprocess.run(command.replace("PATH", str(path)), shell=True, check=True)
    return json.loads(path.read_text())


def play_inside(options: argparse.Namespace) -> None:
    asked = {"name": options.name, "out": str(options.out), "loads": options.inside.split(","), "seed": options.seed}
    asked["picture"] = options.picture
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{URL}/loads", json.dumps(asked).encode(), headers))


def play_over_http(options: argparse.Namespace) -> None:
    words = [sys.executable, str(HERE / "measure_server.py"), "--url", URL, "--model", "m"]
    words += ["--name", f"{options.name}__http", "--out", str(options.out), "--loads", options.http]
    subprocess.run([*words, "--seed", str(options.seed)], check=True)


def complete(path: Path, facts: dict) -> None:
    """Add to a file of runs what was known only when all were done."""
    if path.exists():
        document = json.loads(gzip.decompress(path.read_bytes())) | {k: v for k, v in facts.items() if v is not None}
        path.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--model", required=True, help="a folder with config.json and the files of a tokeniser")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--http", default="warm:20:50,idle:128:4,idle:2048:3,poisson:12:120,closed:32:128")
    parser.add_argument("--inside", default="idle:128:4,idle:2048:3,static:8:1024:64,static:32:1024:64,poisson:8:100")
    parser.add_argument("--picture", type=json.loads, default=[], help="JSON: tokens that an image replaces")
    parser.add_argument("--probe", help="a command that writes a probe of the host to PATH")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--patience", type=float, default=600, help="seconds in which the server has to start")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:end])
    options.flags = words[end + 1 :]
    logs = options.out / f"{options.name}_steps"
    logs.mkdir(parents=True, exist_ok=True)
    facts = {"probe_before": probed(options.probe, logs / "before.json")}
    server = started(options, logs)
    try:
        play_over_http(options)
        play_inside(options)
        facts["probe_after"] = probed(options.probe, logs / "after.json")
    finally:
        stop(server)
        for name in (options.name, f"{options.name}__http"):
            complete(options.out / f"{name}.json.gz", facts)


if __name__ == "__main__":
    main()
