"""GEMMs whose weights stay in pinned host memory, against the same in GPU memory and a copy of them.

    python benchmarks/measure/host_weights.py     (needs a GPU and PyTorch)

Prints milliseconds and the bytes of the weights over that time; results are in benchmarks/results/features.md.
"""

from collections.abc import Callable

import torch

SHAPES = ((14336, 4096), (4096, 14336), (6144, 4096), (28672, 8192))
ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class OnHost:
    """Pinned host memory as an array that the GPU reads in place (unified addressing)."""

    def __init__(self, tensor: torch.Tensor) -> None:
        place = {"shape": tuple(tensor.shape), "typestr": "<i2", "data": (tensor.data_ptr(), False)}
        self.__cuda_array_interface__ = {**place, "version": 2, "strides": None}


def milliseconds(work: Callable[[], object], times: int) -> float:
    work()
    found = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return sorted(found)[times // 2]


def main() -> None:
    for shape in SHAPES:
        host = torch.randint(-100, 100, shape, dtype=torch.int16).pin_memory()
        on_gpu, megabytes = torch.empty_like(host, device="cuda"), host.nbytes / 1e6
        copied = milliseconds(lambda host=host, on_gpu=on_gpu: on_gpu.copy_(host, non_blocking=True), 5)
        print(f"{shape}: copied in {copied:.2f} ms, {megabytes / copied:.1f} GB/s")
        in_place = torch.as_tensor(OnHost(host), device="cuda").view(torch.bfloat16)
        weights = on_gpu.view(torch.bfloat16)
        for rows in ROWS:
            x = torch.randn(rows, shape[1], device="cuda", dtype=torch.bfloat16)
            own, read = (
                milliseconds(lambda w=w, x=x: torch.nn.functional.linear(x, w), times)
                for w, times in ((weights, 5), (in_place, 3))
            )
            print(f"{rows:>6} rows: {own:.3f} ms, in host memory {read:.2f} ms, {megabytes / read:.1f} GB/s")


if __name__ == "__main__":
    main()
