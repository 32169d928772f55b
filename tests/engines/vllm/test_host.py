import re
from dataclasses import fields, replace

import pytest

from infercast.engines.host import Launch, bundled_host, read_host
from infercast.engines.vllm.host import VllmHost, VllmHostModel, VllmLaunchWork, launch_work
from infercast.engines.vllm.kv_cache import ALIGN, ALL, NONE
from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import FileFormatError
from infercast.forecast.deploy import deploy
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.read import read_model

H200 = load_gpu("h200-sxm")
WORDS = ("title", "source", "is_measured", "python_at", "launch_at")
DENSE = VllmLaunchWork(layers=32, kernels=322, latent_layers=0, expert_layers=0, grouped_choice_layers=0)


def test_the_bundled_host_is_complete_and_in_seconds():
    host = bundled_host(VllmHost, "vllm")
    assert host.title
    assert host.source
    for field in fields(host):
        if field.name not in WORDS:
            assert 0 < getattr(host, field.name) < 0.1
    assert 0.5 < host.launch_at < host.python_at < 2


def test_launching_by_hand_takes_longer_than_graphs():
    host = bundled_host(VllmHost, "vllm")
    graph, pieces, eager = (
        host.launching(launch, DENSE) for launch in (Launch.FULL_GRAPH, Launch.PIECEWISE_GRAPHS, Launch.EAGER)
    )
    assert 10 * graph < pieces < eager


def test_a_full_graph_hides_the_layers():
    host = bundled_host(VllmHost, "vllm")
    more = VllmLaunchWork(layers=80, kernels=900, latent_layers=80, expert_layers=80, grouped_choice_layers=80)
    assert host.launching(Launch.FULL_GRAPH, more) == host.launching(Launch.FULL_GRAPH, DENSE)
    assert host.launching(Launch.PIECEWISE_GRAPHS, more) > 2 * host.launching(Launch.PIECEWISE_GRAPHS, DENSE)


def test_sequences_and_prompt_tokens_cost_planning():
    model = VllmHostModel(bundled_host(VllmHost, "vllm"), DENSE)
    one, many = (model.cost(Launch.FULL_GRAPH, count, count, 0) for count in (1, 200))
    assert many.plan > one.plan
    assert many.process > one.process
    assert many.prepare > one.prepare
    assert (many.launch, many.wake) == (one.launch, one.wake)
    assert model.cost(Launch.EAGER, 1, 8000, 1).plan > model.cost(Launch.EAGER, 1, 600, 1).plan


MACHINE = 2.67 / 1.98
"""How much longer one sequence decodes on the machine of the log below than on the bundled host."""


@pytest.mark.parametrize(
    ("sequences", "plan", "execute_and_sample", "process"),
    [(30.1, 0.456, 2.594, 0.197), (117.1, 1.474, 2.819, 0.686)],
)
def test_what_a_sequence_adds_is_what_an_engine_core_logged(sequences, plan, execute_and_sample, process):
    """Milliseconds of decode steps of qwen3-0.6b (measurements/h200-sxm/serving/load), less those of one sequence."""
    model = VllmHostModel(bundled_host(VllmHost, "vllm", (0, 25)), DENSE)
    one, many = (model.cost(Launch.FULL_GRAPH, count, count, 0) for count in (1, sequences))
    logged = plan + execute_and_sample + process - (0.081 + 2.433 + 0.038)
    added = 1e3 * MACHINE * (many.total - one.total)
    assert added == pytest.approx(logged, rel=0.3)
    assert 1e3 * MACHINE * (many.plan - one.plan) == pytest.approx(plan - 0.081, rel=0.25)
    assert 1e3 * MACHINE * (many.process - one.process) == pytest.approx(process - 0.038, rel=0.5)


def test_first_tokens_take_longer_to_sample():
    """1.16 to 1.50 ms with prompts in the step and 0.97 without, on the same machine."""
    model = VllmHostModel(bundled_host(VllmHost, "vllm"), DENSE)
    host = bundled_host(VllmHost, "vllm")
    with_prompt = model.cost(Launch.PIECEWISE_GRAPHS, 10, 300, 1)
    sampling = with_prompt.launch - host.launching(Launch.PIECEWISE_GRAPHS, DENSE) - host.sample
    assert sampling == pytest.approx(host.sample_prompt)
    assert 0.19e-3 / MACHINE < host.sample_prompt < 0.53e-3 / MACHINE


def test_the_total_is_what_the_thread_is_busy_for():
    cost = VllmHostModel(bundled_host(VllmHost, "vllm"), DENSE).cost(Launch.FULL_GRAPH, 1, 1, 0)
    assert cost.total == pytest.approx(cost.plan + cost.prepare + cost.launch + cost.process)


@pytest.mark.parametrize(
    ("model", "latent", "experts", "shared"),
    [("llama-3.1-8b", 0, 0, 0), ("qwen3-30b-a3b", 0, 48, 0), ("deepseek-v2-lite", 27, 26, 26)],
)
def test_what_a_model_takes_to_launch(model, latent, experts, shared):
    config = read_model(model)
    work = launch_work(config, ParallelLayout(1), H200)
    assert work.layers == config.layers
    assert (work.latent_layers, work.expert_layers, work.grouped_choice_layers) == (latent, experts, shared)
    assert 8 * work.layers < work.kernels < 30 * work.layers


@pytest.mark.parametrize(
    ("model", "latent", "delta", "mamba", "sparse"),
    [
        ("qwen3.5-35b-a3b", 0, 30, 0, 0),
        ("nemotron-3-nano-30b-a3b", 0, 0, 23, 0),
        ("deepseek-v3.2", 0, 0, 0, 61),
        ("deepseek-v4-flash", 2, 0, 0, 41),
    ],
)
def test_layers_that_are_made_of_small_operations(model, latent, delta, mamba, sparse):
    work = launch_work(read_model(model), ParallelLayout(1), H200)
    assert (work.latent_layers, work.recurrent_layers) == (latent, 0)
    assert (work.fused_delta_layers, work.mamba_layers, work.sparse_layers) == (delta, mamba, sparse)
    assert work.delta_layers == 0


def test_quantising_is_fused_and_launched_with_its_neighbour():
    plain, quantised = (read_model("llama-3.1-8b", quantization=name) for name in (None, "fp8"))
    works = [launch_work(config, ParallelLayout(1), H200) for config in (plain, quantised)]
    assert works[1] == works[0]._replace(quantisers=32)  # what attention gave, that no norm or activation quantises


NAMES = [field.name for field in fields(bundled_host(VllmHost, "vllm")) if field.name not in WORDS]
TEXT = "\n".join(['title = "t"', 'source = "s"', *(f"{name}_ms = 1.5" for name in NAMES)])


def test_a_faster_cpu_divides_everything(tmp_path):
    (tmp_path / "plain.toml").write_text(TEXT)
    (tmp_path / "fast.toml").write_text(TEXT + "\nsingle_thread_speed = 1.5")
    plain, fast = (read_host(tmp_path / f"{name}.toml", VllmHost) for name in ("plain", "fast"))
    for name in NAMES:
        assert getattr(plain, name) == pytest.approx(1.5e-3)
        assert getattr(fast, name) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("title =", "not valid TOML"),
        (TEXT.replace("wake_ms = 1.5", "wake_ms = -1"), "wake_ms must be a number from 0 to 1,000,000, not -1"),
        (TEXT.replace("wake_ms = 1.5", "wake_ms = true"), "wake_ms must be a number from 0 to 1,000,000, not True"),
        (TEXT + "\nsingle_thread_speed = 0", "single_thread_speed must lie in 0.001 to 1000, not 0"),
        (TEXT.replace("wake_ms = 1.5", "wake_ms = 1e308"), "wake_ms must be a number from 0 to 1,000,000, not 1e.308"),
        (re.sub("title = .*", "title = 3", TEXT), "title must be text, not 3"),
        (TEXT.replace("wake_ms = 1.5", ""), "must hold exactly these: .*; wake missing"),
        (TEXT + "\nnonsense_ms = 1", "must hold exactly these: .*; nonsense not known"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path, text, expected):
    path = tmp_path / "host.toml"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=expected):
        read_host(path, VllmHost)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileFormatError, match="no such file"):
        read_host(tmp_path / "none.toml", VllmHost)


def test_a_deployment_takes_a_host_of_its_own(tmp_path):
    path = tmp_path / "host.toml"
    path.write_text(TEXT)
    assert deploy("qwen3-0.6b", "h200-sxm", predictor="roofline", host=path).host.title == "t"
    assert deploy("qwen3-0.6b", "h200-sxm", predictor="roofline", api_server=False).host == bundled_host(
        VllmHost, "vllm"
    )


def test_packed_experts_are_set_up_in_python_on_hopper_alone():
    config = read_model("gpt-oss-20b")
    on_hopper, elsewhere = (launch_work(config, ParallelLayout(1), load_gpu(name)) for name in ("h200-sxm", "b200-sxm"))
    assert (on_hopper.packed_expert_layers, elsewhere.packed_expert_layers) == (24, 0)
    host = bundled_host(VllmHost, "vllm")
    times = [host.launching(Launch.EAGER, work) for work in (on_hopper, elsewhere)]
    assert times[0] == pytest.approx(times[1] + 24 * host.packed_expert_layer)
    assert host.packed_expert_layer > 1e-3


def test_every_group_of_layers_has_inputs_of_its_own():
    work = launch_work(read_model("gemma-3-1b"), ParallelLayout(1), H200)
    host = bundled_host(VllmHost, "vllm")
    prepare = VllmHostModel(host, work).cost(Launch.FULL_GRAPH, 1, 1, 0).prepare
    assert work.kv_groups == 7
    assert prepare == pytest.approx(host.prepare + host.prepare_sequence + 6 * host.kv_group)


def hybrid(model, mode, scans="triton"):
    config = read_model(model)
    config = replace(config, weights=replace(config.weights, scans_kernel=scans))
    work = launch_work(config, ParallelLayout(1), H200)
    return VllmHostModel(bundled_host(VllmHost, "vllm"), work, mode)


def test_only_mamba2_that_writes_every_block_asks_the_gpu():
    # The loop over prompts of mamba_mixer2.py is for mode all. A log of Qwen3.5-4B, made while CUDA warned of calls
    # that wait for the GPU, has none with and without prefix caching.
    off, align, every = (hybrid("nemotron-3-nano-30b-a3b", mode) for mode in (NONE, ALIGN, ALL))
    assert off.waited_share == align.waited_share == 0.0 < every.waited_share
    costs = [[each.cost(Launch.EAGER, count, 4000, count).launch for count in (1, 8)] for each in (off, align, every)]
    assert costs[0] == costs[1]
    assert costs[0][0] == costs[0][1]
    assert costs[0][0] < costs[2][0] < costs[2][1]
    assert all(hybrid("qwen3.5-4b", mode).waited_share == 0.0 for mode in (NONE, ALIGN))


def test_a_deployment_without_prefix_caching_launches_mamba2_faster():
    on, off = (
        deploy(
            "nemotron-nano-9b-v2", "h200-sxm", EngineSettings(engine="vllm@0.25", enable_prefix_caching=cached)
        ).host_model
        for cached in (True, False)
    )
    assert on.waited_share > 0.0 == off.waited_share
    assert on.cost(Launch.PIECEWISE_GRAPHS, 1, 128, 1).launch > off.cost(Launch.PIECEWISE_GRAPHS, 1, 128, 1).launch


@pytest.mark.parametrize("launch", [Launch.PIECEWISE_GRAPHS, Launch.EAGER])
def test_decoding_by_hand_launches_no_scans(launch):
    # Beyond the largest graph, 560 sequences of Qwen3.5-4B took 57 ms a step where 480 took 28 in one; scans alone
    # would be 36 more.
    model = hybrid("qwen3.5-4b", NONE)
    decode, prompt = (model.cost(launch, 560, 560, prompts) for prompts in (0, 560))
    assert prompt.launch - decode.launch > 24 * 1e-3
    if launch is Launch.EAGER:
        assert decode.total == pytest.approx(57e-3, rel=0.2)


def test_piecewise_decoding_is_no_slower_than_published_steps():
    # vLLM 0.10.2 has piecewise graphs alone: gpt-oss-120b, 36 layers, decodes in 5.7 ms on two H100s, and Llama 70B,
    # 80 layers, in 11.8 ms on four.
    for model, measured in (("gpt-oss-120b", 5.74e-3), ("llama-3.3-70b", 11.8e-3)):
        work = launch_work(read_model(model), ParallelLayout(4), H200)
        cost = VllmHostModel(bundled_host(VllmHost, "vllm"), work).cost(Launch.PIECEWISE_GRAPHS, 4, 4, 0)
        assert cost.total < 1.03 * measured


def test_what_few_models_told_is_said():
    (said,) = hybrid("qwen3.5-35b-a3b", NONE).rests_on()
    assert "45 ms" in said
    assert "qwen3.5-35b-a3b and qwen3.5-4b only" in said
    (said,) = hybrid("qwen3.5-35b-a3b", NONE, scans="").rests_on()
    assert "published idle prompts" in said
    assert "where FlashInfer is not installed" in said
    assert hybrid("llama-3.1-8b", NONE).rests_on() == []


def test_flashinfer_scans_by_itself_where_vllm_takes_it():
    # qwen_gdn_linear_attn.py: FlashInfer's kernel by default on Hopper and Blackwell; Kimi's delta rule has Triton's.
    config = read_model("qwen3.5-35b-a3b")
    hopper, ampere = (launch_work(config, ParallelLayout(1), load_gpu(name)) for name in ("h200-sxm", "a100-sxm"))
    assert (hopper.delta_layers, hopper.fused_delta_layers) == (0, 30)
    assert (ampere.delta_layers, ampere.fused_delta_layers) == (30, 0)
    kimi = launch_work(read_model("kimi-linear-48b-a3b"), ParallelLayout(1), H200)
    assert kimi.delta_layers > 0 == kimi.fused_delta_layers
