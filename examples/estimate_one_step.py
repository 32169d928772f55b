"""The three largest kernels of a decode step, and what holds each back."""

import infercast
from infercast.forecast.kernels import decode_shape, estimate_step

deployment = infercast.deploy("qwen3-30b-a3b", "h200-sxm", infercast.EngineSettings(max_model_len=4096))
cost = estimate_step(deployment, decode_shape(batch=32, context=1400))
for kernel in sorted(cost.kernels, key=lambda kernel: -kernel.seconds)[:3]:
    print(f"{kernel.name:10} {1e3 * kernel.seconds:5.2f} ms  bound by {kernel.estimate.bound}")
