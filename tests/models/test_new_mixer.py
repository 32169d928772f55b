"""A kind of layer that the package does not know, added from outside: docs/extending.md, "Adding a layer kind".

The toy keeps a matrix of fixed size for each head and sequence, as linear attention does. Nothing but this file says
what it is; weights, memory, kernels, steps and a served workload follow.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from infercast import deploy, simulate
from infercast.engines.vllm.kv_cache import kv_layout
from infercast.forecast.memory import fit_memory
from infercast.models.families import FAMILIES, Family, Layer
from infercast.models.families.fields import dense_feed_forward, grouped_attention
from infercast.models.layout import ParallelLayout
from infercast.models.lower import attention_calls, token_calls
from infercast.models.mixers.mixer import Cache, Mixer
from infercast.models.mixers.recurrent import RecurrentMixer, State
from infercast.models.read import read_model
from infercast.models.spec import parameter_count, rank_weight_bytes
from infercast.ops import Call
from infercast.ops.op import Elementwise
from infercast.predict.families.recurrent import LIBRARIES, UPDATE_KERNELS
from infercast.report.deployment import render_model
from infercast.report.terminal import show
from infercast.serve.step import StepShape
from infercast.serve.workload.synthetic import synthetic_workload

CHUNK = 64
CONFIG = {
    "architectures": ["ToyForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "recurrent_heads": 64,
    "max_position_embeddings": 131072,
    "vocab_size": 150000,
}


@dataclass(frozen=True, slots=True)
class Recurrence(Mixer):
    """A state of ``dim`` x ``dim`` a head, read and written once a token or chunk of a prompt."""

    heads: int
    dim: int

    modules = ("linear_attn.in_proj", "linear_attn.out_proj")
    is_composed = True

    @property
    def label(self):
        return f"recurrent {self.heads} x {self.dim}"

    @property
    def description(self):
        return f"recurrence, {self.heads} heads of {self.dim}"

    @property
    def split_widths(self):
        return {"recurrence output": self.heads * self.dim}

    def matrices(self, hidden):
        return 4 * hidden * self.heads * self.dim

    def vectors(self, hidden):
        return self.heads

    def held_bytes(self, shard):
        return self.matrices(shard.hidden) / shard.layout.tensor * shard.weights.stored_bytes(shard.weights.attention)

    def divides(self, tensor):
        return self.heads % tensor == 0

    def state_bytes(self, shard):
        return 4.0 * shard.layout.share(self.heads) * self.dim**2

    def token_calls(self, shard, tokens):
        width = shard.layout.share(self.heads) * self.dim
        return [
            *shard.linear("in_proj", tokens, 3 * width, shard.hidden, "attention"),
            *shard.linear("out_proj", tokens, shard.hidden, width, "attention"),
        ]

    def sequence_calls(self, shard, batch):
        size = self.state_bytes(shard)
        chunks = (-(-batch.queries // CHUNK) * batch.sequences).sum(axis=-1)
        return [Call("recurrence", Elementwise("activation", chunks, size, size))]

    def caches(self, shard):
        return (Cache(bytes_per_sequence=self.state_bytes(shard)),)


def read_toy(fields):
    """Three recurrent layers, then one of attention."""
    recurrence = Recurrence(fields.positive("recurrent_heads"), fields.positive("head_dim"))
    attention, feed_forward = grouped_attention(fields), dense_feed_forward(fields)
    return [Layer(recurrence if index % 4 < 3 else attention, feed_forward) for index in range(fields.layers)]


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(FAMILIES, "ToyForCausalLM", Family(read_toy))
    return read_model(CONFIG)


STATE = 4 * 64 * 128 * 128
A_TOKEN = 2 * 2 * 8 * 128


def test_its_weights_are_counted(toy):
    plain = read_model({**CONFIG, "architectures": ["LlamaForCausalLM"]})
    more = 24 * (4 * 4096 * 64 * 128 + 64 - 4096 * (2 * 32 + 2 * 8) * 128)
    assert parameter_count(toy) - parameter_count(plain) == more
    whole, half = (rank_weight_bytes(toy, ParallelLayout(tensor)) for tensor in (1, 2))
    assert half == pytest.approx(whole / 2, rel=1e-3)


def test_its_modules_are_found_in_a_checkpoint_that_leaves_them_unquantised(monkeypatch):
    monkeypatch.setitem(FAMILIES, "ToyForCausalLM", Family(read_toy))
    leaving_out = {"quant_method": "fp8", "modules_to_not_convert": ["linear_attn"]}
    assert read_model({**CONFIG, "quantization_config": leaving_out}).weights.attention == "bf16"
    assert read_model({**CONFIG, "quantization_config": {"quant_method": "fp8"}}).weights.attention == "fp8"


def test_blocks_are_as_large_as_its_state_and_a_sequence_holds_one_for_each_group(toy):
    kv = kv_layout(toy, ParallelLayout(), 16)
    assert kv.shape.block_size == STATE // A_TOKEN  # 4 MiB, and 4 KiB a token
    assert (kv.shape.windows, kv.shape.state_blocks) == ((0,), 3)
    assert kv.block_bytes == 8 * STATE  # eight layers a group
    assert kv.shape.most_blocks(5000, 5000) == 3 + 5
    assert toy.sequence_bytes(5000) == 24 * STATE + 8 * 5000 * A_TOKEN


def test_states_limit_how_many_short_sequences_fit(toy):
    fit = fit_memory(toy, "h200-sxm", context=100)
    assert not fit.problem
    assert fit.most_sequences == (fit.memory.num_blocks - 1) // 4
    assert fit.longest_sequence == toy.max_positions


def test_its_kernels_are_in_a_step(toy):
    names = {call.name: call.count for call in token_calls(toy, ParallelLayout(), 100)}
    assert (names["in_proj"], names["qkv_proj"]) == (24, 8)
    calls = attention_calls(toy, ParallelLayout(), np.array([1, 200]), np.array([5000, 200]))
    assert {call.name: call.count for call in calls} == {"recurrence": 24, "attention": 8}
    assert calls[0].op.bytes_read == 5 * STATE  # one token, and four chunks of a prompt


@pytest.mark.parametrize("predictor", ["roofline", "learned"])
def test_steps_and_a_workload_come_out(toy, predictor):
    deployment = deploy(toy, "h200-sxm", predictor=predictor)
    timer = deployment.timer()
    names = [name for name, _ in timer.kernels]
    short, long = (timer(StepShape((1,) * 8, (computed,) * 8, 8)) for computed in (100, 10_000))
    column = names.index("recurrence") - len(names)
    assert short.varying[column][0] == pytest.approx(long.varying[column][0])
    assert long.gpu_seconds[0] > short.gpu_seconds[0]
    forecast = simulate(deployment, synthetic_workload(count=8, rate=4.0, input_lengths=500, output_lengths=20))
    assert 0 < forecast.ttft.p50 < 1


def test_it_is_described(toy, capsys):
    show(*render_model(toy))
    assert "recurrence, 64 heads of 128; feed-forward of 12,288" in capsys.readouterr().out


@dataclass(frozen=True, slots=True)
class Lightning(RecurrentMixer):
    """Linear attention whose scan is of a kind that nobody measured."""

    heads: int
    dim: int

    modules = ("self_attn.out_proj",)
    label = "lightning"
    description = "lightning attention"

    def state(self, shard):
        heads = shard.layout.share(self.heads)
        return State("lightning", heads, heads, self.dim, self.dim, 3 * heads * self.dim, 4, "fp32")

    def matrices(self, hidden):
        return 4 * hidden * self.heads * self.dim


def test_a_scan_of_a_new_kind_needs_its_constants_alone(monkeypatch):
    monkeypatch.setitem(LIBRARIES, ("lightning", "triton"), LIBRARIES["kda", "triton"])
    monkeypatch.setitem(UPDATE_KERNELS, "lightning", UPDATE_KERNELS["kda"])

    def read(fields):
        halves = zip(read_toy(fields), range(fields.layers), strict=True)
        return [each if index % 4 == 3 else each._replace(mixer=Lightning(32, 128)) for each, index in halves]

    monkeypatch.setitem(FAMILIES, "ToyForCausalLM", Family(read))
    model = read_model(CONFIG)
    for engine in ("vllm@0.25", "sglang"):
        run = simulate(deploy(model, "h200-sxm", engine=engine), synthetic_workload(rate=5.0, count=8))
        assert run.tpot.p50 > 0
