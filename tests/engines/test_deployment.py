import pytest

from infercast.engines.base import build_deployment
from infercast.engines.vllm.settings import EngineSettings
from infercast.errors import DoesNotFitError, InputError
from infercast.hardware import load_gpu
from infercast.models.layout import ParallelLayout
from infercast.models.read import read_model
from infercast.predict.roofline import Roofline


def put(model="llama-3.1-8b", gpu="h200-sxm", tensor=1, **options):
    settings, layout = EngineSettings(**options), ParallelLayout(tensor)
    return build_deployment(read_model(model), load_gpu(gpu), settings, layout, Roofline())


def test_settings_are_resolved_and_memory_planned():
    deployment = put()
    assert deployment.settings.max_num_batched_tokens == 8192
    assert deployment.memory.num_blocks > 50_000
    assert deployment.graphs.sizes[-1] == 512


def test_eager_engines_have_no_graphs():
    assert put(enforce_eager=True).graphs.sizes == ()


def test_a_layout_the_model_does_not_allow_is_refused():
    with pytest.raises(InputError, match="tensor_parallel_size 3"):
        put(tensor=3)


def test_a_model_that_does_not_fit_is_refused():
    with pytest.raises(DoesNotFitError, match="tensor_parallel_size=2 fits"):
        put("llama-3.1-70b")
