"""``infercast speculate``: at which load speculative decoding stops paying."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from infercast import __version__
from infercast.cli.options import plots
from infercast.cli.options import shared as options
from infercast.cli.options import workload as served
from infercast.cli.options.groups import Deployed, Served, asked_deployment, takes
from infercast.cli.options.printed import Form, print_result
from infercast.cli.progress import runs_bar
from infercast.forecast.break_even import USUAL_CLIENTS, break_even
from infercast.forecast.sweep.axis import parse_numbers
from infercast.report.speculation import break_even_dict, render_break_even
from infercast.serve.workload.request import Workload

OF_CLIENTS = (
    "num_requests", "input_len", "output_len", "declared_output_len", "prefix_len", "prefix_groups", "too_long", "seed",
)  # fmt: skip
"""What can be said of requests that clients send one after the other."""


@takes(Deployed, Served, only=OF_CLIENTS)
def command(
    context: typer.Context,
    model: options.Model,
    gpu: options.GpuName,
    concurrencies: Annotated[
        str | None,
        plots.of_axis(
            "--concurrencies", metavar="A:B:N", help="Numbers of clients: 1:256:9, or 1,8,64; default: 1, 2, 4 to 512."
        ),
    ] = None,
    tensor_parallel_size: options.TensorParallel = 1,
    data_parallel_size: options.DataParallel = 1,
    plot: plots.Plot = None,
    form: Form = Form.TABLE,
    **given: Any,
) -> None:
    """Find the load at which speculative decoding stops paying: tokens/s and TPOT with and without it, by clients.

    For example:

      infercast speculate llama-3.1-8b --gpu h200-sxm --acceptance 0.7 --speculative-config
      '{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}'

      infercast speculate deepseek-r1 --gpu h200-sxm -tp 8 --plot pays.html --speculative-config
      '{"method": "mtp", "num_speculative_tokens": 1}'
    """
    plots.check_files(plot)
    numbers = None
    if concurrencies is not None:
        numbers = [int(each) for each in parse_numbers(concurrencies, "--concurrencies", whole=True)]
    asked = asked_deployment(
        context, gpu, tensor_parallel_size=tensor_parallel_size, data_parallel_size=data_parallel_size
    )
    with runs_bar("loads", len(numbers or USUAL_CLIENTS)) as tell:
        found = break_even(asked, _clients(context), numbers, tell)
    if plot is not None:
        from infercast.report.page.speculation_page import break_even_plot  # noqa: PLC0415 - only those who ask

        plots.write_plot(Path(plot), break_even_plot(found, __version__))
    print_result(form, break_even_dict, render_break_even, found, rows="points")


def _clients(context: typer.Context) -> Callable[[int], Workload]:
    """What so many clients send."""
    fixed = {"rate": None, "arrival": "poisson", "burstiness": 1.0, "trace": None, "rate_scale": 1.0}

    def workload(clients: int) -> Workload:
        context.params |= {**fixed, "concurrency": clients}
        return served.workload_of(context)

    return workload
