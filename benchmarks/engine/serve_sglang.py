"""SGLang's server with one more route: POST /loads plays loads on the engine in the server's own process, without HTTP.

    python serve_sglang.py --model-path MODEL_FOLDER --load-format dummy --port 8011 --served-model-name m

The options are those of `python -m sglang.launch_server`. The body is {"name", "out", "loads": ["poisson:12:200", ...],
"seed"}; so one engine is measured in process and, by measure_server.py, over HTTP. GET /facts tells what it runs with.
With hook/ on PYTHONPATH and STEP_LOG set, the scheduler and the server log their steps beside.
"""

import asyncio
import json
import sys
import time

from loads import Loads, energy_counter
from starlette.requests import Request  # at the top: the route's annotation is read at run time
from starlette.responses import JSONResponse

BEGAN = time.time()


def plain(value):
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value


async def config_of(name, manager):
    """What a result says of its engine: the common names, and SGLang's own settings as it resolved them."""
    import sglang  # noqa: PLC0415 - slow to load, and not for every process that this file's server starts
    import torch  # noqa: PLC0415

    state = {key: plain(value) for key, value in (await manager.get_internal_state())[0].items()}
    tokens, page = state["memory_usage"]["token_capacity"], state.get("page_size") or 1
    graphs = state.get("cuda_graph_config")
    graphs = graphs if isinstance(graphs, dict) else {}
    decode, prefill = graphs.get("decode", {}), graphs.get("prefill", {})
    return {
        "name": name,
        "engine": "sglang",
        "sglang": sglang.__version__,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0),
        "quant": state.get("quantization"),
        "kv_cache_dtype": state.get("kv_cache_dtype"),
        "vocabulary": manager.model_config.vocab_size,
        "max_model_len": manager.model_config.context_len,
        "gpu_memory_utilization": state.get("mem_fraction_static"),
        "max_num_batched_tokens": state.get("chunked_prefill_size"),
        "max_num_seqs": state.get("effective_max_running_requests_per_dp"),
        "block_size": page,
        "num_gpu_blocks": tokens // page,
        "async_scheduling": not state.get("disable_overlap_schedule"),
        "cudagraph_mode": f"decode={decode.get('backend')},prefill={prefill.get('backend')}",
        "cudagraph_sizes": decode.get("bs") or [],
        "cudagraph_sizes_prefill": prefill.get("bs") or [],
        "max_total_num_tokens": tokens,
        "max_prefill_tokens": state.get("max_prefill_tokens"),
        "schedule_policy": state.get("schedule_policy"),
        "schedule_conservativeness": state.get("schedule_conservativeness"),
        "attention_backend": state.get("attention_backend"),
        "sampling_backend": state.get("sampling_backend"),
        "radix_cache": not state.get("disable_radix_cache"),
        "mixed_chunk": state.get("enable_mixed_chunk"),
        "startup_s": round(time.time() - BEGAN, 1),
        "internal_state": state,
    }


def in_process(manager):
    """Requests by token ids to the tokeniser's manager of this process."""
    from sglang.srt.managers.io_struct import GenerateReqInput  # noqa: PLC0415

    async def send(_, tokens, num_output):
        sampling = {"max_new_tokens": num_output, "ignore_eos": True, "temperature": 0.0}
        done = 0
        async for part in manager.generate_request(
            GenerateReqInput(input_ids=tokens, sampling_params=sampling, stream=True), None
        ):
            now = part["meta_info"]["completion_tokens"]
            yield now - done
            done = now

    return send


def main() -> None:
    from sglang.launch_server import run_server  # noqa: PLC0415
    from sglang.srt.entrypoints import http_server  # noqa: PLC0415
    from sglang.srt.server_args import prepare_server_args  # noqa: PLC0415

    def manager():
        return http_server.get_global_state().tokenizer_manager

    async def flush() -> None:
        """Empty the prefix cache once the engine has nothing to do."""
        while not (await manager().flush_cache()).success:
            await asyncio.sleep(0.05)

    async def facts(_: Request):
        return JSONResponse(await config_of("", manager()))

    async def reset(_: Request):
        await flush()
        return JSONResponse({})

    async def play(request: Request):
        body = await request.json()
        config = await config_of(body["name"], manager())
        path = f"{body['out']}/{body['name']}.json.gz"
        loads = Loads(path, config, in_process(manager()), flush, energy_counter(), seed=body.get("seed", 0))
        for load in body["loads"]:
            await loads.play(load)
        await flush()
        return JSONResponse({"runs": len(loads.runs)})

    http_server.app.add_route("/facts", facts, methods=["GET"])
    http_server.app.add_route("/reset_prefix_cache", reset, methods=["POST"])
    http_server.app.add_route("/loads", play, methods=["POST"])
    run_server(prepare_server_args(sys.argv[1:]))


if __name__ == "__main__":
    main()
