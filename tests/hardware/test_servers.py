"""Servers around GPUs: which kind a GPU is in, and what the rest of it draws."""

import pytest

from infercast.errors import UnknownNameError
from infercast.hardware import gpu_names, load_gpu
from infercast.hardware.load import server_of, servers


@pytest.mark.parametrize(
    ("gpu", "kind"),
    [
        ("h200-sxm", "baseboard"),
        ("mi355x", "baseboard"),
        ("h100-pcie", "cards"),
        ("h100-nvl", "cards"),
        ("l40s", "cards"),
        ("rtx-4090", "desktop"),
        ("gh200", "superchip"),
        ("gb200", "rack"),
    ],
)
def test_a_gpu_is_in_its_usual_server(gpu: str, kind: str) -> None:
    assert server_of(load_gpu(gpu)).kind == kind


def test_every_bundled_gpu_is_in_one() -> None:
    assert {server_of(load_gpu(name)).kind for name in gpu_names()} == set(servers())


def test_names_of_gpus_are_known_ones() -> None:
    assert {name for server in servers().values() for name in server.names} <= set(gpu_names())


def test_another_kind_can_be_named() -> None:
    assert server_of(load_gpu("rtx-4090"), "cards").kind == "cards"
    with pytest.raises(UnknownNameError, match="blade"):
        server_of(load_gpu("rtx-4090"), "blade")


def test_gpus_answer_for_their_share_but_a_desktop_is_whole() -> None:
    board, desktop = servers()["baseboard"], servers()["desktop"]
    assert board.base_of(2) == board.base_watts / 4
    assert board.base_of(16) == 2 * board.base_watts
    assert desktop.base_of(1) == desktop.base_of(4) == desktop.base_watts
    assert desktop.base_of(5) == 2 * desktop.base_watts


def test_busy_servers_at_the_wall() -> None:
    """Eight H100 at 450 W each: a DGX H100 drew 5,894 W and a Dell XE9680 5,727 W (MLPerf Inference v4.0)."""
    server = servers()["baseboard"]
    assert server.base_of(8) + server.factor * 8 * 450 == pytest.approx(5810, rel=0.04)
