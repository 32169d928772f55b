"""Which GPUs hold a 70B model, with how many of them, and how many sequences of 4,096 tokens fit then?"""

import infercast
from infercast.forecast.memory import fit_memory

settings = infercast.EngineSettings(max_model_len=8192)
for gpu in ("a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "mi300x"):
    for size in (1, 2, 4, 8):
        fit = fit_memory("llama-3.3-70b", gpu, settings, tensor_parallel_size=size, context=4096)
        if not fit.problem:
            print(f"{gpu:9} x {size}: {fit.most_sequences:4} sequences of {fit.context} tokens")
            break
