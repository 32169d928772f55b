"""What images cost an engine: their encoder's steps, their way to it, memory while it profiles itself."""

import pytest

from infercast.forecast.deploy import deploy, image_of, load_model
from infercast.forecast.intervals import slowed
from infercast.serve.simulation import clients_of
from infercast.serve.workload.request import Request, Workload


@pytest.fixture(scope="module")
def deployment():
    return deploy("qwen3-vl-8b", "h200-sxm", max_model_len=32768)


def test_few_images_take_as_long_as_their_kernels_are_launched(deployment):
    encoder = deployment.replica().encoder
    small, large = (image_of(deployment.model, side, side) for side in (256, 1024))
    assert encoder.cost([small]) == encoder.cost([small] * 2)
    seconds, launching = encoder.cost([small])
    assert seconds == launching
    seconds, still = encoder.cost([large] * 8)
    assert still == launching
    assert seconds > 3 * launching


def test_a_slower_host_or_gpu_holds_up_what_it_bounds(deployment):
    replica = deployment.replica()
    small, large = (image_of(deployment.model, side, side) for side in (256, 1024))
    usual, by_host, by_gpu = (
        each.encoder.cost for each in (replica, slowed(replica, host=1.5), slowed(replica, prompts=1.5))
    )
    assert by_host([small])[0] == pytest.approx(1.5 * usual([small])[0])
    assert by_host([large] * 8)[0] == usual([large] * 8)[0]
    assert by_gpu([small]) == usual([small])
    assert by_gpu([large] * 8)[0] == pytest.approx(1.5 * usual([large] * 8)[0])


def test_prompts_with_images_are_longer_on_their_way(deployment):
    image = image_of(deployment.model, 1000, 500)
    requests = Request(0.0, 100, 4), Request(1.0, 600, 4, images=(image, image))
    clients = clients_of(deployment.replica(), Workload(requests))
    plain, shown = (clients._path(index) for index in (0, 1))
    token, encoder = deployment.replica().request_token_seconds, deployment.replica().encoder
    assert shown - plain == pytest.approx(500 * token + encoder.request_seconds + 1e6 * encoder.pixel_seconds)


def test_what_an_encoder_computes_is_set_aside():
    kept = [deploy(model, "h200-sxm", max_model_len=32768).memory.activations for model in ("qwen3-8b", "qwen3-vl-8b")]
    merged, inner = 1, 3  # The head of the encoder, and what it feeds to three layers
    values = (merged + inner) * (16_384 + 8192) * load_model("qwen3-vl-8b").hidden
    assert kept[1] - kept[0] == pytest.approx(2 * values, rel=0.01)
