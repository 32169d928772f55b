"""What holds for all tests."""

import gc
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Workers of pytest-xdist share the processors: a second thread of a library's would only spin beside them.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# Collected tests stay, and looking for cycles among thousands of them takes as long as importing them.
gc.disable()

# A busy machine is no error, and the same tests run with the same examples everywhere.
settings.register_profile("infercast", deadline=None, derandomize=True)
settings.load_profile("infercast")

# Nor does it shorten a run, and no test sees an answer of an earlier one.
os.environ |= {"INFERCAST_TIME_LIMIT": "100000", "INFERCAST_CACHE": "off"}

TESTS = Path(__file__).parent
QUICK = (
    "hardware", "models", "ops", "test_document_commands.py", "test_documents.py", "test_errors.py", "test_glossary.py",
    "test_maintainers.py", "test_public_api.py", "test_release.py", "test_units.py",
    *(f"serve/test_{name}.py" for name in (
        "adapters", "arrivals", "cache", "clients", "lengths", "prefill_first", "radix", "record", "router",
        "scheduler", "simulation", "timeline", "traces", "workload",
    )),
)  # fmt: skip
"""Folders and files of `pytest -m quick`, which takes less than a minute on two cores."""
LONG = ("test_any_config_reads_or_is_refused_in_words",)
"""Tests in them that take several seconds."""

SLOW = {
    "forecast/test_day.py": (
        "test_a_day_shows_itself",
        "test_steps_agree_with_a_simulation_of_every_request[2]",
        "test_the_check_simulates_the_busiest_minutes",
    ),
    "web/test_one_path.py": (
        "test_page_command_and_python_agree[a run that goes on for its SLO]",
        "test_page_command_and_python_agree[overloaded]",
    ),
    "calibrate/test_watch.py": ("test_a_slow_host_is_found[sglang]",),
    "cli/test_outputs.py": ("test_the_same_bytes_every_time",),
    "cli/test_parallel.py": ("test_layouts_fit_a_narrow_terminal",),
    "cli/test_plan.py": (
        "test_every_row_is_what_simulate_says[pools]",
        "test_every_row_is_what_simulate_says[replicas]",
    ),
    "cli/test_plan_out.py": ("test_a_folder_with_what_to_run_next",),
    "cli/test_printed.py": (
        "test_printed_numbers_are_those_of_their_command[layouts]",
        "test_printed_numbers_are_those_of_their_command[plans]",
    ),
    "cli/test_screen.py": ("test_ten_questions_are_answered[overloaded]",),
    "cli/test_speculate.py": ("test_a_plan_keeps_a_promise_by_drafts_that_takes_more_gpus_without",),
    "cli/test_sweep.py": (
        "test_elasticities_are_one_table",
        "test_two_settings_give_every_pair",
    ),
    "cli/test_terminal.py": (
        "test_no_number_is_cut_at_80_or_60_columns[capacity qwen3-0.6b --gpu l4]",
        "test_no_number_is_cut_at_80_or_60_columns[layouts qwen3-0.6b --gpu l4]",
    ),
    "fit/test_ceilings.py": ("test_our_own_sweep_can_teach",),
    "fit/test_pooling.py": (
        "test_a_new_kernel_is_half_believed_faster_and_less_certain",
        "test_siblings_are_left_out_together_and_near_their_own",
    ),
    "forecast/command/test_commands.py": ("test_without_a_release_it_is_the_newest_with_all_flags",),
    "forecast/command/test_explain.py": ("test_the_cut_of_a_pipeline_is_read_from_the_environment[VLLM-vllm serve]",),
    "forecast/plan/test_power.py": (
        "test_a_power_budget_holds_for_servers_at_their_peak",
        "test_the_winner_takes_no_more_energy_than_any_other",
    ),
    "forecast/plan/test_search.py": (
        "test_least_latency_takes_more_than_least_cost",
        "test_the_winner_costs_no_more_than_the_cheapest_of_all",
    ),
    "forecast/test_best.py": ("test_what_limits_follows_the_work",),
    "forecast/test_elasticities.py": ("test_they_are_central_differences_of_simulate",),
    "forecast/test_parallel.py": ("test_every_row_is_what_simulate_says_of_it[qwen2.5-7b-l40s-load2]",),
    "models/test_checkpoints.py": ("test_another_size_is_never_taken_for_one_that_is_bundled",),
    "report/plan_files/test_plan_files.py": ("test_scripts_are_scripts",),
    "report/test_pages.py": (
        "test_nothing_is_cut_or_on_top_of_another[day]",
        "test_nothing_is_cut_or_on_top_of_another[drafts]",
        "test_nothing_is_cut_or_on_top_of_another[run]",
        "test_nothing_is_cut_or_on_top_of_another[several]",
    ),
    "serve/test_sessions.py": ("test_every_step_of_random_conversations",),
    "test_examples.py": ("test_example_prints_its_committed_output[does_an_autoscaler_keep_up]",),
    "test_notebooks.py": ("test_a_notebook_shows_what_is_committed[size_a_deployment]",),
    "web/test_answers.py": ("test_a_plan_and_a_day",),
    "web/test_page.py": (
        "test_axe_finds_nothing_serious[laptop-light]",
        "test_files_to_keep",
        "test_four_runs_side_by_side",
        "test_the_load_curve_has_a_knee_and_sets_the_rate",
        "test_what_does_not_fit_says_what_does",
    ),
    "web/test_server.py": ("test_a_job_runs_tells_and_is_cancelled",),
}
"""Tests that take several seconds each and are left out by default; `pytest -m ""` runs them, too."""


def is_quick(path: Path) -> bool:
    name = path.relative_to(TESTS).as_posix()
    return name.startswith(tuple(f"{each}/" for each in QUICK)) or name in QUICK


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: tests to run while working, in less than a minute")
    config.addinivalue_line("markers", "slow: left out unless asked for, by -m slow or all of them by -m ''")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m quick` other files are not even imported."""
    if config.option.markexpr != "quick" or collection_path.is_dir() or not collection_path.is_relative_to(TESTS):
        return None
    return True if collection_path.name.startswith("test_") and not is_quick(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of this folder hold the longest tests and come first: no processor waits for one of them at the end."""
    items.sort(key=lambda item: item.path.parent != TESTS)
    for item in items:
        if is_quick(item.path) and getattr(item, "originalname", item.name) not in LONG:
            item.add_marker("quick")
        if item.name in SLOW.get(item.path.relative_to(TESTS).as_posix(), ()):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """What is loaded by now stays, and simulations make hardly any cycles: see `infercast.cli.main`."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.fixture(scope="session")
def every() -> Callable[[Iterable[Any], Callable[[Any], None]], None]:
    """``every(rows, check)`` is one test of a long list, which tells all rows that fail and not the first alone."""

    def run(rows: Iterable[Any], check: Callable[[Any], None]) -> None:
        wrong = []
        for row in rows:
            try:
                check(row)
            except (Exception, pytest.fail.Exception) as problem:
                wrong.append(f"{row}: {type(problem).__name__} {problem}")
        assert not wrong, "\n".join(wrong)

    return run


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts of pages are painted and not written as SVG, which takes matplotlib a second for every page."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure  # noqa: PLC0415 - half a second that other tests need not wait for

    def write(_: Figure, to: TextIO, **__: object) -> None:
        to.write('<svg width="1" height="1"></svg>')

    monkeypatch.setattr(Figure, "savefig", write)


CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A headless Chromium of this machine, for pages that are looked at as people do.

    One per file: while it is open, an event loop runs in this thread, and other tests could not start one.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright of infercast[test]")
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("needs a Chromium on the path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", "--disable-software-rasterizer", "--disable-gpu-compositing"],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def serious_findings() -> Callable[["Page"], list[str]]:
    """What axe finds on a page that keeps people from using it, as lines to read."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe of infercast[test]").Axe()

    def run(page: "Page") -> list[str]:
        found = axe.run(page).response["violations"]
        return [
            f"{each['id']} ({each['impact']}): {node['html'][:160]}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    return run
