"""Which steps vLLM replays as full or piecewise graphs, and to what size it pads them, against ours.

    python benchmarks/scheduler/graphs.py [--version 0.32] [--max-num-seqs 1-520]

Asks both of vLLM's dispatchers, that of the V1 and that of the V2 model runner, for every number of tokens in a step.
"""

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import vllm_tree as tree

from infercast.engines.host import Launch
from infercast.engines.vllm.settings import CapturedGraphs, EngineSettings, ResolvedSettings, resolve
from infercast.hardware import load_gpu

NAMES = {Launch.FULL_GRAPH: "FULL", Launch.PIECEWISE_GRAPHS: "PIECEWISE", Launch.EAGER: "NONE"}
MODES = {"full_and_piecewise": "FULL_AND_PIECEWISE", "full_decode_only": "FULL_DECODE_ONLY", "piecewise": "PIECEWISE"}
MOST = 1100
"""Tokens beyond which no step has a graph."""


class Dispatchers:
    """vLLM's own, for one engine."""

    def __init__(self, settings: ResolvedSettings) -> None:
        import vllm.v1.worker.gpu.cudagraph_utils as v2  # noqa: PLC0415 - after `vllm_tree.use`
        from vllm.config import CUDAGraphMode  # noqa: PLC0415
        from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher  # noqa: PLC0415

        v2.get_pp_group = lambda: Namespace(is_first_rank=True, is_last_rank=True)
        v2.is_breakable_cudagraph_enabled = lambda *_: False
        v2.current_platform = Namespace(get_global_graph_pool=lambda: None)
        mode = CUDAGraphMode[MODES[settings.cudagraph_mode]]
        self.sizes = real_sizes(settings)
        config = _config(settings, mode, self.sizes)
        self._v1 = CudagraphDispatcher(config)
        self._v1.initialize_cudagraph_keys(mode, 1)
        self._v2 = v2.CudaGraphManager(config, None, mode, 1)
        self._v2._graphs_captured = True

    def v1(self, tokens: int, *, is_decode: bool) -> tuple[str, int]:
        """How the V1 runner launches a step, and what it pads to."""
        mode, batch = self._v1.dispatch(tokens, uniform_decode=is_decode)
        return mode.name, batch.num_tokens

    def v2(self, tokens: int, *, is_decode: bool) -> tuple[str, int]:
        """The same of the V2 runner; a step with prompts has one sequence here."""
        found = self._v2.dispatch(tokens if is_decode else 1, tokens, 1 if is_decode else None, 0)
        return found.cg_mode.name, found.num_tokens


def real_sizes(settings: ResolvedSettings) -> list[int]:
    """The sizes that vLLM's configuration chooses."""
    from vllm.config import CUDAGraphMode, VllmConfig  # noqa: PLC0415 - after `vllm_tree.use`

    compilation = Namespace(
        cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE,
        max_cudagraph_capture_size=settings.max_cudagraph_capture_size,
        cudagraph_capture_sizes=None,
        pass_config=Namespace(enable_sp=False),
        post_init_cudagraph_sizes=lambda: None,
    )
    asked = Namespace(
        model_config=Namespace(enforce_eager=False),
        compilation_config=compilation,
        num_speculative_tokens=0,
        uniform_decode_query_len=1,
        performance_mode="balanced",
        speculative_config=None,
        parallel_config=Namespace(tensor_parallel_size=1),
        scheduler_config=Namespace(
            max_num_seqs=settings.max_num_seqs, max_num_batched_tokens=settings.max_num_batched_tokens
        ),
    )
    VllmConfig._set_cudagraph_sizes(asked)
    return list(compilation.cudagraph_capture_sizes)


def _config(settings: ResolvedSettings, mode: Any, sizes: list[int]) -> Namespace:
    compilation = Namespace(
        cudagraph_capture_sizes=sizes,
        max_cudagraph_capture_size=sizes[-1],
        cudagraph_mode=mode,
        compile_sizes=None,
        cudagraph_specialize_lora=True,
        is_attention_compiled_piecewise=lambda: True,
        mode=3,
        splitting_ops=[],
    )
    return Namespace(
        scheduler_config=Namespace(max_num_seqs=settings.max_num_seqs),
        compilation_config=compilation,
        parallel_config=Namespace(data_parallel_size=1, tensor_parallel_size=1, decode_context_parallel_size=1),
        speculative_config=None,
        num_speculative_tokens=0,
        lora_config=None,
        cache_config=Namespace(use_kda_recoverssm=False),
        model_config=Namespace(is_encoder_decoder=False),
    )


def differences(settings: ResolvedSettings) -> list[str]:
    """Every step that one of the dispatchers launches or pads otherwise."""
    real = Dispatchers(settings)
    ours = CapturedGraphs(settings.capture_sizes, settings.max_num_seqs, settings.cudagraph_mode)
    found = [] if list(ours.sizes) == real.sizes else [f"sizes: vLLM {real.sizes}, ours {ours.sizes}"]
    for tokens in range(1, MOST):
        for is_decode in (True, False) if tokens <= settings.max_num_seqs else (False,):
            launch, padded = ours.launch(tokens, is_decode)
            mine = NAMES[launch], padded
            for runner in (real.v1, real.v2):
                theirs = runner(tokens, is_decode=is_decode)
                if theirs != mine:
                    kind = "decoding" if is_decode else "mixed"
                    found.append(f"{tokens} tokens, {kind}: {runner.__name__} {theirs}, ours {mine}")
    return found


def main() -> None:
    """Parse the command line, count engines that are equal in every step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", choices=[*tree.WHEELS], default="0.25")
    parser.add_argument("--vllm", type=Path, help="a folder with the package vllm; default: the wheel's, fetched once")
    parser.add_argument("--max-num-seqs", default="1-520", help="a range of them")
    arguments = parser.parse_args()
    tree.use(tree.find(arguments.version, arguments.vllm))
    first, last = (int(part) for part in arguments.max_num_seqs.split("-"))
    gpu, all_equal = load_gpu("h200-sxm"), True
    for mode in MODES:
        for budget in (8192, 200):
            equal = count = 0
            for sequences in range(first, min(last, budget) + 1):
                asked = EngineSettings(
                    max_num_seqs=sequences,
                    max_num_batched_tokens=budget,
                    cudagraph_mode=mode,
                    engine=f"vllm@{arguments.version}",
                )
                found = differences(resolve(asked, gpu, 16_384))
                count, equal = count + 1, equal + (not found)
                if found and equal == count - 1:
                    print(f"max_num_seqs {sequences}: {found[0]} and {len(found) - 1} more", file=sys.stderr)
            all_equal &= equal == count
            print(f"{mode:<20} {budget:>6,} tokens a step: {equal:>4,} of {count:,} engines equal in all steps")
    sys.exit(0 if all_equal else 1)


if __name__ == "__main__":
    main()
