"""Why a published run is not simulated, in a few kinds, told by words of the error."""

from __future__ import annotations

REASONS = {
    "a mistake of the simulation": "a mistake of the simulation",
    "modelled for vLLM": "with speculative decoding of another engine than vLLM",
    "of which too little is stated": "with speculative decoding of which too little is stated",
    "the same run": "stands in the table twice",
    "prompts are text": "images in prompts",
    "a load of conversations": "conversations whose turns are not known",
    "LoRA adapters": "with LoRA adapters",
    "prefill pool": "prefill and decode on servers of their own",
    "unknown model": "a model whose config is not known",
    "is not supported": "a model that is not modelled",
    "unknown GPU": "a GPU that is not known",
    "TensorRT-LLM": "another engine",
    "unknown engine": "another engine",
    "ep_size": "experts over some of the GPUs",
    "does not cut fp8 weights": "a layout that the engine refuses",
    "that talk to each other": "a layout beyond one node",
    "--decode-context-parallel-size": "contexts split over GPUs",
    "in this release": "a backend that the modelled release refuses on that GPU",
    "applies to experts": "a format that is not modelled for the model",
    "'mean_in'": "no lengths",
    "'num_requests'": "no number of requests",
    "does not fit": "weights that do not fit in the stated GPUs",
    "do not fit": "weights that do not fit in the stated GPUs",
    "already quantised": "a checkpoint in another format whose config is not known",
    "server_cmd cannot be read": "a command that cannot be read",
    "is not known; known": "a load that is not known",
}
"""By words of an error."""


def reason_of(problem: str) -> str:
    """The kind of a problem."""
    return next((reason for word, reason in REASONS.items() if word in problem), problem)
