import pytest

from infercast.engine.graphs import Launch
from infercast.engine.host import default_host


def test_the_bundled_host_is_complete_and_in_seconds():
    host = default_host()
    assert host.title
    assert host.source
    for part in ("request_path", "token_path", "full_graph_step", "other_step", "other_layer"):
        assert 0 < getattr(host, part) < 0.1


def test_only_full_graphs_hide_the_layers():
    host = default_host()
    assert host.step_seconds(Launch.FULL_GRAPH, 80) == host.full_graph_step
    for launch in (Launch.PIECEWISE_GRAPHS, Launch.EAGER):
        assert host.step_seconds(launch, 80) == pytest.approx(host.other_step + 80 * host.other_layer)
