"""Try a chip that does not exist: an H200 with half as much memory bandwidth again."""

from dataclasses import replace

import infercast
from infercast.hardware import load_gpu
from infercast.serve.workload.synthetic import synthetic_workload

h200 = load_gpu("h200-sxm")
faster = replace(h200, name="h200-plus", dram_bandwidth=1.5 * h200.dram_bandwidth)
workload = synthetic_workload(rate=12, count=200, input_lengths=700, output_lengths=180)
for gpu in (h200, faster):
    forecast = infercast.simulate(infercast.deploy("llama-3.1-8b", gpu), workload)
    print(f"{gpu.name:10} TTFT p50 {1e3 * forecast.ttft.p50:5.1f} ms   TPOT p50 {1e3 * forecast.tpot.p50:5.2f} ms")
