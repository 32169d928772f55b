"""`vllm serve` with one more route: POST /loads plays loads on the engine in the server's own process, without HTTP.

    python serve_engine.py --model FOLDER --load-format dummy --port 8011 --served-model-name m

The options are those of `vllm serve`. The body is {"name", "out", "loads": ["poisson:12:200", ...], "seed", "picture":
tokens that an image replaces}; so one engine is measured in process and, by measure_server.py, over HTTP. GET /facts
tells what it runs with.
"""

import time

from loads import Loads, config_of, energy_counter, in_process
from starlette.requests import Request  # at the top: the route's annotation is read at run time
from starlette.responses import JSONResponse
from vllm.entrypoints.launchers.api_server import entry

BEGAN = time.time()
build = entry.build_app


def build_app(*args, **kwargs):
    app = build(*args, **kwargs)

    async def facts(request: Request):
        return JSONResponse(config_of("", request.app.state.engine_client.vllm_config, BEGAN))

    async def play(request: Request):
        body, engine = await request.json(), request.app.state.engine_client
        config = config_of(body["name"], engine.vllm_config, BEGAN)
        path = f"{body['out']}/{body['name']}.json.gz"
        loads = Loads(
            path,
            config,
            in_process(engine, body.get("picture", ())),
            engine.reset_prefix_cache,
            energy_counter(),
            seed=body.get("seed", 0),
        )
        for load in body["loads"]:
            await loads.play(load)
        await engine.reset_prefix_cache()
        return JSONResponse({"runs": len(loads.runs)})

    app.add_route("/facts", facts, methods=["GET"])
    app.add_route("/loads", play, methods=["POST"])
    return app


if __name__ == "__main__":
    entry.build_app = build_app
    entry.main()
