"""What limits a run and what would change it: causes by what goes without them, changes by trials, limits by growth."""

import pytest

from infercast import deploy
from infercast.engines.base import engine_named
from infercast.errors import InputError
from infercast.forecast.deploy import redeploy
from infercast.forecast.diagnosis.changes import FREE, GPUS, HOST, ROUTER, SEATS, SERVERS, SLOTS, STAGES, changes_of
from infercast.forecast.diagnosis.diagnose import Cause, RunDiagnosis, adding_up, bottleneck, diagnose_run, without
from infercast.forecast.diagnosis.trials import CAPACITY, Trials, aim_of
from infercast.forecast.intervals import forecast_intervals
from infercast.forecast.result import Forecast
from infercast.forecast.simulate import most_requests_per_second, simulate_system
from infercast.forecast.system import System, system_of, two_pools
from infercast.lazy_classes import replace
from infercast.report.diagnosis import bottleneck_words, breaks_words, change_words, diagnosis_dict, next_words
from infercast.serve import Workload
from infercast.serve.workload.classes import with_adapters
from infercast.serve.workload.request import Adapters
from infercast.serve.workload.synthetic import synthetic_workload

SHORT = {"input_lengths": "uniform:50:400", "output_lengths": "uniform:20:60"}


def system(settings: dict[str, object] | None = None, model: str = "qwen3-0.6b", **options: object) -> System:
    return system_of(deploy(model, "l4", engine_named().settings(settings or {}), **options))  # type: ignore[arg-type]


def diagnosed(of: System, workload: Workload, slo: str | None = None) -> RunDiagnosis:
    forecast = simulate_system(of, workload)
    intervals = forecast_intervals(forecast)
    return diagnose_run(forecast if slo is None else forecast.promised(slo, intervals), intervals)


@pytest.fixture(scope="module")
def few_seats() -> RunDiagnosis:
    return diagnosed(system({"max_num_seqs": 4}), synthetic_workload(rate=12, count=200, **SHORT))


def test_seats_that_requests_wait_for(few_seats: RunDiagnosis) -> None:
    found = few_seats
    assert found.causes[0].kind == SEATS
    assert found.remedy is not None
    assert found.remedy.words.startswith("--max-num-seqs ")
    after = simulate_system(found.remedy.system, found.forecast.workload)
    gain = found.remedy.gains[0]
    ratio = Trials(after, found.aim).value(found.aim) / Trials(found.forecast, found.aim).value(found.aim)
    assert abs(ratio - gain.ratio) < 0.03 or gain.ends[0] <= ratio <= gain.ends[1]


def test_a_pipeline_waits_for_its_stages_and_not_for_the_host() -> None:
    workload = synthetic_workload(concurrency=16, count=150, **SHORT)
    found = diagnosed(system({"max_model_len": 2048}, model="qwen3-8b", pipeline_parallel_size=2), workload)
    assert found.causes[0].kind == STAGES
    assert found.remedy is not None
    assert "pipeline-parallel-size" in found.remedy.words
    assert found.remedy.gpus == 2
    assert "CPU" not in bottleneck(found.forecast)


def test_adapter_slots() -> None:
    drawn = synthetic_workload(rate=10, count=250, **SHORT)
    workload = with_adapters(drawn, Adapters(16, 1.0, 1.0), seed=0)
    found = diagnosed(system({"enable_lora": True, "max_loras": 1}), workload)
    assert found.causes[0].kind == SLOTS
    assert found.remedy is not None
    assert found.remedy.words.startswith("--max-loras ")
    assert found.remedy.change.cost == FREE


def test_a_load_balancer_that_keeps_requests_waiting() -> None:
    workload = synthetic_workload(rate=90, count=900, **SHORT)
    deployment = deploy("qwen3-0.6b", "l4", engine_named().settings({"max_num_seqs": 16}), data_parallel_size=8)
    found = diagnosed(system_of(deployment, "random"), workload)
    kinds = {cause.kind for cause in found.causes}
    assert ROUTER in kinds
    assert any(remedy.words.startswith("--router ") for remedy in found.tried)


def test_the_limit_that_fails_is_the_one_that_is_advised_on() -> None:
    workload = synthetic_workload(rate=0.6, count=200, input_lengths="uniform:500:3000", output_lengths="uniform:20:60")
    found = diagnosed(system({"max_model_len": 4096}, model="qwen3-8b"), workload, "ttft_p99<1s,tpot_p95<200ms")
    assert found.aim.name == "TTFT p99"
    assert "steps with prompts" in found.causes[0].name or found.causes[0].tried
    assert found.remedy is not None
    assert "TTFT p99" in change_words(found)


def test_nothing_has_to_change_where_an_slo_holds() -> None:
    found = diagnosed(system(), synthetic_workload(rate=2, count=120, **SHORT), "e2e_p99<60s")
    assert found.is_kept
    assert found.remedy is None
    assert not found.tried
    assert change_words(found) == "none needed: the SLO holds"


def test_pools_are_advised_by_options_of_their_own_command() -> None:
    deployment = deploy("qwen3-0.6b", "l4")
    workload = synthetic_workload(rate=4, count=120, **SHORT)
    forecast = simulate_system(two_pools(deployment, deployment), workload)
    words = {change.words(forecast.system) for change in changes_of(forecast)}
    assert {"--prefill-engines 2", "--decode-engines 2", "--prefill-tp 2", "--decode-tp 2"} <= words
    assert not any("parallel-size" in each for each in words)
    names = [each.name for each in diagnose_run(forecast).breaks]
    assert "prefill pool's prompts" in names
    assert "decode pool's KV cache" in names or "decode pool's GPU time" in names


def test_more_than_can_be_served_asks_for_the_rate_at_most() -> None:
    found = diagnosed(system(), synthetic_workload(rate=400, count=700, **SHORT))
    assert found.aim.quantity == CAPACITY
    assert found.remedy is not None
    most = most_requests_per_second(found.remedy.system, found.forecast.workload)
    before = Trials(found.forecast, found.aim).value(found.aim)
    assert most / before == pytest.approx(found.remedy.gains[0].ratio)
    assert found.remedy.change.cost == GPUS or most > 400


def test_few_seats_may_become_as_many_as_an_engine_has_by_default() -> None:
    forecast = simulate_system(system({"max_num_seqs": 4}), synthetic_workload(rate=50, count=300, **SHORT))
    found = diagnose_run(forecast)
    assert found.remedy is not None
    assert (found.remedy.words, found.remedy.change.cost) == ("--max-num-seqs 256", FREE)


def test_limits_bind_in_order_and_near_what_can_be_served() -> None:
    of = system({"max_num_seqs": 8})
    forecast = simulate_system(of, synthetic_workload(rate=6, count=200, **SHORT))
    found = diagnose_run(forecast, trials=False)
    loads = [each.load for each in found.breaks]
    assert loads == sorted(loads)
    assert found.breaks[0].name == "max_num_seqs"
    assert loads[0] == pytest.approx(most_requests_per_second(of, forecast.workload), rel=0.2)
    clients = diagnose_run(simulate_system(of, synthetic_workload(concurrency=4, count=100, **SHORT)), trials=False)
    assert clients.breaks[0].load == 8
    assert clients.breaks[0].unit == "clients"
    assert "8 clients" in breaks_words(clients)


def test_what_is_said_without_trials_costs_no_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    forecast = simulate_system(system(), synthetic_workload(rate=4, count=100, **SHORT))
    monkeypatch.setattr(System, "serve", None)
    assert "TPOT p50" in bottleneck(forecast)


def test_shares_of_what_goes_without() -> None:
    assert without(0.5, 1.0) == 0.5
    assert without(0.5, 0.4) == pytest.approx(0.2)  # the rest is not the kernels'
    assert without(0.5, 2.0) == pytest.approx(0.75)  # a queue goes with them


def test_the_document_says_what_the_rows_say(few_seats: RunDiagnosis) -> None:
    document = diagnosis_dict(few_seats)
    assert document["bottleneck"] == bottleneck_words(few_seats)
    assert document["options"] in document["change"]
    assert document["next"] == next_words(few_seats)
    assert document["ratio_interval"][0] < document["ratio"] < document["ratio_interval"][1]


def test_a_deployment_is_deployed_again_with_one_option_changed() -> None:
    first = deploy("qwen3-0.6b", "l4", engine_named().settings({"max_num_seqs": 8}), tensor_parallel_size=2)
    other = redeploy(first, {"max_num_seqs": 16, "tensor_parallel_size": None})
    assert (other.settings.max_num_seqs, other.layout.tensor) == (16, 1)
    again = redeploy(other, {"max_num_seqs": 8, "tensor_parallel_size": 2})
    assert (again.settings, again.layout, again.memory) == (first.settings, first.layout, first.memory)
    with pytest.raises(InputError, match="was not deployed by names"):
        redeploy(replace(first, asked=None), {"max_num_seqs": 4})


def test_what_matters_follows_from_the_load() -> None:
    def forecast(workload: Workload) -> Forecast:
        return simulate_system(system(), workload)

    assert aim_of(forecast(synthetic_workload(rate=2, count=100, **SHORT))).name == "TPOT p50"
    assert aim_of(forecast(synthetic_workload(concurrency=4, count=100, **SHORT))).name == "output tokens/s"
    one = synthetic_workload(rate=2, count=100, input_lengths=200, output_lengths=1)
    assert aim_of(forecast(one)).name == "TTFT p50"


def test_shares_of_causes_add_up_to_no_more_than_the_whole(few_seats: RunDiagnosis) -> None:
    workload = synthetic_workload(rate=2.2, count=200, input_lengths="uniform:500:3000", output_lengths="uniform:20:60")
    queued = diagnosed(system({"max_model_len": 4096}, model="qwen3-4b"), workload, "ttft_p99<300ms")
    for found in (queued, few_seats):
        assert sum(each.share for each in found.causes) <= 1.0 + 1e-9
        assert all(0.0 <= each.share <= 1.0 for each in found.causes)


def test_what_an_answer_advises_by_itself_is_what_it_says_to_do_next(few_seats: RunDiagnosis) -> None:
    assert few_seats.remedy is not None
    assert next_words(few_seats).startswith(few_seats.remedy.words)
    assert next_words(few_seats, "--tensor-parallel-size 2").startswith("--tensor-parallel-size 2 ")
    assert "--slo" in next_words(few_seats, "")


def test_a_pooling_model_has_one_latency() -> None:
    forecast = simulate_system(system_of(deploy("bge-m3", "l4")), synthetic_workload(rate=5, count=60, **SHORT))
    assert [each.name for each in Trials(forecast).numbers()] == ["end-to-end time p50", "end-to-end time p99"]
    assert forecast.deployment.settings.max_model_len == 8192


def test_what_trials_leave_is_divided_among_the_parts() -> None:
    causes = [Cause("seats", "seats", 0.6, tried=True), Cause("kv", "blocks", 0.5, tried=True)]
    parts = [Cause("gpu", "gemm", 1.2, family="gemm"), Cause("host", "host", 0.4)]
    assert [each.share for each in adding_up([*causes, *parts])] == pytest.approx([0.6, 0.2, 0.15, 0.05])
    assert [each.share for each in adding_up(parts[1:])] == [0.4]


def test_a_light_load_tells_what_a_pipeline_can_serve() -> None:
    of = system({"max_model_len": 2048}, model="qwen3-8b", pipeline_parallel_size=4)
    forecast = simulate_system(of, synthetic_workload(rate=1, count=120, **SHORT))
    first = diagnose_run(forecast, trials=False).breaks[0]
    assert forecast.state.capacity is None
    assert first.load == pytest.approx(most_requests_per_second(of, forecast.workload), rel=0.3)


def test_nothing_breaks_first_beyond_the_rate_that_the_headline_names() -> None:
    drawn = synthetic_workload(rate=10, count=250, **SHORT)
    slots = system({"enable_lora": True, "max_loras": 1})
    full = simulate_system(slots, with_adapters(drawn, Adapters(16, 1.0, 1.0), seed=0))
    plain = simulate_system(system({"max_num_seqs": 8}), synthetic_workload(rate=6, count=200, **SHORT))
    for forecast, name in ((full, "adapter slots"), (plain, "max_num_seqs")):
        first = diagnose_run(forecast, trials=False).breaks[0]
        assert (first.name, first.load) == (name, pytest.approx(forecast.state.capacity))


def test_what_a_host_bound_model_can_serve_does_not_depend_on_its_load() -> None:
    of = system({}, model="qwen3-0.6b")
    light, busy = (simulate_system(of, synthetic_workload(rate=rate, count=300, seed=1)) for rate in (5, 40))
    first, then = ({each.name: each.load for each in diagnose_run(run).breaks} for run in (light, busy))
    assert then == pytest.approx(first, rel=0.05)
    most = most_requests_per_second(of, busy.workload)
    assert min(first["API server"], first["GPU time"]) == pytest.approx(most, rel=0.05)


def test_replicas_in_place_of_stages_have_hosts_and_seats_of_their_own() -> None:
    of = system({"max_model_len": 2048}, model="qwen3-8b", pipeline_parallel_size=2)
    forecast = simulate_system(of, synthetic_workload(rate=1, count=60, **SHORT))
    found = next(each for each in changes_of(forecast) if each.values.get("data_parallel_size") == 2)
    assert {STAGES, HOST, SEATS, SERVERS} <= {*found.eases}
