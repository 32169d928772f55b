"""Play loads against a running OpenAI-compatible server over HTTP, with streamed answers, and write what clients saw.

    python measure_server.py --url http://127.0.0.1:8011 --model m --name NAME --out FOLDER --loads 'poisson:12:200'

Prompts are token ids (`--prompts ids`), words that the tokeniser splits into as many tokens (`text`), or chats of such
words (`chat`). The server's prefix cache is reset between two runs where it allows that (VLLM_SERVER_DEV_MODE=1).
"""

import argparse
import asyncio
import json
from pathlib import Path

import aiohttp
from loads import Loads, energy_counter

PATHS = {"ids": "/v1/completions", "text": "/v1/completions", "chat": "/v1/chat/completions"}


def word(number):
    """One of 100,000 words of four letters, which a tokeniser made for this has as one token each."""
    return " " + "".join(chr(97 + number % 100_000 // 26**place % 26) for place in (3, 2, 1, 0))


def sender(session, options):
    def body_of(tokens, num_output, images):
        body = {"model": options.model, "max_tokens": num_output, "min_tokens": num_output, "ignore_eos": True}
        body |= {"temperature": 0.0, "stream": True}
        if options.prompts == "ids" and not images:
            return body | {"prompt": tokens}
        words = "".join(map(word, tokens))
        if images:
            parts = [{"type": "image_url", "image_url": {"url": each.url}} for each in images]
            content = [*parts, {"type": "text", "text": words}]
            return body | {
                "messages": [{"role": "user", "content": content}],
                "stream_options": {"include_usage": True},
            }
        chat = {"messages": [{"role": "user", "content": words}]}
        return body | ({"prompt": words} if options.prompts == "text" else chat)

    async def send(name, tokens, num_output, images=()):
        headers = {"X-Request-Id": f"{options.name}-{name}"}
        path = PATHS["chat" if images else options.prompts]
        body = body_of(tokens, num_output, images)
        async with session.post(options.url + path, json=body, headers=headers) as response:
            if response.status != 200:
                raise SystemExit(f"the server answered {response.status}: {await response.text()}")
            async for line in response.content:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    if b'"choices":[],' in line:  # the last part, of what was used
                        yield -json.loads(line[6:])["usage"]["prompt_tokens"]
                        continue
                    yield 0 if b'"role":"assistant","content":""' in line else 1

    return send


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--loads", default="warm:20:60,idle:128:4,poisson:12:200,closed:32:192")
    parser.add_argument("--prompts", choices=PATHS, default="ids")
    parser.add_argument("--config", type=json.loads, default={}, help="JSON: facts of the engine, beside what it tells")
    parser.add_argument("--seed", type=int, default=77)
    options = parser.parse_args()
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        config = {"vocabulary": 120_000, "max_model_len": 16384, "api_server": True, "prompts": options.prompts}
        async with session.get(options.url + "/facts") as response:
            config |= (await response.json() if response.status == 200 else {}) | options.config
        config["name"], config["vocabulary"] = options.name, min(config["vocabulary"], 120_000)

        async def between():
            async with session.post(options.url + "/reset_prefix_cache"):
                pass

        path = options.out / f"{options.name}.json.gz"
        loads = Loads(path, config, sender(session, options), between, energy_counter(), seed=options.seed)
        for load in options.loads.split(","):
            await loads.play(load)
        await between()


if __name__ == "__main__":
    asyncio.run(main())
