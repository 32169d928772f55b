"""How often the results of another seed lie in the part of an interval that is luck, and in the whole interval.

    python benchmarks/accuracy/luck.py [SEEDS]

Models and GPUs at light load, at a typical one and near what they can serve, with 300 and with 1,000 requests. Each run
is held against all others that differ in nothing but the seed; minutes for 20 seeds.
"""

import sys

import numpy as np

from infercast.engines.vllm.settings import EngineSettings
from infercast.engines.vllm.versions import MEASURED
from infercast.forecast.deploy import deploy
from infercast.forecast.intervals import system_half_widths
from infercast.forecast.slo import NAMES
from infercast.forecast.system import system_of
from infercast.forecast.uncertainty import luck_of, results_of, uncertainty_of
from infercast.serve import Replica, simulate
from infercast.serve.workload.synthetic import synthetic_workload

CASES = {
    ("llama-3.1-8b", "h200-sxm"): (1, 12, 30, 38),
    ("qwen3-32b", "h100-sxm"): (0.5, 3, 4.3),
    ("qwen3-30b-a3b", "h200-sxm"): (2, 15, 40),
}
LENGTHS = {"input_lengths": "lognormal:700:0.9:16:8000", "output_lengths": "lognormal:180:0.8:4:1000"}
COUNTS = 300, 1000
LATENCIES = "TTFT", "TPOT", "inter-token", "end to end"
ROWS = [f"{latency} {name}" for latency in LATENCIES for name in NAMES] + ["tokens/s"]


def inside(results: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """The share of other runs whose results lie within the widths around a run's own."""
    apart = np.abs(results[:, None] - results[None])
    return np.mean((apart <= widths[:, None])[~np.eye(len(results), dtype=bool)], axis=0)


def coverage(replica: Replica, model: np.ndarray, rate: float, count: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Shares of luck alone and of whole intervals, for every result."""
    loads = [synthetic_workload(rate=rate, count=count, seed=100 + seed, **LENGTHS) for seed in range(seeds)]
    records = [simulate(replica, load) for load in loads]
    results = np.log([results_of(record) for record in records])
    pairs = zip(loads, records, strict=True)
    luck = np.array([luck_of(load, record, replica, lambda other: simulate(replica, other)) for load, record in pairs])
    return inside(results, luck), inside(results, np.hypot(luck, model))


def main(seeds: int) -> None:
    luck, whole = [], []
    for (model, gpu), rates in CASES.items():
        deployment = deploy(model, gpu, EngineSettings(max_model_len=16_384, engine=MEASURED), api_server=False)
        replica = deployment.replica()
        for rate in rates:
            load = synthetic_workload(rate=rate, count=300, **LENGTHS)
            about = uncertainty_of(deployment, simulate(replica, load))
            widths = system_half_widths(system_of(deployment), load, [about], results_of, np.zeros(len(ROWS)))
            for count in COUNTS:
                shares = coverage(replica, widths, rate, count, seeds)
                luck.append(shares[0])
                whole.append(shares[1])
                print(
                    f"{model} on {gpu}, {rate}/s, {count}:", *(f"{100 * share:.0f}" for share in shares[0]), flush=True
                )
    print(f"{'':18}  luck: mean  least   most  whole: mean")
    for number, row in enumerate(ROWS):
        of_luck, of_whole = (np.array(shares)[:, number] for shares in (luck, whole))
        numbers = (100 * share for share in (of_luck.mean(), of_luck.min(), of_luck.max(), of_whole.mean()))
        print(f"{row:18}", *(f"{number:10.0f}" for number in numbers))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
